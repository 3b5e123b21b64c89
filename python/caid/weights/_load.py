# SPDX-License-Identifier: Apache-2.0
"""Loads files into the daemon's memory. The model appears in one step, when it is whole."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from typing import Callable

import numpy

from .._base import _geometry, _metadata, _typestr
from .._base._errors import NO_ROOM, invalid
from .._interfaces import _staging
from .._memory import _array, _parts
from . import _plan
from ._safetensors import METADATA, check_file, open_file

_METADATA_MAX = 4000  # bytes: a set's metadata have 4,096, in which these are one value
_HOST = -1  # CUDA_TARGET_HOST
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


class _OnDevice:
    """The memory of a load on a device: a piece of an arena's."""

    def __init__(self, stack, client, plan, prefix, pool, device):
        self.device = device
        self._arena = stack.enter_context(client.arena(device, pool=pool, block_size=_BLOCK))
        with _telling_who(client, prefix, pool):
            self.allocation = self._arena.allocate(plan.nbytes)
        stack.callback(self.allocation.close)
        self._bytes = stack.enter_context(client.as_array(self.allocation, sync=False))
        self._idle, self._busy = (
            stack.enter_context(client.stream(device, non_blocking=True)) for _ in range(2)
        )

    def target(self):
        """As the extension takes it: struct cuda_target."""
        return self.device, self.allocation.ptr, self._busy.ptr

    def put(self, at, made, stream):
        """Copies bytes to their place, by a stream of the device's, or at once."""
        part = self._bytes[at : at + made.nbytes]
        part.copy_from_host(made) if stream is None else part.copy_from_host(made, stream=stream)

    def array_of(self, part):
        """An unnamed array of the part. No work is waited for: the bytes are there when fill() has returned."""
        return _array.of_lease(self._arena._own(_Lying(self.allocation, part), self._idle))


class _OnHost:
    """The memory of a load on the host: an array of bytes, page-locked, of which the tensors are parts."""

    device = _HOST

    def __init__(self, stack, client, plan, prefix, pool, device):
        with _telling_who(client, prefix, pool):
            self._whole = client.empty(
                max(plan.nbytes, 1), "|u1", pool=pool, device=device, memory="pinned", exclusive=True
            )
        stack.enter_context(self._whole)
        self._bytes = numpy.asarray(self._whole)

    def target(self):
        return self.device, self._whole.ptr, 0

    def put(self, at, made, _stream):
        self._bytes[at : at + made.nbytes] = made

    def array_of(self, part):
        n = _geometry.size(part.shape) * part.element.itemsize
        with self._whole[part.at : part.at + n] as some:
            with some.view(part.element).reshape(part.shape) as view:
                return _array.of_lease(_parts.of_view(view, 0))


class Loading:
    """A load under way. Its memory is taken when it is made; fill() reads the bytes, publish() gives the
    name. Leaving the stack closes what it has."""

    def __init__(
        self, stack: contextlib.ExitStack, client, plan, prefix: str, *, pool, device, memory="device"
    ):
        self._stack, self._client, self._plan, self._prefix = stack, client, plan, prefix
        text = _metadata.encode(plan.metadata).encode()
        self._text = text if len(text) > _METADATA_MAX else None  # too long for the set's own metadata
        self._check_number()
        self._empty = {"pool": pool, "device": device, "memory": memory}
        self.place = _PLACES[memory](stack, client, plan, prefix, pool, device)
        self._arrays: dict = {}
        self._to_make = iter(plan.parts.items())

    def _check_number(self):
        n = len(self._plan.parts) + len(self._plan.tied) + (self._text is not None)
        most = self._client.status().set_max
        if n > most:
            raise invalid(f"{n} arrays, where a set of this daemon's has at most {most}")

    def make_arrays(self) -> None:
        """Makes the arrays. The memory may still be being filled: nobody else sees it yet."""
        for key, part in self._to_make:
            if 0 in part.shape:
                array = self._client.empty(part.shape, part.element, **self._empty)
            else:
                array = self.place.array_of(part)
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
        text = numpy.frombuffer(self._text, "u1")
        array = self._client.empty(text.shape, "|u1", **self._empty)
        self._stack.enter_context(array).copy_from_host(text)
        return array


def load(
    client, plan, prefixes: list[str], *, pool, devices: list[int], memory, progress: Callable[[int, int], None]
) -> list[int]:
    """Carries out a plan on each of several devices, of which each has a prefix, and returns the generations of
    the sets. If it fails before the first is published, nothing is left behind."""
    with contextlib.ExitStack() as stack:

        def make():
            return [
                Loading(stack, client, plan, prefix, pool=pool, device=device, memory=memory)
                for prefix, device in zip(prefixes, devices)
            ]

        where = devices if memory == "device" else [_HOST]
        return [loading.publish() for loading in fill(client, plan, where, make, progress)]


# --- memory ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _telling_who(client, prefix, pool):
    """Where there is no room for the model, the error says which versions of it have memory, and who holds
    them."""
    try:
        yield
    except NO_ROOM as e:
        raise type(e)(e.errno, f"{e.strerror}{_who_pins(client, prefix, pool)}") from None


def _who_pins(client, prefix, pool):
    versions = [details for details in client.unnamed(pool=pool) if details.entry.name == prefix]
    if client.exists(prefix, pool=pool):
        versions.append(client.show(prefix, pool=pool))
    text = ""
    for details in versions:
        who = ", ".join(f"{holder.client or 'process'} {holder.pid}" for holder in details.holders)
        text += f"; {prefix}@{details.entry.generation} is there, held by {who or 'its name'}"
    return text


_PLACES = {"device": _OnDevice, "pinned": _OnHost}


# --- bytes ----------------------------------------------------------------------------------


def fill(
    client, plan, devices: list[int], make: Callable[[], list[Loading]], progress: Callable[[int, int], None]
) -> list[Loading]:
    """Reads all bytes from the files, once, into the memory of loadings, one for each of the devices (or of _HOST).
    They are made when reading has begun, and their arrays while threads read."""
    plain, others = list(_plan.stretches(plan)), list(_plan.converted(plan))
    loadings: list[Loading] = []
    control = numpy.zeros(2, "u8")  # bytes read, whether to stop
    targets = numpy.array([(device, 0, 0) for device in devices], "i8")
    with contextlib.ExitStack() as stack:
        paths = tuple({stretch.path: None for stretch in plain + others})
        files = [stack.enter_context(_opened(path, plan.files)) for path in paths]
        fds = {path: fd for path, (fd, _) in zip(paths, files)}
        told, table = numpy.array(files, "i8"), _table(plain, paths)
        gate = stack.enter_context(_Gate())
        left = _staging.Chunks(others)
        size = max(map(_size, others), default=0)
        turns = itertools.count()

        def read():
            client._read_files(paths, told, table, targets, gate.fd, control, _staging.THREADS)

        def convert_some():
            gate.wait()
            with _lane(client, devices[0], size) as lane:
                lane.move(left, convert)

        def work():
            read() if next(turns) == 0 else convert_some()

        def convert(slot, stretch):
            read = numpy.empty(stretch.nbytes, "u1")
            _staging.read(fds[stretch.path], read, stretch.offset, stretch.path)
            made = slot.memory[: _size(stretch)]
            _convert(stretch, read, made)
            for loading in loadings:
                loading.place.put(stretch.at, made, slot.stream if loading is loadings[0] else None)

        def stop():
            control[1] = 1
            left.stop()
            gate.open()

        def begin():
            loadings.extend(make())
            targets[:] = [loading.place.target() for loading in loadings]
            gate.open()

        def wait():
            if not loadings:
                begin()
            progress(int(control[0]) + left.done, plan.n_read)
            for loading in loadings:
                loading.make_arrays()

        if _HOST in devices:  # its memory is read into
            begin()
        n_lanes = min(_staging.THREADS, max(_PINNED // (2 * size), 1)) if size else 0
        _staging.run(work, stop, wait, 1 + n_lanes)
    return loadings


class _Gate:
    """What threads wait at for the memory: an fd for the extension, which is readable when it is open."""

    def __enter__(self) -> _Gate:
        self.fd, self._writable = os.pipe()
        self._opened = threading.Event()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        os.close(self._writable)

    def open(self):
        if not self._opened.is_set():
            os.write(self._writable, b".")
            self._opened.set()

    def wait(self):
        self._opened.wait()


@contextlib.contextmanager
def _opened(path, files):
    """A block with a file: its fd, and another one that reads past the page cache, or -1. Checks before and after
    it that the file is the one whose header was read."""
    with contextlib.ExitStack() as stack:
        fd = open_file(path)
        stack.callback(os.close, fd)
        check_file(files, fd, path)
        direct = _open_direct(fd)
        if direct >= 0:
            stack.callback(os.close, direct)
        yield fd, direct
        check_file(files, fd, path)


def _open_direct(fd):
    """An fd of the same file with O_DIRECT; -1 where its file system has none, or /proc is missing."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return -1


def _table(stretches, paths):
    """The stretches as the extension takes them: struct cuda_stretch."""
    numbers = {path: i for i, path in enumerate(paths)}
    return numpy.array([(numbers[s.path], s.offset, s.nbytes, s.at) for s in stretches], "u8")


@contextlib.contextmanager
def _lane(client, device, size):
    """A lane for what is converted: its memory is page-locked where it is copied to a device."""
    if device == _HOST:
        yield _HostLane(size)
    else:
        with _staging.Lane(client, device, size) as lane:
            yield lane


class _HostLane:
    """A lane of which nothing is left to be copied when a piece is done."""

    stream = None

    def __init__(self, size):
        self.memory = numpy.empty(size, "u1")

    def move(self, chunks, each):
        while (chunk := chunks.take()) is not None:
            each(self, chunk)
            chunks.finished(chunk)


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
