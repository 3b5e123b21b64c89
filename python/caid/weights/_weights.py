# SPDX-License-Identifier: Apache-2.0
"""Weights: one version of a model's arrays, as a worker uses them."""

from __future__ import annotations

import sys
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any

from .._base import _metadata
from .._base._errors import InvalidNameError, StaleError, invalid, unsupported
from .._base._lifetime import NotCompared
from .._handoff import _any_stream
from .._memory._array import Array
from .._memory._set import Set
from .._session._client import Client
from .._session._watch import Watch
from . import _again, _into, _views
from ._plan import COLUMNS, ROWS, Shard, shard_of
from ._safetensors import METADATA
from ._table import Table
from ._version import Line, Version


def prefix_of(name: str) -> str:
    """The prefix of the names of a model's arrays: its name and a slash."""
    if not isinstance(name, str):
        raise TypeError(f"name: a str is needed, not {type(name).__name__}")
    if not name.strip("/"):
        raise InvalidNameError(22, f"{name!r}: a model's name has a letter")
    if "@" in name:
        raise InvalidNameError(22, f"{name!r}: what follows an @ is a version, which only open() takes")
    return name if name.endswith("/") else name + "/"


def parse(name: str) -> tuple[str, int | None]:
    """"llama@7" is version 7 of "llama"."""
    model, at, version = name.rpartition("@")
    if not at:
        return prefix_of(name), None
    if not (version.isdecimal() and int(version)):
        raise invalid(f"{name!r}: a version is a number from 1 on")
    return prefix_of(model), int(version)


class Weights(NotCompared, Mapping[str, Array]):
    """One version of a model: what :func:`caid.weights.open` gives. A mapping of the tensors' names, in
    byte order, to arrays.

    It holds its version and its memory until it is closed, also when the name has another version by then.
    An array is opened when it is first asked for; ``values()`` and ``items()`` open all in few messages.
    ``torch()``, ``cupy()`` and ``jax()`` open one array of each block, and give views of the block. A tensor that
    was taken out keeps the memory of the model, also after close().
    """

    def __init__(self, client: Client, opened: Set, former: Weights | None = None, stream: Any = None):
        self._client = client
        self._set = opened
        self._stream = stream  # on which its tensors are used, or None
        self._line = Line() if former is None else former._line
        self._line.enter()
        self._is_open = True
        self._versions: dict[str | None, Version] = {}  # from when tensors are first asked for, by device
        same = former is not None and 0 != self._layout() == former._layout()
        self._table = former._table if former is not None and same else None
        is_long = self._own_metadata().get("safetensors") == METADATA and METADATA in opened
        self._hidden = METADATA if is_long else None  # the array that has the files' metadata
        self._text: Any = None  # its contents, once they have been read

    # --- life -------------------------------------------------------------------------------

    def close(self, stream: Any = None) -> None:
        """Lets go of the version. Idempotent. Waits for nothing.

        Parameters
        ----------
        stream : int or stream object, optional
            The CUDA stream on which its arrays and tensors were last used, as for :meth:`caid.Array.close`: by
            default that which newer() was given. The version is given up when all work is done that is on this
            stream by now; without one, and where tensors of it are left, when these are gone and all work of the
            device's primary context and of the thread's current one is done.
        """
        stream = self._stream if stream is None else stream
        if stream is not None:
            _any_stream.handle(stream)
        self._set.close(stream)
        for version in self._versions.values():
            if not version.has_tensors:
                version.end(stream)
        self._versions = {}
        if self._is_open:
            self._is_open = False
            self._line.leave()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """bool: whether it, or its client, is closed."""
        return self._set.closed

    def __repr__(self) -> str:
        closed = " closed" if self.closed else ""
        return f"<caid.weights.Weights {self.name}@{self.version} arrays={len(self)}{closed}>"

    # --- what it is -------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """str: the model's name."""
        return self._set.name[:-1]

    @property
    def version(self) -> int:
        """int: the version; each that is loaded later has a higher one."""
        return self._set.generation

    @property
    def pool(self) -> str | None:
        """str: the pool that it lies in."""
        return self._set.pool

    @property
    def client(self) -> Client:
        """Client: the one by which it was opened."""
        return self._client

    @property
    def device(self) -> int:
        """int: index of the device of its arrays in ``client.devices``."""
        first = next(iter(self._set.entries().values()))
        return self._client._index_of(first.device)

    @property
    def nbytes(self) -> int:
        """int: bytes of all arrays; an array with two names counts twice."""
        entries = self._set.entries()
        entries.pop(self._hidden, None)
        return sum(entry.nbytes for entry in entries.values())

    @property
    def metadata(self) -> Any:
        """object: what it was loaded or published with."""
        return self._own_metadata().get("metadata")

    @property
    def file_metadata(self) -> dict[str, str]:
        """dict of str: what its files had as ``__metadata__``, in full."""
        metadata = self._own_metadata().get("safetensors")
        if self._hidden is not None:
            metadata = self._text = self._text or self._read_text()
        return {k: v for k, v in metadata.items() if isinstance(v, str)} if isinstance(metadata, dict) else {}

    def _read_text(self):
        with self._set[self._hidden] as text:
            return _metadata.decode(text.copy_to_host().tobytes())

    def _own_metadata(self):
        """The set's metadata as a dict; {} if another program has published the set with other metadata."""
        metadata = self._set.metadata
        return metadata if isinstance(metadata, dict) else {}

    # --- arrays -----------------------------------------------------------------------------

    def __getitem__(self, key: str) -> Array:
        if key == self._hidden:
            raise KeyError(key)
        return self._set[key]

    def __contains__(self, key: object) -> bool:
        return key != self._hidden and key in self._set

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._set if key != self._hidden)

    def __len__(self) -> int:
        return len(self._set) - (self._hidden is not None)

    def values(self) -> ValuesView[Array]:
        """All arrays, in the order of their keys."""
        return self._set.open(self).values()

    def items(self) -> ItemsView[str, Array]:
        """All keys, and their arrays."""
        return self._set.open(self).items()

    def torch(self, device: Any = None) -> dict[str, Any]:
        """PyTorch's tensors over the arrays, for ``module.load_state_dict(w.torch(), assign=True)``.
        Nothing is copied, unless another `device` is asked for than they are on: ``w.torch("cpu")`` of a model in
        a device's memory has its own copy of all of it, made at once, and keeps nothing of the version; of one that
        was loaded to "pinned" memory, it is what all processes have. Opened "r", the memory is mapped read-only, which PyTorch does not know: a write
        to a tensor in place ends this process's CUDA context or, without a GPU, this process.

        The tensors in a block have one storage, which is all of what the version takes of it: ``torch.save()`` of
        one of them alone writes that. ``clone()`` has a storage of its own."""
        return self._made(lambda version, table: _views.torch(version, table, device))

    state_dict = torch

    def cupy(self) -> dict[str, Any]:
        """CuPy's arrays over the arrays. As torch()."""
        return self._made(_views.cupy)

    def jax(self) -> dict[str, Any]:
        """JAX's arrays over the arrays. As torch(). A computation writes to arrays that are donated to it."""
        return self._made(_views.jax)

    def shard(
        self,
        rank: int,
        world: int,
        rows: Iterable[str] = ROWS,
        columns: Iterable[str] = COLUMNS,
        *,
        device: int | str | None = None,
    ) -> Part:
        """One of `world` equal parts, for tensor parallelism: so a trainer and an engine may cut differently.

        Parameters
        ----------
        rank, world, rows, columns
            As `shard` of :func:`caid.weights.load`: patterns of names of which the part has some rows (of the first
            dimension) or columns (of the second).
        device : int or str, optional
            Of this process, index in ``client.devices`` or UUID, that is to reach the part: where the memory lies
            on another one, over the link between them.

        Returns
        -------
        Part
            Its ``torch()``, ``cupy()`` and ``jax()`` give rows as views, and each part of columns as a copy of
            its own.

        Raises
        ------
        InvalidError
            No such part. A tensor that cannot be divided evenly raises it when it is asked for.
        """
        return Part(self, shard_of(rank, world, rows, columns), device)

    def copy_into(self, target: Any) -> None:
        """Copies all tensors into others of the same keys, shapes and types, of who has to own his memory: a
        worker that writes to its weights, or that has them on another device.

        Parameters
        ----------
        target : torch.nn.Module, or mapping
            A module, whose ``state_dict()`` is written; or tensors of PyTorch, or other arrays that
            :meth:`caid.Array.copy_to` takes, by key. Into tensors of PyTorch it is one batched copy, on PyTorch's
            current stream, which is not waited for on a device.

        Raises
        ------
        ValueError
            Keys, shapes or types are not the same, or one lies in the memory of a version that this process has
            open, which others read. The message has all of them; nothing has been written.
        """
        _into.copy(self, target)

    def _made(self, take, shard=None, device=None):
        with _views.uncollected():
            version = self._adopted(device)
            return take(version, version.table.sharded(shard))

    def _adopted(self, device=None):
        """The Version, whose blocks are mapped."""
        array = self._set._array
        array._check()
        uuid = None if device is None else self._client._uuid_of(device)
        version = self._versions.get(uuid)
        if version is None:
            is_listed = self._table is None or self._table.n != len(self._set)
            if is_listed:
                self._table = Table(self._set._entries(), self._hidden)
            version = self._versions[uuid] = Version(array._memory, self._table, is_listed, uuid)
            if uuid is None:
                self._line.keep(version, self._n_versions())
        return version

    def _layout(self):
        return getattr(self._set, "layout", 0)

    def _n_versions(self):
        """How many blocks the publisher of standing versions has; 0: it is none's."""
        told = self._own_metadata().get("publisher")
        n = told.get("versions") if isinstance(told, dict) else 0
        return n if isinstance(n, int) else 0

    # --- sleep ------------------------------------------------------------------------------

    def unmap(self) -> None:
        """As :meth:`caid.Set.unmap`: for a worker that sleeps. The memory stays: unload() gives it back,
        when all workers have let go."""
        self._set._remap("_unmap", self._leases())

    def map(self) -> None:
        """Maps what was unmapped, at the same addresses: tensors, and graphs captured over them, are
        valid again."""
        self._set._remap("_map", self._leases())

    def _leases(self):
        return tuple(lease for version in self._versions.values() for lease in version.leases)

    # --- other versions ---------------------------------------------------------------------

    def newer(self, stream: Any = None) -> Weights | None:
        """Opens the model's current version if it is another one than this; else returns None, after one round
        trip: so it can be called between two requests. NotFoundError: the model is gone.

        Of a publisher's standing versions (:func:`caid.weights.publisher`) the blocks stay mapped: the tensors of
        one that was open before are there after two round trips, without a call of the driver.

        Parameters
        ----------
        stream : stream object, optional
            The CUDA stream on which the newer version will be used, which its close() takes if it is given none.
            It is kept. All of a published version has landed: nothing is waited for.
        """
        mode = "r" if self._set.readonly else "rw"
        opened = _again.open_set(self._client, self._set.name, mode, self.pool)
        if opened.generation == self.version:
            opened.close()
            return None
        return Weights(self._client, opened, self, stream)

    def advance(self) -> int | None:
        """Puts the model's current version in the place of this one, if it is another: at the same addresses, so that
        tensors, pointers and CUDA graphs that have this one's find the newer one's contents there.

        **While it runs no thread may use the memory, enqueue work on it, or launch a graph that has it**: work on
        memory that is not mapped ends this process's CUDA context. It waits, on the host, for all work of the
        device's primary context and of the thread's current one. Copies and begins of brackets by the same client
        wait until it is done.

        Returns
        -------
        int or None
            The version that this has become; None: there is none that is newer.

        Raises
        ------
        InvalidError
            The newer version has other names, types, shapes, strides or places, or a block of another size: take
            newer(). A stream captures a graph. Something else that lies in one of the two blocks is open by this
            client: arrays that were taken out, another Weights, or copies of empty arrays. Nothing has changed.
        UnsupportedError
            The arrays lie in several blocks, or in no memory of a device.
        NotFoundError
            The model is gone.
        OutOfMemoryError, DriverError
            The newer version cannot be mapped there. This one is again where it was; where that has failed, too,
            it stays unmapped, each later use raises ClosedError, and its addresses stay its own.
        """
        mode = "r" if self._set.readonly else "rw"
        return self._advance_to(_again.open_set(self._client, self._set.name, mode, self.pool))

    def _advance_to(self, opened):
        """advance(), to a set that has been opened, which it takes."""
        try:
            _check_not_capturing()
            if (opened.name, opened.generation) == (self._set.name, self.version):
                opened.close()
                return None
            self._exchange(opened)
        except BaseException:
            if self._set is not opened:
                opened.close()
            raise
        return self.version

    def _exchange(self, opened):
        version, newer = self._adopted(), Weights(self._client, opened, self)
        try:
            if len(self._versions) != 1 or len(version.leases) != 1:
                raise unsupported(f"{self.name}: a version that lies in one block, on one device, is advanced")
            new = newer._adopted()
            here, there = ([(x.offset, x.block_size) for x in each.leases] for each in (version, new))
            if here != there or newer._table.differs_from(self._table):
                raise invalid(f"{self.name}@{newer.version} is not laid out as version {self.version}: take newer()")
            self._set._close_opened()
            leases = new.leases
            try:
                version.advance(new)
            finally:
                if version.leases is leases:
                    self._set, newer._set = newer._set, self._set
                    self._hidden, self._text = newer._hidden, None
        finally:
            newer.close()

    def watch(self, timeout: float | None = None) -> Watch:
        """A :class:`caid.Watch` of the model: news of each version, in a thread or for asyncio."""
        return self._client.watch(self._set.name, pool=self.pool, timeout=timeout)


def _check_not_capturing():
    """The library asks of the streams that it knows; of PyTorch's current one its library knows."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing():
        raise invalid("PyTorch's current stream captures a graph: a version is advanced between captures")


class Part:
    """A part of a version: what :meth:`Weights.shard` gives. The Weights stays open as long as it is used."""

    def __init__(self, weights: Weights, shard: Shard, device: int | str | None):
        self._weights, self._shard, self._device = weights, shard, device

    def __repr__(self) -> str:
        return f"<caid.weights.Part {self._shard.rank}/{self._shard.world} of {self._weights!r}>"

    def torch(self) -> dict[str, Any]:
        """As :meth:`Weights.torch`."""
        return self._weights._made(_views.torch, self._shard, self._device)

    state_dict = torch

    def cupy(self) -> dict[str, Any]:
        """As :meth:`Weights.cupy`."""
        return self._weights._made(_views.cupy, self._shard, self._device)

    def jax(self) -> dict[str, Any]:
        """As :meth:`Weights.jax`."""
        return self._weights._made(_views.jax, self._shard, self._device)


def of_set(client, name, opened) -> Weights:
    """The Weights of a set that was opened by that name."""
    _, version = parse(name)
    if version is not None and opened.generation != version:
        opened.close()
        raise StaleError(116, f"{name}: the current version is {opened.generation}")
    return Weights(client, opened)
