# SPDX-License-Identifier: Apache-2.0
"""Making storages: parameters from what is given, a preset and data, in this order."""

from __future__ import annotations

from collections import ChainMap
from typing import Any, Literal, Sequence

import numpy

from .._base._errors import invalid, unsupported
from .._handoff import _pending
from .._memory import _array
from .._session import _default
from . import _layout
from ._interface import ForeignField, array_of, interface_of
from ._memory import allocate, new_host, opened, seen_by_device
from ._sync import SyncState, address_of, state_of
from ._types import Storage, make

__all__ = [
    "as_storage", "empty", "empty_like", "full", "full_like", "ones", "ones_like", "open", "storage", "zeros",
    "zeros_like",
]

_FALLBACK = _layout.Parameters._field_defaults
_WHICH = "data and device_data: sync_state has to say which of them is up to date"


def _parameters(shape, dtype, given, found):
    """Parameters from a call's keyword arguments, a preset, and what the data tell, in this order."""
    unknown = given.keys() - _FALLBACK.keys() - {"defaults", "dims"}
    if unknown:
        raise TypeError(f"unexpected keyword argument {sorted(unknown)[0]!r}")
    shape, preset = _layout.extents(shape), _layout.preset(given.get("defaults"), dtype)
    options = ChainMap(given, preset, found, _FALLBACK)
    made = _layout.Parameters(shape, dtype, *(options[name] for name in _FALLBACK))
    if given.get("layout") is None:
        dims = _layout.dims(given.get("dims"), len(shape))
        layout = preset["layout"](dims) if preset else found.get("layout", range(len(shape)))
        made = made._replace(layout=layout)
    if made.alignment_size is None:
        made = made._replace(alignment_size=1)
    return _layout.checked(made)


# --- new memory -----------------------------------------------------------------------------


def empty(shape: Sequence[int], dtype: Any = numpy.float64, **options: Any) -> Storage:
    """A CPUStorage, GPUStorage, SoftwareManagedGPUStorage or CUDAManagedGPUStorage with undefined contents.

    Parameters
    ----------
    shape : sequence of int
    dtype : numpy.dtype or what it takes
    aligned_index : sequence of int, optional
        The point that is aligned; by default the first one inside the halo.
    alignment_size : int, optional
        Bytes: the address of that point is a multiple of it, and so are those of the same points in later
        rows. 1 by default.
    defaults : str, optional
        A preset: "C", "F", one of GT4Py's backends, or one of register_defaults(). It gives parameters that
        the call does not give, before those of the data.
    device : {None, "gpu"}
        "gpu": there is a buffer that a device reaches.
    dims : sequence of str, optional
        What the dimensions mean, for the layouts of presets; by default "I", "J", "K", "0", "1", ... in this
        order.
    halo : int, or sequence of int or (int, int), optional
        Points at the start and the end of each dimension that are outside the domain: one int for all
        dimensions, or one or two for each.
    layout : sequence of int, optional
        For each dimension the rank of its stride: 0 is the largest.
    managed : {"gt4py", None, "cuda"}
        With a device: "gt4py", two buffers that this process synchronises; None, one buffer, on the device;
        "cuda", managed memory.
    client : Client, optional
        By default that of :func:`caid.default_client`, if memory of the daemon is needed.
    name : str, optional
        The storage is published under this name, which must be free, when it has its contents: see
        :meth:`Storage.publish`. Memory of the host is page-locked then.
    pool : str, optional
        The pool of its memory.

    Raises
    ------
    InvalidError
        The shape, the dtype or an option is not valid.
    ExistsError
        The name is taken.
    UnsupportedError
        A name for managed memory, which CUDA does not share.
    TypeError
        There is another keyword argument.
    """
    return full(shape, ..., dtype, **options)


def _new(made, contents):
    """A new storage with these contents, or with what a function of NumPy makes; published if it has a name."""
    new = make(made, *allocate(made))
    if callable(contents):  # the zero of "S3" is not 0, and "V3" takes no number
        contents = contents((), made.dtype)
    if contents is not ...:
        new[...] = contents
    if made.name is not None:
        new.publish(made.name, replace=False)
    return new


def full(shape: Sequence[int], fill_value: Any, dtype: Any = numpy.float64, **options: Any) -> Storage:
    """A storage of one value. See :func:`empty`."""
    return _new(_parameters(shape, dtype, options, {}), fill_value)


def zeros(shape: Sequence[int], dtype: Any = numpy.float64, **options: Any) -> Storage:
    """A storage of zeros. See :func:`empty`."""
    return full(shape, numpy.zeros, dtype, **options)


def ones(shape: Sequence[int], dtype: Any = numpy.float64, **options: Any) -> Storage:
    """A storage of ones. See :func:`empty`."""
    return full(shape, numpy.ones, dtype, **options)


def empty_like(data: Storage, dtype: Any = None, **options: Any) -> Storage:
    """A storage with the shape of another, its type and its other parameters unless they are given."""
    return full_like(data, ..., dtype, **options)


def full_like(data: Storage, fill_value: Any, dtype: Any = None, **options: Any) -> Storage:
    """full() with the parameters of another. See :func:`empty_like`."""
    if not isinstance(data, Storage):
        raise TypeError(f"{type(data).__name__}: a Storage is needed; see storage()")
    return _new(_parameters_of(data, data, None, dtype, options), fill_value)


def zeros_like(data: Storage, dtype: Any = None, **options: Any) -> Storage:
    """zeros() with the parameters of another. See :func:`empty_like`."""
    return full_like(data, numpy.zeros, dtype, **options)


def ones_like(data: Storage, dtype: Any = None, **options: Any) -> Storage:
    """ones() with the parameters of another. See :func:`empty_like`."""
    return full_like(data, numpy.ones, dtype, **options)


# --- of data --------------------------------------------------------------------------------


def storage(
    data: Any = None, device_data: Any = None, *, dtype: Any = None, copy: bool = True,
    sync_state: SyncState | None = None, shape: Sequence[int] | None = None, **options: Any
) -> Storage:
    """A storage with a copy of an array.

    Parameters
    ----------
    data, device_data : array_like, optional
        Data on the host, and on a device; one of them is enough. With `device_data` the storage has a device,
        unless `device` is given. Without both the contents are undefined, and `shape` is needed.
    dtype : optional
        By default the data's, or else float64.
    copy : bool
        False is :func:`as_storage`.
    sync_state : SyncState, optional
        Says which of two buffers is up to date: that one is copied.
    options
        See :func:`empty`. Options that neither the call nor the preset gives are those of the data.

    Raises
    ------
    InvalidError
        The data has another `shape`; or both buffers are given, but they differ in shape or type, or
        `sync_state` is not given.
    """
    if data is None and device_data is None:
        if shape is None:
            raise invalid("no shape, and no data to have one")
        return empty(shape, numpy.float64 if dtype is None else dtype, **options)
    if not copy:
        return as_storage(data, device_data, sync_state=sync_state, dtype=dtype, shape=shape, **options)
    source = _up_to_date(data, device_data, sync_state)
    made = _parameters_of(source, _shown(source), shape, dtype, options, data, device_data)
    if source is data or isinstance(source, Storage) or "gpu" not in _sides_of(source):
        return _new(made, source)
    with ForeignField(source, "gpu") as contents:
        return _new(made, contents)


def _up_to_date(data, device_data, sync_state):
    """The one of two buffers that is up to date."""
    if not _are_two(data, device_data):
        return device_data if data is None else data
    if sync_state is None:
        raise invalid(_WHICH)
    kinds = [f"{tuple(x.shape)}, {x.dtype}" for x in map(_shown, (data, device_data))]
    if kinds[0] != kinds[1]:
        raise invalid(f"data and device_data are {kinds[0]} and {kinds[1]}")
    return device_data if sync_state.state == SyncState.SYNC_DEVICE_DIRTY else data


def _are_two(data, device_data):
    """Whether data and device_data are two buffers, and none is missing."""
    if data is None or device_data is None or data is device_data:
        return False
    if None not in _sides_of(data):
        raise invalid(f"data: a {type(data).__name__} has no buffer on the host, and device_data is given")
    return True


def _sides_of(source):
    """The sides on which an array_like has a buffer; a list is on the host."""
    try:
        return interface_of(source).keys()
    except TypeError:
        return {None}


def _shown(source):
    """An object with the shape and type of an array_like."""
    try:
        interface = interface_of(source)
    except TypeError:
        return numpy.asarray(source)
    return _side(source, None if None in interface else "gpu")


def _parameters_of(source, shown, shape, dtype, given, data=None, device_data=None):
    """_parameters() for data, whose shape is fixed, and whose type is the default."""
    if shape is not None and _layout.extents(shape) != tuple(shown.shape):
        raise invalid(f"shape {shape}: the data has {tuple(shown.shape)}")
    found = _found(source, shown)
    if device_data is not None:
        found["device"] = "gpu"
    if _are_two(data, device_data):
        found["managed"] = "gt4py"
    return _parameters(shown.shape, shown.dtype if dtype is None else dtype, given, found)


def _found(source, shown):
    """The parameters that data tell."""
    if isinstance(source, Storage):
        return source._parameters()._asdict()
    interface = interface_of(source) if hasattr(source, "__gt_data_interface__") else {}
    halos = [side["halo"] for side in interface.values() if side.get("halo") is not None]
    found = {"layout": _layout.layout_of(shown.shape, shown.strides)}
    if halos:
        found["halo"] = halos[0]
    if "gpu" in interface or isinstance(shown, _array.Array):
        found["device"] = "gpu"
    return found


def as_storage(
    data: Any = None, device_data: Any = None, *, sync_state: SyncState | None = None,
    dtype: Any = None, shape: Sequence[int] | None = None, **options: Any
) -> Storage:
    """A storage over existing memory. Nothing is copied now. If both sides are managed by software, a side
    that is not given is allocated.

    Parameters
    ----------
    data : array_like, optional
        A buffer on the host, or an object that has one; without `device_data` also one on a device.
    device_data : array_like, optional
        A buffer on a device, or an object that has one.
    sync_state : SyncState, optional
        Says which of two buffers is up to date. For buffers of another storage it is that storage's own.
    options
        See :func:`empty`. The buffers have to be as they say.

    Raises
    ------
    InvalidError
        The buffers are not as the options say, or differ in shape or type; both are given, but
        `sync_state` is not, or the options ask for one buffer; the buffer that is up to date is not given;
        the buffers are another storage's, but the sync state is not.
    TypeError
        `data` is no array in memory, but a list, for example.
    """
    if options.get("name") is not None:
        raise unsupported("name: as_storage() takes memory as it is; storage(x, name=...) copies it")
    if data is None and device_data is None:
        raise invalid("as_storage() wraps a buffer: give data, device_data or both; see empty()")
    source = data if data is not None else device_data
    if isinstance(source, Storage) and (device_data is None or device_data is source) and sync_state is None:
        sync_state = source._sync
    are_two = _are_two(data, device_data)
    host, device = _side(data, None), _side(data if device_data is None else device_data, "gpu")
    if device is None and device_data is not None:
        raise TypeError(f"device_data: a {type(device_data).__name__} has no buffer on a device")
    made = _parameters_of(source, host if device is None else device, shape, dtype, options, data, device_data)
    if hasattr(source, "__gt_data_interface__") and host is not None and device is not None:
        are_two = are_two or (host.size > 0 and address_of(host) != device.ptr)
    is_aligned = "alignment_size" in options or options.get("defaults") is not None
    for side in host, device:
        if side is not None:
            _check(side, made if is_aligned else made._replace(alignment_size=1))
    return make(made, *_wrap(made, host, device, sync_state, are_two))


def _side(x, device):
    """The NumPy array, or the Array, that an object has on that side; None if it has none."""
    if isinstance(x, Storage):
        return x._host if device is None else x._array
    if x is None or (device is None and isinstance(x, numpy.ndarray)):
        return x
    interface = interface_of(x)
    return array_of(x, device, interface[device]) if device in interface else None


def _check(side, made):
    """Checks that a buffer is as the parameters say."""
    if (tuple(side.shape), side.dtype) != (made.shape, made.dtype):
        has = f"the data has {tuple(side.shape)}, {side.dtype}"
        raise invalid(f"shape {made.shape}, dtype {made.dtype}: {has}")
    if not _layout.has_layout(side.shape, side.strides, made.layout):
        raise invalid(f"layout {made.layout}: the buffer has strides {side.strides}")
    if _layout.lead(address_of(side), made.aligned_index, side.strides, made.alignment_size):
        raise invalid(f"alignment_size {made.alignment_size}: point {made.aligned_index} is not aligned")


def _wrap(made, host, device, sync_state, are_two):
    """(NumPy array or None, Array or None), and, where both are managed, (SyncState, Shared or None)."""
    if made.device is not None and made.managed == "gt4py":
        return _pair(made, host, device, sync_state)
    if are_two or state_of(host, device) is not None:
        raise invalid("the data has both sides: one alone would not be in sync; managed 'gt4py' takes both")
    if made.device is None:
        if host is None:
            raise invalid("device None: the data has no buffer on the host")
        if device is not None:  # managed: the same memory
            _pending.wait(device._memory)
        return host, None
    if made.managed is None:
        if device is None:
            raise invalid("device 'gpu', managed None: the data has no buffer on a device")
        return None, device
    if host is None or not hasattr(host, "__cuda_array_interface__"):
        raise invalid("managed 'cuda': the data is not in managed memory that the host sees")
    return host, seen_by_device(host, made)


def _pair(made, host, device, sync_state):
    owner = state_of(host, device)
    if owner is not None or (sync_state is not None and sync_state._host is not None):
        if owner is not sync_state or host is None or device is None:
            raise invalid("the data is of another storage: both of its buffers and its own sync_state are wanted")
        if not owner._are_of_same_points(host, device):
            raise invalid("data and device_data are different parts of a storage")
        return host, device, owner, owner._shared
    if host is not None and device is not None:
        if sync_state is None:
            raise invalid(_WHICH)
    else:
        newer = SyncState.SYNC_DEVICE_DIRTY if host is None else SyncState.SYNC_HOST_DIRTY
        sync_state = sync_state or SyncState(newer)
        if sync_state.state != newer:
            raise invalid(f"{sync_state!r}: the buffer that is up to date is not given")
    host = new_host(made) if host is None else host
    device = allocate(made._replace(managed=None))[1] if device is None else device
    return host, device, sync_state._bind(host, device)


# --- of a name ------------------------------------------------------------------------------


def open(
    name: str, mode: Literal["r", "rw"] = "r", *, pool: str | None = None, generation: int | None = None,
    copy: bool = True, client: Any = None
) -> Storage:
    """Opens a storage that has a name. It is the same memory in every process, with the same sync state.

    Parameters
    ----------
    name : str
    mode : {"r", "rw"}
        With "r" nothing is written, not even to bring a side up to date: a side that is out of date is read
        from a private copy.
    pool, generation : optional
        As of :meth:`caid.Client.open`, with its errors.
    copy : bool
        False: StaleError instead of such a copy.
    client : Client, optional
        By default that of :func:`caid.default_client`.

    Raises
    ------
    InvalidError
        The array under that name is no storage, or one of another version.
    CorruptError
        Its metadata are impossible: the message names its creator.
    """
    client = client or _default.default_client()
    with client.open(name, mode, pool=pool, generation=generation) as root:
        return make(*opened(root.view(), copy))
