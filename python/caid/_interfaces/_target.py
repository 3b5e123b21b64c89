# SPDX-License-Identifier: Apache-2.0
"""The file that a model is written to: a regular file, also behind links, which is replaced or written in
place; or a pipe."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import Iterator

from .._base._errors import Error

_HEAD = 8  # bytes that a file which is written in place lacks until it is whole, so that no reader takes it

# Of a file that cannot be put in the place of another one: the folder is not the caller's to change, or
# the file that is there is mounted.
_FIXED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV}


@contextlib.contextmanager
def opened(path, size: int) -> Iterator[int]:
    """A block with an fd to write `size` bytes to: of a pipe, or of a file that has room for them, and that is to
    get its first _HEAD bytes last. When the block has ended without an error, the path has these bytes only.

    If the block fails, the path has its former contents, unless it is a pipe or a file that had to be written
    in place: then the exception says so."""
    path = os.fsdecode(path)
    with _named(path), contextlib.ExitStack() as stack:
        old = _open_old(path)
        if old is not None:
            stack.callback(os.close, old)
        if old is not None and stat.S_ISFIFO(os.fstat(old).st_mode):
            with _said(path, "has a part of it"):
                yield old
            return
        target = os.path.realpath(path)
        new = stack.enter_context(_beside(target, old))
        if new is None:
            with _in_place(path, old, size):
                yield old
            return
        fd, temporary = new
        os.posix_fallocate(fd, 0, size)  # raises now where there is no room
        yield fd
        os.fsync(fd)
        try:
            os.replace(temporary, target)
        except OSError as e:
            if old is None or e.errno not in _FIXED:
                raise
            with _in_place(path, old, size):
                _copy(fd, old)


@contextlib.contextmanager
def _named(path):
    """Makes errors of the system name the path, and no other file."""
    try:
        yield
    except OSError as e:
        if isinstance(e, Error) or e.errno is None:
            raise
        raise OSError(e.errno, e.strerror, path) from e.__cause__


def _open_old(path):
    """Opens the existing file; None if there is none. A file that the caller may not write is not replaced
    either."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if os.path.basename(path):
            return None
        raise
    if stat.S_ISFIFO(mode):
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, "neither a regular file nor a pipe")
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


@contextlib.contextmanager
def _beside(target, old):
    """A block with (fd, path) of a new file that can replace the old one; None if there can be none. The block's
    end removes the new file, unless it has replaced the old one."""
    temporary = os.path.join(os.path.dirname(target), f".caid-{secrets.token_hex(8)}.tmp")
    try:
        mode = 0o666 if old is None else 0o600
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as e:
        if old is None or e.errno not in _FIXED:
            raise
        yield None
        return
    try:
        if old is None or _is_at(target, old) and _made_alike(fd, old):
            yield fd, temporary
        else:
            yield None
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):  # it has replaced the old file
            os.unlink(temporary)


def _is_at(target, fd):
    """Whether the path leads to the file. It does not if the file was unlinked and was opened by
    /proc/self/fd."""
    try:
        return os.path.samestat(os.stat(target), os.fstat(fd))
    except FileNotFoundError:
        return False


def _made_alike(fd, old):
    """Gives a new file the owner, mode and extended attributes, with the ACL, of the old one. Whether that
    worked."""
    before = os.fstat(old)
    try:
        os.fchown(fd, before.st_uid, before.st_gid)
        os.fchmod(fd, stat.S_IMODE(before.st_mode))
        wanted = _attributes(old)
        for name in _attributes(fd).keys() - wanted.keys():
            os.removexattr(fd, name)
        for name, value in wanted.items():
            os.setxattr(fd, name, value)
    except OSError:
        return False
    made = os.fstat(fd)
    return (made.st_uid, made.st_gid, made.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


def _attributes(fd):
    try:
        return {name: os.getxattr(fd, name) for name in os.listxattr(fd)}
    except OSError as e:
        if e.errno != errno.ENOTSUP:
            raise
        return {}


@contextlib.contextmanager
def _in_place(path, fd, size):
    before = os.fstat(fd).st_size
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.ftruncate(fd, before)
        raise
    with _said(path, "was written in place, and is no longer whole"):
        os.pwrite(fd, bytes(_HEAD), 0)
        yield
        os.ftruncate(fd, size)
        os.fsync(fd)


@contextlib.contextmanager
def _said(path, what):
    """Makes the exception that ends the block say what has become of the path."""
    try:
        yield
    except Exception as e:
        why = getattr(e, "strerror", None) or str(e) or type(e).__name__
        raise OSError(getattr(e, "errno", None) or errno.EIO, f"{why}: it {what}", path) from e
    except KeyboardInterrupt as e:
        raise KeyboardInterrupt(f"{path} {what}") from e


def _copy(source, target):
    done = os.lseek(target, _HEAD, os.SEEK_SET)
    while n := os.sendfile(target, source, done, 1 << 30):
        done += n
    os.pwrite(target, os.pread(source, _HEAD, 0), 0)
