# SPDX-License-Identifier: Apache-2.0
"""What caid.cupy, caid.cuda_core and caid.rmm share: an arena of a device as a library allocates in it."""

from __future__ import annotations

import threading
from typing import Any

from .._base._errors import invalid
from .._handoff import _any_stream
from .._memory import _arena
from .._session import _default
from .._session._client import Client


def client_of(client: Client | None, options: dict) -> Client:
    """The client, or the default one. What it cannot allocate is refused now rather than by the first
    array."""
    client = client or _default.default_client()
    client.empty(0, "|u1", memory=options["memory"], pool=options["pool"]).close()
    return client


def arena_on(client: Client, ordinal: int, current_stream: Any, options: dict) -> _arena.Arena:
    """An arena of a device by its CUDA ordinal; current_stream() has the stream as `ptr`."""
    arena = client.arena(client._find_device(ordinal), **options)
    arena._current_stream = current_stream
    return arena


class _Here(threading.local):
    """The stream that the calling thread allocates or frees on; 0: none is known."""

    ptr = 0


def _number(stream):
    try:
        return 0 if stream is None else _any_stream.handle(stream)
    except (TypeError, ValueError):  # it tells none, or one that may be either default
        return 0


class Served:
    """Memory by its address: what was allocated is there until its address is given back, in whatever
    thread."""

    def __init__(self, client: Client | None, ordinal: int, options: dict):
        self._here = here = _Here()
        self.arena = arena_on(client_of(client, options), ordinal, lambda: here, options)
        self._allocations: dict[int, _arena.Allocation] = {}

    def _on(self, stream, call, *args):
        """A call on a stream, which the arena asks whether it captures a graph."""
        before, self._here.ptr = self._here.ptr, _number(stream)
        try:
            return call(*args)
        finally:
            self._here.ptr = before

    def allocate(self, nbytes: int, stream: Any) -> _arena.Allocation:
        """What deallocate() is given the address of."""
        made = self._on(stream, self.arena._alloc, nbytes)
        self._allocations[made.ptr] = made
        return made

    def deallocate(self, ptr: int, stream: Any) -> None:
        """Raises InvalidError where nothing was allocated that begins there."""
        # Out of the list first: from then on another thread may have the address.
        found = self._allocations.pop(ptr, None)
        if found is None:
            raise _elsewhere(ptr)
        self._on(stream, found.close)

    def undo(self, ptr: int, made: _arena.Allocation) -> None:
        """allocate(), whose caller has failed, and may have freed it by then."""
        if self._allocations.get(ptr) is made:
            del self._allocations[ptr]
        made.close()

    def at(self, ptr: int) -> _arena.Allocation:
        """What begins there. Raises InvalidError."""
        try:
            return self._allocations[ptr]
        except KeyError:
            raise _elsewhere(ptr) from None


def _elsewhere(ptr):
    return invalid(f"nothing that begins at {ptr:#x} is allocated by this resource")


class Resource:
    """The part of a library's memory resource that is not the library's."""

    _served: Served

    @property
    def arena(self) -> _arena.Arena:
        """Arena: where it allocates; for its figures, ``trim()`` and ``defer_cleanup()``, and to
        publish what lies there."""
        return self._served.arena
