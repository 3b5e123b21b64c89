# SPDX-License-Identifier: Apache-2.0
"""Memory of RMM, and so of cuDF and the like, in caid's memory, published under names without a copy.

>>> import rmm, caid.rmm
>>> mr = caid.rmm.MemoryResource()
>>> rmm.mr.set_current_device_resource(mr)
>>> buffer = rmm.DeviceBuffer(size=1 << 20)
>>> mr.arena.publish("bytes", buffer)           # in any process: caid.connect().open("bytes")
"""

from __future__ import annotations

from typing import Any

from rmm.mr import CallbackMemoryResource

from ._base._errors import NO_ROOM
from ._base._records import ArenaMemory
from ._interfaces import _resource
from ._session._client import Client


class MemoryResource(_resource.Resource, CallbackMemoryResource):
    """Allocates a device's memory for RMM: an ``rmm.mr.CallbackMemoryResource``.

    Parameters
    ----------
    client : Client, optional
        By default that of :func:`caid.default_client`.
    device : int
        CUDA ordinal; RMM uses it while that device is current.
    memory, pool, **options
        As for :meth:`caid.Client.arena`.

    Raises
    ------
    DeviceError
        The daemon does not have the device.
    NotFoundError, AccessError, InvalidError
        There is no such pool; the caller may not write it; there is no such kind of memory.

    Notes
    -----
    If caid has no memory left, RMM gets a MemoryError, its ``bad_alloc``, also if the reason is a quota:
    caid's error is its cause.

    It may be used from any thread, and is ordered by streams, as RMM's resources are: what is given back on
    a stream serves the next buffer of the same size on that stream at once. For all others, and after a
    flush, it is free when all work is done that the device's primary context had by then.

    Graphs may be captured on the stream that is named: see docs/CONSUMERS.md.

    A resource stays with its client. After a restart of the daemon, make another.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        device: int = 0,
        memory: ArenaMemory = "device",
        pool: str | None = None,
        **options: Any,
    ):
        options = {"memory": memory, "pool": pool, **options}
        self._served = _resource.Served(client, device, options)
        alloc, free = self.arena._alloc_on, self.arena._free_on

        def allocate(nbytes, stream):
            try:
                return alloc(nbytes, stream.__cuda_stream__()[1])
            except NO_ROOM as e:
                raise MemoryError(str(e)) from e

        def deallocate(ptr, nbytes, stream):
            free(ptr, stream.__cuda_stream__()[1])

        super().__init__(allocate, deallocate)

    def __repr__(self):
        return f"<caid.rmm.MemoryResource of {self.arena!r}>"
