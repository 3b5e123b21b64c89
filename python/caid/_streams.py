# SPDX-License-Identifier: Apache-2.0
"""Stream: a CUDA stream, caid's own or of any library."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import warnings
from typing import Any, Callable, Iterator

from . import _caid, _cai, _pending, _stream
from ._errors import ClosedError, Error, ErrorCode, make_error
from ._handles import Closing, OfProcess

_NON_BLOCKING = 1  # enum caid_stream_flags

_NAMES = {1: "legacy", 2: "per-thread"}  # the default streams


class Stream(OfProcess, Closing):
    """A CUDA stream: what :meth:`caid.Client.stream` creates, or one of any library.

    A created stream is destroyed by ``close()``, by leaving its ``with`` block, when it is
    collected (then with a ResourceWarning), or with its client; what is on it is done all the
    same. One that was wrapped, by :meth:`from_handle`, is never destroyed: the object that it was
    made from is kept alive. A stream keeps its client alive.

    Wherever caid takes a stream, it takes this, the number of one, and the stream objects of
    CuPy, Numba, PyTorch and cuda.core. To these, this is a stream by ``__cuda_stream__()``::

        s = client.stream()
        cupy.cuda.Stream.from_external(s)
        numba.cuda.external_stream(s.ptr)
        torch.cuda.ExternalStream(s.ptr)

    Streams are equal where their handles are, and neither is closed.

    Sources: CUDA Driver API, "Stream Management"; the names are Numba's where Numba has them, else
    CuPy's and cuda.core's.
    """

    __slots__ = ("_stream", "_wrapped", "__weakref__")
    _comes_from = "Client.stream() or Stream.from_handle()"

    _stream: _caid.Stream
    _wrapped: Any  # what it was made from; None: it was created

    @classmethod
    def from_handle(
        cls, handle: Any, client: _caid.Client | None = None, device: int | str = 0
    ) -> Stream:
        """A Stream for one that is there. It is not destroyed.

        Parameters
        ----------
        handle : int or stream object
            1 (legacy default), 2 (per-thread default), a CUstream, or an object with
            ``__cuda_stream__()``, or of CuPy, Numba or PyTorch, which is kept alive. Of a number
            alone the caller sees to that.
        client : Client, optional
            Whose brackets and timelines run on the stream: synchronize() and check() tell of those.
            Without it, this process's driver is used, with no daemon, and they tell of none.
        device : int or str
            Index or, with a client, UUID of the device whose primary context 1 and 2 mean, in a
            thread that has no current one.

        Raises
        ------
        ValueError
            Stream 0, which is ambiguous.
        TypeError
            No stream.
        """
        number = _stream.handle(handle)
        index = device if client is None else client._index_of(device)
        return _make((client or _cai.driver_client())._stream_wrap(number, index), handle)

    # --- life -------------------------------------------------------------------------------

    def close(self) -> None:
        """Destroys the stream, where caid has created it. Idempotent. Waits for nothing: what is on
        it is done, and a bracket that is open on it is ended there, before it goes."""
        self._stream.close()

    def __del__(self, _warn=warnings.warn):
        stream = getattr(self, "_stream", None)
        if stream is None:
            return
        if self._wrapped is None and not stream.closed:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)
        stream.close()

    @property
    def closed(self) -> bool:
        """bool: whether the stream, or its client, is closed."""
        return self._stream.closed

    # --- what it is -------------------------------------------------------------------------

    @property
    def handle(self) -> int:
        """int: the CUstream; 1 and 2 are the default streams. Raises ClosedError."""
        if self._stream.closed:
            raise ClosedError(errno.EBADF, "the stream is closed")
        return self._stream.handle

    @property
    def ptr(self) -> int:
        """int: the same as `handle`; CuPy's word."""
        return self.handle

    @property
    def device(self) -> int:
        """int: index of its device, as it was said when it was made."""
        return self._stream.device

    def __cuda_stream__(self) -> tuple[int, int]:
        """(version, handle): the CUDA Stream Protocol, see the documentation of cuda.core."""
        return (0, self.handle)

    def __eq__(self, other):
        if not isinstance(other, Stream):
            return NotImplemented
        same = self._stream.handle == other._stream.handle
        return self is other or (same and not self.closed and not other.closed)

    def __hash__(self):
        return hash(self._stream.handle)

    def __repr__(self):
        number = self._stream.handle
        name = _NAMES.get(number, f"{number:#x}")
        wrapped = "" if self._wrapped is None else " wrapped"
        return f"<caid.Stream {name} device={self.device}{wrapped}{' closed' * self.closed}>"

    # --- waiting ----------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits, on the host, for all that is on the stream.

        Raises
        ------
        AbandonedError
            The stream was let go from a wait, of a bracket or a timeline, for a process that has
            died: what came after it on the stream may have read what is not whole. It is told
            once.
        DriverError
            The work has failed, or the driver knows no such stream.
        """
        self._stream.synchronize()
        _pending.release()

    @contextlib.contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """A ``with`` block that ends with synchronize(): also when it is left by an exception,
        which then goes on, whatever synchronize() finds."""
        try:
            yield self
        except BaseException:
            with contextlib.suppress(Error):
                self.synchronize()
            raise
        self.synchronize()

    def query(self) -> bool:
        """Whether nothing is left on the stream. Raises DriverError where the work has failed."""
        done = self._stream.query()
        if done:
            _pending.release()
        return done

    @property
    def is_done(self) -> bool:
        """bool: the same as query(); cuda.core's word."""
        return self.query()

    def check(self) -> None:
        """Raises AbandonedError where synchronize() would, without waiting: it tells of what has
        come about by now."""
        self._stream.check()

    # --- callbacks --------------------------------------------------------------------------

    def add_callback(
        self, callback: Callable[[Stream, int, Any], object], arg: Any = None
    ) -> None:
        """Has a function called when the stream has come to here: all that was enqueued before is
        done, and nothing that is enqueued later begins before it has returned.

        Parameters
        ----------
        callback : callable
            Called as ``callback(stream, status, arg)``; status is a CUresult, 0 where all is well.
            What it raises goes to ``sys.unraisablehook``. Both are kept alive until then.
        arg : object, optional

        Raises
        ------
        DriverError
            The driver knows no such stream.

        Notes
        -----
        It is called by a thread of the driver's, which waits for the GIL, and may not call CUDA,
        nor caid: see cuStreamAddCallback() in the CUDA Driver API. What has not been called when
        the interpreter ends never is; one that runs then is waited for.
        """
        if not callable(callback):
            raise TypeError(f"callback: a callable is needed, not {type(callback).__name__}")
        self._stream.add_callback(callback, self, arg)

    def async_done(self) -> asyncio.Future[None]:
        """A future of the running event loop that is done when the stream has come to here.

        Awaiting it raises what synchronize() would: DriverError, AbandonedError.

        Raises
        ------
        RuntimeError
            No event loop runs in this thread.
        """
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.add_callback(_tell, (loop, future))
        return future


def _make(stream, wrapped, _new=object.__new__):
    self = _new(Stream)
    self._wrapped = wrapped
    self._stream = stream
    return self


def create(client, device, non_blocking):
    """The Stream of Client.stream()."""
    flags = _NON_BLOCKING if non_blocking else 0
    return _make(client._stream_new(client._index_of(device), flags), None)


def of(stream, client, device):
    """A Stream for anything that is one; None for None, which is the host."""
    if stream is None or isinstance(stream, Stream):
        return stream
    return _make(client._stream_wrap(_stream.handle(stream), device), stream)


# --- asyncio --------------------------------------------------------------------------------


def _tell(stream, status, waiting):
    """In the driver's thread."""
    loop, future = waiting
    with contextlib.suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(_resolve, stream, status, future)


def _resolve(stream, status, future):
    """In the loop's."""
    if future.done():  # cancelled
        return
    try:
        if status:
            raise make_error(ErrorCode.DRIVER, errno.EIO, f"{stream!r}: CUresult {status}", status)
        with contextlib.suppress(ClosedError):  # closed meanwhile: its work is done
            stream.check()
    except Error as e:
        future.set_exception(e)
    else:
        future.set_result(None)
