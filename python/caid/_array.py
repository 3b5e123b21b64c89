# SPDX-License-Identifier: Apache-2.0
"""Array: elements in device memory, by address, shape and byte strides.

An Array looks at a memory, which is one of

* ``_caid.Lease``: an array that a client holds at the daemon,
* ``_cai.ForeignMemory``: memory that another library owns.

Views look at the memory of the array that they were made from. Each Array has one share of its
memory, from when it is made until ``close()`` or until it is collected; the memory ends with
its last share. A NumPy array that sees the memory (software driver) has a share, too.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, Iterator

from . import _copy, _geometry, _typestr
from ._errors import closed as closed_error

if TYPE_CHECKING:
    import numpy


def make(memory, ptr, shape, strides, element, readonly, *, root) -> Array:
    """An Array that takes over one share of a memory. A root warns when it is left open."""
    self = object.__new__(Array)
    self._memory = memory
    self._ptr = ptr
    self._shape = shape
    self._strides = strides
    self._element = element
    self._readonly = readonly
    self._root = root
    self._open = True
    return self


def of_lease(lease) -> Array:
    """The Array for a new lease."""
    element = _typestr.Element(lease.typestr, lease.itemsize, lease.descr)
    return make(
        lease, lease.ptr, lease.shape, lease.strides, element, lease.readonly, root=True
    )


def _export_version():
    """Version of the dict that ``__cuda_array_interface__`` gives: CAID_CAI_EXPORT_VERSION."""
    text = os.environ.get("CAID_CAI_EXPORT_VERSION", "3")
    if text not in ("2", "3"):
        raise ValueError(f"CAID_CAI_EXPORT_VERSION={text}: 2 or 3")
    return int(text)


class Array:
    """An n-dimensional array in device memory.

    Arrays come from a :class:`caid.Client` or from :func:`caid.as_array`. They have a geometry
    and can be copied; elements are not computed with here: hand the array to any library that
    knows the CUDA Array Interface. Indexing gives views, never values.

    An array is closed by ``close()``, by leaving its ``with`` block, or when it is collected
    (then with a ResourceWarning, views excepted). The lease ends when the array and all its
    views are closed; a view's ``close()`` gives up that view alone. Closing a client closes its
    arrays. What uses a closed array raises ClosedError; shape, type and names stay known.
    """

    __slots__ = (
        "_memory",
        "_ptr",
        "_shape",
        "_strides",
        "_element",
        "_readonly",
        "_root",
        "_open",
        "__weakref__",
    )

    _memory: Any  # what it looks at
    _ptr: int  # of the first element
    _shape: tuple[int, ...]
    _strides: tuple[int, ...]
    _element: _typestr.Element
    _readonly: bool
    _root: bool
    _open: bool  # deleted by close()

    def __new__(cls, *_args, **_kwargs):
        raise TypeError("caid.Array comes from Client.create(), Client.open() or caid.as_array()")

    # --- life -------------------------------------------------------------------------------

    def close(self) -> None:
        """Gives this array's share of the memory up. Idempotent.

        Nothing may use the memory through this array afterwards, work on the GPU included: the
        caller has synchronised.
        """
        try:
            del self._open  # of several threads, one gets past this
        except AttributeError:
            return
        self._memory.close()

    def __enter__(self) -> Array:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __del__(self, _warn=warnings.warn):
        if not getattr(self, "_open", False):
            return
        if self._root and not self._memory.closed:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)
        self.close()

    def __reduce__(self):
        raise TypeError("a caid.Array cannot be copied or pickled: pass its name")

    @property
    def closed(self) -> bool:
        """bool: whether this array, or its client, is closed."""
        return not getattr(self, "_open", False) or self._memory.closed

    def _check(self):
        if self.closed:
            raise closed_error(f"{self._label} is closed")

    @property
    def _label(self):
        """What messages call it."""
        return "the array" if self.name is None else f"array {self.name!r}"

    # --- what it is -------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """tuple of int: extents."""
        return self._shape

    @property
    def strides(self) -> tuple[int, ...]:
        """tuple of int: steps in bytes; negative in some views."""
        return self._strides

    @property
    def typestr(self) -> str:
        """str: type of the elements, as in NumPy's array interface."""
        return self._element.typestr

    @property
    def dtype(self) -> numpy.dtype:
        """numpy.dtype: type of the elements. Needs NumPy."""
        return _typestr.to_numpy(self._element)

    @property
    def itemsize(self) -> int:
        """int: bytes of an element."""
        return self._element.itemsize

    @property
    def ndim(self) -> int:
        """int: number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """int: number of elements."""
        return _geometry.size(self._shape)

    @property
    def nbytes(self) -> int:
        """int: bytes of the elements."""
        return self.size * self._element.itemsize

    @property
    def device(self) -> int:
        """int: index of the device in ``client.devices``; -1 for one that is not there."""
        return self._memory.device

    @property
    def readonly(self) -> bool:
        """bool: whether the memory is mapped read-only, or said to be by its owner."""
        return self._readonly

    @property
    def ptr(self) -> int:
        """int: device address of the first element; 0 for an array of no elements."""
        self._check()
        return 0 if 0 in self._shape else self._ptr

    @property
    def name(self) -> str | None:
        """str or None: the name that the array was created or opened by."""
        return self._memory.name

    @property
    def pool(self) -> str | None:
        """str or None: the pool that the memory belongs to; None for foreign memory."""
        return self._memory.pool

    @property
    def generation(self) -> int:
        """int: generation of the name; 0 without one."""
        return self._memory.generation

    def is_c_contiguous(self) -> bool:
        """Whether the elements lie in C order, without gaps."""
        return _geometry.is_c_contiguous(self._shape, self._strides, self._element.itemsize)

    def is_f_contiguous(self) -> bool:
        """Whether the elements lie in Fortran order, without gaps."""
        return _geometry.is_f_contiguous(self._shape, self._strides, self._element.itemsize)

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of an array of no dimensions")
        return self._shape[0]

    def __bool__(self):
        raise TypeError("the truth of an array: its elements are in device memory")

    def __repr__(self):
        name = "" if self.name is None else f" {self.name!r}"
        if self.closed:
            return f"<caid.Array{name} closed>"
        mode = "r" if self._readonly else "rw"
        return (
            f"<caid.Array{name} shape={self._shape} typestr={self.typestr!r}"
            f" device={self.device} mode={mode!r}>"
        )

    # --- views ------------------------------------------------------------------------------

    def _view(self, offset, shape, strides):
        self._check()
        return make(
            self._memory.share(),
            self._ptr + offset,
            shape,
            strides,
            self._element,
            self._readonly,
            root=False,
        )

    def __getitem__(self, key: Any) -> Array:
        return self._view(*_geometry.index(self._shape, self._strides, key))

    def __iter__(self) -> Iterator[Array]:
        if not self._shape:
            raise TypeError("iteration over an array of no dimensions")
        return (self[i] for i in range(self._shape[0]))

    def view(self) -> Array:
        """Another array over the same elements."""
        return self._view(0, self._shape, self._strides)

    def reshape(self, *shape: Any) -> Array:
        """A view of the same elements, in C order, in another shape.

        Parameters
        ----------
        *shape : int, or one tuple of int
            The new extents; one may be -1, to be found out.

        Raises
        ------
        ValueError
            Another number of elements, or strides that only a copy could give.
        """
        new_shape = _geometry.dims("shape", shape[0] if len(shape) == 1 else shape)
        new_shape = _geometry.fill_in(new_shape, self.size)
        strides = _geometry.reshape(self._shape, self._strides, self.itemsize, new_shape)
        if strides is None:
            raise ValueError(
                f"shape {self._shape} with strides {self._strides} becomes {new_shape} only by "
                "a copy"
            )
        return self._view(0, new_shape, strides)

    def ravel(self) -> Array:
        """A view in one dimension. Raises ValueError where that takes a copy."""
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> Array:
        """A view with the dimensions in the order of `axes`; reversed without."""
        if len(axes) == 1:
            axes = () if axes[0] is None else _geometry.dims("axes", axes[0])
        return self._view(0, *_geometry.transpose(self._shape, self._strides, axes))

    @property
    def T(self) -> Array:
        """Array: a view with the dimensions reversed."""
        return self.transpose()

    # --- copies -----------------------------------------------------------------------------

    def copy_to_host(self, out: Any = None) -> Any:
        """Copies the elements to the host. Synchronous.

        Parameters
        ----------
        out : numpy.ndarray or writable buffer, optional
            Where to: an array of equal shape and dtype, with any strides, or a contiguous buffer
            (bytearray, memoryview of bytes, ...) of `nbytes` bytes. Without it, a new NumPy array
            in C order.

        Returns
        -------
        out
        """
        self._check()
        if out is None:
            out = _typestr.numpy().empty(self._shape, self.dtype)
        _copy.copy(_copy.host(out, target=True), _copy.device(self))
        return out

    def copy_from_host(self, x: Any) -> None:
        """Copies elements from the host. Synchronous.

        Parameters
        ----------
        x : array_like or buffer
            An array of equal shape and dtype, with any strides, or `nbytes` bytes.

        Raises
        ------
        ReadOnlyError
            The array is read-only.
        ValueError, TypeError
            Another shape; another type. Nothing is broadcast or converted.
        """
        _copy.copy(_copy.device(self), _copy.host(x))

    def copy_from(self, obj: Any) -> None:
        """Copies elements from `obj`: a caid array, anything with a
        ``__cuda_array_interface__`` (0 to 3), or what copy_from_host() takes. Shapes and types
        are equal. Synchronous; overlapping arrays are copied as if by way of a third."""
        with _copy.side(obj) as source:
            _copy.copy(_copy.device(self), source)

    def copy_to(self, obj: Any) -> None:
        """Copies elements to `obj`: like copy_from(), the other way."""
        with _copy.side(obj, target=True) as target:
            _copy.copy(target, _copy.device(self))

    # --- interfaces -------------------------------------------------------------------------

    def _interface(self):
        """What both array interfaces have in common."""
        described = {
            "shape": self._shape,
            "typestr": self.typestr,
            "strides": None if self.is_c_contiguous() else self._strides,
            "version": 3,
        }
        if self._element.descr is not None:
            described["descr"] = _typestr.descr_list(self._element.descr)
        return described

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """dict: version 3 of the interface; with CAID_CAI_EXPORT_VERSION=2 version 2.

        Copies are synchronous, so no work is pending when the dict is given: ``stream`` is None.
        The dict keeps nothing alive: who uses it keeps the array.
        """
        described = self._interface()
        described["data"] = (self.ptr, self._readonly)
        described["version"] = _export_version()
        if described["version"] >= 3:
            described["stream"] = None
        return described

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """dict: NumPy's array interface, on the software driver, whose memory the host reaches.

        ``data`` is a buffer, which NumPy keeps: it holds the lease even if this array is closed.
        """
        self._check()
        memory = self._memory
        if memory.pool is None or not memory.client.host_accessible:
            raise AttributeError("__array_interface__: the host does not reach device memory")
        low, high = _geometry.extent(self._shape, self._strides, self.itemsize)
        start = self._ptr + low - memory.ptr if high else 0
        described = self._interface()
        described["data"] = memory.host_view(start, high - low, self._readonly)
        described["offset"] = -low
        return described

    def __array__(self, *_args, **_kwargs):
        # Without this, NumPy would take the array for a sequence and make one of views.
        raise TypeError("a caid.Array is in device memory: use copy_to_host()")
