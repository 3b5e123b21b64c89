# SPDX-License-Identifier: Apache-2.0
"""Channel and Frame: frames from one process to many. The other side is in docs/CHANNELS.md."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from .. import _caid
from .._base import _typestr
from .._base._errors import CancelledError, ClosedError, DeviceError, TimedOutError, check_timeout, closed, invalid, unsupported
from .._base._lifetime import Named, OfProcess
from .._handoff import _any_stream, _pending
from .._memory import _array
from .._memory._dlpack_export import NATIVE
from .._memory._layout import Layout

if TYPE_CHECKING:
    import numpy

    from .._memory._array import Array

# Letters of the module struct for the elements of buffers.
_FORMATS = {"b1": "?", "f2": "e", "f4": "f", "f8": "d", "c8": "Zf", "c16": "Zd"}
_FORMATS.update({"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"})


class _FrameMemory:
    """The memory of a frame, as Array uses it: what the channel's lease is, as long as the frame is open."""

    __slots__ = ("owner", "lease")

    pool = metadata = None  # it has no brackets and is not published
    generation = block = 0
    created = False

    def __init__(self, frame):
        self.owner = frame
        self.lease = frame._channel._lease

    def __getattr__(self, name):
        return getattr(self.lease, name)

    @property
    def pending(self):
        return self.owner._pending

    def pending_or(self, marks):
        return self.owner._pending_or(marks)

    @property
    def closed(self):
        return not self.owner.is_open or self.lease.closed

    @property
    def _live(self):
        return self.owner.is_open and self.lease._live

    def check(self):
        self.owner._check()
        self.lease.check()

    def share(self):
        self.check()
        return self

    def close(self, stream=None):
        """A frame has an end of its own."""

    def host_view(self, start, nbytes, readonly):
        start -= self.owner._slot * self.lease.strides[0]
        view = self.owner._bytes()[start : start + nbytes]
        return view.toreadonly() if readonly else view

    def ipc_handle(self):
        raise unsupported("a frame has no handle of its own")


@_caid.derived
class Frame(OfProcess, _caid.Frame):
    """A frame of a channel: what :meth:`caid.Channel.put` lets the program fill, and
    :meth:`caid.Channel.get` gives.

    ::

        with producer.put(s) as frame:            # is there for readers when s has come to the end of the block
            kernel[grid, block, s](frame.array)
            frame.info = struct.pack("d", time.time())

        with reader.get(s) as frame:              # is the producer's again when s has come to the end of the block
            consume(frame.array, stream=s)

    A frame goes where arrays go: `array` is a :class:`caid.Array`, and the frame itself has a buffer, where the
    host reaches the memory (``numpy.asarray(frame)``), a ``__cuda_array_interface__`` and a ``__dlpack__``. They are
    good until its end. Afterwards the array raises ClosedError. A buffer or a tensor (of ``numpy.asarray()``, of
    ``torch.from_dlpack()``) that is alive at the end of a reader's frame keeps it open, with a ResourceWarning,
    until it has gone; one of a producer's frame is not to be written any more, and is warned of once for each
    channel.

    A block that is left by an exception gives a put up: nobody gets that frame. A frame that is collected without
    an end is ended with a ResourceWarning, a put is given up.
    """

    __slots__ = ()
    _comes_from = "Channel.put() or Channel.get()"

    @property
    def stream(self) -> Any:
        """object: the stream that it was put or got on, as it was given; None: the host."""
        return self._stream

    @property
    def array(self) -> Array:
        """Array: its elements; read-only for readers."""
        channel = self._channel
        if not channel._is_registered:
            channel._register()
        return _array.make(_FrameMemory(self), channel._layouts[self._slot], root=False, stream=self._stream)

    def end(self, stream: Any = None) -> None:
        """Ends the frame: what leaving the ``with`` block does.

        Parameters
        ----------
        stream : int or stream object, optional
            Of a reader: the stream on which it was last used, where that is another one than it was got on.

        Raises
        ------
        KeyboardInterrupt
            It waited for work on other streams: the frame is open yet. Also another exception of a signal handler.
        AbandonedError
            The producer died before the frame was whole. Where that was not so by now, the stream's
            ``synchronize()`` or ``check()`` raises it.
        ClosedError
            It has ended.
        InvalidError
            Another stream than put() was given.
        """
        if stream is not None and self._channel.produces:
            raise invalid("end(): a frame is there for readers by the stream that put() was given")
        self._end(stream)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.array.__array__(*args, **kwargs)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """dict: as :attr:`caid.Array.__array_interface__`."""
        return self.array.__array_interface__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """dict: as :attr:`caid.Array.__cuda_array_interface__`; good until the end of the frame."""
        return self.array.__cuda_array_interface__

    def __dlpack_device__(self) -> tuple[int, int]:
        """As :meth:`caid.Array.__dlpack_device__`."""
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        """As :meth:`caid.Array.__dlpack__`."""
        return self.array.__dlpack__(**options)

    def __len__(self) -> int:
        return len(self.array)

    def __repr__(self):
        state = "" if self.is_open else " ended"
        missed = f" missed={self.missed}" if self.missed else ""
        return f"<caid.Frame {self.sequence} of {self._channel._name!r}{missed}{state}>"

    def _check(self):
        if not self.is_open:
            raise closed(f"frame {self.sequence} of channel {self._channel._name!r} has ended")

    def _order(self, number):
        """What is enqueued on a stream (0: what the host does) from here on comes after copies by caid."""
        if number:
            _pending.order(_FrameMemory(self), number)
        else:
            _pending.wait(_FrameMemory(self))

    def _synchronize(self):
        self.array.synchronize()


class Frames:
    """Frames of a channel, one after another: what :meth:`caid.Channel.frames` gives, to a ``for`` or an
    ``async for``. Each ends when the next one is asked for, or the iteration ends."""

    __slots__ = ("_channel", "_how", "_frame")
    _no_copy = "Channel.frames() makes another one"
    __reduce__ = OfProcess.__reduce__

    def __init__(self, channel, *how):
        self._channel = channel
        self._how = how
        self._frame = None

    def __iter__(self) -> Frames:
        return self

    def __next__(self) -> Frame:
        self._leave()
        try:
            self._frame = self._channel._get(*self._how)
        except (CancelledError, ClosedError):
            if self._channel.closed:
                raise StopIteration from None
            raise
        return self._frame

    def __aiter__(self) -> Frames:
        return self

    async def __anext__(self) -> Frame:
        self._leave()
        try:
            self._frame = await self._channel.async_get(*self._how)
        except (CancelledError, ClosedError):
            if self._channel.closed:
                raise StopAsyncIteration from None
            raise
        return self._frame

    def __repr__(self):
        return f"<frames of {self._channel!r}>"

    def _leave(self):
        if self._frame is not None and self._frame.is_open:
            self._frame._end(None)  # one that is interrupted is ended by the next call
        self._frame = None

    def __del__(self):
        self._leave()


@_caid.derived
class Channel(Named, _caid.Channel):
    """The place of a process in a channel: of the producer, which :meth:`caid.Client.channel` gives, or of one of
    the readers, which :meth:`caid.Client.open_channel` gives. docs/CHANNELS.md says what channels are.

    ::

        with client.channel("cam0", (1080, 1920, 3), "|u1") as ch:          # in one process
            while True:
                with ch.put(s) as frame:
                    capture(frame.array, stream=s)

        with client.open_channel("cam0", wait=True) as ch:                  # in others
            for frame in ch.frames(s):
                show(frame.array, stream=s)

    No daemon and no other process is asked for a frame. It is closed by ``close()``, by leaving its ``with`` block,
    when it is collected (then with a ResourceWarning), or with its client. The channel's name, and its frames,
    stay: another producer may go on with them, until :meth:`caid.Client.unlink`.
    """

    __slots__ = ("_name", "_pool", "_layouts", "_is_registered", "__weakref__")
    _comes_from = "Client.channel() or Client.open_channel()"
    _no_copy = "pass its name"
    _number_of = staticmethod(_any_stream.handle)

    _layouts: list[Layout]  # of frames, by slot

    # --- what it is -------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """tuple of int: a frame's."""
        return self._layouts[0].shape

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """numpy.dtype: as :attr:`caid.Array.dtype`."""
        return _typestr.to_numpy(self._layouts[0].element)

    @property
    def slots(self) -> int:
        """int: how many frames lie in its memory."""
        return len(self._layouts)

    @property
    def mode(self) -> str:
        """str: "latest" or "fifo"."""
        return "fifo" if self._is_fifo else "latest"

    @property
    def memory(self) -> str:
        """str: "device" or "pinned"."""
        return self._lease.memory

    @property
    def device(self) -> int:
        """int: index of the device in ``client.devices``."""
        return self._lease.device

    def __repr__(self):
        return self._described(f" {'puts' if self.produces else 'gets'} {self.mode}")

    def _register(self):
        """Memory of the host is for the GPU, too, from here on, where there is a driver."""
        with contextlib.suppress(DeviceError):
            self._lease._register()
        self._is_registered = True

    # --- frames -----------------------------------------------------------------------------

    def put(self, stream: Any = None, timeout: float | None = None) -> Frame:
        """Begins to put a frame, which is there for readers at its end.

        Parameters
        ----------
        stream : int or stream object, optional
            The CUDA stream that fills it, as for :meth:`caid.Array.close`. Without it, the host does.
        timeout : float, optional
            Seconds that it may wait for readers of a "fifo"; 0 is a try. Without it, without end. A "latest" waits
            for nobody.

        Returns
        -------
        Frame
            A context manager. Its contents are undefined until they are written.

        Raises
        ------
        TimedOutError
            A reader has not let go of the frame that is `slots` before; also a TimeoutError.
        InvalidError
            The channel was opened, and is not its producer's; a frame is being put already; a stream for "pinned"
            memory of a "latest"; the stream captures a graph.
        DeviceError
            The stream is of another device.
        ClosedError, CancelledError
            The channel or the client is closed; was closed meanwhile.
        DisconnectedError
            The daemon is gone, and nothing was kept.
        ValueError, TypeError
            Stream 0, which is ambiguous; no stream.

        Notes
        -----
        Gives up the GIL, and Ctrl-C interrupts it.
        """
        return self._put(stream, timeout)

    def get(self, stream: Any = None, timeout: float | None = None, ahead: bool = False) -> Frame:
        """Gets a frame: of a "fifo" the next one, of a "latest" the newest, if it is newer than the last one.

        Waits until there is one: for the host, and a stream of a device that hands off by the host, until it is whole;
        for other streams until it was put, and the stream waits for the rest.

        Parameters
        ----------
        stream : int or stream object, optional
            The CUDA stream that is to use it. Without it, the host does.
        timeout : float, optional
            Seconds; 0 only looks. Without it, without end.
        ahead : bool
            Of a "fifo": gets the next frame also before it was put, for a stream that waits for it, with what
            :meth:`caid.Timeline.wait` says of that. Its `info` is not known then. Where it was given up, its end or
            the next get() raises AbandonedError.

        Returns
        -------
        Frame
            A context manager. Its array is read-only.

        Raises
        ------
        TimedOutError
            There is none; also a TimeoutError.
        AbandonedError
            The producer has died. This is said once; the next call waits for the next producer. Or no stream of this
            reader can signal any more, since its context died.
        InvalidError
            The channel is its producer's; as many frames are open as `depth` says, among them those that a buffer or
            a tensor keeps open, that other threads wait for, or that, of a "fifo", ended before an older one.
        DeviceError, ClosedError, CancelledError, DisconnectedError, ValueError, TypeError
            As for put().
        ProtocolError
            The producer has written what cannot be.

        Notes
        -----
        Gives up the GIL, and Ctrl-C interrupts it.
        """
        return self._get(stream, timeout, ahead)

    def frames(self, stream: Any = None, timeout: float | None = None, ahead: bool = False) -> Frames:
        """Iterates over frames, by ``for`` or ``async for``: each is got as by get(), and ends when the next one is
        asked for, or the iteration ends. It ends when the channel is closed here; errors are those of get().
        ``for frame in ch`` and ``async for frame in ch`` are for the host."""
        return Frames(self, stream, timeout, ahead)

    def __iter__(self) -> Frames:
        return Frames(self, None, None, False)

    def __aiter__(self) -> Frames:
        return Frames(self, None, None, False)

    async def async_put(self, stream: Any = None, timeout: float | None = None) -> Frame:
        """put(), for asyncio: readers are looked at 200 times a second. Other tasks have a turn in any case."""
        from .._base import _away

        return await _away.until(lambda: self._put(stream, 0), timeout)

    async def async_get(self, stream: Any = None, timeout: float | None = None, ahead: bool = False) -> Frame:
        """get(), for asyncio: waits for fileno(). A call that is cancelled takes no frame. Other tasks have a turn in
        any case."""
        from .._base import _away

        return await _away.until(lambda: self._get(stream, 0, ahead), timeout, self.fileno)


def _made(channel, name, pool):
    """A new Channel, which gets what Python knows of it."""
    lease = channel._lease
    try:
        element = _typestr.element_of(lease.typestr, lease.itemsize, lease.descr)
    except BaseException:
        channel.close()
        raise
    n, *shape = lease.shape
    step, *strides = lease.strides
    layouts = range(lease.ptr, lease.ptr + n * step, step)
    channel._name = name
    channel._pool = pool
    channel._is_registered = channel.memory == "device"
    channel._layouts = [Layout(ptr, tuple(shape), tuple(strides), element, lease.readonly) for ptr in layouts]
    if element.typestr[0] in "|" + NATIVE and element.descr is None and element.name is None:
        channel._set_format(_FORMATS.get(element.typestr[1:], ""))
    return channel


def create(client, name, geometry, slots, mode, memory, device, pool, timeout):
    """The Channel of Client.channel()."""
    shape, element, _ = geometry
    make = client._channel(
        name, pool, shape, element.type_name, element.descr, slots, mode, memory, device, timeout
    )
    return _made(make, name, pool)


def open(client, name, pool, wait, depth, device, timeout):
    """The Channel of Client.open_channel()."""
    return _made(client._channel_open(name, pool, depth, wait, device, timeout), name, pool)


_SLICE_S = 0.5  # a call that is cancelled goes on for so long, in its thread


async def async_create(make):
    """The Channel of Client.async_channel(), which make() returns, in a thread; it is closed where the coroutine is
    cancelled meanwhile."""
    from .._base import _away

    made = []
    return await _away.once(lambda: made.append(make()) or made[0], lambda: made[0].close())


async def async_open(make, timeout):
    """The Channel of Client.async_open_channel(): make(timeout) waits."""
    check_timeout(timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE_S if deadline is None else max(deadline - time.monotonic(), 0)
        try:
            return await async_create(lambda: make(min(left, _SLICE_S)))
        except TimedOutError:
            if left < _SLICE_S:
                raise
