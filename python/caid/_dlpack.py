# SPDX-License-Identifier: Apache-2.0
"""DLPack: arrays for other libraries' ``from_dlpack()``, and theirs for ours.

What is not looked up in the header (include/dlpack/dlpack.h of dmlc/dlpack, 1.1) is by "Python
Specification for DLPack" of its documentation.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

from . import _array, _cai, _caid, _default, _geometry, _pending, _stream, _typestr
from ._errors import InvalidError

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
_HOST_TYPES = {"pinned": _CUDA_HOST, "mapped": _CUDA_HOST, "managed": _CUDA_MANAGED}

_NO_STREAM = -1  # nothing is waited for
_MAX_VERSION = (1, 0)

_NATIVE = "<" if sys.byteorder == "little" else ">"
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLDataTypeCode
_KINDS = {code: kind for kind, code in _CODES.items()}
_BFLOAT = 4
_SIZES = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16), "b": (1,)}


# --- arrays for others ----------------------------------------------------------------------


def device_of(array):
    """(DLDeviceType, id) of an array."""
    kind = _HOST_TYPES.get(array.memory, _CUDA)
    # "For vanilla CPU memory, pinned memory, or managed memory, this is set to 0."
    return kind, _ordinal(array._memory) if kind == _CUDA else 0


def _ordinal(memory):
    """The CUDA ordinal, in this process, of the device that reaches a memory."""
    if memory.mapped_ordinal >= 0:
        return memory.mapped_ordinal
    if memory.client is None or memory.device < 0 or type(memory.client) is _caid.Client:
        return max(memory.device, 0)  # of the driver alone: its indices are ordinals
    uuid, *_ = memory.client._devices()[memory.device]
    for ordinal, (visible, *_) in enumerate(_default.driver_client(memory.client)._devices()):
        if visible == uuid:
            return ordinal
    return 0  # a device that this process does not see, of an array of no bytes


def export(array, stream, max_version, dl_device, copy):
    """A capsule with an array's tensor, for its ``__dlpack__()``."""
    device = device_of(array)
    _check_wishes(array, device, dl_device, copy)
    versioned = _major(max_version) >= 1
    if array.readonly and not versioned:
        raise BufferError(
            f"{array._label} is read-only, which DLPack before version 1 cannot tell: it takes "
            'max_version=(1, 0), or the array opened "rw"'
        )
    dtype = _dtype(array)
    strides = _strides(array)
    _let_wait(array, device, stream)
    memory = array._memory
    owner = memory if isinstance(memory, _caid.Lease) else memory.owner
    address = array.host_ptr if device[0] == _CUDA_HOST else array.ptr
    if array.size == 0:
        address = 0
    return _caid.dlpack_export(
        owner, address, device, dtype, array.shape, strides, array.readonly, versioned
    )


def _check_wishes(array, device, dl_device, copy):
    if copy:
        raise BufferError(f"{array._label} is not copied for DLPack: copy=True")
    if dl_device is not None and tuple(map(operator.index, dl_device)) != device:
        raise BufferError(f"{array._label} is on DLPack device {device}, not {dl_device}")


def _major(max_version):
    if max_version is None:
        return 0
    try:
        major, _minor = map(operator.index, max_version)
    except (TypeError, ValueError):
        raise TypeError(f"max_version {max_version!r}: a tuple of two int, or None") from None
    return major


def _dtype(array):
    """(code, bits)"""
    element = array._layout.element
    order, kind = element.typestr[:2]
    if element.itemsize not in _SIZES.get(kind, ()):
        raise BufferError(f"DLPack has no type for {element.descr or element.typestr}")
    if order not in ("|", _NATIVE):
        raise BufferError(f"typestr {element.typestr!r}: DLPack has no swapped bytes")
    return _CODES[kind], 8 * element.itemsize


def _strides(array):
    """Steps in elements."""
    itemsize = array.itemsize
    if any(step % itemsize for step in array.strides):
        raise BufferError(
            f"strides {array.strides} are no multiples of the itemsize, {itemsize}: DLPack "
            "counts elements"
        )
    return tuple(step // itemsize for step in array.strides)


def _let_wait(array, device, stream):
    """Has the consumer's stream wait for the work on an array; of memory that the host reaches the
    host, where no stream is named."""
    if stream is None and device[0] != _CUDA:
        array.synchronize()
        return
    if stream == _NO_STREAM:
        return
    stream = _stream.LEGACY if stream is None else stream
    _stream.handle(stream)
    memory, before = array._memory, array._live_stream
    if memory.client is None:
        return
    if before is not None:
        _pending.follow(memory.client, max(memory.mapped_device, 0), before, stream)
    _pending.order(memory, stream)


# --- arrays of others -----------------------------------------------------------------------


def from_dlpack(x: Any, *, stream: Any = None, client: Any = None) -> _array.Array:
    """An Array over the memory of another library's array, by DLPack. Nothing is copied.

    Parameters
    ----------
    x : object
        An object with ``__dlpack__`` and ``__dlpack_device__``: on a CUDA device, in managed memory,
        or in page-locked memory of the host. A :class:`caid.Array` gives a view, which has no stream.
    stream : int or stream object, optional
        The stream on which it will be used, as for :meth:`caid.Array.close`: `x`'s library makes it
        wait for work on `x`, the host does not. Of an object, which is kept, and of 1 and 2, it is
        that of the array from then on: copies on other streams come after what is on it, and before
        what is enqueued there later. Of another number only what is on it now is known. Without it,
        the current one of PyTorch and CuPy, for theirs, else the legacy default stream, on which caid
        copies. -1: nothing is waited for.
    client : Client, optional
        As for :func:`caid.as_array`.

    Returns
    -------
    Array
        It keeps the tensor, which is given back to its library when the last view is closed or
        collected.

    Raises
    ------
    TypeError
        No DLPack.
    BufferError
        On another device; of a type that the array interface has no word for, as bfloat16; or the
        library gives no tensor.
    InvalidError
        A pointer that the device cannot reach.
    """
    if isinstance(x, _array.Array):
        view = x.view()
        if stream != _NO_STREAM:
            _let_wait(view, (_CUDA, 0), stream)
        return view
    if stream is None and _device_type(x) == _CUDA:
        stream = _cai.current_stream(x)
    number = _stream_to_ask(stream)
    tensor, element, strides = take(x, number)
    kind, _ = tensor.device
    ptr, device = 0, -1
    if 0 in tensor.shape:
        client = None
    else:
        client = client or _cai.driver_client()
        ptr, device = _resolve(client, tensor, kind)
    memory = _cai.ForeignMemory(client, device, tensor)
    used_on = None
    if number != _NO_STREAM and kind in (_CUDA, _CUDA_MANAGED):
        used_on = _stream.LEGACY if stream is None else stream
        _pending.note([memory], used_on)
    layout = _array.Layout(ptr, tensor.shape, strides, element, tensor.readonly)
    return _array.make(memory, layout, root=False, stream=_to_keep(used_on))


def _to_keep(stream):
    """The stream as an Array has it; None for a number of which nobody knows how long it lives."""
    if stream is None or _stream.handle(stream) > _stream.PER_THREAD:
        return None if _stream.owner(stream) is None else stream
    return _stream.of_now(stream)


def take(x, number):
    """(Tensor, element, strides in bytes) of another library's array, whose use on the stream of that
    number, or on none (-1), comes after the work on it. Raises what from_dlpack() does."""
    tensor = _caid.dlpack_import(_ask(x, _device_type(x), number))
    _check_device(x, tensor.device[0])
    return tensor, *_layout(tensor)


def _stream_to_ask(stream):
    if stream is None:
        return _stream.LEGACY
    return _NO_STREAM if stream == _NO_STREAM else _stream.handle(stream)


def _device_type(x):
    try:
        kind, _ = x.__dlpack_device__()
    except AttributeError:
        raise TypeError(f"{type(x).__name__} has no __dlpack__") from None
    _check_device(x, kind)
    return kind


def _check_device(x, kind):
    if kind not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise BufferError(f"{type(x).__name__} is on DLPack device type {int(kind)}, not CUDA's")


def _ask(x, kind, number):
    # Who is on the host knows no streams.
    known = {} if kind in (_CPU, _CUDA_HOST) else {"stream": number}
    try:
        return x.__dlpack__(max_version=_MAX_VERSION, **known)
    except TypeError as e:
        # Of the time before versions: "unexpected keyword argument 'max_version'", "takes no keyword
        # arguments". Any other is the producer's own.
        if "max_version" not in str(e) and "keyword argument" not in str(e):
            raise
        return x.__dlpack__(**known)


def _layout(tensor):
    """(element, strides in bytes)"""
    code, bits, lanes = tensor.dtype
    kind, itemsize = _KINDS.get(code), bits // 8
    if code == _BFLOAT:
        raise BufferError(
            "the array interface has no bfloat16: take it as integers (in PyTorch "
            "x.view(torch.uint16))"
        )
    if kind is None or lanes != 1 or bits % 8 or itemsize not in _SIZES[kind]:
        raise BufferError(f"DLPack type (code {code}, {bits} bits, {lanes} lanes) is not taken")
    if any(extent < 0 for extent in tensor.shape):
        raise BufferError(f"DLPack: shape {tensor.shape}: negative")
    element = _typestr.of_typestr(f"{_NATIVE}{kind}{itemsize}")
    if tensor.strides is None:
        return element, _geometry.c_strides(tensor.shape, itemsize)
    return element, tuple(step * itemsize for step in tensor.strides)


def _resolve(client, tensor, kind):
    try:
        return client._pointer_resolve(tensor.ptr)
    except InvalidError:
        if kind != _CPU:
            raise
        raise BufferError(
            "memory of the host that is not page-locked: the device does not reach it"
        ) from None
