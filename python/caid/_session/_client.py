# SPDX-License-Identifier: Apache-2.0
"""Client: a connection to the daemon, and all that is done through it. What it makes, names and asks for is in
its bases."""

from __future__ import annotations

import _thread
import os
import sys
import warnings
from typing import Any, Callable, Iterable, List, Literal, Union

from .._base import _strict
from .._base._errors import LostWarning
from .._base._lifetime import Closing, attributes
from .._base._records import ArenaMemory, Change, ChannelEntry, TimelineEntry
from .._handoff import _event, _pending, _stream, _timeline
from .._handoff._event import Event
from .._handoff._stream import Stream
from .._handoff._timeline import Timeline
from .._memory import _arena, _bracket, _cai, _dlpack, _releaser
from .._memory._arena import Arena
from .._memory._array import Array
from .._memory._bracket import Bracket
from .._memory._set import Reservation
from . import _channel, _making, _naming, _watch
from ._channel import Channel
from ._making import _Shape
from ._queries import _Device

_CLIENT_NAME_MAX = 64  # bytes
_Path = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]


def _program_name():
    """What other users see of this process: the script's name."""
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    if not name or name.startswith("-") or not name.isprintable():
        return None
    return name.encode(errors="replace")[:_CLIENT_NAME_MAX].decode(errors="ignore")


def _tell_return(reference, n_lost):
    client = reference()
    if client is None:
        return
    try:
        if n_lost:
            warnings.warn(
                f"{n_lost} of the client's arrays were lost when the daemon was started anew: see Client.lost()",
                LostWarning,
                stacklevel=2,
            )
    finally:
        if client.on_reconnect:
            client.on_reconnect(client)


@attributes
class Client(_naming.Naming, Closing):
    """A connection to the daemon.

    Parameters
    ----------
    address : path, optional
        The daemon's socket. Without it ``$CAID_SOCKET``, then ``$XDG_RUNTIME_DIR/caid.sock`` if
        that is there, then ``/run/caid/caid.sock``.
    name : str, optional
        The client's name in the daemon's lists; the script's name without it.
    driver : str, optional
        "auto", "cuda", "soft" or the path of a CUDA driver; ``$CAID_CUDA_DRIVER`` without it, or
        else what the daemon uses.
    timeout : float, optional
        Seconds that connecting may take, ``float("inf")`` for no limit; without it
        ``$CAID_TIMEOUT``, or 30.
    call_timeout : float, optional
        Seconds that the daemon has to answer each call, and to let a bracket begin that has no
        timeout of its own; without it ``$CAID_TIMEOUT``, or no limit.
    reconnect_timeout : float, optional
        Seconds that calls wait for a daemon that has gone to come back, where it has a keeper;
        10 without it. 0: the client does not come back.

    Raises
    ------
    NoDaemonError
        Nobody listens there; also a ConnectionRefusedError.
    TimeoutError
        ``caid.TimeoutError``, also the built-in one: the daemon does not answer.

    Notes
    -----
    A client and its arrays may be used from any thread. A child made by ``os.fork()`` connects
    anew: in it, all that was inherited raises ForkedError, and so does what needs CUDA where the parent
    has used it (start processes by multiprocessing's "spawn" or "forkserver"). ``close()`` ends the connection and
    closes the client's arrays; leaving a ``with`` block does the same.

    A call that the daemon does not answer in time raises ``caid.TimeoutError``, and the client is as usable
    as before. Where the answer comes later, its result is undone: the array is closed again, and loses the
    name that it was created under. A name that was to be published, renamed or unlinked may have been.

    A daemon that dies or is started anew, and has a keeper (caid(8)), is waited for: arrays, work
    on streams, brackets and watches go on, and calls wait meanwhile and are made once. After
    `reconnect_timeout`, and where nothing was kept, they raise DisconnectedError. A client that waits
    does not start a service that was stopped, as one does that connects to its socket anew.

    Attributes
    ----------
    machine_id, daemon_id : str
        32 hexadecimal digits each: the same for all clients of the daemon, whatever containers they are
        in. Two daemons of a machine have one machine id and an id each, which it keeps when it is started
        anew with what it had. They say what a :class:`caid.Reference` can reach, and permit nothing.
    on_reconnect : callable, optional
        ``on_reconnect(client)`` is called, by a thread of its own, when the client has come back to a
        daemon. Arrays that it has not got back are a LostWarning before that.
    """

    __slots__ = (
        "_address",
        "_driver",
        "_socket",
        "machine_id",
        "daemon_id",
        "on_reconnect",
        "__weakref__",
    )

    def __init__(
        self,
        address: _Path | None = None,
        *,
        name: str | None = None,
        driver: _Path | None = None,
        timeout: float | None = None,
        call_timeout: float | None = None,
        reconnect_timeout: float | None = None,
    ):
        self._address = address
        self._device_list = None
        self.on_reconnect: Callable[[Client], object] | None = None
        super().__init__(
            address,
            name=name or _program_name(),
            driver=driver,
            timeout=timeout,
            call_timeout=call_timeout,
            reconnect_timeout=reconnect_timeout,
        )
        try:  # asked for now: arrays need it after the daemon's death, too
            daemons, path, self.machine_id, self.daemon_id = self._daemon()
            self._socket = os.path.abspath(path)
            self._driver = driver or os.environ.get("CAID_CUDA_DRIVER") or daemons
            self._host_accessible = daemons == "soft" and not _strict.is_asked()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _returned(client, n_lost):
        """libcaid's thread calls this, and the client's end waits for that thread: so another thread holds
        the client."""
        _thread.start_new_thread(_tell_return, (client, n_lost))

    def close(self) -> None:
        """Ends the connection, and all that came from the client: its arrays, streams, events,
        timelines, watches and arenas are closed, and brackets that are open abandoned. Idempotent.

        Waits for asynchronous copies from and to memory of the host. Ctrl-C ends that wait: the client is
        closed all the same, and the memory of these copies is kept until the process exits. Memory of
        :class:`caid.Allocation` objects, and memory that a NumPy array or a tensor of another library still
        uses, stays mapped, and is given to nobody before this process has exited. Objects that
        :meth:`caid.Arena.publish` keeps alive are dropped, while what was published lives on."""
        end = super()._leave
        try:
            _pending.finish(self)
            _releaser.finish(self)
            end = super().close
        finally:
            end()
            _watch.wake(self)
            _releaser.end(self)

    def dispatch(self) -> None:
        """Handles the daemon's messages, without blocking: to be called when ``fileno()`` is readable.
        Waiters for this client's watches, in any event loop, look for news; objects that
        :meth:`caid.Arena.publish` keeps alive are dropped where nobody can reach the part any more.

        Raises
        ------
        DisconnectedError
            The daemon is gone.
        """
        try:
            super().dispatch()
        finally:
            _watch.wake(self)
            _releaser.look(self)

    def __del__(self, _warn=warnings.warn):
        if self._live:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)

    def __reduce__(self):
        raise TypeError("a caid.Client cannot be copied or pickled: connect anew")

    def __repr__(self):
        at = "" if self._address is None else f" {os.fspath(self._address)!r}"
        return f"<caid.Client{at}{' closed' if self.closed else ''}>"

    # --- allocators -------------------------------------------------------------------------

    def arena(
        self,
        device: _Device = 0,
        *,
        memory: ArenaMemory = "device",
        pool: str | None = None,
        block_size: int = 0,
        max_pending_count: int | None = None,
        max_pending_ratio: float | None = None,
        max_pending_age: float | None = None,
    ) -> Arena:
        """An allocator over blocks that are leased from the daemon: an allocation makes no call where a block
        has room, and arrays that lie in one can be published without a copy. The first block is leased by the
        first allocation.

        Parameters
        ----------
        device : int or str
            Index in `devices`, or a text: see there.
        memory : {"device", "legacy"}
            As for create(): "legacy" for :meth:`caid.Arena.ipc_handle`.
        pool : str, optional
            Whose memory it is, and in which names are published; without it, the caller's own.
        block_size : int
            Bytes that are leased at a time; 0 for 32 MiB. What is larger than half of that gets a
            block of its own.
        max_pending_count : int, optional
            How many freed allocations wait until their memory is used again, and how many empty
            blocks until they go back: 10 without it. With 0 nothing waits.
        max_pending_ratio : float, optional
            Which part of the device's memory waits: 0.2 without it. With 0 nothing waits.
        max_pending_age : float, optional
            Seconds that an empty block waits: 2 without it.

        Raises
        ------
        DeviceError, InvalidError, InvalidNameError
            No such device; no such memory, or a limit below 0; no pool's name.

        Notes
        -----
        The pool, and whether it has any memory, shows when the first block is leased.
        """
        limits = max_pending_count, max_pending_ratio, max_pending_age
        return _arena.create(self, device, memory, pool, block_size, *limits)

    # --- addresses --------------------------------------------------------------------------

    def reserve(self, nbytes: int, address: int = 0) -> Reservation:
        """Reserves addresses of this process for device memory: processes that reserve the same addresses
        have an array at the same address, so that data may contain pointers. ::

            with client.reserve(64 << 30, address) as r:    # address: the `r.address` of another process
                weights = client.open_set("llama/"); weights.open()

        Blocks that the client maps for the first time in the ``with`` block, and memory of its arenas,
        lie there, one after another.

        Parameters
        ----------
        nbytes : int
            Rounded up to 2 MiB.
        address : int, optional
            Without it, or with 0, where there is room.

        Raises
        ------
        InvalidError
            Something else is there (cuMemAddressReserve()); in the ``with`` block: there is no room, or
            another reservation is used.
        """
        return Reservation(self, nbytes, address)

    # --- checkpoints ------------------------------------------------------------------------

    def suspend(self, timeout: float | None = None) -> None:
        """Prepares the process for a checkpoint of the CUDA driver's (cuCheckpointProcessCheckpoint()): waits for
        the work of the streams, unmaps all arrays, and gives back every handle of shared memory. Addresses,
        leases and the connection stay, and the shared memory stays on the GPU: it is not in the checkpoint. ::

            client.suspend()
            ...                 # the process is checkpointed, and restored
            client.resume()     # tensors and CUDA graphs over the arrays are good as before

        Until resume(), arrays have no `ptr`, and creates, opens, copies, brackets, new timelines and channels, and
        allocations of arenas raise NotReadyError; closes, and what only asks the daemon, go on. No other thread may
        use the GPU from the call until resume() has returned; each client of the process is suspended, or closed.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for streams that wait for other processes, and for brackets' ends; None: for ever.
            Other work is waited for without a limit.

        Raises
        ------
        InvalidError
            A bracket, a channel, or a timeline that the client has made is open: the message names it; or a
            stream captures a graph.
        UnsupportedError
            An array is "legacy" memory.
        TimedOutError
            The message says what is waited for.
        CancelledError
            Another thread has closed the client meanwhile.

        After a failure the client is as before. If its arrays cannot be mapped again, it is suspended: resume()
        tries once more.
        """
        self._suspend(timeout)

    def resume(self) -> List[Change]:
        """Maps the arrays again, at their former addresses. Waits for a daemon that has gone and comes back.

        Returns
        -------
        list of Change
            The names of open arrays that other arrays have by now, or (generation 0) none. What is open is what it
            was. Of a set that is open, and of its members, only its own name.

        Raises
        ------
        InvalidError
            The client is not suspended.
        ForkedError
            The process was restored with another pid.
        DisconnectedError, OutOfMemoryError, DriverError
            The client stays suspended.
        """
        return [Change(*change) for change in self._resume()]

    # --- hand-off ---------------------------------------------------------------------------

    def bracket(
        self,
        stream: Any = None,
        *,
        read: Iterable[Array] = (),
        write: Iterable[Array] = (),
        timeout: float | None = None,
    ) -> Bracket[tuple[Array, ...]]:
        """A bracket around the use of several arrays, begun for all of them at once::

            with client.bracket(s, read=[a, b], write=[c]) as (a, b, c): ...

        Parameters
        ----------
        stream, timeout
            As for :meth:`caid.Array.read`, with its errors.
        read, write : list of Array
            Of this client; none that is written overlaps with another one.

        Returns
        -------
        Bracket
            A context manager that gives a tuple of views: `read`, then `write`.

        Raises
        ------
        InvalidError
            No arrays, or another client's.
        """
        return _bracket.of_client(self, read, write, stream, timeout)

    def stream(
        self, device: _Device = 0, non_blocking: bool = False, priority: int = 0
    ) -> Stream:
        """Creates a CUDA stream of the primary context of a device.

        Parameters
        ----------
        device : int or str
            Index in `devices`, or a text: see there.
        non_blocking : bool
            Whether it runs apart from the legacy default stream (CU_STREAM_NON_BLOCKING).
        priority : int
            0 or less: the less, the sooner its kernels run (cuStreamCreateWithPriority()).

        Raises
        ------
        DeviceError, DriverError
            This process does not see the device; its driver has no stream left.
        """
        return _stream.create(self, device, non_blocking, priority)

    def event(
        self, device: _Device = 0, ipc: bool = False, blocking_sync: bool = False,
        timing: bool = False,
    ) -> Event:
        """Creates a CUDA event, of the primary context of a device.

        Parameters
        ----------
        device : int or str
            Index in `devices`, or a text: see there.
        ipc : bool
            Whether it has an `ipc_handle`, for other processes of the same uid.
        blocking_sync : bool
            Whether synchronize() sleeps, and does not spin (CU_EVENT_BLOCKING_SYNC).
        timing : bool
            Whether it is for :func:`caid.event_elapsed_time`; not with `ipc`.

        Raises
        ------
        DeviceError, DriverError
            This process does not see the device; it has no event left.
        """
        return _event.create(self, device, ipc, blocking_sync, timing)

    def channel(
        self,
        name: str,
        shape: _Shape,
        dtype: Any = "|u1",
        *,
        slots: int = 8,
        mode: Literal["latest", "fifo"] = "latest",
        memory: Literal["device", "pinned"] = "device",
        device: _Device = 0,
        pool: str | None = None,
        timeout: float | None = None,
    ) -> Channel:
        """Becomes the producer of a channel, which is made if there is none of the name: see :class:`Channel`.

        Goes on after the frames of the former producer, of which those that are whole stay.

        Parameters
        ----------
        name : str
            As for create(). It is the name of an array, whose first dimension counts the slots.
        shape, dtype
            A frame's, as for create().
        slots : int
            How many frames lie in memory: 2 to 64; of a "latest" at least the sum of the readers' depths and 3, or
            2 where it is "pinned".
        mode : {"latest", "fifo"}
            Whether readers get the newest frame, and the producer never waits; or every frame, and it does.
        memory : {"device", "pinned"}
            Where the frames lie. "pinned" is the host's: no process that uses it so needs a GPU.
        device : int or str
            Index in `devices`, or a text: see there.
        pool : str, optional
            Who may read it reads frames, who may write it produces them. Without it, the caller's own.
        timeout : float, optional
            Seconds to wait for the exit of a producer that was killed, or has hung up.

        Raises
        ------
        BusyError
            Another one produces.
        InvalidError
            The name is taken by what is no such channel: what differs is said. Or what can be no channel.
        TimedOutError
            The former producer has not exited.

        Other errors are those of create().
        """
        geometry = _making._geometry_of(shape, dtype, "C", None)
        index = self._index_of(device)
        return _channel.create(self, name, geometry, slots, mode, memory, index, pool, timeout)

    def open_channel(
        self,
        name: str,
        *,
        pool: str | None = None,
        wait: bool = False,
        depth: int = 1,
        device: _Device | None = None,
        timeout: float | None = None,
    ) -> Channel:
        """Becomes a reader of a channel, which gets frames from then on: see :class:`Channel`.

        Parameters
        ----------
        name : str
        pool : str, optional
            Without it, the caller's own.
        wait : bool
            Whether to wait until there is such a channel, with a producer.
        depth : int
            How many frames may be open at a time, or not let go of by a stream: 1 to 16, of a "fifo" 15.
        device : int or str, optional
            As for open().
        timeout : float, optional
            Seconds to wait, also for a producer that is stopped. Without it, and with `wait`, without end.

        Raises
        ------
        NotFoundError
            There is no such name, or no pool that the caller may see.
        InvalidError
            The name is no channel's; no such depth.
        LimitError
            64 processes read it; or it has too few slots for that depth.
        TimedOutError
            It did not come in time, or its producer is stopped.
        AccessError
            The pool may not be read.
        """
        uuid = self._uuid_of(device)
        return _channel.open(self, name, pool, wait, depth, uuid, timeout)

    async def async_channel(self, name: str, shape: _Shape, dtype: Any = "|u1", **how: Any) -> Channel:
        """channel(), for asyncio. Parameters and errors as for channel()."""
        return await _channel.async_create(lambda: self.channel(name, shape, dtype, **how))

    async def async_open_channel(
        self,
        name: str,
        *,
        pool: str | None = None,
        depth: int = 1,
        device: _Device | None = None,
        timeout: float | None = None,
    ) -> Channel:
        """open_channel(wait=True), for asyncio. Other parameters, and errors, as for open_channel()."""

        def make(left: float) -> Channel:
            return self.open_channel(name, pool=pool, wait=True, depth=depth, device=device, timeout=left)

        return await _channel.async_open(make, timeout)

    def timeline(self, name: str, *, pool: str | None = None) -> Timeline:
        """Creates a timeline under a name, to signal. Names of timelines and of arrays are apart.

        Parameters
        ----------
        name : str
            As for create().
        pool : str, optional
            Whose members may open it; without it, the caller's own.

        Raises
        ------
        ExistsError, InvalidNameError
            The name is taken; it is none.
        AccessError, NotFoundError, LimitError
            The pool may not be written; may not be seen; the user has as many as there may be.
        """
        return _timeline.make(self, name, pool, True)

    def open_timeline(
        self,
        name: str,
        *,
        pool: str | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> Timeline:
        """Opens a timeline by name, to wait for.

        Parameters
        ----------
        name : str
        pool : str, optional
            Without it, the caller's own.
        wait : bool
            Whether to wait until the timeline is there, for which the daemon is asked 50 times a second.
        timeout : float, optional
            Seconds to wait; 0 only looks. Without it, without end.

        Raises
        ------
        NotFoundError
            There is no such timeline, or no pool that the caller may see.
        TimedOutError
            The timeline did not come in time.
        """
        if wait or timeout is not None:
            return _timeline.make_when_there(self, name, pool, wait, timeout)
        return _timeline.make(self, name, pool, False)

    async def async_open_timeline(
        self, name: str, *, pool: str | None = None, timeout: float | None = None
    ) -> Timeline:
        """open_timeline(wait=True), for asyncio. Parameters and errors as for open_timeline()."""
        return await _timeline.async_make_when_there(self, name, pool, timeout)

    def timelines(self, *, pool: str | None = None, all: bool = False) -> List[TimelineEntry]:
        """Timelines that have a name: list of TimelineEntry. Parameters as for list()."""
        return self._records(TimelineEntry, "timelines", pool, None, all)

    def channels(
        self, *, pool: str | None = None, prefix: str | None = None, all: bool = False
    ) -> List[ChannelEntry]:
        """Who takes part in channels: list of ChannelEntry. Parameters as for list()."""
        return self._records(ChannelEntry, "channels", pool, prefix, all)

    # --- arrays of other libraries ----------------------------------------------------------

    def as_array(self, obj: Any, sync: bool = True) -> Array:
        """:func:`caid.as_array` on this client's driver."""
        return _cai.as_array(obj, sync, client=self)

    def from_cuda_array_interface(
        self, desc: dict[str, Any], owner: object = None, sync: bool = True
    ) -> Array:
        """:func:`caid.from_cuda_array_interface` on this client's driver."""
        return _cai.from_cuda_array_interface(desc, owner, sync, client=self)

    def from_dlpack(self, x: Any, *, stream: Any = None) -> Array:
        """:func:`caid.from_dlpack` on this client's driver."""
        return _dlpack.from_dlpack(x, stream=stream, client=self)
