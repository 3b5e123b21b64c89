# SPDX-License-Identifier: Apache-2.0
"""Numba's IPC on memory that has no handles of CUDA's: a ticket stands in the 64 bytes of one.

The 64 bytes are a mark, the daemon's id and the ticket, of an allocation of an arena. Any number of processes
open it, each by a lease of its own. The ticket is one for each allocation, and is withdrawn when Numba's
pointer to the allocation is collected, which arrays, views and handles keep; one that outlives its client
lasts as tickets do (``ticket_ttl`` of caid.conf(5)).
"""

from __future__ import annotations

import contextlib
import weakref

from .._base._errors import Error, NotFoundError, invalid
from .._memory import _array
from .._session import _default

_MARK = b"\xffcaid-1\xff"
_SIZE = 64  # CU_IPC_HANDLE_SIZE
_ID_SIZE, _TICKET_SIZE = 16, 16
_PADDING = bytes(_SIZE - len(_MARK) - _ID_SIZE - _TICKET_SIZE)


class Ticket:
    """What opens an allocation of an arena in other processes, until it is collected."""

    __slots__ = ("client", "start", "handle", "_ticket")

    def __init__(self, arena, ptr):
        self._ticket, self.start = arena._send_allocation(ptr)
        self.client = arena._client
        self.handle = _MARK + bytes.fromhex(self.client.daemon_id) + self._ticket + _PADDING

    def __del__(self):
        if hasattr(self, "client"):
            with contextlib.suppress(Error):  # it has ended with its client
                self.client._take(self._ticket, "r", None, False).close()


def is_ticket(handle: bytes) -> bool:
    return len(handle) == _SIZE and handle.startswith(_MARK) and handle.endswith(_PADDING)


def _open(handle, ordinal):
    """The allocation as an array of bytes. The errors are those of :meth:`caid.Reference.open`."""
    handle = handle[len(_MARK) :]
    daemon_id = handle[:_ID_SIZE].hex()
    client = _default.client_at(daemon_id)
    uuid = client._uuid_of(client._find_device(ordinal))
    try:
        lease = client._take(handle[_ID_SIZE:][:_TICKET_SIZE], "rw", uuid, True)
    except NotFoundError as e:
        if client.daemon_id == daemon_id:
            raise
        advice = "the handle is another daemon's: $CAID_SOCKET has to name the one that its sender uses"
        raise NotFoundError(e.errno, f"{e}: {advice}") from None
    return _array.of_leases([lease], root=False)[0]


def implementation(library):
    """A subclass of the library's _CudaIpcImpl, by which all its handles open memory, that knows tickets."""
    Base, MemoryPointer = library.driver._CudaIpcImpl, library.driver.MemoryPointer

    class _CudaIpcImpl(Base):
        _array = None  # of a ticket's allocation, while it is open

        def open(self, context):
            handle = library.bytes_of(self.handle)
            if not is_ticket(handle):
                return super().open(context)
            if self.base is not None:
                raise ValueError("opening IpcHandle from original process")
            if self._opened_mem is not None:
                raise ValueError("IpcHandle is already opened")
            array = _open(handle, int(context.device.id))
            end = self.offset + self.size
            if end > array.nbytes:
                array.close()
                raise invalid(f"an IpcHandle of {end} bytes: the allocation has {array.nbytes}")
            pointer = library.pointer(array.ptr)
            self._array = array
            self._opened_mem = MemoryPointer(weakref.proxy(context), pointer, end)
            return self._opened_mem.own().view(self.offset)

        def close(self):
            if self._array is None:
                super().close()
                return
            self._array.close()
            self._array = self._opened_mem = None

    return _CudaIpcImpl
