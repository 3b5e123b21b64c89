# SPDX-License-Identifier: Apache-2.0
"""Loads files into the daemon's memory. The model appears in one step, when it is whole."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from typing import Callable

import numpy

from .._base import _geometry, _metadata, _typestr
from .._base._errors import NO_ROOM, UnknownMethodError, invalid, unsupported
from .._interfaces import _staging
from . import _plan
from ._safetensors import METADATA, check_file, open_file

_METADATA_MAX = 4000  # bytes: a set's metadata have 4,096, in which these are one value
_HOST = -1  # CUDA_TARGET_HOST
_PINNED = 512 << 20  # bytes of page-locked memory for what is converted; more where a row is longer
_BYTE = _typestr.of_typestr("|u1")


class Loading:
    """A load under way. Its memory is taken when it is made: one array, of which the tensors are parts. fill()
    reads the bytes, publish() gives the name. Leaving the stack closes what it has."""

    def __init__(
        self, stack: contextlib.ExitStack, client, plan, prefix: str, *, pool, device, memory="device", keep=None
    ):
        self._stack, self._client, self._plan, self._prefix, self._keep = stack, client, plan, prefix, keep
        reload = {} if keep is None else {"reload": {**keep.recipe, "device": client.devices[device].uuid}}
        text, most = _metadata.encode(plan.metadata).encode(), _METADATA_MAX - len(_metadata.encode(reload).encode())
        self._text = text if len(text) > most else b""  # too long for the set's own metadata
        self._told = {"safetensors": METADATA if self._text else plan.metadata, **reload}
        if most < len(METADATA):
            raise invalid("what tells how the model is loaded again is too long: fewer paths, patterns or ties, or a folder")
        self._check_number()
        self._of = {"pool": pool, "device": device, "memory": memory}
        with _telling_who(client, prefix, pool):
            nbytes = max(plan.nbytes + len(self._text), 1)
            whole = self._memory(nbytes)
        self.whole = stack.enter_context(whole)
        self._stream = None if memory == "pinned" else stack.enter_context(client.stream(device, non_blocking=True))
        self._set = None  # a lease
        self._has_set = True  # a daemon of before has no sets of parts

    def _memory(self, nbytes):
        """Where there is none, what this process has closed is given up first: models that make room may be among it."""
        try:
            return self._client.empty(nbytes, "|u1", exclusive=True, **self._of)
        except NO_ROOM:
            self._client.flush()
            return self._client.empty(nbytes, "|u1", exclusive=True, **self._of)

    def _check_number(self):
        n = len(self._plan.parts) + len(self._plan.tied) + bool(self._text)
        most = self._client.status().set_max
        if n > most:
            raise invalid(f"{n} arrays, where a set of this daemon's has at most {most}")

    def target(self):
        """As the extension takes it: struct cuda_target."""
        if self._stream is None:
            return _HOST, self.whole.ptr, 0
        return self._of["device"], self.whole.ptr, self._stream.ptr

    def put(self, at: int, some, stream=None) -> None:
        """Copies bytes to their place, by a stream of the device's, or at once."""
        with self.whole[at : at + some.nbytes] as part:
            part.copy_from_host(some) if stream is None else part.copy_from_host(some, stream=stream)

    def make_arrays(self) -> None:
        """Makes the arrays. The memory may still be being filled: nobody else sees it yet."""
        if not self._has_set or self._set is not None:
            return
        members = [(key, part.at, part.element, part.shape) for key, part in self._keys()]
        if self._text:
            members.append((METADATA, self._plan.nbytes, _BYTE, (len(self._text),)))
        members = tuple((key, at, e.type_name, e.descr, shape, None) for key, at, e, shape in members)
        try:
            made = self._client._set_create(self.whole._memory, members)
        except UnknownMethodError:
            self._has_set = False
            return
        self._set = self._stack.enter_context(contextlib.closing(made))

    def _keys(self):
        parts = self._plan.parts
        return [*parts.items(), *((key, parts[of]) for key, of in self._plan.tied.items())]

    def publish(self, *, after: int = 0) -> int:
        """Publishes the set. Returns its generation. `after`: of a model that was dropped, the generation; StaleError:
        the name has got another one since."""
        if self._text:
            self.put(self._plan.nbytes, numpy.frombuffer(self._text, "u1"))
        keep = self._keep
        if self._set is None:
            if keep is not None:
                raise unsupported("a daemon of before has no models that it may drop")
            return self._publish_many(self._told)
        stream = 0 if self._stream is None else self._stream.ptr
        text = _metadata.encode(self._told)
        if keep is None:
            return self._set.publish(self._prefix, text, stream, False, None, 0)
        took_ns = time.monotonic_ns() - keep.began
        return self._set._publish_droppable(self._prefix, text, stream, after, keep.priority, took_ns)

    def _publish_many(self, metadata):
        """As publish(), by an array for each tensor; those without bytes are no parts."""
        arrays: dict = {}
        for key, part in self._plan.parts.items():
            if 0 in part.shape:
                array = self._client.empty(part.shape, part.element, **self._of)
            else:
                array = self._view(part.at, part.element, part.shape)
            arrays[key] = self._stack.enter_context(array)
        arrays.update({key: arrays[of] for key, of in self._plan.tied.items()})
        if self._text:
            text = self._view(self._plan.nbytes, _BYTE, (len(self._text),))
            arrays[METADATA] = self._stack.enter_context(text)
        return self._client.publish_many(self._prefix, arrays, metadata=metadata, stream=self._stream)

    def _view(self, at, element, shape):
        n = _geometry.size(shape) * element.itemsize
        with self.whole[at : at + n] as some, some.view(element) as row:
            return row.reshape(shape)


@contextlib.contextmanager
def filled(
    client, plan, prefixes: list[str], *, pool, devices: list[int], memory, progress: Callable[[int, int], None], keep=None
) -> Iterator[list[Loading]]:
    """Carries out a plan on each of several devices, of which each has a prefix. What the block does not publish
    is gone after it."""
    with contextlib.ExitStack() as stack:

        def make():
            return [
                Loading(stack, client, plan, prefix, pool=pool, device=device, memory=memory, keep=keep)
                for prefix, device in zip(prefixes, devices)
            ]

        where = devices if memory == "device" else [_HOST]
        yield fill(client, plan, where, make, progress)


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
                loading.put(stretch.at, made, slot.stream if loading is loadings[0] else None)

        def stop():
            control[1] = 1
            left.stop()
            gate.open()

        def begin():
            loadings.extend(make())
            targets[:] = [loading.target() for loading in loadings]
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
