# SPDX-License-Identifier: Apache-2.0
"""Which of a storage's two buffers is up to date, and the copies between them."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any

import numpy

from .. import _caid
from .._base import _geometry
from .._base._errors import invalid
from .._handoff import _pending, _stream
from .._memory import _array

_bound: weakref.WeakSet = weakref.WeakSet()  # the SyncStates that have buffers
_lock = threading.Lock()


class SyncState:
    """Which of two buffers is modified. All storages over these buffers share one, also in other processes if
    the storage has a name. It keeps the buffers."""

    SYNC_CLEAN = 0
    SYNC_HOST_DIRTY = 1
    SYNC_DEVICE_DIRTY = 2

    __slots__ = (
        "_words", "_part", "_seen", "_enqueued", "_host", "_device", "_turn", "_books", "_on_host",
        "_shared", "__weakref__",
    )

    def __init__(self, state: int = SYNC_CLEAN):
        self._words = bytearray(16)
        self._part = None  # the modified bytes of the modified buffer; None: all of it
        self._seen = self._enqueued = 0  # versions: the last one modified here; the one that a copy under way has
        self._host = self._device = self._on_host = self._shared = None
        self._turn, self._books = threading.RLock(), threading.Lock()
        self.state = state

    @property
    def state(self) -> int:
        """int: SYNC_CLEAN, SYNC_HOST_DIRTY or SYNC_DEVICE_DIRTY. Setting it marks all of a buffer.
        CorruptError: another process has written another value."""
        return _caid.sync_load(self._words)[0]

    @state.setter
    def state(self, state: int) -> None:
        if state not in (self.SYNC_CLEAN, self.SYNC_HOST_DIRTY, self.SYNC_DEVICE_DIRTY):
            raise invalid(f"sync state {state!r}: SYNC_CLEAN, SYNC_HOST_DIRTY or SYNC_DEVICE_DIRTY")
        if state:
            self._modify(state, None)
        else:
            if self._shared is not None:
                self._shared.check_writable()
            _caid.sync_change(self._words, self.SYNC_CLEAN, _caid.sync_load(self._words)[1])

    def __repr__(self):
        name = ("CLEAN", "HOST_DIRTY", "DEVICE_DIRTY")[self.state]
        return f"<caid.storage.SyncState SYNC_{name}>"

    def _bind(self, host, device, shared=None):
        """Binds the state to a NumPy array and an Array of one shape. With `shared`, both lie in the daemon's
        memory and have one layout, and the words of the state lie there, too."""
        self._host, self._device, self._shared = host, device, shared
        if shared is not None:
            self._words = memoryview(numpy.asarray(shared.host))[: len(self._words)]
        with _lock:
            _bound.add(self)
        return self

    def _part_of(self, view):
        """The bytes, counted from the first point, that a view of the host's buffer covers: (start, end)."""
        low, high = _span(view)
        start = address_of(self._host)
        return low - start, high - start

    def _are_of_same_points(self, host, device):
        """Whether views of the two buffers are of the same points. That is known only if the buffers have one
        layout; else True."""
        at = address_of(host) - address_of(self._host), address_of(device) - address_of(self._device)
        return self._shared is None or (at[0] == at[1] and host.strides == device.strides)

    def _modify(self, state, part):
        """Records that a part of one side was modified. If the other side had modifications that were not
        copied, they are given up, and all of this side counts as modified."""
        if self._shared is not None:
            self._shared.check_writable()
        with self._books:
            before, version = _caid.sync_change(self._words, state, 0)
            if before == self.SYNC_CLEAN:
                self._part = part
            elif before != state or part is None or version != self._seen + 1:
                self._part = None
            elif self._part is not None:
                self._part = min(self._part[0], part[0]), max(self._part[1], part[1])
            self._seen = version

    def _wanted(self, modified, force):
        """(whether a copy is due, the version that it gives, the part to be copied)"""
        with self._books:
            state, version = _caid.sync_load(self._words)
            is_wanted = force or (state == modified and version != self._enqueued)
            return is_wanted, version, None if force or version != self._seen else self._part

    @property
    def _is_public(self):
        return self._shared is not None and self._shared.is_public

    def _in_turn(self):
        """A block in which no other thread copies. For a storage with a name brackets ensure that: no lock may
        be held while a bracket is waited for."""
        return contextlib.nullcontext() if self._is_public else self._turn

    def _copy(self, modified, force, stream, timeout=None):
        """Copies what was modified from the side that `modified` names to the other, or all by `force`. Without
        a stream the copy is done on return. timeout: of the wait for others' brackets."""
        shared = self._shared
        if not self._is_public or shared.is_writing:
            with self._turn:
                self._copy_here(modified, force, stream)
        elif shared.readonly:
            if self.state == modified:
                raise shared.stale(modified)
        elif not self._wanted(modified, force)[0]:
            self._copy_here(modified, force, stream)
        else:
            with shared.copying(None, modified, timeout):  # when this has begun, all that others had begun is done
                if not stream or not self._wanted(modified, force)[0]:
                    self._copy_here(modified, force, 0)
                    return
            with shared.copying(stream, modified, timeout):
                self._copy_here(modified, force, stream)

    def _copy_here(self, modified, force, stream):
        is_wanted, version, part = self._wanted(modified, force)
        if is_wanted or not stream:
            self._settle()
        if not is_wanted:
            return
        memory = self._device._memory
        mark = _pending.mark(memory.client, max(memory.mapped_device, 0), stream) if stream else None
        if self._host.size:
            self._copy_part(modified, part, stream)
        if stream and self._is_public:
            self._when_there(stream, self.SYNC_CLEAN, version)
            self._enqueued = version
        else:
            _caid.sync_change(self._words, self.SYNC_CLEAN, version)
        if mark is not None:
            mark.record(())
            self._on_host = mark

    def _when_there(self, stream, side, version=0):
        """Enqueues on the stream that the state changes: that side was modified, or, with SYNC_CLEAN, both are
        equal up to that version."""
        device = max(self._device._memory.mapped_device, 0)
        _stream.of(stream, self._shared.client, device)._sync_change(self._words, side, version)

    def _copy_part(self, modified, part, stream):
        host, device = self._sides(part)
        if stream:
            _pending.order(device._memory, stream)
        copy = device.copy_from if modified == self.SYNC_HOST_DIRTY else device.copy_to
        copy(host, stream)

    def _sides(self, part):
        if self._shared is None:
            return self._host, self._device
        return [side if part is None else side[slice(*part)] for side in self._shared.raw]

    def _settle(self):
        """Waits until the last copy on a stream is done with the host's buffer."""
        mark = self._on_host
        if mark is not None:
            mark.synchronize()
            if self._on_host is mark:
                self._on_host, self._enqueued = None, 0


def address_of(side: Any) -> int:
    """The address of the first element of a NumPy array or an Array."""
    return side._address() if isinstance(side, _array.Array) else side.__array_interface__["data"][0]


def _span(side):
    low, high = _geometry.extent(side.shape, side.strides, side.itemsize)
    return address_of(side) + low, address_of(side) + high


def state_of(host: Any, device: Any) -> SyncState | None:
    """The SyncState that has a buffer which one of these overlaps, or None."""
    with _lock:
        states = [state for state in _bound if not state._device.closed]
    for state in states:
        for side, whole in (host, state._host), (device, state._device):
            if side is not None:
                (low, high), (start, end) = _span(side), _span(whole)
                if low < end and start < high:
                    return state
    return None
