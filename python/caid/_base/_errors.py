# SPDX-License-Identifier: Apache-2.0
"""The exceptions: one class per code of libcaid (``proto/errors.def``, ``caid.h``).

Each is a :class:`caid.Error` and so an :class:`OSError`, and where Python has a class for the
same thing, that too: ``except FileNotFoundError`` catches a name that is not there.
"""

from __future__ import annotations

import errno
import functools
from typing import Any

from .._answers import ErrorCode


class Error(OSError):
    """What caid refused, or could not do.

    Attributes
    ----------
    code : ErrorCode or int
        The kind of error; a plain int for one that only a later daemon knows.
    errno : int
        The system's number for it.
    strerror : str
        The message: it names the thing and the limit.
    cuda_result : int
        The ``CUresult`` of the driver call behind it, or 0.
    """

    code: int = ErrorCode.SYSTEM
    cuda_result: int = 0

    def __init_subclass__(cls, code: ErrorCode | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if code is not None:
            cls.code = code

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class ProtocolError(Error, code=ErrorCode.PROTOCOL):
    """The other side broke the protocol."""


class VersionError(Error, code=ErrorCode.VERSION):
    """Daemon and client have no protocol version in common."""


class UnknownMethodError(Error, NotImplementedError, code=ErrorCode.UNKNOWN_METHOD):
    """The daemon is too old for this call."""


class InvalidError(Error, ValueError, code=ErrorCode.INVALID):
    """A shape, stride, typestr, mode or the like is not valid."""


class InvalidNameError(InvalidError, code=ErrorCode.INVALID_NAME):
    """A name is 1 to 255 bytes of UTF-8 without control characters."""


class NotFoundError(Error, FileNotFoundError, code=ErrorCode.NOT_FOUND):
    """No such name, or none that the caller may see."""


class DroppedError(NotFoundError, code=ErrorCode.DROPPED):
    """The set that had the name made room for others, and nobody has made it again since: see
    :func:`caid.weights.open`, and :meth:`Client.lost`, which tells what it was."""


class ExistsError(Error, FileExistsError, code=ErrorCode.EXISTS):
    """The name is taken."""


class AccessError(Error, PermissionError, code=ErrorCode.PERMISSION):
    """The pool may be read but not written."""


class QuotaError(Error, code=ErrorCode.QUOTA):
    """A pool's or a user's bytes are used up."""


class LimitError(Error, code=ErrorCode.LIMIT):
    """A limit is reached: of names, leases, connections, ..."""


class OutOfMemoryError(Error, MemoryError, code=ErrorCode.NO_MEMORY):
    """The device has not got that much memory."""


class DeviceError(Error, code=ErrorCode.DEVICE):
    """No such device, at the daemon or in this process."""


class DriverError(Error, code=ErrorCode.DRIVER):
    """A CUDA driver call failed: see ``cuda_result``."""


class ShutdownError(Error, code=ErrorCode.SHUTDOWN):
    """The daemon is stopping, or makes no new arrays (``caidctl drain``)."""


class TooLargeError(Error, ValueError, code=ErrorCode.TOO_LARGE):
    """More than fits a packet."""


class UnsupportedError(Error, NotImplementedError, code=ErrorCode.UNSUPPORTED):
    """Not on this device or driver."""


class CancelledError(Error, code=ErrorCode.CANCELLED):
    """A watch, a timeline or a client was closed while somebody waited for it; of :mod:`caid.mpi`, it has failed
    at another rank."""


class StaleError(Error, code=ErrorCode.STALE):
    """That generation of the name is gone, or has not come yet."""


class TimedOutError(Error, TimeoutError, code=ErrorCode.TIMEOUT):
    """What was waited for did not come in time."""


class DeadlockError(Error, code=ErrorCode.DEADLOCK):
    """A bracket would wait for one that its own thread has to end, or for a thread that waits for
    it."""


class AbandonedError(Error, code=ErrorCode.ABANDONED):
    """A process died, or gave up, before the work was done that others wait for: what it was to
    write is not whole."""


class NotReadyError(Error, BlockingIOError, code=ErrorCode.NOT_READY):
    """The daemon waits for its driver, or has not all back after a restart: to be tried again."""


class LostError(Error, code=ErrorCode.LOST):
    """The array that had the name did not come back from an earlier daemon, and nobody has unlinked
    the name, or given it to another one, since: see :meth:`Client.lost`."""


class InternalError(Error, code=ErrorCode.INTERNAL):
    """Two daemons have crashed in this call, which is not repeated: a defect of caid."""


class BusyError(Error, code=ErrorCode.BUSY):
    """Another process produces in the channel."""


class LostWarning(UserWarning):
    """Arrays of a client that went on with another daemon did not come back: they raise LostError."""


class NoDaemonError(Error, ConnectionRefusedError, code=ErrorCode.NO_DAEMON):
    """Nobody listens at the socket."""


class DisconnectedError(Error, ConnectionResetError, code=ErrorCode.DISCONNECTED):
    """The daemon closed the connection, or died."""


class KickedError(DisconnectedError, code=ErrorCode.KICKED):
    """An administrator, or another process of the same user, has ended the connection: :meth:`Client.kick`."""


class ForkedError(Error, RuntimeError, code=ErrorCode.FORKED):
    """What was inherited, or CUDA after the parent has used it, was used in a child made by ``fork()``
    without ``exec()``: use multiprocessing's "spawn" or "forkserver"."""


class ClosedError(Error, ValueError, code=ErrorCode.CLOSED):
    """The array or client was closed."""


class ReadOnlyError(Error, code=ErrorCode.READ_ONLY):
    """A write to an array that was opened with mode "r"."""


class SystemCallError(Error, code=ErrorCode.SYSTEM):
    """A system call failed: see ``errno``."""


class CorruptError(Error, code=ErrorCode.CORRUPT):
    """The creator of an array has described its elements wrongly: the message names the user."""


class InterruptError(Error, InterruptedError, code=ErrorCode.INTERRUPTED):
    """A signal ended a wait. Seen in C alone: in Python it is what the handler raised."""


class UnavailableError(AttributeError):
    """An attribute has no value now: its array, stream, … is closed, was inherited by ``fork()`` or could not
    be opened. ``__cause__`` is the error, which methods raise: no class can be an OSError and an
    AttributeError, as hasattr(), inspect.getmembers() and completion expect one."""


# The device, a pool or a user has not got that much memory.
NO_ROOM = (OutOfMemoryError, QuotaError, LimitError)

CLASSES = {cls.code: cls for cls in [*Error.__subclasses__(), InvalidNameError, DroppedError, KickedError]}

# Each by its name, for type checkers.
__all__ = [
    "Error",
    "ErrorCode",
    "AbandonedError",
    "AccessError",
    "BusyError",
    "CancelledError",
    "ClosedError",
    "CorruptError",
    "DeadlockError",
    "DeviceError",
    "DisconnectedError",
    "DriverError",
    "DroppedError",
    "ExistsError",
    "ForkedError",
    "InternalError",
    "InterruptError",
    "InvalidError",
    "InvalidNameError",
    "KickedError",
    "LimitError",
    "LostError",
    "LostWarning",
    "NoDaemonError",
    "NotFoundError",
    "NotReadyError",
    "OutOfMemoryError",
    "ProtocolError",
    "QuotaError",
    "ReadOnlyError",
    "ShutdownError",
    "StaleError",
    "SystemCallError",
    "TimedOutError",
    "TooLargeError",
    "UnavailableError",
    "UnknownMethodError",
    "UnsupportedError",
    "VersionError",
]


def make_error(code, errnum, message, cuda_result):
    """The exception for an error of libcaid's. The extension calls this."""
    cls = CLASSES.get(code, Error)
    error = cls(errnum, message)
    if cls is Error:
        error.code = code
    if cuda_result:
        error.cuda_result = cuda_result
    return error


# Errors that the package finds itself; each takes a message. CorruptError is about what another user wrote.
invalid = functools.partial(InvalidError, errno.EINVAL)
closed = functools.partial(ClosedError, errno.EBADF)
unsupported = functools.partial(UnsupportedError, errno.ENOTSUP)
device = functools.partial(DeviceError, errno.ENODEV)
not_found = functools.partial(NotFoundError, errno.ENOENT)
corrupt = functools.partial(CorruptError, errno.EBADMSG)
exists = functools.partial(ExistsError, errno.EEXIST)
timed_out = functools.partial(TimedOutError, errno.ETIMEDOUT)
read_only = functools.partial(ReadOnlyError, errno.EROFS)


def check_timeout(timeout):
    """Raises ValueError where it is neither a timeout nor None."""
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout {timeout!r}: seconds, 0 or more, or None")
