# SPDX-License-Identifier: Apache-2.0
"""The memory of storages: new, or opened by name."""

from __future__ import annotations

import math
from typing import Any

import numpy

from .._base import _typestr
from .._base._driver import driver_client
from .._base._errors import NotFoundError, unsupported
from .._interfaces import _numba
from .._memory import _array, _cai
from .._session import _default
from . import _layout
from ._shared import Shared, described, impossible
from ._sync import SyncState, address_of

_HEADER = 512  # bytes before the host's buffer if there are two buffers; the first of them are the sync state


def allocate(p: _layout.Parameters) -> tuple:
    """Allocates a storage's buffers, with undefined contents: (NumPy array or None, Array or None), and for the
    daemon's memory also (SyncState of the two or None, Shared)."""
    is_cuda = p.device is not None and p.managed == "cuda"
    if is_cuda and p.name is not None:
        raise unsupported(
            "managed memory cannot be shared, as CUDA has no handle for it; with managed='gt4py' a storage "
            "can have a name"
        )
    if is_cuda or (p.device is None and p.name is None):
        host = new_host(p)
        return host, seen_by_device(host, p) if is_cuda else None
    host = device = None
    leads = [0, 0]
    if p.device is not None:
        device = _bytes(p, _room(p), "device")
        leads[1] = _lead(p, device.ptr)
    if p.device is None or p.managed is not None:
        start = 0 if device is None else _HEADER
        host = _bytes(p, start + _room(p), "pinned")
        memory = numpy.asarray(host)
        memory[:start] = 0
        leads[0] = start + _lead(p, address_of(memory) + start)
    return _over(Shared(p, host, device, leads))


def opened(array: Any, may_copy: bool) -> tuple:
    """(Parameters, and what allocate() gives) for an array that was opened by name. CorruptError: its metadata
    do not fit its memory."""
    made, leads = described(array)
    companion = None if made.managed is None else _companion(array)
    host, device = (array, None) if made.device is None else (companion, array)
    for side, lead, start in (host, leads[0], 0 if device is None else _HEADER), (device, leads[1], 0):
        if side is not None:
            _check_room(made, array, side, lead, start)
    shared = Shared(made, host, device, leads)
    shared.is_public, shared.may_copy = True, may_copy
    return (made._replace(client=shared.client), *_over(shared))


def _companion(array):
    try:
        with array.open_companion() as root:
            return root.view()
    except NotFoundError as e:
        raise impossible(array, e) from None


def _check_room(p, array, side, lead, start):
    """Checks that the memory is bytes, and that all points lie in it, aligned."""
    is_bytes = (side.typestr, side.strides) == ("|u1", (1,))
    fits = is_bytes and start <= lead <= lead + _strides(p)[1] <= side.nbytes
    if not fits or _lead(p, side.device_ptr + lead):
        raise impossible(array, "its points are not in its memory")


def _over(shared):
    p = shared.made
    strides, nbytes = _strides(p)
    raw = shared.raw = [
        None if memory is None else memory[lead : lead + nbytes]
        for memory, lead in zip((shared.host, shared.device), shared.leads)
    ]
    host = array = sync = None
    if raw[0] is not None:
        host = _typed(numpy.asarray(raw[0]), p)
    if raw[1] is not None:
        array = raw[1]._view(0, p.shape, strides, _typestr.of_dtype(p.dtype)[0])
    if host is not None and array is not None:
        sync = SyncState()._bind(host, array, shared)
    shared.whole = array if host is None else host
    return host, array, sync, shared


def new_host(p: _layout.Parameters) -> numpy.ndarray:
    """A buffer in this process's own memory: pageable, page-locked or managed."""
    nbytes = _room(p)
    if p.device is None:
        memory = numpy.empty(nbytes, "u1")
    else:
        make = _numba.managed_array if p.managed == "cuda" else _numba.pinned_array
        memory = make(nbytes, "u1", client=p.client)
    lead = _lead(p, address_of(memory))
    return _typed(memory[lead : lead + _strides(p)[1]], p)


def seen_by_device(host: numpy.ndarray, p: _layout.Parameters) -> _array.Array:
    """An Array over managed memory."""
    client = None if p.client is None else driver_client(p.client)
    return _cai.as_array(host, sync=False, client=client)


def _strides(p):
    return _layout.padded_strides(p.shape, p.dtype.itemsize, p.layout, p.alignment_size)


def _alignment(p):
    """The least common multiple of the alignments of the parameters and of the type."""
    return math.lcm(p.alignment_size, p.dtype.alignment)


def _room(p):
    return _strides(p)[1] + _alignment(p) - 1


def _lead(p, address):
    return _layout.lead(address, p.aligned_index, _strides(p)[0], _alignment(p))


def _typed(raw, p):
    return numpy.lib.stride_tricks.as_strided(raw.view(p.dtype), p.shape, _strides(p)[0], subok=True)


def _bytes(p, nbytes, memory):
    client = p.client or _default.default_client()
    with client.empty(nbytes, "|u1", pool=p.pool, memory=memory) as root:
        return root.view()
