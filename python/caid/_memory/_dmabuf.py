# SPDX-License-Identifier: Apache-2.0
"""DmaBuf: an array's memory as a file descriptor, for those who are no clients."""

from __future__ import annotations

import os
from typing import Any

from .._base import _geometry
from .._base._errors import closed as closed_error


class DmaBuf:
    """A dma-buf of an array's memory: what :meth:`caid.Array.dmabuf` gives. It owns its fd, and closes it
    with ``close()``, ``with``, or when it is collected; ``os.dup(d.fd)`` is the caller's own.

    Attributes
    ----------
    offset : int
        Bytes from the start of the dma-buf to the array's first byte.
    nbytes : int
        Bytes from there to the end of the array's last element.
    """

    __slots__ = ("__weakref__", "_fd", "nbytes", "offset")
    offset: int
    nbytes: int

    def __new__(cls) -> DmaBuf:
        raise TypeError("DmaBuf: by Array.dmabuf()")

    @property
    def fd(self) -> int:
        """The fd, which programs that this one starts do not inherit. ClosedError: it is closed."""
        if self._fd < 0:
            raise closed_error("the dma-buf is closed")
        return self._fd

    def fileno(self) -> int:
        """The same, for what takes an object that has one."""
        return self.fd

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._fd < 0

    def close(self) -> None:
        """Closes the fd. The memory stays with who has a copy of it, or has mapped it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> DmaBuf:
        _ = self.fd
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a DmaBuf cannot be pickled or copied: send its fd (socket.send_fds)")

    def __repr__(self) -> str:
        what = "closed" if self.closed else f"fd {self._fd}"
        return f"<caid.DmaBuf {what}: {self.nbytes} bytes at {self.offset}>"


def make(lease, layout) -> DmaBuf:
    """The DmaBuf of a lease, for the elements of a layout in it."""
    self = object.__new__(DmaBuf)
    self._fd = -1
    low, high = _geometry.extent(layout.shape, layout.strides, layout.element.itemsize)
    self._fd, offset = lease._dmabuf()
    self.offset = offset + layout.ptr + low - lease.ptr
    self.nbytes = high - low
    return self
