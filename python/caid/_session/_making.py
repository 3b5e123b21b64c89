# SPDX-License-Identifier: Apache-2.0
"""The part of a client that makes arrays."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Iterable, Union

from .._base import _geometry, _metadata, _typestr
from .._base._errors import ExistsError, exists, invalid
from .._base._records import Memory
from .._memory import _array, _cai, _copy, _data, _names, _values
from .._memory._array import Array
from ._queries import _Device, Queries

_EXCLUSIVE, ATTACH_HOST = 1, 2  # enum caid_array_flags

_Shape = Union[int, Iterable[int]]


class Making(Queries):
    """The part of :class:`caid.Client` that makes arrays."""

    __slots__ = ()

    def create(
        self,
        name: str,
        shape: _Shape | None = None,
        dtype: Any = None,
        *,
        data: Any = None,
        pool: str | None = None,
        device: _Device = 0,
        order: str = "C",
        strides: _Shape | None = None,
        exclusive: bool = False,
        memory: Memory = "device",
        alignment: int | None = None,
        metadata: Any = None,
        exist_ok: bool = False,
        ttl: float | None = None,
    ) -> Array:
        """Creates an array under a name, of data or of a shape: then its contents are undefined until
        written.

        The array outlives this process: its name keeps it until unlink().

        Parameters
        ----------
        name : str
            1 to 255 bytes of UTF-8 without control characters; "/" is ordinary.
        shape : int or tuple of int
            At most 32 extents, none negative. Or `data`.
        dtype : str, numpy.dtype, torch.dtype, or anything that numpy.dtype takes
            A typestr ("<f4") needs no NumPy, nor do types by the names of ml_dtypes: "bfloat16",
            "float8_e4m3fn", "int4", …; those of fewer than 8 bits take a byte each. Without it, that of
            the data, or "<f8".
        data : object, optional
            What the array is to hold, as for :meth:`array`. The name appears when all of it is there.
        pool : str, optional
            Without it, the caller's own.
        device : int or str
            Index in `devices`, or a text: see there.
        order : {"C", "F"}
            Which dimension is the fastest: the last or the first.
        strides : tuple of int, optional
            Steps in bytes, none negative, multiples of the element's alignment, in place of `order`.
        exclusive : bool
            Whether to give the array a block of its own, shared with no other array.
        memory : {"device", "legacy", "pinned", "mapped", "managed"}
            Where the array lies.

            * "device": memory of the device, for all that runs there.
            * "legacy": the same, opened by a 64-byte handle, for programs that need one: see
              `Array.ipc_handle`. A process that opens it gets a CUDA context; a read-only lease is
              not enforced by the driver. Only in pools with ``legacy = yes`` in caid.conf(5).
            * "pinned": page-locked memory of the host, shared between processes and with the
              device: ``numpy.asarray(a)`` sees it, `Array.device_ptr` is its device address.
            * "mapped": the same, said to be for kernels: it has a ``__cuda_array_interface__``.
            * "managed": managed memory of this process alone; empty() only, as it has no name.
        alignment : int, optional
            Of the first element in device memory, bytes: a power of two up to 2 MiB. 512 without.
        metadata : object, optional
            Anything that JSON can tell, up to 4,096 bytes of it, for whoever opens the array.
        exist_ok : bool
            Whether to open the array that has the name already, "rw" and with the metadata that it
            has. Of all that ask at once one creates it, as `Array.created` tells; what the others
            see before that one has written it is undefined.
        ttl : float, optional
            Seconds, more than 0, that the name has to live: see expire(). An array that is there
            already keeps what it has.

        Returns
        -------
        Array
            Writable.

        Raises
        ------
        ExistsError
            The name is taken; with `exist_ok`, by an array of another shape, type, strides, device
            or kind of memory, or that is aligned less: the message says what differs.
        InvalidNameError, InvalidError, TooLargeError
            Name, shape, strides, type, alignment, metadata or time to live are not valid; over their
            limit.
        UnsupportedError
            The device or the daemon does not have that kind of memory.
        OutOfMemoryError, QuotaError, LimitError
            The device, the pool or the user has not got that much.
        AccessError, NotFoundError
            The pool may not be written, or have "legacy" arrays; may not be seen, or is not there.
        DeviceError
            No such device.
        """
        if not isinstance(name, str):
            raise TypeError(f"name: a str is needed, not {type(name).__name__}; see empty()")
        if (shape is None) == (data is None):
            raise TypeError("create: either a shape or data is needed")
        options = pool, device, exclusive, memory, alignment, metadata
        ttl_ns = _names.ttl_ns(ttl)
        with contextlib.ExitStack() as stack:
            if data is None:
                geometry = _geometry_of(shape, "<f8" if dtype is None else dtype, order, strides)
                make = functools.partial(self._make, name, *geometry, *options, ttl_ns)
            else:
                side = stack.enter_context(_data.side(data, dtype))
                geometry = _geometry_of(side.shape, dtype or side.element, order, strides)
                make = functools.partial(self._make_of, side, geometry, options, name, ttl)
            if not exist_ok:
                try:
                    return make()
                except ExistsError as e:
                    raise exists(f"{e}; create(exist_ok=True) opens it") from None
            wanted = _names.Wanted(*geometry, memory, self._index_of(device), alignment or 1)
            return _names.open_or_make(self, name, pool, wanted, make)

    def empty(
        self,
        shape: _Shape,
        dtype: Any = "<f8",
        *,
        pool: str | None = None,
        device: _Device = 0,
        order: str = "C",
        strides: _Shape | None = None,
        exclusive: bool = False,
        memory: Memory = "device",
        alignment: int | None = None,
        metadata: Any = None,
    ) -> Array:
        """Creates an array without a name: it ends with its last holder, unless it is published.
        See create()."""
        geometry = _geometry_of(shape, dtype, order, strides)
        return self._make(None, *geometry, pool, device, exclusive, memory, alignment, metadata)

    def array(
        self,
        data: Any,
        dtype: Any = None,
        *,
        pool: str | None = None,
        device: _Device | None = None,
        order: str = "C",
        exclusive: bool = False,
        memory: Memory = "device",
        alignment: int | None = None,
        metadata: Any = None,
    ) -> Array:
        """Creates an array without a name that holds a copy of data: see empty().

        Parameters
        ----------
        data : object
            An array or a tensor of any library, on the host or on a device, of NumPy, CuPy, PyTorch, JAX
            or caid, whose shape and type the new one has, bfloat16 among them; a buffer of bytes; or what
            NumPy makes an array of. It is copied when this returns, after the work on it that is known:
            see :meth:`caid.Array.copy_from`.
        dtype : optional
            As for create(). Values of the host are converted to it, as NumPy does it; what is on a device
            has to be of it.
        device : int or str, optional
            Without it, that of `data` where that is an array of this client, else the first.

        Raises
        ------
        TypeError, InvalidError
            What has no elements, or elements of no type that arrays can have; see create().
        """
        if device is None:
            own = isinstance(data, Array) and data._memory.client is self
            device = max(data.device, 0) if own else 0
        options = pool, device, exclusive, memory, alignment, metadata
        with _data.side(data, dtype) as side:
            geometry = _geometry_of(side.shape, dtype or side.element, order, None)
            return self._make_of(side, geometry, options)

    def _make_of(self, side, geometry, options, name=None, ttl=None):
        """An array of data, which gets its name when it is whole."""
        a = self._make(None, *geometry, *options)
        try:
            _copy.copy(_copy.device(a), side)
            if name is not None:
                a.publish(name, replace=False, ttl=ttl)
        except BaseException:
            a.close()
            raise
        return a

    def empty_like(
        self,
        a: Any,
        *,
        pool: str | None = None,
        device: _Device | None = None,
        exclusive: bool = False,
        memory: Memory = "device",
        alignment: int | None = None,
        metadata: Any = None,
    ) -> Array:
        """An unnamed array with the shape and type of another: of a caid array, of anything with
        a ``__cuda_array_interface__``, or of anything that NumPy makes an array of. One in
        Fortran order gives one in Fortran order; strides are not taken over. Without `device`, on
        the device of an array of this client, else on the first."""
        shape, dtype, _, order = _cai.like(a)
        if device is None:
            own = isinstance(a, Array) and a._memory.client is self
            device = max(a.device, 0) if own else 0
        return self.empty(
            shape, dtype, pool=pool, device=device, order=order, exclusive=exclusive, memory=memory,
            alignment=alignment, metadata=metadata,
        )

    def zeros(
        self, shape: _Shape, dtype: Any = "<f8", *, stream: Any = 0, **options: Any
    ) -> Array:
        """Creates an array without a name, of zeros; `options` are those of empty(), `stream` is as
        for :meth:`caid.Array.fill`."""
        return self._filled(shape, dtype, options, lambda a: _values.clear(a, stream))

    def ones(
        self, shape: _Shape, dtype: Any = "<f8", *, stream: Any = 0, **options: Any
    ) -> Array:
        """Creates an array without a name, of ones. See zeros()."""
        return self._filled(shape, dtype, options, lambda a: a.fill(1, stream))

    def full(
        self, shape: _Shape, fill_value: Any, dtype: Any = None, *, stream: Any = 0, **options: Any
    ) -> Array:
        """Creates an array without a name, of one value, whose type it has if none is given; that
        needs NumPy. See zeros(), and :meth:`caid.Array.fill` for values and errors."""
        if dtype is None:
            dtype = _typestr.numpy().asarray(fill_value).dtype
        return self._filled(shape, dtype, options, lambda a: a.fill(fill_value, stream))

    def _filled(self, shape, dtype, options, fill):
        a = self.empty(shape, dtype, **options)
        try:
            fill(a)
        except BaseException:
            a.close()
            raise
        return a

    def _make(self, *options):
        return _array.of_lease(self._create_lease(*options))

    def _create_lease(
        self, name, shape, element, strides, pool, device, exclusive, memory, alignment, metadata,
        ttl_ns=0,
    ):
        return self._create(
            name,
            shape,
            element.type_name,
            element.descr,
            strides,
            pool,
            self._index_of(device),
            _EXCLUSIVE if exclusive else 0,
            memory,
            alignment or 0,
            _metadata.encode(metadata),
            ttl_ns,
        )


def _geometry_of(shape, dtype, order, strides):
    """(shape, element, strides) from create()'s arguments; strides None: C order."""
    element, inner = _typestr.of_dtype(dtype)
    shape = _geometry.dims("shape", shape) + inner
    if order not in ("C", "F"):
        raise invalid(f"order {order!r}: 'C' or 'F'")
    if strides is not None and order == "F":
        raise invalid("order and strides are both given")
    if strides is not None:
        strides = _geometry.dims("strides", strides)
    elif order == "F" and len(shape) > 1 and min(shape) >= 0:
        strides = _geometry.f_strides(shape, element.itemsize)
    return shape, element, strides
