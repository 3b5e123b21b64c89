# SPDX-License-Identifier: Apache-2.0
"""Loads files into the daemon's memory. The model appears in one step, when it is whole."""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import Callable

import numpy

from .._base import _geometry, _metadata, _typestr
from .._base._errors import NO_ROOM, invalid
from .._interfaces import _staging
from .._memory import _array
from . import _plan
from ._safetensors import METADATA, check_file, open_file

_METADATA_MAX = 4000  # bytes: a set's metadata have 4,096, in which these are one value
_READ = 4 << 20  # bytes: CUDA_READ_SIZE
_STREAMS = 4  # the threads share these
_PINNED = 512 << 20  # bytes of page-locked memory for what is converted; more where a row is longer
_BLOCK = 2 << 20  # bytes: a larger model gets a block of its own, as large as it is


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


class Loading:
    """A load under way. Its memory is taken when it is made; fill() reads the bytes, publish() gives the
    name. Leaving the stack closes what it has."""

    def __init__(self, stack: contextlib.ExitStack, client, plan, prefix: str, *, pool, device):
        self._stack, self._client, self._plan, self._prefix = stack, client, plan, prefix
        text = _metadata.encode(plan.metadata).encode()
        self._text = text if len(text) > _METADATA_MAX else None  # too long for the set's own metadata
        self._check_number()
        self._arena = stack.enter_context(client.arena(device, pool=pool, block_size=_BLOCK))
        self.memory = _reserve(client, self._arena, plan.nbytes, prefix, pool)
        stack.callback(self.memory.close)
        self._idle, *self._busy = (
            stack.enter_context(client.stream(device, non_blocking=True))
            for _ in range(1 + _STREAMS)
        )
        self._arrays: dict = {}
        self._to_make = iter(plan.parts.items())

    def _check_number(self):
        n = len(self._plan.parts) + len(self._plan.tied) + (self._text is not None)
        most = self._client.status().set_max
        if n > most:
            raise invalid(f"{n} arrays, where a set of this daemon's has at most {most}")

    def fill(self, progress: Callable[[int, int], None]) -> None:
        """Reads the bytes from the files."""
        device = self._arena.device
        _fill(self._client, self._plan, self.memory, device, self._busy, progress, self.make_arrays)

    def make_arrays(self) -> None:
        """Makes the arrays. The memory may still be being filled: nobody else sees it yet."""
        for key, part in self._to_make:
            array = _array_of(self._client, self._arena, self.memory, part, self._idle)
            self._arrays[key] = self._stack.enter_context(array)

    def publish(self) -> int:
        """Publishes the set. Returns its generation."""
        arrays = {**self._arrays, **{key: self._arrays[of] for key, of in self._plan.tied.items()}}
        metadata: dict = {"safetensors": self._plan.metadata}
        if self._text is not None:
            metadata, arrays[METADATA] = {"safetensors": METADATA}, self._array_of_text()
        return self._client.publish_many(self._prefix, arrays, metadata=metadata)

    def _array_of_text(self):
        """An array with the files' metadata, which Weights does not show."""
        text, arena = numpy.frombuffer(self._text, "u1"), self._arena
        array = self._client.empty(text.shape, "|u1", pool=arena.pool, device=arena.device)
        self._stack.enter_context(array).copy_from_host(text)
        return array


def load(client, plan, prefix, *, pool, device, progress: Callable[[int, int], None]) -> int:
    """Carries out a plan, and returns the set's generation. If it fails, nothing is left behind."""
    with contextlib.ExitStack() as stack:
        loading = Loading(stack, client, plan, prefix, pool=pool, device=device)
        loading.fill(progress)
        return loading.publish()


# --- memory ---------------------------------------------------------------------------------


def _reserve(client, arena, nbytes, prefix, pool):
    """Takes memory for the whole model, before anything is read. It stays as long as arrays lie in it."""
    try:
        return arena.allocate(nbytes)
    except NO_ROOM as e:
        raise type(e)(e.errno, f"{e.strerror}{_who_pins(client, prefix, pool)}") from None


def _who_pins(client, prefix, pool):
    """A note for an error: which versions of the model have memory, and who holds them."""
    versions = [details for details in client.unnamed(pool=pool) if details.entry.name == prefix]
    if client.exists(prefix, pool=pool):
        versions.append(client.show(prefix, pool=pool))
    text = ""
    for details in versions:
        who = ", ".join(f"{holder.client or 'process'} {holder.pid}" for holder in details.holders)
        text += f"; {prefix}@{details.entry.generation} is there, held by {who or 'its name'}"
    return text


def _array_of(client, arena, memory, part, idle):
    """An unnamed array of the part. No work is waited for: the bytes are there when _fill() has returned."""
    if 0 in part.shape:
        return client.empty(part.shape, part.element, pool=arena.pool, device=arena.device)
    return _array.of_lease(arena._own(_Lying(memory, part), idle))


# --- bytes ----------------------------------------------------------------------------------


def _fill(client, plan, memory, device, streams, progress, meanwhile):
    """Reads all bytes into the memory, and calls meanwhile() while the threads read."""
    plain, others = list(_plan.stretches(plan)), list(_plan.converted(plan))
    control = numpy.zeros(3, "u8")  # the next read, bytes read, whether to stop
    with contextlib.ExitStack() as stack:
        paths = tuple({stretch.path: None for stretch in plain + others})
        fds = tuple(stack.enter_context(_opened(path, plan.files)) for path in paths)
        table = _table(plain, paths, memory.ptr)
        target = stack.enter_context(client.as_array(memory, sync=False))
        left = _staging.Chunks(others)
        size = max(map(_size, others), default=0)
        handles = itertools.cycle([stream.ptr for stream in streams])
        lanes = iter(range(max(_PINNED // (2 * size), 1) if size else 0))

        def work():
            client._read_files(paths, fds, table, control, device, next(handles))
            if next(lanes, None) is not None:
                with _staging.Lane(client, device, size) as lane:
                    lane.move(left, convert)

        def convert(slot, stretch):
            read = numpy.empty(stretch.nbytes, "u1")
            _staging.read(fds[paths.index(stretch.path)], read, stretch.offset, stretch.path)
            made = slot.memory[: _size(stretch)]
            _convert(stretch, read, made)
            target[stretch.at : stretch.at + made.nbytes].copy_from_host(made, stream=slot.stream)

        def stop():
            control[2] = 1
            left.stop()

        def wait():
            progress(int(control[1]) + left.done, plan.n_read)
            meanwhile()

        _staging.run(work, stop, wait)


@contextlib.contextmanager
def _opened(path, files):
    """A block with the fd of a file. Checks before and after it that the file is the one whose header was
    read."""
    fd = open_file(path)
    try:
        check_file(files, fd, path)
        yield fd
        check_file(files, fd, path)
    finally:
        os.close(fd)


def _table(stretches, paths, ptr):
    """The stretches as the extension takes them: struct cuda_stretch."""
    numbers = {path: i for i, path in enumerate(paths)}
    rows, first = [], 0
    for stretch in stretches:
        rows.append((numbers[stretch.path], stretch.offset, stretch.nbytes, ptr + stretch.at, first))
        first += -(-stretch.nbytes // _READ)
    return numpy.array(rows, "u8")


def _size(stretch):
    """The bytes that a stretch has after its conversion."""
    n, _, width = _matrix(stretch)
    return n * width * stretch.part.element.itemsize


def _matrix(stretch):
    """(rows, columns, columns that are kept) of a stretch as a matrix of elements."""
    part = stretch.part
    n = stretch.nbytes // part.tensor.element.itemsize
    if part.columns is None:
        return n, 1, 1
    columns = _geometry.size(part.tensor.shape[1:])
    return n // columns, columns, part.columns.stop - part.columns.start


def _convert(stretch, source, target):
    part = stretch.part
    n, columns, width = _matrix(stretch)
    old, new = (_typestr.to_numpy(element) for element in (part.tensor.element, part.element))
    source = source.view(old).reshape(n, columns)[:, part.columns or slice(None)]
    with numpy.errstate(over="ignore", invalid="ignore"):  # a value that is too large becomes inf, and a NaN stays one
        target.view(new).reshape(n, width)[...] = source
