# SPDX-License-Identifier: Apache-2.0
"""Stream: a CUDA stream, caid's own or of any library."""

from __future__ import annotations

import contextlib
import errno
import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterator

from .. import _caid
from .._base._driver import driver_client
from .._base._errors import ClosedError, Error, ErrorCode, make_error
from .._base._lifetime import Closing, OfProcess, attributes
from .._caid import Client
from . import _any_stream, _pending

if TYPE_CHECKING:
    import asyncio


_NON_BLOCKING = 1  # enum caid_stream_flags

_NAMES = {1: "legacy", 2: "per-thread"}  # the default streams


@attributes
@_caid.derived
class Stream(OfProcess, Closing, _caid.Stream):
    """A CUDA stream: what :meth:`caid.Client.stream` creates, or one of any library.

    A created stream is destroyed by ``close()``, by leaving its ``with`` block, when it is collected (then
    with a ResourceWarning), or with its client; its work is still done, and it lives on as long as an array
    is bound to it (:meth:`caid.Array.bind`). A stream that was wrapped by :meth:`from_handle` is never
    destroyed: the object that it was made from is kept alive. A stream keeps its client alive.

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

    __slots__ = ("_wrapped", "__weakref__")
    _comes_from = "Client.stream() or Stream.from_handle()"

    _wrapped: Any  # the object that it was made from; None: caid created it; not set: one of the package's own

    @classmethod
    def from_handle(
        cls, handle: Any, client: Client | None = None, device: int | str = 0
    ) -> Stream:
        """A Stream for one that is there. It is not destroyed.

        Parameters
        ----------
        handle : int or stream object
            1 (legacy default), 2 (per-thread default), a CUstream, or an object with ``__cuda_stream__()``,
            or of CuPy, Numba or PyTorch, which is kept alive. The caller keeps the stream of a plain number
            alive.
        client : Client, optional
            The client whose brackets and timelines use the stream: synchronize() and check() raise their
            errors. Without it, this process's driver is used, with no daemon, and there are none.
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
        number = _any_stream.handle(handle)
        index = device if client is None else client._index_of(device)
        return _made((client or driver_client())._stream_wrap(number, index), handle)

    # --- life -------------------------------------------------------------------------------

    def __del__(self, _warn=warnings.warn):
        if getattr(self, "_wrapped", self) is None and self._live:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)

    # --- what it is -------------------------------------------------------------------------

    def __cuda_stream__(self) -> tuple[int, int]:
        """(version, handle): the CUDA Stream Protocol, see the documentation of cuda.core."""
        return (0, super().handle)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        same = self._number == other._number
        return self is other or (same and not self.closed and not other.closed)

    def __hash__(self):
        return hash(self._number)

    def __repr__(self):
        name = _NAMES.get(self._number, f"{self._number:#x}")
        wrapped = "" if self._wrapped is None else " wrapped"
        return f"<caid.Stream {name} device={self.device}{wrapped}{' closed' * self.closed}>"

    # --- waiting ----------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits, on the host, for all that is on the stream.

        Raises
        ------
        AbandonedError
            A wait of the stream, for a bracket or a timeline, ended because the other process has died: later
            work on the stream may have read incomplete data. Raised once.
        DriverError
            The work has failed, or the driver knows no such stream.
        """
        self._synchronize()
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
        done = self._query()
        if done:
            _pending.release()
        return done

    @property
    def is_done(self) -> bool:
        """bool: the same as query(); cuda.core's word."""
        return self.query()

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
        self._add_callback(callback, arg)

    def async_done(self) -> asyncio.Future[None]:
        """A future of the running event loop that is done when the stream has come to here.

        Awaiting it raises what synchronize() would: DriverError, AbandonedError.

        Raises
        ------
        RuntimeError
            No event loop runs in this thread.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.add_callback(_tell, (loop, future))
        return future


def _made(stream, wrapped):
    stream._wrapped = wrapped
    return stream


def create(client, device, non_blocking, priority):
    """The Stream of Client.stream()."""
    flags = (_NON_BLOCKING if non_blocking else 0) | min(max(-priority, 0), 255) << 8
    return _made(client._stream_new(client._index_of(device), flags), None)


def of(stream, client, device):
    """A Stream for any stream object or number; None for None, which is the host."""
    if stream is None or isinstance(stream, Stream):
        return stream
    return _made(client._stream_wrap(_any_stream.handle(stream), device), stream)


# --- asyncio --------------------------------------------------------------------------------


def _tell(stream, status, waiting):
    """Runs on the driver's thread: has the event loop resolve the future."""
    loop, future = waiting
    with contextlib.suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(_resolve, stream, status, future)


def _resolve(stream, status, future):
    """Runs on the event loop's thread."""
    if future.done():  # cancelled
        return
    try:
        if status:
            raise make_error(ErrorCode.DRIVER, errno.EIO, f"{stream!r}: CUresult {status}", status)
        with contextlib.suppress(ClosedError):  # the stream was closed meanwhile: its work is done
            stream.check()
    except Error as e:
        future.set_exception(e)
    else:
        future.set_result(None)
