# SPDX-License-Identifier: Apache-2.0
"""Arena: an allocator of this process over memory of the daemon, and publishing what lies in it."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Tuple, Union
from weakref import WeakSet

from .. import _caid
from .._base import _geometry, _metadata, _typestr
from .._base._errors import ClosedError, NotFoundError, invalid, unsupported
from .._base._lifetime import Closing, OfProcess, attribute, attributes
from .._base._records import AllocationInfo, ArenaInfo, IpcHandle
from .._handoff import _any_stream
from . import _array, _cai, _dlpack, _parts, _releaser
from ._layout import Part

Allocation = _caid.Allocation
attributes(Allocation)

_open: WeakSet = WeakSet()  # all arenas, closed ones included
_KINDS = ("device", "legacy")
_CONTEXT = 0  # for libcaid: all work of the device's context
_NO_STREAM = -1  # for DLPack: nothing is waited for


@attributes
@_caid.derived
class Arena(OfProcess, Closing, _caid.Arena):
    """An allocator over blocks of memory that are leased from the daemon: what
    :meth:`caid.Client.arena` makes. ::

        arena = client.arena()
        x = arena.allocate(1 << 20)                    # x.ptr, x.nbytes; freed with x
        arena.publish("weights", x, shape=(512, 512), dtype="<f4")

    Where a block has room, an allocation asks neither the daemon nor the driver. Freed memory is reused when
    all work is done that the device's primary context had when it was freed, and only when enough of it waits
    (`set_limits`).

    An arena is closed by ``close()``, by leaving its ``with`` block, when it is collected, or with its
    client, which it keeps alive. Allocations keep the arena alive, and their memory even after its close; the
    memory goes back with the last of them. Allocations that are left when the client is closed stay usable
    until the process exits.

    Notes
    -----
    It may be used from any thread, with any context current or none. The rules by which memory waits
    are those of Numba's deallocation queue.

    No freed memory becomes reusable while a blocking stream of the device's primary context captures a graph,
    or the current stream of the framework whose arena it is, since the test whether it may be reused would
    end the capture. For captures on other streams, use `defer_cleanup`.
    """

    __slots__ = ("_client", "_device", "_memory", "_pool", "_current_stream", "__weakref__")
    _comes_from = "Client.arena()"
    _no_copy = "make one of your own client"

    def __repr__(self):
        pool = "" if self._pool is None else f" pool={self._pool!r}"
        memory = "" if self._memory == "device" else f" memory={self._memory!r}"
        closed = " closed" if self.closed else ""
        return f"<caid.Arena device={self._device}{memory}{pool}{closed}>"

    @property
    def device(self) -> int:
        """int: index of its device in ``client.devices``."""
        return self._device

    @property
    def memory(self) -> str:
        """str: "device" or "legacy", as in :meth:`caid.Client.create`."""
        return self._memory

    @property
    def pool(self) -> str | None:
        """str or None: whose memory it is; None for the caller's own."""
        return self._pool

    # --- allocating -------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Allocation:
        """Allocates memory, its contents undefined, at a multiple of 512 bytes.

        Parameters
        ----------
        nbytes : int
            0 gives an address, too.

        Returns
        -------
        Allocation
            The memory is freed with it.

        Raises
        ------
        OutOfMemoryError, QuotaError, LimitError
            The device, the pool or the user has not got that much, and nothing that was freed helps.
        DisconnectedError
            The daemon is gone, and there is no room in what was leased before.
        InvalidError, ClosedError
            No size; the arena is closed.
        """
        return self._alloc(nbytes)

    def find(self, ptr: int) -> AllocationInfo:
        """The allocation that an address lies in, freed or not. Raises NotFoundError."""
        return AllocationInfo._make(self._find(ptr))

    def _has(self, ptr):
        """Whether an address lies in one of the arena's allocations."""
        try:
            return bool(self._find(ptr))
        except NotFoundError:
            return False

    def ipc_handle(self, ptr: int) -> IpcHandle:
        """What opens the memory at an address in other processes, by any library, as
        :attr:`caid.Array.ipc_handle`: of an arena of "legacy" memory, as long as the allocation lives.

        Raises
        ------
        UnsupportedError, NotFoundError
            Other memory; no allocation is there.
        """
        return IpcHandle._make(self._ipc_handle(ptr))

    # --- what was freed ---------------------------------------------------------------------

    @property
    def info(self) -> ArenaInfo:
        """ArenaInfo: its figures, now. Published parts are counted as of the daemon's last message."""
        _releaser.read(self._client)
        return ArenaInfo._make(self._info())

    def set_limits(self, count: int, ratio: float, capacity: int | None = None) -> None:
        """Other limits, from the next freed allocation on.

        Parameters
        ----------
        count : int
            How many may wait; 0 for none.
        ratio : float
            Which part of `capacity` may wait; 0 for none.
        capacity : int, optional
            Bytes; without it, the device's memory.

        Raises
        ------
        InvalidError, ClosedError
            One of them is below 0, or no number; the arena is closed.
        """
        _check_limits(count=count, ratio=ratio)
        if capacity is None:
            capacity = self._client._known_devices()[self._device].total
        self._set_limits(count, ratio, capacity)

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """A ``with`` block in which nothing that was freed becomes reusable, and no block goes back:
        for work that must not be disturbed. Blocks may be nested; what they held back goes on waiting
        after the outermost. An allocation for which there is no room leases a block, or fails."""
        self._defer_begin()
        try:
            yield
        finally:
            with contextlib.suppress(ClosedError):  # then the deferral has ended
                self._defer_end()

    # --- publishing -------------------------------------------------------------------------

    def publish(
        self,
        name: str,
        x: Any,
        *,
        shape: Union[int, Tuple[int, ...], None] = None,
        dtype: Any = None,
        metadata: Any = None,
        stream: Any = None,
    ) -> int:
        """Puts an array that lies in the arena's memory under a name of its pool, at once and as a
        whole, without a copy: see :meth:`caid.Array.publish`.

        Whoever opens the name has the same memory, until he closes it. Meanwhile only what its readers expect
        may be written to it.

        Parameters
        ----------
        name : str
            It need not exist.
        x : Allocation, or object with ``__cuda_array_interface__`` or ``__dlpack__``
            It is kept alive until nobody can reach what was published: until the name shows something
            else, or is gone, and all who have opened it are done; or until the client is closed, or
            collected. So its library does not use the memory again. An Allocation may go: its memory
            is kept.
        shape, dtype : optional
            For an Allocation, whose first bytes they tell of, in C order. Without a dtype, bytes;
            without a shape, as many elements as there is room for, in one dimension.
        metadata : object, optional
            Anything that JSON can tell, up to 4,096 bytes of it, for whoever opens the array.
        stream : int or stream object, optional
            The CUDA stream on which `x` is written, as for :meth:`caid.Array.close`: waited for, on
            the host. Without it, that of the CUDA Array Interface, or all work of the device's primary
            context where that names none.

        Returns
        -------
        int
            The name's new generation.

        Raises
        ------
        InvalidError
            `x` is not in memory of this arena, or larger than what was allocated; its strides are
            negative; it is misaligned, as a field of packed records may be: publish its bytes; also
            a ValueError.
        BufferError
            Of a type that caid has none for.
        TypeError
            Neither of the interfaces; a shape or dtype, and no Allocation.
        UnsupportedError
            An array of the daemon's, which is published by its own publish().
        AccessError, InvalidNameError, LimitError
            The pool may not be written, or another uid made the memory; no name; more names than the
            user may have.

        Notes
        -----
        An array of no elements has no memory: one like it is made and published. What is kept alive is
        let go of in a thread of the client's, or in its dispatch(), with no context current.
        """
        if name is None:
            raise TypeError("name: a str is needed, not NoneType")
        if isinstance(x, Allocation):
            part = _of_allocation(x, shape, dtype)
        elif shape is not None or dtype is not None:
            raise TypeError(f"shape, dtype: {type(x).__name__} has its own; they are for an Allocation")
        else:
            part = _of_object(x, stream)
        if stream is not None:
            part = part._replace(stream=_any_stream.handle(stream))
        metadata = _metadata.encode(metadata)
        if 0 in part.shape:
            return self._publish_empty(name, part, metadata)
        self._check(x, part)
        with _releaser.watching(self._client):
            return self._publish(name, part, metadata)

    def _send(self, x, stream=None, many=False, own=False):
        """Makes a ticket for memory of the arena: an Allocation, as bytes, or an array that `stream` writes.
        many: any number of receivers may take it. own: this client takes it, and the ticket ends with the
        client."""
        part = _of_allocation(x, None, None) if isinstance(x, Allocation) else _of_object(x, stream)
        if stream is not None:
            part = part._replace(stream=_any_stream.handle(stream))
        self._check(x, part)
        with _releaser.watching(self._client):
            return self._publish(None, part, None, many, own)

    def _send_allocation(self, ptr):
        """Makes a ticket, for any number of receivers, for the allocation that an address lies in, as bytes,
        after all work of the device's primary context: (ticket, address of the allocation)."""
        start, nbytes, *_ = self._find(ptr)
        part = Part(start, (nbytes,), None, _typestr.of_dtype("|u1")[0], _CONTEXT, None)
        with _releaser.watching(self._client):
            return self._publish(None, part, None, True), start

    def _own(self, x, stream=None):
        """A lease on memory of the arena, which is an unnamed array from then on."""
        return _parts.taken(self._client, self._send(x, stream, own=True))

    def _set_of(self, members, keep):
        """The Lease of a set without a name, of (key, address, type name, descr, shape, strides or None) of arrays in
        the arena's memory; `keep` is kept until nobody can reach any of them. It need not be published."""
        with _releaser.watching(self._client):
            return self._set_create(members, keep)

    def _publish(self, name, part, metadata, many=False, own=False):
        element = part.element
        return self._publish_part(
            part.ptr,
            name,
            element.type_name,
            element.descr,
            part.shape,
            part.strides,
            metadata,
            part.stream,
            part.keep,
            many,
            own,
        )

    def _publish_empty(self, name, part, metadata):
        if self.closed:
            self._info()  # raises what all calls would
        client, element = self._client, part.element
        like = client._create_lease(
            None, part.shape, element, None, self._pool, self._device, False, "device", 0, None
        )
        try:
            return like.publish(name, metadata, _CONTEXT, False, None, 0)
        finally:
            like.close()

    def _check(self, x, part):
        """Raises libcaid's errors with what the caller knows of the array."""
        try:
            start, nbytes, *_ = self._find(part.ptr)
        except NotFoundError:
            raise invalid(
                f"{type(x).__name__} at {part.ptr:#x} is not in memory of this arena: allocate it by "
                "the arena, or copy it to an array of the client's and publish that"
            ) from None
        _, high = _geometry.extent(part.shape, part.strides or _c(part), part.element.itemsize)
        left = start + nbytes - part.ptr
        if high > left:
            raise invalid(
                f"shape {part.shape} of {part.element.typestr!r} takes {high} bytes: the allocation has "
                f"{left}"
            )


def holding(ptr):
    """The arena of this process that an address lies in, or None."""
    for arena in list(_open):
        if not arena.closed and arena._has(ptr):
            return arena
    return None


def create(client, device, memory, pool, block_size, count, ratio, age):
    """The Arena of Client.arena()."""
    if memory not in _KINDS:
        raise invalid(f"memory {memory!r}: an arena is of 'device' or 'legacy' memory")
    _check_limits(max_pending_count=count, max_pending_ratio=ratio, max_pending_age=age)
    device = client._index_of(device)
    if count == 0 or ratio == 0:
        ratio = -1.0  # libcaid's value for "nothing waits"
    age_ns = 0 if age is None else max(int(min(age, 1e9) * 1e9), 1)
    arena = client._arena_new(
        device, pool, memory, block_size, count or 0, float(ratio or 0), age_ns
    )
    arena._client = client
    arena._device = device
    arena._memory = memory
    arena._pool = pool
    _open.add(arena)
    arena._current_stream = None  # or a function that gives a framework's stream, whose number is its `ptr`
    return arena


def _check_limits(**limits):
    for what, limit in limits.items():
        if limit is not None and not limit >= 0:  # NaN neither
            raise invalid(f"{what} {limit!r}: 0 or more")


# --- what is published ----------------------------------------------------------------------


def _c(part):
    return _geometry.c_strides(part.shape, part.element.itemsize)


def _of_allocation(x, shape, dtype):
    element, inner = _typestr.of_dtype("|u1" if dtype is None else dtype)
    if shape is None:
        if inner:
            raise invalid(f"dtype {dtype!r} has a shape of its own: a shape is needed")
        shape = (x.nbytes // element.itemsize,) if element.itemsize else (0,)
    shape = _geometry.dims("shape", shape) + inner
    if any(extent < 0 for extent in shape):
        raise invalid(f"shape {shape}: negative")
    return Part(attribute(x, "ptr"), shape, None, element, _CONTEXT, None)


def _of_object(x, stream):
    if isinstance(x, _array.Array):
        return _of_array(x, stream)
    desc = _interface(x)
    if desc is not None:
        return _of_desc(desc, x, stream)
    number = _NO_STREAM if stream is None else _any_stream.handle(stream)
    tensor, element, strides = _dlpack.take(x, number)
    # The tensor keeps the memory even if `x` is given other memory.
    return _make(tensor.ptr, tensor.shape, strides, element, None, (x, tensor))


def _interface(x):
    """The dict of the CUDA Array Interface. None where the object has DLPack and no such dict, or none for
    its type; DLPack then raises the reason."""
    try:
        found = attribute(x, "__cuda_array_interface__")
    except (KeyError, TypeError):  # PyTorch, of types that the interface has not
        if not hasattr(x, "__dlpack__"):
            raise
        return None
    if found is None and not hasattr(x, "__dlpack__"):
        raise TypeError(f"{type(x).__name__} has neither __cuda_array_interface__ nor __dlpack__")
    return found


def _of_array(x, stream):
    """The part for a caid.Array of another library's memory: a view, which keeps the owner even if the array
    is closed."""
    if x.pool is not None:
        raise unsupported(f"{x._label} is the daemon's: publish it by its own publish()")
    view = x.view()
    part = _of_desc(attribute(view, "__cuda_array_interface__"), view, stream)
    return part._replace(element=view._layout.element)


def _of_desc(desc, keep, other):
    if other is not None and isinstance(desc, dict):
        desc = {**desc, "stream": None}  # not checked: the caller gives another stream
    ptr, shape, strides, element, _readonly, stream = _cai.read(desc)
    element = getattr(keep, "_caid_element", element)  # a type that the interface may have no word for
    return _make(ptr, shape, strides, element, stream, keep)


def _make(ptr, shape, strides, element, stream, keep):
    strides = _parts.strides_of(shape, strides, element.itemsize)
    return Part(ptr, shape, strides, element, stream or _CONTEXT, keep)
