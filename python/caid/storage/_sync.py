# SPDX-License-Identifier: Apache-2.0
"""The memory behind storages, and which of two buffers is up to date."""

from __future__ import annotations

import math
import threading
import weakref
from typing import Any, NamedTuple

import numpy

from .. import _array, _cai, _default, _geometry, _helpers, _pending, _typestr
from .._errors import invalid
from . import _layout

_bound: weakref.WeakSet = weakref.WeakSet()  # the SyncStates that have buffers
_lock = threading.Lock()


class SyncState:
    """Which of two buffers is modified: one for all storages that look at them. It keeps them.

    Attributes
    ----------
    state : int
        SYNC_CLEAN, SYNC_HOST_DIRTY or SYNC_DEVICE_DIRTY. Setting it says so of all the buffer.
    """

    SYNC_CLEAN = 0
    SYNC_HOST_DIRTY = 1
    SYNC_DEVICE_DIRTY = 2

    __slots__ = ("_state", "_part", "_host", "_device", "_raw", "_turn", "_on_host", "__weakref__")

    def __init__(self, state: int = SYNC_CLEAN):
        self.state = state
        self._host = self._device = self._raw = self._on_host = None
        self._turn = threading.RLock()

    @property
    def state(self) -> int:
        return self._state

    @state.setter
    def state(self, state: int) -> None:
        if state not in (self.SYNC_CLEAN, self.SYNC_HOST_DIRTY, self.SYNC_DEVICE_DIRTY):
            raise invalid(f"sync state {state!r}: SYNC_CLEAN, SYNC_HOST_DIRTY or SYNC_DEVICE_DIRTY")
        self._state, self._part = state, None

    def __repr__(self):
        name = ("CLEAN", "HOST_DIRTY", "DEVICE_DIRTY")[self._state]
        return f"<caid.storage.SyncState SYNC_{name}>"

    def _bind(self, host, device, raw=None):
        """To a NumPy array and an Array of one shape; `raw` are the bytes of both from the first point
        on, where they lie alike."""
        self._host, self._device, self._raw = host, device, raw
        with _lock:
            _bound.add(self)
        return self

    def _part_of(self, view):
        """The bytes, from the first point on, that a view of the host's buffer lies in."""
        at = address_of(view) - address_of(self._host)
        low, high = _geometry.extent(view.shape, view.strides, view.itemsize)
        return at + low, at + high

    def _are_of_same_points(self, host, device):
        """Whether views of both buffers are of the same points; known where those lie alike."""
        at = address_of(host) - address_of(self._host), device.ptr - self._device.ptr
        return self._raw is None or (at[0] == at[1] and host.strides == device.strides)

    def _modify(self, state, part):
        """A part of one side is modified. What the other side alone had is given up: this side counts,
        all of it."""
        with self._turn:
            if self._state == self.SYNC_CLEAN:
                self._part = part
            elif self._state != state:
                self._part = None
            elif self._part is not None:
                self._part = min(self._part[0], part[0]), max(self._part[1], part[1])
            self._state = state

    def _copy(self, modified, force, stream):
        """From the side that the state `modified` names, what is modified there, or by force all. Without
        a stream the side that it goes to can be used when this returns."""
        with self._turn:
            is_wanted = self._state == modified or force
            if is_wanted or not stream:
                self._settle()
            if is_wanted and self._host.size:
                self._copy_part(modified, None if force else self._part, stream)
            elif not stream and modified == self.SYNC_HOST_DIRTY:
                _pending.wait(self._device._memory)
            if is_wanted:
                self.state = self.SYNC_CLEAN

    def _copy_part(self, modified, part, stream):
        host, device = self._sides(part)
        copy = device.copy_from_host if modified == self.SYNC_HOST_DIRTY else device.copy_to_host
        if not stream:
            copy(host)
            return
        memory = device._memory
        _pending.order(memory, stream)
        mark = _pending.mark(memory.client, max(memory.mapped_device, 0), stream)
        copy(host, stream)
        mark.record(())
        self._on_host = mark

    def _sides(self, part):
        if self._raw is None:
            return self._host, self._device
        return self._raw if part is None else [side[slice(*part)] for side in self._raw]

    def _settle(self):
        """Waits until the last copy that was given a stream is done with the host's buffer."""
        mark, self._on_host = self._on_host, None
        if mark is not None:
            mark.synchronize()


def address_of(side: Any) -> int:
    """Of the first point of a NumPy array or an Array."""
    return side.ptr if isinstance(side, _array.Array) else side.__array_interface__["data"][0]


def _span(side):
    low, high = _geometry.extent(side.shape, side.strides, side.itemsize)
    return address_of(side) + low, address_of(side) + high


def state_of(host: Any, device: Any) -> SyncState | None:
    """The SyncState whose buffers these are, or of which one is a part; None where there is none."""
    with _lock:
        states = [state for state in _bound if not state._device.closed]
    for state in states:
        for side, whole in (host, state._host), (device, state._device):
            if side is not None:
                (low, high), (start, end) = _span(side), _span(whole)
                if low < end and start < high:
                    return state
    return None


# --- making them ----------------------------------------------------------------------------


class Parameters(NamedTuple):
    """Of a storage that is to be made."""

    shape: tuple
    dtype: numpy.dtype
    layout: tuple
    alignment_size: int
    aligned_index: tuple
    halo: tuple
    device: str | None
    managed: str | None
    client: Any
    pool: str | None


def allocate(p: Parameters) -> tuple[Any, Any, SyncState | None]:
    """(NumPy array or None, Array or None, SyncState of two), with undefined contents."""
    if p.device is None:
        return new_host(p)[1], None, None
    if p.managed is None:
        return None, new_device(p)[1], None
    if p.managed == "cuda":
        _, host = new_host(p)
        return host, seen_by_device(host, p), None
    (host_bytes, host), (device_bytes, device) = new_host(p), new_device(p)
    return host, device, SyncState()._bind(host, device, (host_bytes, device_bytes))


def new_host(p: Parameters) -> tuple[numpy.ndarray, numpy.ndarray]:
    """A buffer of the host, as its bytes from the first point on, and as what it is."""
    memory, strides = _from_first_point(_host_memory, p)
    typed = memory.view(p.dtype)
    return memory, numpy.lib.stride_tricks.as_strided(typed, p.shape, strides, subok=True)


def new_device(p: Parameters) -> tuple[_array.Array, _array.Array]:
    """The same of a device."""
    memory, strides = _from_first_point(_device_memory, p)
    element, _ = _typestr.of_dtype(p.dtype)
    layout = memory._layout._replace(shape=p.shape, strides=strides, element=element)
    return memory, _array.make(memory._memory.share(), layout, root=False)


def seen_by_device(host: numpy.ndarray, p: Parameters) -> _array.Array:
    """An Array over managed memory."""
    client = None if p.client is None else _default.driver_client(p.client)
    return _cai.as_array(host, sync=False, client=client)


def _from_first_point(allocate, p):
    """(bytes, strides); no point is aligned less than its type wants."""
    strides, nbytes = _layout.padded_strides(p.shape, p.dtype.itemsize, p.layout, p.alignment_size)
    alignment = math.lcm(p.alignment_size, p.dtype.alignment)
    memory = allocate(p, nbytes + alignment - 1)
    lead = _layout.lead(address_of(memory), p.aligned_index, strides, alignment)
    return memory[lead : lead + nbytes], strides


def _host_memory(p, nbytes):
    if p.device is None:
        return numpy.empty(nbytes, "u1")
    make = _helpers.managed_array if p.managed == "cuda" else _helpers.pinned_array
    return make(nbytes, "u1", client=p.client)


def _device_memory(p, nbytes):
    client = p.client or _default.default_client()
    with client.empty(nbytes, "|u1", pool=p.pool) as root:
        return root.view()
