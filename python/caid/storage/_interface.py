# SPDX-License-Identifier: Apache-2.0
"""Fields of any library, used on one device by their data interfaces."""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from typing import Any, Iterable

import numpy

from .._base._errors import invalid
from .._base._imports import when_imported
from .._base._lifetime import attribute
from .._handoff import _any_stream, _pending
from .._interfaces import _numba
from .._memory import _array, _cai
from . import _layout
from ._types import Storage

# Keys of a data interface that the array interfaces do not have.
_OURS = {"acquire", "touch", "release", "dims", "halo"}


def interface_of(obj: Any) -> dict[str | None, dict[str, Any]]:
    """The dicts by which an object describes its buffers: ``__gt_data_interface__``, else the array
    interfaces. TypeError: it has none of them; InvalidError: they describe no buffer."""
    if isinstance(obj, _array.Array) and obj.memory in ("device", "legacy"):
        return {"gpu": attribute(obj, "__cuda_array_interface__")}  # the software driver's are visible to the host, too
    described = attribute(obj, "__gt_data_interface__")
    if described is None:
        names = (None, "__array_interface__"), ("gpu", "__cuda_array_interface__")
        described = {key: each for key, name in names if (each := attribute(obj, name)) is not None}
    if not described:
        raise TypeError(f"{type(obj).__name__} has no data interface, and no array interface")
    for side, each in described.items():
        where = f"the data interface of a {type(obj).__name__}"
        if side not in (None, "gpu"):
            raise invalid(f"{where} has the key {side!r}: None and 'gpu' are known")
        if not isinstance(each, dict) or each.get("data") is None:
            raise invalid(f"{where} has no 'data' in that of {side!r}")
    return described


def array_of(obj: Any, device: str | None, described: dict[str, Any]) -> Any:
    """The NumPy array, or the Array, that a dict of an object describes."""
    if device is not None and isinstance(obj, (Storage, _array.Array)):
        return (obj._array if isinstance(obj, Storage) else obj).view()
    described = {name: value for name, value in described.items() if name not in _OURS and value is not None}
    if device is None:
        described["version"] = 3
        return numpy.asarray(types.SimpleNamespace(owner=obj, __array_interface__=described))
    return _cai.from_cuda_array_interface({"version": 3, **described}, obj)


class ForeignField:
    """A block in which an object is used on one device: as a NumPy array (None), or as an Array ("gpu").

    If the object only has a buffer on the other side, that is copied, and copied back if it was written and
    nothing failed.
    """

    __slots__ = ("obj", "device", "writes", "array", "_described", "_original")

    def __init__(self, obj: Any, device: str | None, *, writes: bool = False):
        self.obj, self.device, self.writes = obj, device, writes
        self.array = self._original = None
        self._described = {}

    def __enter__(self) -> Any:
        interface = interface_of(self.obj)
        side = self.device
        if side not in interface:
            side = "gpu" if side is None else None
        described = interface[side]
        _call(described, "acquire")
        self._described = described
        self.array = array = array_of(self.obj, side, described)
        if side != self.device:
            where = self.device or "the host"
            said = f"a {type(self.obj).__name__} has no buffer on {where}: it is copied"
            warnings.warn(said, RuntimeWarning, stacklevel=_outside())
            self.array = array.copy_to_host() if self.device is None else _numba.to_device(array)
            self._original = array
        return self.array

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self.touch(failed=kind is not None)
        finally:
            self.release()

    def touch(self, *, failed: bool) -> None:
        """Reports, after all computations, what was written."""
        if not self.writes or (failed and self._original is not None):
            return
        if self._original is not None and self.device is None:
            self._original.copy_from_host(self.array)
        elif self._original is not None:
            self.array.copy_to_host(self._original)
        _call(self._described, "touch")

    def release(self) -> None:
        try:
            if self._original is not None and self.device is not None:
                self.array.close()
        finally:
            _call(self._described, "release")


def _call(described, name):
    function = described.get(name)
    if function is not None:
        function()


def _outside():
    """The stack level of the package's caller, for a warning."""
    level, frame = 1, sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(__package__):
        level, frame = level + 1, frame.f_back
    return level


class Fields:
    """Uses fields on one device: storages, and whatever has ``__gt_data_interface__`` or one of the array
    interfaces::

        with caid.storage.fields(read=[u], write=[v], device="gpu", stream=s) as (u_, v_):
            kernel[grid, block, s](u_, v_)

    Entering brings the used side of all fields up to date ("acquire"). Leaving, also by an exception, reports what
    was written ("touch"), and then the end of the use ("release").

    Parameters
    ----------
    read, write : iterable of objects
        Fields that are read; fields that are written, or both.
    device : {None, "gpu"}
        The block gets NumPy arrays (None) or caid arrays ("gpu"), those of `read` first.
    stream : int or stream object, optional
        The stream of the device's work; by default the legacy default stream. It waits for the work on other
        streams that caid knows of. Copies to the device are made on it, and what is on it at the end counts
        as work on these fields.

    A field that only has a buffer on the other side is copied, with a RuntimeWarning, and copied back if it was
    written and the block did not fail.

    In the block, :attr:`domain` and :attr:`origins` say where to compute, by the halos of the fields.
    """

    __slots__ = ("_read", "_write", "_device", "_stream", "_arrays", "_foreign", "_used")

    def __init__(
        self, *, read: Iterable[Any] = (), write: Iterable[Any] = (), device: str | None = None, stream: Any = 0
    ):
        if device not in (None, "gpu"):
            raise invalid(f"device {device!r}: None or 'gpu'")
        if _any_stream.is_default(stream):
            stream = 0
        else:
            _any_stream.handle(stream)
        self._read, self._write, self._device, self._stream = tuple(read), tuple(write), device, stream
        self._arrays, self._foreign, self._used = (), [], []

    def __enter__(self) -> tuple[Any, ...]:
        try:
            arrays = [self._use(obj, False) for obj in self._read]
            arrays += [self._use(obj, True) for obj in self._write]
            if self._device is not None:
                _pending.order_all([array._memory for array in arrays], self._stream or _any_stream.LEGACY)
        except BaseException:
            self._release()
            raise
        self._arrays = tuple(arrays)
        return self._arrays

    def _use(self, obj, writes):
        if self._is_storage(obj):
            if writes and obj._shared is not None:
                obj._shared.check_writable()
            self._used.append(obj)
            return obj._use(self._device, stream=self._stream)
        field = ForeignField(obj, self._device, writes=writes)
        self._foreign.append(field)
        self._used.append(field)
        return field.__enter__()

    @property
    def domain(self) -> dict[str, int]:
        """dict of str to int: for "I", "J" and "K" how many points are inside the halos of all fields that have
        this dimension. Fields have the "dims" of their data interface, else I, J, K in this order."""
        found: dict[str, int] = {}
        for dims, inside in self._insides():
            for dim, points in zip(dims, inside):
                found[dim] = min(len(points), found.get(dim, len(points)))
        return {axis: found[axis] for axis in _layout.AXES if axis in found}

    @property
    def origins(self) -> tuple[tuple[int, ...], ...]:
        """tuple of tuple of int: for each field the first point inside its halo."""
        return tuple(tuple(points.start for points in inside) for _, inside in self._insides())

    def _insides(self):
        """For each field its dims, with the points inside of the halo."""
        for used in self._used:
            is_ours = isinstance(used, Storage)
            halo, dims = (used.halo, None) if is_ours else map(used._described.get, ("halo", "dims"))
            shape = used.shape if is_ours else used.array.shape
            halo = _layout.halo_of(halo, shape)
            inside = [range(start, n - end) for (start, end), n in zip(halo, shape)]
            yield dims or _layout.dims(None, len(shape)), inside

    def _is_storage(self, obj):
        """Whether a field is a storage with a buffer on that side."""
        return isinstance(obj, Storage) and (obj._host if self._device is None else obj._array) is not None

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        stream = None if self._device is None else self._stream or _any_stream.LEGACY
        try:
            try:
                for obj in self._write:
                    if self._is_storage(obj):
                        obj._modified(self._device, stream)
            finally:
                if stream is not None:
                    self._note(stream)  # first: a waiter for this work finds the modification recorded
            self._leave(lambda field: field.touch(failed=kind is not None))
        finally:
            self._release()

    def _note(self, stream):
        """Notes that what is on the stream now is work on the memory of all fields. Foreign fields are touched
        when that work is done."""
        memories = [array._memory for array in self._arrays]
        _pending.note(memories, stream)
        for memory in memories if self._foreign else ():
            _pending.wait(memory)

    def _release(self):
        try:
            self._leave(ForeignField.release)
        finally:
            self._arrays, self._foreign, self._used = (), [], []

    def _leave(self, what):
        """Calls what() for each foreign field, even if it fails for some."""
        if self._foreign:
            with contextlib.ExitStack() as stack:
                for field in self._foreign:
                    stack.callback(what, field)


fields = Fields


# --- xarray ---------------------------------------------------------------------------------


def data_interface(data_array: Any) -> dict[str | None, dict[str, Any]]:
    """``DataArray.__gt_data_interface__``: the data's, with the DataArray's dims. InvalidError: the data's own
    dims differ; AttributeError: the data has none of the interfaces."""
    dims = tuple(map(str, data_array.dims))
    try:
        described = interface_of(data_array.data)
    except TypeError as e:
        raise AttributeError(str(e)) from None
    for each in described.values():
        if each.get("dims") is not None and tuple(each["dims"]) != dims:
            raise invalid(f"dims {each['dims']} of the data: the DataArray has {dims}")
    return {side: {**each, "dims": dims} for side, each in described.items()}


def _register(xarray):
    # A property, since an accessor of xarray would keep the first dict. xarray warns whoever registers an
    # accessor of this name, which replaces the property.
    if not hasattr(xarray.DataArray, "__gt_data_interface__"):
        xarray.DataArray.__gt_data_interface__ = property(data_interface)


when_imported("xarray", _register)
