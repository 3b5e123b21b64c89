# SPDX-License-Identifier: Apache-2.0
"""Client: a connection to the daemon, and all that is done through it."""

from __future__ import annotations

import _thread
import functools
import os
import sys
import warnings
from typing import Any, Callable, Iterable, List, Literal, Mapping, Union

from .._base import _geometry, _metadata, _strict, _typestr
from .._base._errors import LostWarning, NotFoundError, invalid
from .._base._lifetime import Closing, attributes
from .._base._records import ArenaMemory, Memory, TimelineEntry
from .._handoff import _event, _pending, _stream, _timeline
from .._handoff._event import Event
from .._handoff._stream import Stream
from .._handoff._timeline import Timeline
from .._memory import _arena, _array, _bracket, _cai, _dlpack, _names, _releaser, _set, _values
from .._memory._arena import Arena
from .._memory._array import Array
from .._memory._bracket import Bracket
from .._memory._set import Reservation, Set
from . import _queries, _watch
from ._watch import Watch

_CLIENT_NAME_MAX = 64  # bytes
_EXCLUSIVE, ATTACH_HOST = 1, 2  # enum caid_array_flags

_Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
_Shape = Union[int, Iterable[int]]
_Device = Union[int, str]  # index in Client.devices, or UUID


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
class Client(_queries.Queries, Closing):
    """A connection to the daemon.

    Parameters
    ----------
    address : path, optional
        The daemon's socket. Without it ``$CAID_SOCKET``, then ``$XDG_RUNTIME_DIR/caid.sock`` if
        that is there, then ``/run/caid/caid.sock``.
    name : str, optional
        What the daemon calls this client in front of others; the script's name without it.
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

    A call that the daemon does not answer in time raises ``caid.TimeoutError``, and the client is as
    usable as before. What the answer grants when it comes all the same is given back: an array is
    closed again, and loses the name that it was made under. A name that was to be published,
    renamed or unlinked may have been.

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
        try:  # now: arrays are used after the daemon's death, too
            daemons, path, self.machine_id, self.daemon_id = self._daemon()
            self._socket = os.path.abspath(path)
            self._driver = driver or os.environ.get("CAID_CUDA_DRIVER") or daemons
            self._host_accessible = daemons == "soft" and not _strict.is_asked()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _returned(client, n_lost):
        """On a thread that the client's end waits for: another one may hold the client."""
        _thread.start_new_thread(_tell_return, (client, n_lost))

    def close(self) -> None:
        """Ends the connection, and all that came from the client: its arrays, streams, events,
        timelines, watches and arenas are closed, and brackets that are open abandoned. Idempotent.

        Waits for asynchronous copies from and to memory of the host. Ctrl-C ends that wait: the client
        is closed all the same, and that memory, and its arrays', kept for good. Memory that a NumPy
        array, or a tensor of another library, still sees, and that of an :class:`caid.Allocation`, stays
        as it is, and is given to nobody before this process has exited. What :meth:`caid.Arena.publish`
        keeps alive is let go of, while what was published lives on."""
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
        """Handles what has come from the daemon, without blocking: to be called when ``fileno()``
        is readable. What waits for a watch of this client, in any event loop, looks for news; what
        :meth:`caid.Arena.publish` keeps alive is let go of where nobody can reach it any more.

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

    # --- making arrays ----------------------------------------------------------------------

    def create(
        self,
        name: str,
        shape: _Shape,
        dtype: Any = "<f8",
        *,
        pool: str | None = None,
        device: _Device = 0,
        order: str = "C",
        strides: _Shape | None = None,
        exclusive: bool = False,
        memory: Memory = "device",
        alignment: int | None = None,
        metadata: Any = None,
        exist_ok: bool = False,
        ttl: float | None = None,
    ) -> Array:
        """Creates an array under a name. Its contents are undefined until written.

        The array outlives this process: its name keeps it until unlink().

        Parameters
        ----------
        name : str
            1 to 255 bytes of UTF-8 without control characters; "/" is ordinary.
        shape : int or tuple of int
            At most 32 extents, none negative.
        dtype : str, numpy.dtype, torch.dtype, or anything that numpy.dtype takes
            A typestr ("<f4") needs no NumPy, nor do types by the names of ml_dtypes: "bfloat16",
            "float8_e4m3fn", "int4", …; those of fewer than 8 bits take a byte each.
        pool : str, optional
            Without it, the caller's own.
        device : int or str
            Index in `devices`, or UUID.
        order : {"C", "F"}
            Which dimension is the fastest: the last or the first.
        strides : tuple of int, optional
            Steps in bytes, none negative, multiples of the element's alignment, in place of `order`.
        exclusive : bool
            Whether to give the array a block of its own, shared with no other array.
        memory : {"device", "legacy", "pinned", "mapped", "managed"}
            Where the array lies.

            * "device": memory of the device, for all that runs there.
            * "legacy": the same, opened by a 64-byte handle, for programs that need one: see
              `Array.ipc_handle`. A process that opens it gets a CUDA context; a read-only lease is
              not enforced by the driver. Only in pools with ``legacy = yes`` in caid.conf(5).
            * "pinned": page-locked memory of the host, shared between processes and with the
              device: ``numpy.asarray(a)`` sees it, `Array.device_ptr` is its device address.
            * "mapped": the same, said to be for kernels: it has a ``__cuda_array_interface__``.
            * "managed": managed memory of this process alone; empty() only, as it has no name.
        alignment : int, optional
            Of the first element in device memory, bytes: a power of two up to 2 MiB. 512 without.
        metadata : object, optional
            Anything that JSON can tell, up to 4,096 bytes of it, for whoever opens the array.
        exist_ok : bool
            Whether to open the array that has the name already, "rw" and with the metadata that it
            has. Of all that ask at once one creates it, as `Array.created` tells; what the others
            see before that one has written it is undefined.
        ttl : float, optional
            Seconds, more than 0, that the name has to live: see expire(). An array that is there
            already keeps what it has.

        Returns
        -------
        Array
            Writable.

        Raises
        ------
        ExistsError
            The name is taken; with `exist_ok`, by an array of another shape, type, strides, device
            or kind of memory, or that is aligned less: the message says what differs.
        InvalidNameError, InvalidError, TooLargeError
            Name, shape, strides, type, alignment, metadata or time to live are not valid; over their
            limit.
        UnsupportedError
            The device or the daemon does not have that kind of memory.
        OutOfMemoryError, QuotaError, LimitError
            The device, the pool or the user has not got that much.
        AccessError, NotFoundError
            The pool may not be written, or have "legacy" arrays; may not be seen, or is not there.
        DeviceError
            No such device.
        """
        if not isinstance(name, str):
            raise TypeError(f"name: a str is needed, not {type(name).__name__}; see empty()")
        geometry = _geometry_of(shape, dtype, order, strides)
        options = pool, device, exclusive, memory, alignment, metadata, _names.ttl_ns(ttl)
        if not exist_ok:
            return self._make(name, *geometry, *options)
        wanted = _names.Wanted(*geometry, memory, self._index_of(device), alignment or 1)
        make = functools.partial(self._make, name, *geometry, *options)
        return _names.open_or_make(self, name, pool, wanted, make)

    def empty(
        self,
        shape: _Shape,
        dtype: Any = "<f8",
        *,
        pool: str | None = None,
        device: _Device = 0,
        order: str = "C",
        strides: _Shape | None = None,
        exclusive: bool = False,
        memory: Memory = "device",
        alignment: int | None = None,
        metadata: Any = None,
    ) -> Array:
        """Creates an array without a name: it ends with its last holder, unless it is published.
        See create()."""
        geometry = _geometry_of(shape, dtype, order, strides)
        return self._make(None, *geometry, pool, device, exclusive, memory, alignment, metadata)

    def empty_like(
        self,
        a: Any,
        *,
        pool: str | None = None,
        device: _Device | None = None,
        exclusive: bool = False,
        memory: Memory = "device",
        alignment: int | None = None,
        metadata: Any = None,
    ) -> Array:
        """An unnamed array with the shape and type of another: of a caid array, of anything with
        a ``__cuda_array_interface__``, or of anything that NumPy makes an array of. One in
        Fortran order gives one in Fortran order; strides are not taken over. Without `device`, on
        the device of an array of this client, else on the first."""
        shape, dtype, _, order = _cai.like(a)
        if device is None:
            own = isinstance(a, Array) and a._memory.client is self
            device = max(a.device, 0) if own else 0
        return self.empty(
            shape, dtype, pool=pool, device=device, order=order, exclusive=exclusive, memory=memory,
            alignment=alignment, metadata=metadata,
        )

    def zeros(
        self, shape: _Shape, dtype: Any = "<f8", *, stream: Any = 0, **options: Any
    ) -> Array:
        """Creates an array without a name, of zeros; `options` are those of empty(), `stream` is as
        for :meth:`caid.Array.fill`."""
        return self._filled(shape, dtype, options, lambda a: _values.clear(a, stream))

    def ones(
        self, shape: _Shape, dtype: Any = "<f8", *, stream: Any = 0, **options: Any
    ) -> Array:
        """Creates an array without a name, of ones. See zeros()."""
        return self._filled(shape, dtype, options, lambda a: a.fill(1, stream))

    def full(
        self, shape: _Shape, fill_value: Any, dtype: Any = None, *, stream: Any = 0, **options: Any
    ) -> Array:
        """Creates an array without a name, of one value, whose type it has if none is given; that
        needs NumPy. See zeros(), and :meth:`caid.Array.fill` for values and errors."""
        if dtype is None:
            dtype = _typestr.numpy().asarray(fill_value).dtype
        return self._filled(shape, dtype, options, lambda a: a.fill(fill_value, stream))

    def _filled(self, shape, dtype, options, fill):
        a = self.empty(shape, dtype, **options)
        try:
            fill(a)
        except BaseException:
            a.close()
            raise
        return a

    def _make(self, *options):
        return _array.of_lease(self._create_lease(*options))

    def _create_lease(
        self, name, shape, element, strides, pool, device, exclusive, memory, alignment, metadata,
        ttl_ns=0,
    ):
        return self._create(
            name,
            shape,
            element.told,
            element.descr,
            strides,
            pool,
            self._index_of(device),
            _EXCLUSIVE if exclusive else 0,
            memory,
            alignment or 0,
            _metadata.encode(metadata),
            ttl_ns,
        )

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
        """An allocator over blocks that are leased from the daemon: an allocation asks nobody, and
        what lies in one can be published without a copy. The first block is leased by the first
        allocation.

        Parameters
        ----------
        device : int or str
            Index in `devices`, or UUID.
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

    # --- opening ----------------------------------------------------------------------------

    def open(
        self,
        name: str,
        mode: Literal["r", "rw"] = "r",
        *,
        pool: str | None = None,
        generation: int | None = None,
        device: _Device | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> Array:
        """Opens an array by name. Nothing is copied: it is the same memory in every process.

        Parameters
        ----------
        name : str
        mode : {"r", "rw"}
            "r" maps the memory read-only: a write on the GPU fails there ("legacy" memory: only
            here).
        pool : str, optional
            Without it, the caller's own.
        generation : int, optional
            The array that had the name in this generation, and no other: the current one, or an
            older one that somebody still holds. Without it, or with 0, the current one.
        device : int or str, optional
            Index in `devices`, or UUID, of the device of this process that is to reach the memory,
            over the peer link where the memory lies on another. Without it, the memory's own or,
            where this process does not see that one (CUDA_VISIBLE_DEVICES), the first that it
            sees.
        wait : bool
            Whether to wait until the name is there; not with `generation`. One that has gone again
            before it could be opened is waited for anew. Ctrl-C ends the wait.
        timeout : float, optional
            Seconds to wait; 0 only looks. Without it, without end.

        Raises
        ------
        NotFoundError
            No such name, or no pool that the caller may see; also a FileNotFoundError.
        TimedOutError, CancelledError
            The name did not come in time; the client was closed meanwhile.
        StaleError
            The name has that generation no more, or not yet.
        AccessError
            Mode "rw" in a pool that may only be read; also a PermissionError.
        DeviceError
            This process does not see that device.
        CorruptError
            Its creator has described elements that cannot be: the message names the creator.
        """
        if wait or timeout is not None:
            if not wait or generation:
                raise invalid("open: timeout needs wait=True, which does not go with a generation")
            _watch.check_timeout(timeout)
        uuid = None if device is None else self._uuid_of(device)
        try:
            return _array.of_lease(self._open(name, mode, pool, generation or 0, uuid))
        except NotFoundError:
            if not wait:
                raise
        return _names.open_when_there(self, name, mode, pool, device, timeout)

    def open_many(
        self,
        names: Iterable[str],
        mode: Literal["r", "rw"] = "r",
        *,
        pool: str | None = None,
        device: _Device | None = None,
    ) -> List[Array]:
        """Opens arrays by their names, in as few messages as they fit in: all or none.

        Returns
        -------
        list of Array
            In the order of `names`.
        """
        if isinstance(names, str):
            raise TypeError("names: a list of str is needed, not one str")
        leases = self._open_many(tuple(names), mode, pool, self._uuid_of(device), None)
        return _array.of_leases(leases)

    # --- sets -------------------------------------------------------------------------------

    def publish_many(
        self,
        name: str,
        arrays: Mapping[str, Array],
        *,
        metadata: Any = None,
        stream: Any = None,
        replace: bool = True,
    ) -> int:
        """Puts arrays under names that change in one step, all or none: a set of them.

        Nobody sees a mixture: who opens ``name + key`` before gets what was there, who opens one
        after gets the new one, and open_set() gives one version of all of them. What had the name
        lives on without it as long as somebody holds it; names that a set had and the new one lacks
        are gone. A watch of `name` tells of the set.

        Parameters
        ----------
        name : str
            What all names begin with, "llama/". As long as the set has it, all names that begin so
            are its own: none can be created, published or renamed there, and unlink() and rename()
            take the set as a whole. Sets are not nested.
        arrays : mapping of str to Array
            1 to 262,144 arrays of this client and of one pool, by what follows in their names; name
            and key are 255 bytes together at most. An array may be in several sets, and have a name
            of its own besides. What a :class:`caid.Set` gives may go into the next one.
        metadata, stream, replace
            As for :meth:`caid.Array.publish`, of all of them.

        Returns
        -------
        int
            The generation of the set, and of all of its names.

        Raises
        ------
        ExistsError
            An array has a name that begins so; or `name` is taken, and not to be replaced.
        InvalidError, InvalidNameError
            No arrays, or too many; arrays of two pools; a set among them, or over the name.
        AccessError, LimitError, QuotaError
            The pool may not be written; each array is charged as a name, to this user.
        UnsupportedError
            A view of a part of an array, or memory that is not the daemon's.
        """
        return _set.publish(self, name, arrays, metadata, stream, replace)

    def open_set(
        self,
        name: str,
        mode: Literal["r", "rw"] = "r",
        *,
        pool: str | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> Set:
        """Opens the set that has the name: one version of its arrays, which are opened when they are
        asked for. Parameters and errors as for open(); InvalidError: it is an array."""
        return _set.of_array(self.open(name, mode, pool=pool, wait=wait, timeout=timeout))

    # --- addresses --------------------------------------------------------------------------

    def reserve(self, nbytes: int, address: int = 0) -> Reservation:
        """Reserves addresses of this process for device memory: several processes that reserve the
        same ones have an array at the same address, for those who store pointers in their data. ::

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

    # --- names ------------------------------------------------------------------------------

    def unlink(
        self,
        name: str | None = None,
        *,
        pool: str | None = None,
        prefix: str | None = None,
        missing_ok: bool = False,
    ) -> int:
        """Removes a name, or all that start alike. Whoever holds an array keeps it; without holders
        its memory is freed.

        Parameters
        ----------
        name : str
            Or `prefix`.
        pool : str, optional
            Without it, the caller's own.
        prefix : str
            In place of `name`: every name that starts with it, one by one, a set as a whole; there
            need be none, and what others remove meanwhile is passed over. Not "": that would be all.
        missing_ok : bool
            Whether a name that is not there is no error.

        Returns
        -------
        int
            How many names were removed.

        Raises
        ------
        NotFoundError, AccessError
            No such name, no pool that the caller may see; one that may not be written.
        """
        if (name is None) == (prefix is None):
            raise TypeError("unlink: either a name or a prefix is needed")
        names = _names.starting_with(self, prefix, pool) if name is None else [name]
        removed = 0
        for each in names:
            try:
                self._unlink(each, pool)
                removed += 1
            except NotFoundError:
                if not (missing_ok or name is None):
                    raise
        return removed

    def rename(
        self, old: str, new: str, *, pool: str | None = None, replace: bool = False
    ) -> int:
        """Gives an array another name of its pool, at once: nobody sees both names, or neither.

        Whoever has it open keeps it, by the name that it was opened by; its metadata stays. Nothing
        is copied, and no work is waited for: what this process writes is named when it is whole by
        :meth:`caid.Array.publish`, and an array whose writer died stays abandoned.

        Parameters
        ----------
        old, new : str
        pool : str, optional
            Without it, the caller's own.
        replace : bool
            Whether `new` may be taken: what has it lives on as long as somebody holds it.

        Returns
        -------
        int
            The generation of `new`.

        Raises
        ------
        NotFoundError, AccessError
            No such name, no pool that the caller may see; one that may not be written.
        ExistsError, InvalidNameError
            `new` is taken; is no name.
        """
        return self._rename(old, new, pool, replace)

    def expire(
        self,
        name: str,
        ttl: float | None,
        *,
        pool: str | None = None,
        generation: int | None = None,
    ) -> int:
        """Gives a name a time to live: when it is over, the daemon unlinks the name as unlink() does,
        whether or not this process is still there. It is the name's as long as that shows this
        array: rename() keeps it, and publishing over the name ends it, unless that gives another
        one. Time that the machine sleeps counts.

        Parameters
        ----------
        name : str
        ttl : float or None
            Seconds from now on, more than 0; None: the name stays.
        pool : str, optional
            Without it, the caller's own.
        generation : int, optional
            The name's, which has to be the current one. Without it, or with 0, whichever it is.

        Returns
        -------
        int
            The name's generation. What is left of its time is `ttl_ns` of list() and show().

        Raises
        ------
        NotFoundError, AccessError
            No such name, no pool that the caller may see; one that may not be written.
        StaleError
            The name has another generation.
        InvalidError, QuotaError
            No time to live; the user has as much of the daemon's memory as there may be.
        """
        return self._expire(name, pool, generation or 0, _names.ttl_ns(ttl))

    def watch(
        self, name: str, *, pool: str | None = None, timeout: float | None = None
    ) -> Watch:
        """Watches a name, which need not exist: an iterator over its changes, for threads and
        for asyncio.

        Parameters
        ----------
        name : str
        pool : str, optional
            Without it, the caller's own.
        timeout : float, optional
            Seconds that the iterator waits for each change before it raises TimedOutError.

        Returns
        -------
        Watch
            To be closed: it is a context manager.

        Raises
        ------
        InvalidNameError, NotFoundError, LimitError
            No name; no pool that the caller may see; more watches than the user may have.
        """
        return _watch.create(self, name, pool, timeout)

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
            Of this client; none that is written is there twice.

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
            Index in `devices`, or UUID.
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
            Index in `devices`, or UUID.
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

    def open_timeline(self, name: str, *, pool: str | None = None) -> Timeline:
        """Opens a timeline by name, to wait for. Raises NotFoundError."""
        return _timeline.make(self, name, pool, False)

    def timelines(self, *, pool: str | None = None, all: bool = False) -> List[TimelineEntry]:
        """Timelines that have a name: list of TimelineEntry. Parameters as for list()."""
        return self._records(TimelineEntry, "timelines", pool, None, all)

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


def _geometry_of(shape, dtype, order, strides):
    """(shape, element, strides) of what create() is given; strides None: C order."""
    element, inner = _typestr.of_dtype(dtype)
    shape = _geometry.dims("shape", shape) + inner
    if order not in ("C", "F"):
        raise invalid(f"order {order!r}: 'C' or 'F'")
    if strides is not None and order == "F":
        raise invalid("order and strides are both given")
    if strides is not None:
        strides = _geometry.dims("strides", strides)
    elif order == "F" and len(shape) > 1 and min(shape) >= 0:
        strides = _geometry.f_strides(shape, element.itemsize)
    return shape, element, strides
