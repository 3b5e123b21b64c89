# SPDX-License-Identifier: Apache-2.0
"""The exceptions: one class per code of libcaid (``proto/errors.def``, ``caid.h``).

Each is a :class:`caid.Error` and so an :class:`OSError`, and where Python has a class for the
same thing, that too: ``except FileNotFoundError`` catches a name that is not there.
"""

import enum
import errno
import functools


class ErrorCode(enum.IntEnum):
    """What went wrong, as the daemon and libcaid number it."""

    PROTOCOL = 1
    VERSION = 2
    UNKNOWN_METHOD = 3
    INVALID = 4
    INVALID_NAME = 5
    NOT_FOUND = 6
    EXISTS = 7
    PERMISSION = 8
    QUOTA = 9
    LIMIT = 10
    NO_MEMORY = 11
    DEVICE = 12
    DRIVER = 13
    SHUTDOWN = 14
    TOO_LARGE = 15
    UNSUPPORTED = 16
    CANCELLED = 17
    STALE = 18
    TIMEOUT = 19
    DEADLOCK = 20
    ABANDONED = 21
    NOT_READY = 22
    NO_DAEMON = 64
    DISCONNECTED = 65
    FORKED = 66
    CLOSED = 67
    READ_ONLY = 68
    SYSTEM = 69
    CORRUPT = 70
    INTERRUPTED = 71


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

    def __str__(self):
        return self.strerror or super().__str__()


class ProtocolError(Error):
    """The other side broke the protocol."""

    code = ErrorCode.PROTOCOL


class VersionError(Error):
    """Daemon and client have no protocol version in common."""

    code = ErrorCode.VERSION


class UnknownMethodError(Error, NotImplementedError):
    """The daemon is too old for this call."""

    code = ErrorCode.UNKNOWN_METHOD


class InvalidError(Error, ValueError):
    """A shape, stride, typestr, mode or the like is not valid."""

    code = ErrorCode.INVALID


class InvalidNameError(InvalidError):
    """A name is 1 to 255 bytes of UTF-8 without control characters."""

    code = ErrorCode.INVALID_NAME


class NotFoundError(Error, FileNotFoundError):
    """No such name, or none that the caller may see."""

    code = ErrorCode.NOT_FOUND


class ExistsError(Error, FileExistsError):
    """The name is taken."""

    code = ErrorCode.EXISTS


class AccessError(Error, PermissionError):
    """The pool may be read but not written."""

    code = ErrorCode.PERMISSION


class QuotaError(Error):
    """A pool's or a user's bytes are used up."""

    code = ErrorCode.QUOTA


class LimitError(Error):
    """As many names, leases, connections, ... as there may be."""

    code = ErrorCode.LIMIT


class OutOfMemoryError(Error, MemoryError):
    """The device has not got that much memory."""

    code = ErrorCode.NO_MEMORY


class DeviceError(Error):
    """No such device, at the daemon or in this process."""

    code = ErrorCode.DEVICE


class DriverError(Error):
    """A CUDA driver call failed: see ``cuda_result``."""

    code = ErrorCode.DRIVER


class ShutdownError(Error):
    """The daemon is stopping."""

    code = ErrorCode.SHUTDOWN


class TooLargeError(Error, ValueError):
    """More than fits a packet."""

    code = ErrorCode.TOO_LARGE


class UnsupportedError(Error, NotImplementedError):
    """Not on this device or driver."""

    code = ErrorCode.UNSUPPORTED


class CancelledError(Error):
    """A watch, a timeline or a client was closed while somebody waited for it."""

    code = ErrorCode.CANCELLED


class StaleError(Error):
    """That generation of the name is gone, or has not come yet."""

    code = ErrorCode.STALE


class TimedOutError(Error, TimeoutError):
    """What was waited for did not come in time."""

    code = ErrorCode.TIMEOUT


class DeadlockError(Error):
    """A bracket would wait for one that its own thread has to end, or for a thread that waits for
    it."""

    code = ErrorCode.DEADLOCK


class AbandonedError(Error):
    """A process died, or gave up, before the work was done that others wait for: what it was to
    write is not whole."""

    code = ErrorCode.ABANDONED


class NotReadyError(Error, BlockingIOError):
    """The daemon waits for its driver: to be tried again."""

    code = ErrorCode.NOT_READY


class NoDaemonError(Error, ConnectionRefusedError):
    """Nobody listens at the socket."""

    code = ErrorCode.NO_DAEMON


class DisconnectedError(Error, ConnectionResetError):
    """The daemon closed the connection, or died."""

    code = ErrorCode.DISCONNECTED


class ForkedError(Error, RuntimeError):
    """A client was used in a child made by ``fork()`` without ``exec()``."""

    code = ErrorCode.FORKED


class ClosedError(Error, ValueError):
    """The array or client was closed."""

    code = ErrorCode.CLOSED


class ReadOnlyError(Error):
    """A write to an array that was opened with mode "r"."""

    code = ErrorCode.READ_ONLY


class SystemCallError(Error):
    """A system call failed: see ``errno``."""

    code = ErrorCode.SYSTEM


class CorruptError(Error):
    """What the creator of an array says of its elements cannot be: the message names him."""

    code = ErrorCode.CORRUPT


class InterruptError(Error, InterruptedError):
    """A signal ended a wait. Seen in C alone: in Python it is what the handler raised."""

    code = ErrorCode.INTERRUPTED


# The device, a pool or a user has not got that much memory.
NO_ROOM = (OutOfMemoryError, QuotaError, LimitError)

CLASSES = {cls.code: cls for cls in [*Error.__subclasses__(), InvalidNameError]}

__all__ = [
    "Error",
    "ErrorCode",
    *sorted(cls.__name__ for cls in CLASSES.values()),
]


def make_error(code, errnum, message, cuda_result):
    """The exception for what libcaid returned; the extension calls this."""
    cls = CLASSES.get(code, Error)
    error = cls(errnum, message)
    if cls is Error:
        error.code = code
    if cuda_result:
        error.cuda_result = cuda_result
    return error


# What is found out on this side; CorruptError tells of what another user wrote. Each takes a message.
invalid = functools.partial(InvalidError, errno.EINVAL)
closed = functools.partial(ClosedError, errno.EBADF)
unsupported = functools.partial(UnsupportedError, errno.ENOTSUP)
device = functools.partial(DeviceError, errno.ENODEV)
corrupt = functools.partial(CorruptError, errno.EBADMSG)
read_only = functools.partial(ReadOnlyError, errno.EROFS)
