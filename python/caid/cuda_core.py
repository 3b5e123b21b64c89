# SPDX-License-Identifier: Apache-2.0
"""cuda.core's buffers in caid's memory, published under names without a copy.

>>> import caid.cuda_core
>>> from cuda.core import Device
>>> device = Device()
>>> device.set_current()
>>> mr = caid.cuda_core.MemoryResource(device)
>>> stream = device.create_stream()
>>> buffer = mr.allocate(1024 * 768 * 4, stream=stream)
>>> mr.publish("weights", buffer, shape=(1024, 768), dtype="<f4", stream=stream)
"""

from __future__ import annotations

from typing import Any

try:
    from cuda.core import Buffer, Device
    from cuda.core import MemoryResource as _Base
except ImportError:  # before 0.5
    from cuda.core.experimental import Buffer, Device
    from cuda.core.experimental import MemoryResource as _Base

from ._base._records import ArenaMemory
from ._interfaces import _resource
from ._session._client import Client


class MemoryResource(_resource.Resource, _Base):
    """Allocates a device's memory for cuda.core: a ``cuda.core.MemoryResource``.

    Parameters
    ----------
    device : cuda.core.Device or int, optional
        Or its CUDA ordinal; the current device without it.
    client : Client, optional
        :func:`caid.default_client` without it.
    memory, pool, **options
        As for :meth:`caid.Client.arena`.

    Raises
    ------
    DeviceError
        The daemon has not got the device.
    NotFoundError, AccessError, InvalidError
        There is no such pool; it may not be written; there is no such kind of memory.

    Notes
    -----
    It may be used from any thread. What is deallocated is used again only when all work that the
    device's primary context had by then is done: that of the stream that deallocate() names, and of
    all others. A stream of another context has to be waited for before.

    Graphs may be captured on the stream that is named. What is freed meanwhile is not used again
    before the capture has ended; afterwards it is, though the graph writes there: see
    docs/CONSUMERS.md.

    It stays with its client. After a restart of the daemon, make another.
    """

    def __init__(
        self,
        device: Any = None,
        client: Client | None = None,
        *,
        memory: ArenaMemory = "device",
        pool: str | None = None,
        **options: Any,
    ):
        ordinal = device if isinstance(device, int) else (device or Device()).device_id
        options = {"memory": memory, "pool": pool, **options}
        self._device_id = ordinal
        self._served = _resource.Served(client, ordinal, options)

    def __repr__(self):
        return f"<caid.cuda_core.MemoryResource device_id={self._device_id} of {self.arena!r}>"

    def allocate(self, size: int, stream: Any = None) -> Buffer:
        """Allocates a buffer, whose memory can be used at once, on any stream.

        Parameters
        ----------
        size : int
            Bytes.
        stream : cuda.core.Stream or GraphBuilder, optional
            On which the buffer is deallocated, if its ``close()`` is given no other: the default
            stream without it, for which the device has to be current.

        Raises
        ------
        OutOfMemoryError, QuotaError, LimitError
            The device, the pool or the user has not got that much.
        DisconnectedError, InvalidError, ClosedError
            The daemon is gone, and there is no room in what was leased before; no size; the client is
            closed.
        """
        # Older ones have no stream there, and deallocate on the default stream.
        named = {} if stream is None else {"stream": stream}
        made = self._served.allocate(size, stream)
        ptr = made.ptr
        try:
            return Buffer.from_handle(ptr, size, mr=self, **named)
        except BaseException:
            self._served.undo(ptr, made)
            raise

    def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None:
        """Frees what allocate() gave; buffers do it themselves.

        Parameters
        ----------
        ptr : int or CUdeviceptr
            Where it begins.
        size : int
            Its bytes.
        stream : cuda.core.Stream or GraphBuilder, optional
            The work on it by now is done before the memory is used again.

        Raises
        ------
        InvalidError
            Nothing that begins there is allocated.
        """
        self._served.deallocate(int(ptr), stream)

    def publish(
        self,
        name: str,
        buffer: Any,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: Any = None,
        stream: Any = None,
        metadata: Any = None,
    ) -> int:
        """Puts a buffer under a name, at once and without a copy, as :meth:`caid.Arena.publish`, of
        which these are the parameters, the result and the errors.

        A Buffer may be closed then: its memory is kept until nobody can reach what was published.
        Without `stream` all work of the device's primary context is waited for.
        """
        if isinstance(buffer, Buffer):
            buffer = self._served.at(int(buffer.handle))
        return self.arena.publish(
            name, buffer, shape=shape, dtype=dtype, stream=stream, metadata=metadata
        )

    @property
    def device_id(self) -> int:
        """int: CUDA ordinal of its device."""
        return self._device_id

    @property
    def is_device_accessible(self) -> bool:
        """bool: True."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """bool: False."""
        return False
