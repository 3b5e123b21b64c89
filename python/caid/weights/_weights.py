# SPDX-License-Identifier: Apache-2.0
"""Weights: one version of a model's arrays, as a worker uses them."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any

from .._base import _metadata
from .._base._errors import InvalidNameError, StaleError, invalid
from .._base._lifetime import NotCompared
from .._memory import _array
from .._memory._array import Array
from .._memory._set import Set
from .._session._client import Client
from .._session._watch import Watch
from ._safetensors import METADATA


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


def elements_of(array: Array) -> tuple:
    """A key that is equal for entries of a set that are one array."""
    memory, layout = array._memory, array._layout
    return memory.block, memory.offset, layout.shape, layout.strides, layout.element


class Weights(NotCompared, Mapping[str, Array]):
    """One version of a model: what :func:`caid.weights.open` gives. A mapping of the tensors' names, in
    byte order, to arrays.

    It holds its version and its memory until it is closed, also when the name has another version by then.
    An array is opened when it is first asked for; ``torch()``, ``cupy()``, ``jax()``, ``values()`` and
    ``items()`` open all in few messages. A tensor that was taken out keeps the memory of the model, also after
    close().
    """

    def __init__(self, client: Client, opened: Set):
        self._client = client
        self._set = opened
        is_long = self._own_metadata().get("safetensors") == METADATA and METADATA in opened
        self._hidden = METADATA if is_long else None  # the array that has the files' metadata
        self._text: Any = None  # its contents, once they have been read

    # --- life -------------------------------------------------------------------------------

    def close(self) -> None:
        """Lets go of the version. Idempotent."""
        self._set.close()

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

    def torch(self) -> dict[str, Any]:
        """PyTorch's tensors over the arrays, for ``module.load_state_dict(w.torch(), assign=True)``.
        Nothing is copied. Opened "r", the memory is mapped read-only, which PyTorch does not know: a write
        to a tensor in place ends this process's CUDA context or, without a GPU, this process."""
        import torch

        # PyTorch has no read-only tensors, and 2.8 asks for a version of DLPack that has none either.
        return self._taken(lambda array: torch.from_dlpack(_array.writable(array)))

    state_dict = torch

    def cupy(self) -> dict[str, Any]:
        """CuPy's arrays over the arrays. As torch()."""
        import cupy

        return self._taken(cupy.from_dlpack)

    def jax(self) -> dict[str, Any]:
        """JAX's arrays over the arrays. As torch(). A computation writes to arrays that are donated to it."""
        import jax

        # JAX asks for a version of DLPack without read-only memory, and writes to no array.
        return self._taken(lambda array: jax.dlpack.from_dlpack(_array.writable(array)))

    def _taken(self, take):
        """Tensors by key. An array under two keys is one tensor, as a module with tied weights has it."""
        taken: dict[Any, Any] = {}
        tensors = {}
        for key, array in self.items():
            at = elements_of(array) if array.nbytes else key
            if at not in taken:
                taken[at] = take(array)
            tensors[key] = taken[at]
            array.close()
        return tensors

    # --- sleep ------------------------------------------------------------------------------

    def unmap(self) -> None:
        """As :meth:`caid.Set.unmap`: for a worker that sleeps. The memory stays: unload() gives it back,
        when all workers have let go."""
        self._set.unmap()

    def map(self) -> None:
        """Maps what was unmapped, at the same addresses: tensors, and graphs captured over them, are
        valid again."""
        self._set.map()

    # --- other versions ---------------------------------------------------------------------

    def newer(self) -> Weights | None:
        """Opens the model's current version if it is another one than this; else returns None, after one round
        trip: so it can be called between two requests. NotFoundError: the model is gone."""
        if self._client.show(self._set.name, pool=self.pool).entry.generation == self.version:
            return None
        mode = "r" if self._set.readonly else "rw"
        return Weights(self._client, self._client.open_set(self._set.name, mode, pool=self.pool))

    def watch(self, timeout: float | None = None) -> Watch:
        """A :class:`caid.Watch` of the model: news of each version, in a thread or for asyncio."""
        return self._client.watch(self._set.name, pool=self.pool, timeout=timeout)


def of_set(client, name, opened) -> Weights:
    """The Weights of a set that was opened by that name."""
    _, version = parse(name)
    if version is not None and opened.generation != version:
        opened.close()
        raise StaleError(116, f"{name}: the current version is {opened.generation}")
    return Weights(client, opened)
