# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells, as named tuples. The fields are in the order that ``_caid`` gives."""

from typing import Literal, NamedTuple, Optional

from .. import _answers
from .._answers import *  # noqa: F403

__all__ = [
    "AllocationInfo",
    "ArenaInfo",
    "Change",
    "IpcHandle",
    "PointerInfo",
    *_answers.__all__,
]

# What arrays, and arenas, can be made of.
Memory = Literal["device", "legacy", "pinned", "mapped", "managed"]
ArenaMemory = Literal["device", "legacy"]


class ArenaInfo(NamedTuple):
    """An arena. What is no count is in bytes."""

    blocks: int  #: leased from the daemon
    bytes: int  #: of those
    allocations: int  #: that are not freed
    allocated: int  #: of those, as asked for
    pending: int  #: that are freed, and wait
    pending_bytes: int  #: of those, as asked for
    draining: int  #: that have waited, while work of the GPU may still use them
    draining_bytes: int  #: of those
    published: int  #: parts that somebody can reach
    empty_blocks: int  #: that could go back to the daemon
    empty_bytes: int  #: of those
    n_allocs: int  #: allocations, ever
    n_leased: int  #: blocks, ever
    n_flushes: int  #: of what waits, ever


class AllocationInfo(NamedTuple):
    """Where an allocation of an arena is."""

    ptr: int  #: its device address
    nbytes: int  #: as asked for
    block: int  #: the daemon's id of the memory that it lies in
    offset: int  #: in the block, bytes


class IpcHandle(NamedTuple):
    """What opens "legacy" memory in another process, by any library: ``cuIpcOpenMemHandle()``,
    Numba's ``cuda.open_ipc_array()``, CuPy's ``runtime.ipcOpenMemHandle()``.

    Whoever has it may write the memory, and that of other arrays beside it. It is good while the
    array is open somewhere, or has a name; it is refused in the daemon's own process only.
    """

    handle: bytes  #: 64, a ``CUipcMemHandle``
    offset: int  #: bytes from the start of what it opens to the array's first element
    size: int  #: bytes of what it opens


class PointerInfo(NamedTuple):
    """What the driver knows of a pointer."""

    context: Optional[int]  #: CUcontext that the memory was made in; None: of none, as caid's own is
    device: int  #: CUDA ordinal, in this process, of its device
    device_ptr: int  #: its address for that device
    host_ptr: Optional[int]  #: its address for the host; None: the host does not reach it
    managed: bool  #: whether the driver moves the memory to where it is used

    @property
    def host_accessible(self) -> bool:
        return self.host_ptr is not None


class Change(NamedTuple):
    """News of a name that is watched."""

    name: str
    pool: Optional[str]  #: None: the caller's own
    generation: int  #: of the array that has the name now; 0: none has
