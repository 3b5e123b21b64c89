# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells, as named tuples. The fields are in the order that ``_caid`` gives."""

from typing import NamedTuple, Optional


class MemoryInfo(NamedTuple):
    """Memory of a device, in bytes."""

    free: int  #: as the driver reports it now
    total: int  #: as the driver reports it now
    used: int  #: of caid's blocks on this device
    blocks: int  #: how many
    arrays: int  #: how many


class Device(NamedTuple):
    """One of the daemon's devices; its place in ``Client.devices`` is its index."""

    uuid: str
    name: str
    total: int  #: bytes
    granularity: int  #: bytes; sizes of blocks are multiples of it


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


class Pool(NamedTuple):
    """A sharing domain: who may read its mode bits may list and open, who may write may create."""

    name: str
    uid: int
    gid: int
    mode: int  #: permission bits, as of a file
    quota: int  #: bytes; 0 for none
    used: int  #: bytes of blocks
    names: int
    arrays: int


class Entry(NamedTuple):
    """A name."""

    pool: str
    name: str
    typestr: str
    shape: tuple
    device: int  #: index, or -1 for one that the client does not know
    generation: int
    nbytes: int
    leases: int  #: how many hold it
    uid: int  #: who created it


class Holder(NamedTuple):
    """Who holds an array."""

    client: Optional[str]  #: the name that it gave itself
    pid: int
    uid: int
    readonly: bool


class Details(NamedTuple):
    """All that is known of a name."""

    entry: Entry
    strides: Optional[tuple]  #: bytes; None for C order
    descr: Optional[str]  #: JSON field list of a structured type
    array: int  #: the daemon's number for it
    block: int  #: of its memory; 0 for an array of no bytes
    block_size: int
    offset: int  #: bytes from the block's start
    holders: list  #: of Holder; as many as fit a packet
