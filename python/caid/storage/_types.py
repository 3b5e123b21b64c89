# SPDX-License-Identifier: Apache-2.0
"""The classes of storages."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy

from .._base import _geometry
from .._base._errors import unsupported
from .._base._lifetime import NotCompared, attributes
from .._handoff import _pending
from .._memory import _cai
from . import _layout
from ._memory import allocate
from ._shared import StorageBracket
from ._sync import SyncState, address_of

# Written out for type checkers.
__all__ = [
    "CPUStorage", "CUDAManagedGPUStorage", "CUDASyncedGPUStorage", "CudaManagedGPUStorage", "GPUStorage",
    "GT4PySyncedGPUStorage", "GTNoSuchBufferError", "NoSuchBufferError", "SoftwareManagedGPUStorage", "Storage",
]


_DIRTY = {None: SyncState.SYNC_HOST_DIRTY, "gpu": SyncState.SYNC_DEVICE_DIRTY}
_OTHER_DIRTY = {None: SyncState.SYNC_DEVICE_DIRTY, "gpu": SyncState.SYNC_HOST_DIRTY}


class NoSuchBufferError(AttributeError, TypeError):
    """The storage has no buffer on that side."""


@attributes
class Storage(NotCompared):
    """An n-dimensional field, on the host, on a device or on both, with a halo: what :func:`empty`,
    :func:`storage` and the others give. It is no ndarray, and computes nothing itself: pass its buffers to
    code that does, by :func:`fields`, or one side by ``to_numpy()``, ``to_cupy()`` and the interfaces.

    Whatever gives a buffer "to be written" marks it as modified. If the buffer is kept and written later, call
    ``set_host_modified()`` or ``set_device_modified()``.
    """

    __slots__ = ("_sync", "_host", "_array", "_halo", "_made", "_part", "_shared", "__weakref__")

    def __init__(self, *_args: Any, **_kwargs: Any):
        raise TypeError("storages are made by caid.storage.empty(), storage(), as_storage(), ...")

    # --- what it is -------------------------------------------------------------------------

    @property
    def _side(self):
        """The buffer whose shape and type are the storage's."""
        return self._array if self._host is None else self._host

    @property
    def shape(self) -> tuple[int, ...]:
        """tuple of int: extents, with the halo."""
        return self._side.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """tuple of int: steps in bytes."""
        return self._side.strides

    @property
    def dtype(self) -> numpy.dtype[Any]:
        return self._side.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """int: bytes of the points, without padding."""
        return self._side.nbytes

    @property
    def halo(self) -> tuple[tuple[int, int], ...]:
        """tuple of (start, end): points at each end that are outside the domain. Ints may be set, too. Setting
        it does not change the alignment."""
        return self._halo

    @halo.setter
    def halo(self, halo: Any) -> None:
        self._halo = _layout.halo_of(halo, self.shape)

    @property
    def __gt_origin__(self) -> tuple[int, ...]:
        """tuple of int: the first point inside the halo, where a stencil of GT4Py begins."""
        return tuple(start for start, _ in self._halo)

    @property
    def device(self) -> str | None:
        """str or None: "gpu" if there is a buffer that a device reaches."""
        return None if type(self) is CPUStorage else "gpu"

    @property
    def domain_view(self) -> Storage:
        """Storage: a view without the halo."""
        return self._at(tuple(slice(start, n - end) for (start, end), n in zip(self._halo, self.shape)))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a storage of no dimensions")
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError(_COMPUTES_NOTHING.format("bool()"))

    def __repr__(self):
        halo = f" halo={self._halo}" if any(map(any, self._halo)) else ""
        return f"<caid.storage.{type(self).__name__} shape={self.shape} {self.dtype.str!r}{halo}>"

    # --- buffers ----------------------------------------------------------------------------

    def _use(self, device, *, write=False, stream=0):
        """The up-to-date buffer of one side, to be read, and with `write` to be written."""
        side = self._host if device is None else self._array
        if side is None:
            where = "the host" if device is None else "a device"
            raise NoSuchBufferError(f"a {type(self).__name__} has no buffer on {where}")
        return side

    def _give(self, device, make):
        """make() of the buffer of one side, to be written. If make() fails, nothing is marked as modified."""
        made = make(self._use(device))
        self._use(device, write=True)
        return made

    @property
    def _newer(self):
        """The side that is up to date; "gpu" if both are."""
        is_stale = self._sync is not None and self._sync.state == SyncState.SYNC_HOST_DIRTY
        return None if is_stale or self._array is None else "gpu"

    @property
    def data(self) -> memoryview | None:
        """memoryview or None: of the host's buffer, to be written."""
        return None if self._host is None else self._give(None, lambda side: side.data)

    @property
    def device_data(self) -> Any:
        """cupy.cuda.MemoryPointer or None: of the device's buffer, to be written. Needs CuPy."""
        return self.to_cupy().data if self.device else None

    def to_numpy(self) -> numpy.ndarray[Any, Any]:
        """A view of the host's buffer, to be written. NoSuchBufferError without one."""
        return self._use(None, write=True).view(numpy.ndarray)

    def to_cupy(self) -> Any:
        """A view of the device's buffer, to be written, as a cupy.ndarray. NoSuchBufferError without
        one, ImportError without CuPy."""

        def seen(array):
            import cupy

            return cupy.asarray(array)

        return self._give("gpu", seen)

    def to_ndarray(self) -> Any:
        """to_cupy() where there is a buffer on a device, else to_numpy()."""
        return self.to_cupy() if self.device else self.to_numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """A view of the host's buffer, to be written, or a copy. Without such a buffer to_cupy(), which NumPy
        refuses."""
        if self._host is None:
            return self.to_cupy()
        if copy or (dtype is not None and numpy.dtype(dtype) != self.dtype):
            if copy is False:
                raise ValueError(f"{self.dtype} to {numpy.dtype(dtype)}: not without a copy")
            return self._use(None).astype(dtype or self.dtype, subok=False)
        return self.to_numpy()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """dict: NumPy's array interface of the host's buffer, to be written; AttributeError without one."""
        host = self._use(None, write=True)
        interfaces = host.__array_interface__
        if host is not self._host:  # a copy, which NumPy keeps
            interfaces = {**interfaces, "data": host.base, "offset": address_of(host) - address_of(host.base)}
        return interfaces

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """dict: the CUDA Array Interface of the device's buffer, to be written; AttributeError without
        one. StaleError: the buffer is out of date in mode "r", where the dict could not keep a copy."""
        array = self._use("gpu", write=True)
        if array is not self._array:
            raise self._shared.stale(SyncState.SYNC_HOST_DIRTY)
        return array.__cuda_array_interface__

    @property
    def __gt_data_interface__(self) -> dict[str | None, dict[str, Any]]:
        """dict: what describes the buffers on the device ("gpu") and on the host (None), with functions to
        call before a use ("acquire") and after a write ("touch"). The device's description names the stream of
        the work that caid knows of, as ``__cuda_array_interface__`` does; "acquire" waits for that work."""
        interfaces: dict[str | None, dict[str, Any]] = {}
        if self._host is not None:
            functions = {"acquire": self.device_to_host, "touch": self.set_host_modified}
            interfaces[None] = {**self._host.__array_interface__, "strides": self._host.strides, **functions}
        if self._array is not None:
            functions = {"acquire": self.host_to_device, "touch": self.set_device_modified}
            interfaces["gpu"] = {**self._array.__cuda_array_interface__, "strides": self._array.strides, **functions}
        return {side: {**each, "halo": self._halo} for side, each in interfaces.items()}

    def __dlpack_device__(self) -> tuple[int, int]:
        """That of the side that is up to date, the device's if both are."""
        return self._use(self._newer).__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        """A tensor over that side, to be written."""
        def tensor(side):
            return side.__dlpack__(**options)

        return tensor(self._use(self._newer)) if options.get("copy") else self._give(self._newer, tensor)

    # --- synchronising ----------------------------------------------------------------------

    def device_to_host(self, *, force: bool = False, stream: Any = 0) -> None:
        """Copies from the device to the host if the device's buffer is modified, or by `force`; then both are
        in sync. With a stream the copy is enqueued there. The copy comes after the work that caid knows of; if
        there is one buffer, nothing is copied, but what follows comes after that work as well."""
        self._acquire(None, stream, force)

    def host_to_device(self, *, force: bool = False, stream: Any = 0) -> None:
        """The other way."""
        self._acquire("gpu", stream, force)

    def _acquire(self, device, stream, force):
        """Makes what comes next, on the stream or without one, wait until the side is up to date."""
        self._bring(device, stream, force=force)
        if self._array is None:
            return
        if stream:
            _pending.order(self._array._memory, stream)
        elif device is not None or self._sync is None:
            _pending.wait(self._array._memory)

    def set_device_modified(self) -> None:
        """Marks the device's buffer as modified: it is copied before the host's is used again."""
        self._modified("gpu")

    def set_host_modified(self) -> None:
        """Marks the host's buffer as modified: it is copied before the device's is used again."""
        self._modified(None)

    def set_synchronized(self) -> None:
        """Marks both buffers as equal."""
        if self._sync is not None:
            self._sync.state = SyncState.SYNC_CLEAN

    def synchronize(self, *, stream: Any = 0) -> None:
        """Copies from the side that is modified to the other."""
        self.device_to_host(stream=stream)
        self.host_to_device(stream=stream)

    def _bring(self, device, stream, timeout=None, force=False):
        """Brings a side up to date. timeout: of the wait for others' brackets."""
        if self._sync is not None:
            self._sync._copy(_OTHER_DIRTY[device], force, stream, timeout)

    def _is_stale(self, device):
        """Whether the side is out of date, and no copy is on its way."""
        return self._sync is not None and self._sync._wanted(_OTHER_DIRTY[device], False)[0]

    def _modified(self, device, stream=None):
        """Marks a side as modified, the device's by what is on the stream now."""
        sync = self._sync
        if sync is None:
            return
        if self._part is None:
            self._part = sync._part_of(self._host)
        sync._modify(_DIRTY[device], self._part)
        if stream is not None and sync._is_public and not self._shared.is_writing:
            sync._when_there(stream, _DIRTY[device])

    # --- sharing ----------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """str or None: the name by which it was made, opened or last published."""
        return None if self._shared is None else self._shared.name

    def publish(self, name: str, *, replace: bool = True) -> int:
        """Puts the storage under a name of its pool, with its halo and its parameters: :func:`open` gives it to
        other processes. Its buffers and its sync state are under one name, which with ``replace=False`` must be
        free. Returns the name's generation.

        Errors are those of :meth:`caid.Array.publish`. UnsupportedError: the storage is a view, or its memory is
        this process's own (pageable, managed, or given to as_storage()). InvalidError: the alignment is no power
        of 2, or above 2 MiB.
        """
        if self._shared is None:
            raise unsupported(
                f"a {type(self).__name__} in memory that is not the daemon's: copy it, "
                "by storage(x, name=...)"
            )
        with contextlib.nullcontext() if self._sync is None else self._sync._in_turn():
            return self._shared.publish(self._side, self._halo, name, replace)

    def read(self, stream: Any = None, timeout: float | None = None) -> StorageBracket:
        """A bracket in which the storage is read, as :meth:`caid.Array.read`: after earlier and before later
        brackets, of any process, that write either buffer::

            with u.read(s) as u_, v.write(s) as v_:
                kernel[grid, block, s](u_, v_)

        With a stream it gives an Array of the device's buffer, for work on that stream; without one a NumPy
        array of the host's. If there is one buffer, it gives that. The side is up to date.
        """
        return StorageBracket(self, False, stream, timeout)

    def write(self, stream: Any = None, timeout: float | None = None) -> StorageBracket:
        """A bracket in which nobody else reads or writes either buffer: see read(). Leaving it marks the side as
        modified; leaving it by an exception abandons the storage, as with :meth:`caid.Array.write`."""
        return StorageBracket(self, True, stream, timeout)

    def discard(self) -> None:
        """Takes the contents of an abandoned storage as they are: :meth:`caid.Array.discard`."""
        for array in () if self._shared is None else self._shared.arrays:
            array.discard()

    # --- copies and views -------------------------------------------------------------------

    def copy(self) -> Storage:
        """A storage with the same parameters and a copy of the data."""
        made = self._parameters()
        new = make(made, *allocate(made))
        new[...] = self
        return new

    __copy__ = copy

    def __deepcopy__(self, memo: dict | None = None) -> Storage:
        return self.copy()

    def _parameters(self):
        """Those of a storage like this one."""
        made = self._made
        return made._replace(
            shape=self.shape, dtype=self.dtype, halo=self._halo,
            layout=_layout.layout_of(self.shape, self.strides),
            aligned_index=made.aligned_index if self.shape == made.shape else self.__gt_origin__,
            name=None,
        )

    def __reduce__(self):
        raise TypeError("a storage is not pickled: copy what it holds, or give it a name")

    def transpose(self, *axes: Any) -> Storage:
        """A view with the dimensions in another order, by default reversed."""
        if len(axes) == 1 and not hasattr(axes[0], "__index__"):
            axes = axes[0] or ()
        axes = tuple(axes) or tuple(reversed(range(self.ndim)))
        view = self._view(lambda side: side.transpose(axes))
        view._halo = tuple(self._halo[axis] for axis in axes)
        return view

    @property
    def T(self) -> Storage:
        """Storage: a view with the dimensions reversed."""
        return self.transpose()

    def _view(self, look):
        """What `look` gives of each buffer."""
        sides = (None if side is None else look(side) for side in (self._host, self._array))
        return make(self._made, *sides, self._sync, self._shared)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is numpy.transpose:
            return _transpose(*args, **kwargs)
        raise TypeError(_COMPUTES_NOTHING.format(f"numpy.{func.__name__}"))

    def __array_ufunc__(self, ufunc: Any, method: str, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError(_COMPUTES_NOTHING.format(f"numpy.{ufunc.__name__}"))

    # --- elements ---------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        """By basic indexing a view, or a number if every dimension has an index; by advanced indexing a NumPy
        array with a copy."""
        key = plain_key(key)
        if not is_basic(key):
            return numpy.array(self._contents()[key])
        part = self._at(key)
        is_number = not part.ndim and ... not in key
        return part._contents().copy()[()] if is_number else part

    def __setitem__(self, key: Any, value: Any) -> None:
        """Writes on the device if the value is there, else on the host; if there is one buffer, in that."""
        key = plain_key(key)
        part, key = (self._at(key), ...) if is_basic(key) else (self, key)
        if part._writes_device(value):
            part._set("gpu", key, value)
        else:
            part._set(None, key, on_host(value))

    def _writes_device(self, value):
        if self._host is None or self._array is None:
            return self._host is None
        return is_on_device(value) and (self._sync is not None or _cupy() is not None)

    def _set(self, device, key, value):
        if device is None:
            self._use(None, write=True)[key] = value
            return
        cupy = _cupy() if self.dtype.kind in "biufc" and self.dtype.isnative else None
        if cupy is not None:
            value = _on_device(value, cupy)
            cupy.asarray(self._use("gpu", write=True))[key] = value
            cupy.cuda.get_current_stream().synchronize()
            return
        value, array = on_host(value, "gpu"), self._use("gpu", write=True)
        host = numpy.empty(array.shape, array.dtype) if key is ... else array.copy_to_host()
        host[key] = value
        array.copy_from_host(host)

    def _at(self, key):
        """The view that basic indexing gives."""
        full = tuple(_geometry.expand(key, self.ndim))
        view = self._view(lambda side: side[(*full, ...)])
        view._halo = _layout.halo_of_view(self._halo, self.shape, full)
        return view

    def _contents(self):
        """The contents as a NumPy array, to be read."""
        return self._array.copy_to_host() if self._host is None else self._use(None).view(numpy.ndarray)


class CPUStorage(Storage):
    """A storage with a buffer on the host only."""

    __slots__ = ()


class GPUStorage(Storage):
    """A storage with a buffer on a device only. Elements that are read by index are copied to the host."""

    __slots__ = ()


class SoftwareManagedGPUStorage(Storage):
    """A storage with a buffer on the host and one on a device. A side is brought up to date before it is used."""

    __slots__ = ()

    @property
    def sync_state(self) -> SyncState:
        """SyncState: which side is modified; all views share it."""
        return self._sync

    def _use(self, device, *, write=False, stream=0):
        sync, shared = self._sync, self._shared
        side = self._host if device is None else self._array
        if shared is not None and shared.readonly:
            return shared.read(sync, side)
        if device is not None and not write and sync.state != SyncState.SYNC_HOST_DIRTY:
            return side
        with sync._in_turn():
            self._bring(device, stream)
            if device is None:
                sync._settle()
            if write:
                self._modified(device)
        return side

    def _set(self, device, key, value):
        with self._sync._in_turn():
            try:
                super()._set(device, key, value)
            finally:  # another process may have made a copy meanwhile
                if self._sync._is_public and not self._shared.readonly:
                    self._modified(device)


class CUDAManagedGPUStorage(Storage):
    """A storage in managed memory, which CUDA moves to where it is used. The host waits for the work on the
    device that caid knows of; the user has to wait for other work."""

    __slots__ = ()

    def _use(self, device, *, write=False, stream=0):
        if device is None:
            _pending.wait(self._array._memory)
        return super()._use(device)


# GDP-3 has two names for these.
GTNoSuchBufferError = NoSuchBufferError
GT4PySyncedGPUStorage = SoftwareManagedGPUStorage
CUDASyncedGPUStorage = CudaManagedGPUStorage = CUDAManagedGPUStorage

_COMPUTES_NOTHING = (
    "{}: a storage computes nothing; take its buffers, by to_numpy(), to_cupy() or caid.storage.fields()"
)


def _transpose(a, axes=None):
    return a.transpose(axes)


def make(made: Any, host: Any, array: Any, sync: SyncState | None = None, shared: Any = None) -> Storage:
    """The storage over these buffers; `made` are its Parameters."""
    storage = object.__new__(CPUStorage if made.device is None else _MANAGED[made.managed])
    storage._made, storage._host, storage._array, storage._sync = made, host, array, sync
    storage._halo, storage._part, storage._shared = made.halo, None, shared
    return storage


_MANAGED = {None: GPUStorage, "gt4py": SoftwareManagedGPUStorage, "cuda": CUDAManagedGPUStorage}


# --- keys and values ------------------------------------------------------------------------


def plain_key(key):
    """The key for NumPy: a tuple, in which objects with one of the interfaces are arrays; or names of fields."""
    if isinstance(key, str) or (isinstance(key, list) and key and isinstance(key[0], str)):
        return key
    parts = key if isinstance(key, tuple) else (key,)
    return tuple(part if isinstance(part, (int, slice)) else on_host(part) for part in parts)


def is_basic(key):
    return isinstance(key, tuple) and all(
        part is None or part is ... or isinstance(part, slice) or _is_index(part) for part in key
    )


def _is_index(part):
    """Whether part is a number, and no mask."""
    array = numpy.asarray(part)
    return hasattr(part, "__index__") and not array.ndim and array.dtype.kind != "b"


def is_on_device(value):
    """Whether a value counts as on the GPU, by "Choosing the Device" of GDP-3."""
    if isinstance(value, Storage):
        return value._newer is not None
    if hasattr(value, "__gt_data_interface__"):
        return "gpu" in value.__gt_data_interface__
    return hasattr(value, "__cuda_array_interface__")


def on_host(value, device=None):
    """A value's contents in a form that NumPy takes; those of `device` if the value has two sides."""
    if isinstance(value, Storage):
        return value._contents()
    if hasattr(value, "__gt_data_interface__"):
        from ._interface import ForeignField, interface_of

        sides = interface_of(value)
        side = device if device in sides else next(iter(sides))
        with ForeignField(value, side) as array:
            return array.copy() if side is None else array.copy_to_host()
    if hasattr(value, "__cuda_array_interface__") and (device or not hasattr(value, "__array_interface__")):
        with _cai.taken(value) as array:
            return array.copy_to_host()
    return value


def _cupy():
    """The module, or None."""
    with contextlib.suppress(ImportError):
        import cupy

        return cupy


def _on_device(value, cupy):
    """A value's contents in a form that CuPy takes."""
    if isinstance(value, Storage):
        return cupy.asarray(value._use("gpu") if value.device else value._contents())
    if "gpu" in getattr(value, "__gt_data_interface__", ()):
        from ._interface import ForeignField

        with ForeignField(value, "gpu") as array:
            copy = cupy.array(array)
            cupy.cuda.get_current_stream().synchronize()
            return copy
    return cupy.asarray(value if hasattr(value, "__cuda_array_interface__") else on_host(value))
