# SPDX-License-Identifier: Apache-2.0
"""DLPack: arrays for other libraries' ``from_dlpack()``, and theirs for ours.

What is not looked up in the header (include/dlpack/dlpack.h of dmlc/dlpack, 1.1) is by "Python
Specification for DLPack" of its documentation, and by the array API of 2023.12.
"""

from __future__ import annotations

import mmap
import operator
import sys
from typing import TYPE_CHECKING, Any

from . import _array, _cai, _caid, _default, _geometry, _pending, _stream, _typestr
from ._errors import InvalidError

if TYPE_CHECKING:
    from ._array import Array

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
_HOST_TYPES = {"pinned": _CUDA_HOST, "mapped": _CUDA_HOST, "managed": _CUDA_MANAGED}

_NO_STREAM = -1  # nothing is waited for
_MAX_VERSION = (1, 1)
_READ_ONLY, _IS_COPIED, _IS_PADDED = 1, 2, 4  # flags

_NATIVE = "<" if sys.byteorder == "little" else ">"
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLDataTypeCode
_KINDS = {code: kind for kind, code in _CODES.items()}
_NAMES = {(*code, _typestr.PACKED.get(name, 1)): name for name, code in _typestr.NAMED.items()}
_SIZES = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16), "b": (1,)}


class _RefusedError(BufferError, ValueError):
    """BufferError by the array API; NumPy, of devices, and CuPy, of copies, say ValueError."""


# --- arrays for others ----------------------------------------------------------------------


def device_of(array):
    """(DLDeviceType, id) of an array."""
    kind = _HOST_TYPES.get(array.memory, _CUDA)
    # "For vanilla CPU memory, pinned memory, or managed memory, this is set to 0."
    return kind, _ordinal(array._memory) if kind == _CUDA else 0


def _uuid(array):
    client = array._memory.client
    return 0 if client is None or array.device < 0 else client._devices()[array.device][0]


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
    device = device_of(array) if dl_device is None else _wanted(array, dl_device)
    version = _version(max_version)
    type_and_flags = _dtype(array, version)
    if not copy and (device[0] != _CPU or array.host_ptr is not None or not array.size):
        return _shared(array, stream, device, version, *type_and_flags)
    if copy is False:
        raise _RefusedError(f"{array._label} comes to the host by a copy alone: copy=False")
    to = _copied_to_host if device[0] == _CPU else _copied_on_device
    return to(array, stream, device, version, *type_and_flags)


def _wanted(array, dl_device):
    """The device that is asked for, where the array can be had there."""
    device = tuple(map(operator.index, dl_device))
    if device != device_of(array) and device != (_CPU, 0):
        raise _RefusedError(f"{array._label} is on DLPack device {device_of(array)}, not {dl_device}")
    return device


def _version(max_version):
    if max_version is None:
        return (0, 0)
    try:
        major, minor = map(operator.index, max_version)
    except (TypeError, ValueError):
        raise TypeError(f"max_version {max_version!r}: a tuple of two int, or None") from None
    return major, minor


def _dtype(array, version):
    """((code, bits), flags)"""
    element = array._layout.element
    order, kind = element.typestr[:2]
    if element.name is not None:
        return _named_dtype(element, version)
    if element.itemsize not in _SIZES.get(kind, ()):
        raise BufferError(f"DLPack has no type for {element.descr or element.typestr}")
    if order not in ("|", _NATIVE):
        raise BufferError(f"typestr {element.typestr!r}: DLPack has no swapped bytes")
    return (_CODES[kind], 8 * element.itemsize, 1), 0


def _named_dtype(element, version):
    code, bits = _typestr.NAMED[element.name]
    lanes = _typestr.PACKED.get(element.name, 1)
    is_padded = bits < 8 and lanes == 1
    if is_padded and version < (1, 1):
        raise BufferError(f"{element.name} takes whole bytes, which DLPack before version 1.1 cannot tell")
    return (code, bits, lanes), _IS_PADDED if is_padded else 0


def _shared(array, stream, device, version, dtype, flags):
    """A capsule with the memory itself."""
    if array.readonly and version < (1,):
        raise BufferError(
            f"{array._label} is read-only, which DLPack before version 1 cannot tell: it takes "
            'max_version=(1, 0), or the array opened "rw"'
        )
    flags |= _READ_ONLY * array.readonly
    steps = _steps(array)
    _let_wait(array, device, stream)
    memory = array._memory
    owner = memory if isinstance(memory, _caid.Lease) else memory.owner
    address = array.host_ptr if device[0] in (_CPU, _CUDA_HOST) else array.ptr
    if array.size == 0:
        address = 0
    return _caid.dlpack_export(
        owner, address, device, dtype, array.shape, steps, flags, version >= (1,)
    )


def _copied_on_device(array, stream, device, version, dtype, flags):
    """A capsule with a copy in the daemon's memory, enqueued on the stream; without one it is done."""
    memory, client = array.memory if device[0] != _CUDA else "device", array._memory.client
    if client is None or type(client) is _caid.Client:  # of another library
        client = _default.default_client()
    element = array._layout.element
    with client.empty(array.shape, element, memory=memory, device=_uuid(array)) as copy:
        if stream in (None, _NO_STREAM):
            copy.copy_from(array)
        else:
            _let_wait(array, device, stream)
            copy.copy_from(array, stream=stream)
        return _shared(copy, _NO_STREAM, device, version, dtype, flags | _IS_COPIED)


def _copied_to_host(array, stream, device, version, dtype, flags):
    """A capsule with a copy in ordinary memory, which is done."""
    import ctypes

    if stream not in (None, _NO_STREAM):
        _stream.handle(stream)
    buffer = mmap.mmap(-1, array.nbytes or 1)  # at a page's start: some want more than malloc() gives
    array.copy_to_host(memoryview(buffer)[: array.nbytes])
    owner = ctypes.c_char.from_buffer(buffer)
    steps = _geometry.c_strides(array.shape, 1)
    address = ctypes.addressof(owner) if array.size else 0
    return _caid.dlpack_export(
        owner, address, device, dtype, array.shape, steps, flags | _IS_COPIED, version >= (1,)
    )


def _steps(array):
    """In elements; one that is never taken is anything."""
    itemsize = array.itemsize
    if 0 in array.shape:
        return _geometry.c_strides(array.shape, 1)
    if any(step % itemsize for extent, step in zip(array.shape, array.strides) if extent > 1):
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


def from_dlpack(x: Any, *, stream: Any = None, client: Any = None) -> Array:
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
        On another device; of a type that caid has none for, as one that lies packed in less than a
        byte; or the library gives no tensor.
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
    layout = _array.Layout(ptr, tensor.shape, strides, element, bool(tensor.flags & _READ_ONLY))
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
    element = _typestr.named(_NAMES.get((code, bits, lanes)))
    if lanes != 1:
        kind = None
    if bits < 8 and bool(tensor.flags & _IS_PADDED) != (lanes == 1):
        element = kind = None
    if element is None and kind and bits % 8 == 0 and itemsize in _SIZES[kind]:
        element = _typestr.of_typestr(f"{_NATIVE}{kind}{itemsize}")
    if element is None:
        raise BufferError(f"DLPack type (code {code}, {bits} bits, {lanes} lanes) is not taken")
    if any(extent < 0 for extent in tensor.shape):
        raise BufferError(f"DLPack: shape {tensor.shape}: negative")
    if tensor.strides is None:
        return element, _geometry.c_strides(tensor.shape, element.itemsize)
    return element, tuple(step * element.itemsize for step in tensor.strides)


def _resolve(client, tensor, kind):
    try:
        return client._pointer_resolve(tensor.ptr)
    except InvalidError:
        if kind != _CPU:
            raise
        raise BufferError(
            "memory of the host that is not page-locked: the device does not reach it"
        ) from None
