# SPDX-License-Identifier: Apache-2.0
"""The common part of caid.cupy, caid.cuda_core and caid.rmm: an arena of a device, in which a library
allocates."""

from __future__ import annotations

import threading
from typing import Any

from .._base._errors import invalid
from .._handoff import _any_stream
from .._memory import _arena
from .._session import _default
from .._session._client import Client


def client_of(client: Client | None, options: dict) -> Client:
    """The client, or the default one. Memory that it cannot have is refused now, not at the first
    allocation."""
    client = client or _default.default_client()
    client.empty(0, "|u1", memory=options["memory"], pool=options["pool"]).close()
    return client


def arena_on(client: Client, ordinal: int, current_stream: Any, options: dict) -> _arena.Arena:
    """An arena of a device by its CUDA ordinal; current_stream() has the stream as `ptr`."""
    arena = client.arena(client._find_device(ordinal), **options)
    arena._current_stream = current_stream
    return arena


class _Here(threading.local):
    """The stream on which the calling thread allocates or frees; 0 where none is known."""

    ptr = 0


def _number(stream):
    try:
        return 0 if stream is None else _any_stream.handle(stream)
    except (TypeError, ValueError):  # no stream, or 0, which is ambiguous
        return 0


class Served:
    """Allocations by address. Each is kept until its address is given back, by any thread."""

    def __init__(self, client: Client | None, ordinal: int, options: dict):
        self._here = here = _Here()
        self.arena = arena_on(client_of(client, options), ordinal, lambda: here, options)
        self._allocations: dict[int, _arena.Allocation] = {}

    def _on(self, stream, call, *args):
        """Makes a call while the arena knows the thread to work on a stream, which may capture a graph."""
        before, self._here.ptr = self._here.ptr, _number(stream)
        try:
            return call(*args)
        finally:
            self._here.ptr = before

    def allocate(self, nbytes: int, stream: Any) -> _arena.Allocation:
        """Allocates memory. deallocate() takes its address."""
        made = self._on(stream, self.arena._alloc, nbytes)
        self._allocations[made.ptr] = made
        return made

    def deallocate(self, ptr: int, stream: Any) -> None:
        """Raises InvalidError where nothing was allocated that begins there."""
        # It leaves the dict first, since another thread may be given the address as soon as it is freed.
        found = self._allocations.pop(ptr, None)
        if found is None:
            raise _elsewhere(ptr)
        self._on(stream, found.close)

    def undo(self, ptr: int, made: _arena.Allocation) -> None:
        """Undoes allocate() for a caller that has failed, and may have freed the memory by then."""
        if self._allocations.get(ptr) is made:
            del self._allocations[ptr]
        made.close()

    def at(self, ptr: int) -> _arena.Allocation:
        """The allocation that begins there. Raises InvalidError where none does."""
        try:
            return self._allocations[ptr]
        except KeyError:
            raise _elsewhere(ptr) from None


def _elsewhere(ptr):
    return invalid(f"nothing that begins at {ptr:#x} is allocated by this resource")


class Resource:
    """The base of the libraries' memory resources."""

    _served: Served

    @property
    def arena(self) -> _arena.Arena:
        """Arena: where it allocates; for its figures, ``trim()`` and ``defer_cleanup()``, and to
        publish what lies there."""
        return self._served.arena
