# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells, as named tuples. The fields are in the order that ``_caid`` gives."""

from typing import Literal, NamedTuple, Optional, Tuple

from . import _answers
from ._answers import *  # noqa: F403

__all__ = [
    "AllocationInfo",
    "ArenaInfo",
    "Change",
    "Device",
    "Flushed",
    "IpcHandle",
    "MemoryInfo",
    "PointerInfo",
    "Status",
    *_answers.__all__,
]

# What arrays, and arenas, can be made of.
Memory = Literal["device", "legacy", "pinned", "mapped", "managed"]
ArenaMemory = Literal["device", "legacy"]


class MemoryInfo(NamedTuple):
    """Memory of a device. What is no count is in bytes."""

    free: int  #: as the driver reports it now
    total: int  #: as the driver reports it now
    used: int  #: of caid's blocks on this device
    blocks: int  #: how many
    arrays: int  #: how many
    allocated: int  #: that arrays take of the blocks
    reserve: int  #: of empty blocks, of all pools
    available: int  #: that the caller's own pool has in its blocks, free or waiting to be freed
    pending: int  #: entries of the deallocation queue
    pending_bytes: int  #: of those
    pinned: int  #: of page-locked host memory made for the device; in none of the others
    flushes: int  #: of the queue, ever
    releases: int  #: of blocks to the driver, ever
    quarantined: int  #: blocks that the driver would not take back
    quarantined_bytes: int  #: of those
    context: bool  #: whether the daemon has a context there, for legacy handles


class Flushed(NamedTuple):
    """What a flush() has freed."""

    entries: int  #: that left the deallocation queue
    blocks: int  #: that went back to the driver
    bytes: int  #: of those blocks


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


class Device(NamedTuple):
    """One of the daemon's devices; its place in ``Client.devices`` is its index."""

    uuid: str
    name: str
    total: int  #: bytes
    granularity: int  #: bytes; sizes of blocks are multiples of it
    #: How its streams wait for those of other processes: "memops" (stream memory operations: no
    #: wait of the host), "host" (the host waits) or "events" (inter-process events): caid.conf(5).
    handoff: str
    kinds: Tuple[str, ...]  #: of memory that it can share
    memops: bool  #: it has 64-bit stream memory operations
    readonly_host: bool  #: it takes host memory that is mapped for reading
    mps: bool  #: contexts of it are MPS clients', as the daemon sees it
    persistence: Optional[str]  #: "on" or "off"; None where it is not known
    compute_mode: Optional[str]  #: "default", "exclusive" or "prohibited"; None where not known


class Status(NamedTuple):
    """The daemon."""

    server: str  #: "caid 0.1.0"
    driver: str  #: "cuda" or "soft"
    driver_path: str
    socket: str  #: that the client is connected to
    pool: str  #: the caller's own
    driver_version: int  #: 13000 is CUDA 13.0
    pid: int
    uptime_ns: int
    connections: int
    pools: int
    blocks: int
    arrays: int
    names: int
    leases: int
    jobs: int  #: driver calls under way
    release_errors: int  #: blocks that the driver would not take back, ever
    watches: int
    pending: int  #: entries of the deallocation queues
    contexts: int  #: that the daemon has, for legacy handles
    brackets: int  #: that are open, or wait
    pages: int  #: of timelines
    timelines: int  #: that have a name
    turn_cpu_ns: int  #: the longest turn of the daemon's loop, in time of its thread
    turn_wall_ns: int  #: and by the wall clock, which goes on while others run
    keeper: bool  #: the daemon has one: what has a name outlives it
    kept: int  #: fds that its keeper has
    restarts: int  #: daemons that have left the keeper their arrays before this one
    journal_bytes: int  #: of the record of what outlives it
    draining: bool  #: no array is made any more, since somebody has called ``caidctl drain``
    machine_id: str  #: that the daemon runs on: 32 hexadecimal digits, see :class:`caid.Reference`
    daemon_id: str  #: the same of the daemon, and of those that were before it
    set_max: int  #: arrays that a set may have
