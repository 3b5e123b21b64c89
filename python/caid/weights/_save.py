# SPDX-License-Identifier: Apache-2.0
"""Writes a set's arrays, byte for byte, to a safetensors file, which appears when it is whole."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Callable, NamedTuple

from .._interfaces import _staging, _target
from ._plan import CHUNK
from ._safetensors import header_of, is_note
from ._views import elements_of


class _Chunk(NamedTuple):
    array: object  # bytes of a tensor
    offset: int  # in the file
    nbytes: int


def save(weights, path, progress: Callable[[int, int], None]) -> None:
    with contextlib.ExitStack() as stack:  # else a kept exception would keep the arrays, and so the version
        opened = {key: stack.enter_context(array) for key, array in weights.items()}
        text = weights.file_metadata
        tied = _tied(opened, text)
        arrays = {key: array for key, array in opened.items() if key not in tied}
        _save(weights, path, arrays, {**text, **tied}, progress)


def _save(weights, path, arrays, metadata, progress):
    header, offsets = header_of(arrays, metadata)
    total = sum(array.nbytes for array in arrays.values())
    with _target.opened(path, len(header) + total) as fd:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            _staging.write_in_order(fd, header, _in_order(arrays, offsets), lambda done: progress(done, total))
            return
        _write_arrays(weights, fd, arrays, offsets, lambda done: progress(done, total))
        progress(total, total)
        _staging.write(fd, header, 0)


def _tied(opened, text):
    """The further keys of tensors, which lines of the metadata note: those that the files had, and then, as
    safetensors.torch.save_model() does, those that load() will recognise."""
    tied, first = {}, {}
    for key, array in opened.items():
        of = text.get(key, key)
        if of != key and of in opened and of not in tied and is_note(key, of):
            if elements_of(array) == elements_of(opened[of]):
                tied[key] = of
    for key, array in opened.items():
        if key in tied or not array.nbytes:
            continue
        of = first.setdefault(elements_of(array), key)
        if of != key and key not in text and is_note(key, of):
            tied[key] = of
    return tied


def _in_order(arrays, offsets):
    for key in sorted(arrays, key=offsets.__getitem__):
        yield from _staging.pieces(arrays[key])


def _write_arrays(weights, fd, arrays, offsets, progress):
    for key, array in arrays.items():
        if not array.is_c_contiguous():
            _staging.write(fd, array.copy_to_host().reshape(-1).view("u1"), offsets[key])
    chunks = _staging.Chunks(_chunks(arrays, offsets))

    def work():
        with _staging.Lane(weights.client, weights.device, CHUNK) as lane:
            lane.move(chunks, write)

    def write(slot, chunk):
        room = slot.memory[: chunk.nbytes]
        with chunk.array as part:
            part.copy_to_host(room, stream=slot.stream)
            slot.stream.synchronize()
        _staging.write(fd, room, chunk.offset)

    _staging.run(work, chunks.stop, lambda: progress(chunks.done))


def _chunks(arrays, offsets):
    for key, array in arrays.items():
        if not array.nbytes or not array.is_c_contiguous():
            continue
        data = array.reshape(-1).view("|u1")
        for start in range(0, array.nbytes, CHUNK):
            n = min(CHUNK, array.nbytes - start)
            yield _Chunk(data[start : start + n], offsets[key] + start, n)
