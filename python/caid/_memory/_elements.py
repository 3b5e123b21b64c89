# SPDX-License-Identifier: Apache-2.0
"""Elements in memory: their layout, what is known of them, and views of them. The base of Array, which adds
what is done with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator

from .._base import _geometry, _metadata, _typestr
from .._base._records import IpcHandle
from .._handoff import _any_stream
from ._items import Items
from ._layout import Layout

if TYPE_CHECKING:
    import numpy

    from ._array import Array


def layout_of(lease):
    """The Layout of a lease's elements. Its address is 0 where the lease has ended or is another
    process's."""
    element = _typestr.element_of(lease.typestr, lease.itemsize, lease.descr)
    ptr = lease.ptr if lease._live else 0
    return Layout(ptr, lease.shape, lease.strides, element, lease.readonly)


class Elements(Items):
    """The part of :class:`caid.Array` that says what it is, and gives views."""

    __slots__ = ()

    _memory: Any  # the memory that the elements lie in
    _known: Layout | None  # None: the lease's, which was not read yet
    _check: Any
    _view: Any
    _bind: Any

    @property
    def _layout(self) -> Layout:
        if self._known is None:
            self._known = layout_of(self._memory)
        return self._known

    @property
    def _label(self):
        """What messages call the array."""
        return "the array" if self.name is None else f"array {self.name!r}"

    # --- what it is -------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """tuple of int: extents."""
        return self._layout.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """tuple of int: steps in bytes; negative in some views."""
        return self._layout.strides

    @property
    def typestr(self) -> str:
        """str: type of the elements, as in NumPy's array interface, which has no word for some: of them
        only `dtype` tells."""
        return self._layout.element.typestr

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """numpy.dtype: type of the elements. Needs NumPy; of bfloat16, of floats of 8 bits and fewer and
        of integers of fewer it is the one of ml_dtypes, where that is installed, else raw memory."""
        return _typestr.to_numpy(self._layout.element)

    @property
    def itemsize(self) -> int:
        """int: bytes of an element."""
        return self._layout.element.itemsize

    @property
    def ndim(self) -> int:
        """int: number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """int: number of elements."""
        return _geometry.size(self.shape)

    @property
    def nbytes(self) -> int:
        """int: bytes of the elements."""
        return self.size * self.itemsize

    @property
    def alloc_size(self) -> int:
        """int: bytes from the first element in memory to the end of the last, gaps included."""
        low, high = _geometry.extent(self.shape, self.strides, self.itemsize)
        return high - low

    @property
    def flags(self) -> dict[str, bool]:
        """dict: C_CONTIGUOUS and F_CONTIGUOUS, as Numba has them."""
        return {
            "C_CONTIGUOUS": self.is_c_contiguous(),
            "F_CONTIGUOUS": self.is_f_contiguous(),
        }

    @property
    def device(self) -> int:
        """int: index of the device in ``client.devices``; -1 for one that is not there. Of host
        memory, the one that it was made for."""
        return self._memory.device

    @property
    def mapped_ordinal(self) -> int:
        """int: CUDA ordinal, in this process, of the device that ``ptr`` was mapped for; -1 where
        nothing was, or where another library did."""
        return self._memory.mapped_ordinal

    @property
    def memory(self) -> str | None:
        """str or None: "device", "legacy", "pinned", "mapped" or "managed", as in
        :meth:`caid.Client.create`; None for memory of another library."""
        return self._memory.memory

    @property
    def readonly(self) -> bool:
        """bool: whether the memory is mapped read-only, or said to be by its owner. Of "legacy"
        memory it is said only: the driver does not enforce it."""
        return self._layout.readonly

    @property
    def ptr(self) -> int:
        """int: device address of the first element; 0 for an array of no elements."""
        return self._address()

    def _address(self):
        self._check()
        return 0 if 0 in self.shape else self._layout.ptr

    @property
    def device_ptr(self) -> int:
        """int: the same as `ptr`; the word for memory that has a host address, too."""
        return self.ptr

    @property
    def host_ptr(self) -> int | None:
        """int or None: host address of the first element, where the host reaches it."""
        self._check()
        memory = self._memory
        if not memory.host:
            return None
        return memory.host + self._layout.ptr - memory.ptr

    @property
    def name(self) -> str | None:
        """str or None: the name that the array was created, opened or last published by. Another
        array may have it by now."""
        return self._memory.name

    @property
    def pool(self) -> str | None:
        """str or None: the pool that the memory belongs to; None for memory that is not the
        daemon's."""
        return self._memory.pool

    @property
    def generation(self) -> int:
        """int: generation of the name; 0 without one."""
        return self._memory.generation

    @property
    def uid(self) -> int | None:
        """int or None: who created it; None for memory of another library."""
        return self._memory.uid

    @property
    def created(self) -> bool:
        """bool: whether this client has made the array, and not opened it. Of all that ask for one name
        by ``create(exist_ok=True)`` one gets True: who is to fill it."""
        return self._memory.created

    @property
    def metadata(self) -> Any:
        """object: what the array was created or last published with, decoded from JSON anew each
        time; None without. Text that is no JSON, which a program in C may have given, is a str."""
        return _metadata.decode(self._memory.metadata)

    @property
    def ipc_handle(self) -> IpcHandle:
        """IpcHandle: what opens "legacy" memory in other processes, by any library. Its `offset` is
        that of this array's first element. UnavailableError: other memory."""
        self._check()
        memory = self._memory
        handle = IpcHandle._make(memory.ipc_handle())
        if 0 in self.shape:
            return handle
        return handle._replace(offset=handle.offset + self._layout.ptr - memory.ptr)

    def is_c_contiguous(self) -> bool:
        """Whether the elements lie in C order, without gaps."""
        return _geometry.is_c_contiguous(self.shape, self.strides, self.itemsize)

    def is_f_contiguous(self) -> bool:
        """Whether the elements lie in Fortran order, without gaps."""
        return _geometry.is_f_contiguous(self.shape, self.strides, self.itemsize)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array of no dimensions")
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError("the truth of an array: its elements are in device memory; a.item() of one, a.copy_to_host().any() or .all()")

    # --- views ------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Array:
        """A view: of ints, slices, Ellipsis and None; of a record's field by its name, or of several
        by a list of names in the record's order, which needs NumPy."""
        names = key if isinstance(key, list) else [key]
        if names and all(isinstance(name, str) for name in names):
            element, inner, offset = _typestr.field(self._layout.element, key)
            return self._typed_view(offset, self.shape, self.strides, element, inner)
        return self._view(*_geometry.index(self.shape, self.strides, key))

    def __iter__(self) -> Iterator[Array]:
        if not self.shape:
            raise TypeError("iteration over an array of no dimensions")
        return (self[i] for i in range(self.shape[0]))

    def view(self, dtype: Any = None) -> Array:
        """Another array over the same elements; with a `dtype`, over the same bytes as elements of that
        type. If it has another size, the last axis is contiguous, and its extent changes; ValueError
        where it is not, or where the bytes do not come out even."""
        if dtype is None:
            return self._view(0, self.shape, self.strides)
        element, inner = _typestr.of_dtype(dtype)
        nbytes = element.itemsize * _geometry.size(inner)
        shape, strides = _geometry.retype(self.shape, self.strides, self.itemsize, nbytes)
        return self._typed_view(0, shape, strides, element, inner)

    def _typed_view(self, offset, shape, strides, element, inner):
        """A view as elements of another type, whose own extents, `inner`, come last."""
        strides += _geometry.c_strides(inner, element.itemsize)
        return self._view(offset, shape + inner, strides, element)

    def reshape(self, *shape: Any, order: str = "C") -> Array:
        """A view of the same elements, in the same order, in another shape.

        Parameters
        ----------
        *shape : int, or one tuple of int
            The new extents; one may be -1, to be found out.
        order : {"C", "F", "A"}
            In which the elements are counted: the last dimension the fastest, or the first; "A" is
            "F" of an array in Fortran order alone.

        Raises
        ------
        ValueError
            Another number of elements, or strides that only a copy could give.
        """
        new_shape = _geometry.dims("shape", shape[0] if len(shape) == 1 else shape)
        new_shape = _geometry.fill_in(new_shape, self.size)
        if order == "A":
            order = "F" if self.is_f_contiguous() and not self.is_c_contiguous() else "C"
        strides = _geometry.reshape(self.shape, self.strides, self.itemsize, new_shape, order)
        if strides is None:
            raise ValueError(
                f"shape {self.shape} with strides {self.strides} becomes {new_shape} only by "
                "a copy"
            )
        return self._view(0, new_shape, strides)

    def ravel(self, order: str = "C", stream: Any = 0) -> Array:
        """A view in one dimension; `order` as for reshape(), and a stream to bind() it to. Raises
        ValueError where that takes a copy."""
        flat = self.reshape(-1, order=order)
        return flat if _any_stream.is_default(stream) else flat._bind(stream)

    def transpose(self, *axes: Any) -> Array:
        """A view with the dimensions in the order of `axes`; reversed without."""
        if len(axes) == 1:
            axes = () if axes[0] is None else _geometry.dims("axes", axes[0])
        return self._view(0, *_geometry.transpose(self.shape, self.strides, axes))

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """A view with two dimensions swapped."""
        return self.transpose(_geometry.swapped(axis1, axis2, self.ndim))

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> Array:
        """A view without the dimensions of extent 1, or without those of `axis`: ValueError where one
        of them has another extent."""
        return self._view(0, *_geometry.squeeze(self.shape, self.strides, axis))

    @property
    def T(self) -> Array:
        """Array: a view with the dimensions reversed."""
        return self.transpose()
