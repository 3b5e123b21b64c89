# SPDX-License-Identifier: Apache-2.0
"""Loading: from files into memory of the daemon, which all see in one step when it is whole."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Callable

import numpy

from .. import _array, _geometry, _metadata, _typestr
from .._errors import NO_ROOM
from . import _plan, _staging
from ._safetensors import open_file

_METADATA_MAX = 4096  # bytes, of an array's
_BLOCK = 2 << 20  # bytes: a block of its own for what is larger, no larger than it


class _Lying:
    """An array in an arena's memory, as the CUDA Array Interface shows it; the arena keeps it."""

    def __init__(self, memory, part):
        self._memory = memory  # which stays as long as this
        self._caid_element = part.element
        self.__cuda_array_interface__ = {
            "shape": part.shape,
            "typestr": part.element.typestr,
            "data": (memory.ptr + part.at, False),
            "strides": None,
            "version": 3,
        }


def load(client, plan, prefix, *, pool, device, progress: Callable[[int, int], None]) -> int:
    """Carries a plan out: the set's generation. Leaves nothing where it fails."""
    with contextlib.ExitStack() as stack:
        arena = stack.enter_context(client.arena(device, pool=pool, block_size=_BLOCK))
        memory = _reserve(client, arena, plan.nbytes, prefix, pool)
        stack.callback(memory.close)
        _fill(client, plan, memory, device, progress)
        arrays = {}
        for key, part in plan.parts.items():
            arrays[key] = stack.enter_context(_array_of(client, arena, memory, part))
        arrays.update((key, arrays[of]) for key, of in plan.tied.items())
        return client.publish_many(prefix, arrays, metadata=_told(plan))


def _told(plan):
    """What save() writes beside the tensors: not what says which are tied, as the set shows that."""
    text = {key: value for key, value in plan.metadata.items() if key not in plan.tied}
    told = {"safetensors": text}
    if len(_metadata.encode(told).encode()) > _METADATA_MAX:
        warnings.warn(f"the files' metadata take more than {_METADATA_MAX} bytes: left out", stacklevel=4)
        told = {"safetensors": {}}
    return told


# --- memory ---------------------------------------------------------------------------------


def _reserve(client, arena, nbytes, prefix, pool):
    """Memory for the whole, before anything is read. It stays as long as arrays lie in it."""
    try:
        return arena.allocate(nbytes)
    except NO_ROOM as e:
        raise type(e)(e.errno, f"{e.strerror}{_who_pins(client, prefix, pool)}") from None


def _who_pins(client, prefix, pool):
    """Which versions of the model have memory, and by whom."""
    versions = [details for details in client.unnamed(pool=pool) if details.entry.name == prefix]
    if client.exists(prefix, pool=pool):
        versions.append(client.show(prefix, pool=pool))
    text = ""
    for details in versions:
        who = ", ".join(f"{holder.client or 'process'} {holder.pid}" for holder in details.holders)
        text += f"; {prefix}@{details.entry.generation} is there, held by {who or 'its name'}"
    return text


def _array_of(client, arena, memory, part):
    """The part as an array of its own, without a name."""
    if 0 in part.shape:
        return client.empty(part.shape, part.element, pool=arena.pool, device=arena.device)
    return _array.of_lease(client._take(arena._send(_Lying(memory, part)), "rw", None))


# --- bytes ----------------------------------------------------------------------------------


def _fill(client, plan, memory, device, progress):
    files = {part.tensor.path for part in plan.parts.values()}
    with contextlib.ExitStack() as stack:
        fds = {}
        for path in files:
            fds[path] = open_file(path)
            stack.callback(os.close, fds[path])
        target = client.as_array(memory, sync=False)
        size = max((_room(chunk) for chunk in _plan.chunks(plan)), default=1)

        def move(slot, chunk):
            is_same = all(piece.part is None for piece in chunk.pieces)
            read = slot.memory if is_same else numpy.empty(chunk.nbytes, "u1")
            _staging.read(fds[chunk.path], read[: chunk.nbytes], chunk.offset, chunk.path)
            for piece, source in _converted(chunk, read, slot.memory):
                target[piece.at : piece.at + source.nbytes].copy_from_host(source, stream=slot.stream)

        _staging.run(
            client, device, _plan.chunks(plan), size, move, lambda n: progress(n, plan.n_read)
        )


def _room(chunk):
    """Bytes that a chunk takes in the page-locked memory: read, or converted, whichever is more."""
    return max(chunk.nbytes, sum(_size(piece) for piece in chunk.pieces))


def _size(piece):
    if piece.part is None:
        return piece.stop - piece.start
    n, _, width = _matrix(piece)
    return n * width * piece.part.element.itemsize


def _converted(chunk, read, room):
    """(piece, bytes to be copied) of each: as they were read, or made anew in the slot's memory."""
    at = 0
    for piece in chunk.pieces:
        source = read[piece.start : piece.stop]
        if read is not room:
            made = room[at : at + _size(piece)]
            at += made.nbytes
            if piece.part is None:
                made[:] = source
            else:
                _convert(piece, source, made)
            source = made
        yield piece, source


def _matrix(piece):
    """(rows, columns, columns that stay) of the elements in a piece."""
    part = piece.part
    n = (piece.stop - piece.start) // part.tensor.element.itemsize
    if part.columns is None:
        return n, 1, 1
    columns = _geometry.size(part.tensor.shape[1:])
    return n // columns, columns, part.columns.stop - part.columns.start


def _convert(piece, source, target):
    part = piece.part
    n, columns, width = _matrix(piece)
    old, new = (_typestr.to_numpy(element) for element in (part.tensor.element, part.element))
    source = source.view(old).reshape(n, columns)[:, part.columns or slice(None)]
    with numpy.errstate(over="ignore"):  # as every cast to a smaller type: what is too large is inf
        target.view(new).reshape(n, width)[...] = source
