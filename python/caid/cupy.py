# SPDX-License-Identifier: Apache-2.0
"""CuPy arrays in caid's memory, published under names without a copy.

>>> import cupy, caid.cupy
>>> allocator = caid.cupy.Allocator()
>>> cupy.cuda.set_allocator(allocator.malloc)
>>> w = cupy.ones((1024, 768), "f4")
>>> caid.cupy.publish("weights", w)             # in any process: caid.connect().open("weights")
"""

from __future__ import annotations

import functools
import itertools
import weakref
from typing import Any, ContextManager

import cupy
from cupy.cuda import MemoryPointer, UnownedMemory, runtime
from cupy.cuda.runtime import CUDARuntimeError

from ._base._errors import Error, NO_ROOM
from ._base._records import ArenaMemory
from ._handoff import _any_stream
from ._interfaces import _resource
from ._memory import _arena
from ._session._client import Client

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation

_numbers = itertools.count()
# All allocators that exist, in the order in which they were made.
_allocators: weakref.WeakValueDictionary[int, Allocator] = weakref.WeakValueDictionary()


class Allocator:
    """Where CuPy allocates: ``cupy.cuda.set_allocator(Allocator().malloc)``.

    Parameters
    ----------
    client : Client, optional
        By default that of :func:`caid.default_client`.
    memory, pool, **options
        As for :meth:`caid.Client.arena`.

    Notes
    -----
    It may be used from any thread, and on all devices that the daemon has: each has an arena of its
    own. What is freed is used again only when all work that the device's context had by then is
    done, of all streams; so no pool of CuPy's is needed. One on top,
    ``cupy.cuda.MemoryPool(allocator.malloc)``, reuses memory at once, in the order of a stream, and
    keeps what it has.

    Graphs may be captured on the current stream. What is freed meanwhile is not used again before the
    capture has ended; afterwards it is, though the graph writes there: see docs/CONSUMERS.md.

    It stays with its client. After a restart of the daemon, make another Allocator, which without a
    client takes :func:`caid.default_client`'s new one.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        memory: ArenaMemory = "device",
        pool: str | None = None,
        **options: Any,
    ):
        self._options = {"memory": memory, "pool": pool, **options}
        self._client = _resource.client_of(client, self._options)
        self._arenas: dict[int, _arena.Arena] = {}  # by CUDA ordinal
        self._alloc: dict[int, Any] = {}
        _allocators[next(_numbers)] = self

    def __repr__(self):
        return f"<caid.cupy.Allocator {self._options} of {self._client!r}>"

    def malloc(self, nbytes: int) -> MemoryPointer:
        """Memory on the current device, as CuPy's allocators give it.

        Raises
        ------
        cupy.cuda.runtime.CUDARuntimeError
            ``cudaErrorMemoryAllocation``: the device, the pool or the user does not have that much. caid's
            error is its cause.
        DeviceError, ClosedError, DisconnectedError
            The daemon does not have the device; the client is closed; the daemon has gone, and the leased
            memory is used up.
        """
        ordinal = runtime.getDevice()
        if nbytes == 0:
            return MemoryPointer(UnownedMemory(0, 0, None, ordinal), 0)
        alloc = self._alloc.get(ordinal) or self._begin(ordinal)
        try:
            allocation = alloc(nbytes)
        except NO_ROOM as e:
            raise CUDARuntimeError(_OUT_OF_MEMORY) from e
        return MemoryPointer(UnownedMemory(allocation.ptr, nbytes, allocation, ordinal), 0)

    def _begin(self, ordinal):
        """Makes the arena at the first allocation on a device. If two threads make one, one of the two is dropped:
        it has no memory yet."""
        stream = functools.partial(cupy.cuda.get_current_stream, ordinal)
        made = _resource.arena_on(self._client, ordinal, stream, self._options)
        arena = self._arenas.setdefault(ordinal, made)
        return self._alloc.setdefault(ordinal, arena._alloc)

    def arena(self, device: int | None = None) -> _arena.Arena:
        """The arena of a device, by its CUDA ordinal, for its figures and ``trim()``; by default of the current
        device. Raises DeviceError."""
        ordinal = runtime.getDevice() if device is None else device
        if ordinal not in self._arenas:
            self._begin(ordinal)
        return self._arenas[ordinal]

    def defer_cleanup(self) -> ContextManager[None]:
        """A ``with`` block in which memory that is freed on the current device is not used again."""
        return self.arena().defer_cleanup()

    def publish(
        self, name: str, array: cupy.ndarray, *, stream: Any = None, metadata: Any = None
    ) -> int:
        """Puts an array in this allocator's memory, with or without a MemoryPool on top, under a name, at once
        and without a copy. Parameters, result and errors are those of :meth:`caid.Arena.publish`; also
        ValueError: the array lies elsewhere.

        Readers share the array's memory, and see later writes. Without `stream`, CuPy's current stream of the
        array's device is waited for.
        """
        _check_type(array)
        if not self._has(array):
            raise _elsewhere(array, "this allocator's")
        return _publish(self, name, array, stream, metadata)

    def _has(self, array):
        if array.size == 0:  # it lies nowhere
            return True
        arena = self._arenas.get(array.device.id)
        return arena is not None and arena._has(array.data.ptr)


def publish(
    name: str, array: cupy.ndarray, *, stream: Any = None, metadata: Any = None
) -> int:
    """:meth:`Allocator.publish` by the allocator whose memory the array is in, as long as that exists. An array
    without elements is in nobody's memory: the latest allocator publishes it, in its pool."""
    _check_type(array)
    why = None
    for allocator in reversed(list(_allocators.values())):
        try:
            found = allocator._has(array)
        except Error as e:  # its client is closed
            found, why = False, e
        if found:
            return _publish(allocator, name, array, stream, metadata)
    raise _elsewhere(array, "of a caid.cupy.Allocator that can be asked") from why


def _publish(allocator, name, array, stream, metadata):
    if stream is None:
        stream = cupy.cuda.get_current_stream(array.device.id)
    arena = allocator.arena(array.device.id)
    return arena.publish(name, array, stream=_any_stream.handle(stream), metadata=metadata)


def _check_type(array):
    if not isinstance(array, cupy.ndarray):
        raise TypeError(f"a cupy.ndarray is needed, not {type(array).__name__}")


def _elsewhere(array, whose):
    return ValueError(
        f"an array {array.shape} of {array.dtype} on device {array.device.id} is not {whose}: make "
        "it after cupy.cuda.set_allocator(allocator.malloc), or within "
        "cupy.cuda.using_allocator(allocator.malloc)"
    )
