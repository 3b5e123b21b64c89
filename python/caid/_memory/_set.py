# SPDX-License-Identifier: Apache-2.0
"""Set: one version of names that change together."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any

from .._base import _metadata
from .._base._errors import ClosedError, InvalidNameError, NotFoundError, invalid
from .._base._lifetime import Closing, NotCompared, OfProcess, attributes
from .._base._records import Entry
from .._handoff import _any_stream
from . import _array, _copy, _data, _elements
from ._array import Array


def publish(client, name, arrays, metadata, stream, replace):
    """Client.publish_many()."""
    arrays = dict(arrays)
    with contextlib.ExitStack() as made:
        _make_missing(client, arrays, made)
        number = 0 if stream is None else _any_stream.handle(stream)
        encoded = _metadata.encode(metadata)
        leases = tuple(_to_publish(array, number, made) for array in arrays.values())
        return client._publish_many(name, tuple(arrays), leases, encoded, number, not replace)


def _make_missing(client, arrays, made):
    """Puts new arrays in the place of what is none of caid's, in the pool of the others."""
    for key, array in arrays.items():
        if not _data.is_array(array):
            raise TypeError(f"{key!r}: an array or a tensor is needed, not {type(array).__name__}")
    pool = next((a.pool for a in arrays.values() if isinstance(a, Array)), None)
    for key, array in arrays.items():
        if not isinstance(array, Array):
            arrays[key] = made.enter_context(client.array(array, pool=pool))


def _to_publish(array, number, parts):
    """The Lease that goes into the set, as Array.publish() has it; of a view of a whole array that array's, since
    a Set gives views, and an array may be in several sets."""
    array._check()
    whole = not array._root and array._memory.pool is not None
    if whole and array._layout == _elements.layout_of(array._memory):
        _copy.settle(array)
        return array._memory
    return array._to_publish(number, parts)


def of_array(array) -> Set:
    """The Set of an opened array. Where that is no set, closes it and raises InvalidError."""
    if not array._memory.members:
        array.close()
        raise invalid(f"{array.name!r} is an array, not a set")
    self = object.__new__(Set)
    self._array = array
    self._opened = {}
    self._known = None
    return self


@attributes
class Set(OfProcess, NotCompared, Closing, Mapping[str, Array]):
    """One version of names that change together: what :meth:`caid.Client.open_set` gives.

    A mapping of keys, in byte order, to arrays, as :meth:`caid.Client.publish_many` was given them. As long
    as it is open, it keeps the arrays of its version and their memory, also when the name has another version
    by then. An array is opened when it is first asked for; ``values()``, ``items()`` and open() open many in
    few messages. The arrays that it gives are views, which stay open when the set is closed, until they are
    closed or collected themselves.
    """

    __slots__ = ("_array", "_known", "_opened", "__weakref__")
    _comes_from = "Client.open_set()"
    _no_copy = "open its name"

    _array: Array  # the set's own, of no bytes
    _known: dict[str, Entry] | None
    _opened: dict[str, Array]

    # --- life -------------------------------------------------------------------------------

    def close(self, stream: Any = None) -> None:
        """Gives up the version. Idempotent. Waits for nothing; arrays that it has given stay open. `stream` is
        as for :meth:`caid.Array.close`, and for the arrays."""
        self._array.close()
        self._close_opened(stream)

    def _close_opened(self, stream=None):
        opened, self._opened = self._opened, {}
        for array in opened.values():
            array.close(stream)

    @property
    def closed(self) -> bool:
        """bool: whether the set, or its client, is closed."""
        return self._array.closed

    def __repr__(self) -> str:
        what = f"generation={self.generation} arrays={len(self)}"
        return f"<caid.Set {self.name!r} {what}{' closed' if self.closed else ''}>"

    def unmap(self) -> None:
        """Unmaps the arrays from this process's address space, after the work on them is done: for a process
        that sleeps. The version and its memory stay leased, and map() maps it again at the same addresses, so
        that CUDA graphs over it stay valid. Until then its arrays have no `ptr`, and other libraries' arrays
        over them must not be used.

        The work of the thread's current context and of primary contexts is waited for.

        Raises
        ------
        InvalidError
            Something else that lies in the same blocks is open by this client.
        UnsupportedError
            The arrays are not in memory of a device.
        """
        self._remap("_unmap")

    def map(self) -> None:
        """Maps the arrays again, at their former addresses. Idempotent. Raises OutOfMemoryError,
        DriverError."""
        self._remap("_map")

    def _remap(self, how, more=()):
        self._array._check()
        leases = (*(array._memory for array in self._opened.values()), *more)
        if leases:
            getattr(self._array._memory.client, how)(leases)

    # --- what it is -------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """str: that it was opened by, with which the names of its arrays begin."""
        return self._array.name or ""

    @property
    def pool(self) -> str | None:
        """str: the pool that it lies in."""
        return self._array.pool

    @property
    def generation(self) -> int:
        """int: of all of its names."""
        return self._array.generation

    @property
    def layout(self) -> int:
        """int: the same for all versions whose arrays have the same keys, types, shapes and places in one block
        of memory; 0 where they lie in several."""
        return self._array._memory.layout

    @property
    def metadata(self) -> Any:
        """object: what it was published with, decoded from JSON anew each time; None without."""
        return self._array.metadata

    @property
    def readonly(self) -> bool:
        """bool: whether its arrays are opened "r"."""
        return self._array.readonly

    def entries(self) -> dict[str, Entry]:
        """The daemon's entry of each array, by key. It is asked once: figures of holders may have changed
        since."""
        return self._entries().copy()

    def _entries(self):
        self._array._check()
        if self._known is None:
            listed = self._array._memory.client._set_list(self._array._memory)
            self._known = {entry.name: entry for entry in map(Entry._make, listed)}
        return self._known

    @property
    def nbytes(self) -> int:
        """int: bytes of all of its arrays."""
        return sum(entry.nbytes for entry in self._entries().values())

    # --- arrays -----------------------------------------------------------------------------

    def open(self, keys: Iterable[str] | None = None) -> dict[str, Array]:
        """Arrays by their keys, opened in as few messages as they fit in: all or none.

        Parameters
        ----------
        keys : iterable of str, optional
            Without them, all.

        Raises
        ------
        KeyError, ClosedError
            There is no such key; the set is closed.
        """
        if isinstance(keys, str):
            raise TypeError("keys: a list of str is needed, not one str")
        self._array._check()
        keys = tuple(self._entries() if keys is None else keys)
        opened = self._opened  # close() closes the arrays in it, and leaves the dict
        missing = tuple(dict.fromkeys(key for key in keys if key not in opened))
        if missing:
            self._open(missing, opened)
        return {key: opened[key].view() for key in keys}

    def _open(self, keys, opened):
        lease = self._array._memory
        mode = "r" if self.readonly else "rw"
        try:
            leases = lease.client._open_many(keys, mode, None, None, lease)
        except (NotFoundError, InvalidNameError) as e:
            raise KeyError(keys[0] if len(keys) == 1 else str(e)) from None
        for key, array in zip(keys, _array.of_leases(leases, root=False)):
            opened.setdefault(key, array)

    def __getitem__(self, key: str) -> Array:
        return self.open((key,))[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return self._array._memory.members

    def values(self) -> ValuesView[Array]:
        """All arrays, in the order of their keys."""
        return self.open().values()

    def items(self) -> ItemsView[str, Array]:
        """All keys, and their arrays."""
        return self.open().items()


class Reservation:
    """Addresses of this process: what :meth:`caid.Client.reserve` gives. A context manager: memory that is
    mapped in its block lies there. The addresses are given back when this is closed or collected, and no
    memory lies there any more.
    """

    __slots__ = ("_client", "_handle", "address", "nbytes")

    address: int  #: the first one
    nbytes: int  #: as they were asked for

    def __init__(self, client, nbytes: int, address: int):
        self._client = client
        self.nbytes = nbytes
        self._handle, self.address = client._reserve(nbytes, address)

    def __repr__(self) -> str:
        return f"<caid.Reservation {self.address:#x} nbytes={self.nbytes}>"

    def __enter__(self) -> Reservation:
        if self._handle is None:
            raise ClosedError(errno.EBADF, "the reservation is closed")
        self._client._use_reservation(self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._client.closed:
            self._client._use_reservation(None)

    def close(self) -> None:
        """Idempotent."""
        self._handle = None
