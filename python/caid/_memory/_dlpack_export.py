# SPDX-License-Identifier: Apache-2.0
"""Producer of DLPack: arrays for other libraries' ``from_dlpack()``.

Sources: DLPack's header (include/dlpack/dlpack.h of dmlc/dlpack, 1.1), "Python Specification for DLPack" of
its documentation, and the array API of 2023.12.
"""

from __future__ import annotations

import mmap
import operator
import sys
from typing import Any, Callable

from .. import _caid
from .._base import _geometry, _typestr
from .._base._driver import driver_client
from .._handoff import _any_stream, _pending

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
_HOST_TYPES = {"pinned": CUDA_HOST, "mapped": CUDA_HOST, "managed": CUDA_MANAGED}

NO_STREAM = -1  # nothing is waited for
READ_ONLY, _IS_COPIED, IS_PADDED = 1, 2, 4  # flags

NATIVE = "<" if sys.byteorder == "little" else ">"
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLDataTypeCode
SIZES = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16), "b": (1,)}

default_client: Callable[[], Any]  # caid.default_client(), which the module that defines it sets here


class _RefusedError(BufferError, ValueError):
    """The array API asks for BufferError; NumPy raises ValueError for devices, CuPy for copies: it is
    both."""


def device_of(array):
    """(DLDeviceType, id) that an array tells: the host's where the host reaches the memory as its own, since
    consumers on the host (PyTorch, JAX) take that and no other."""
    cudas = _cudas_device_of(array)
    if cudas[0] == CUDA_HOST or (array.memory is not None and array._memory.client._host_accessible):
        return CPU, 0
    return cudas


def _cudas_device_of(array):
    """(DLDeviceType, id) of an array among CUDA's."""
    kind = _HOST_TYPES.get(array.memory, CUDA)
    # "For vanilla CPU memory, pinned memory, or managed memory, this is set to 0."
    return kind, _ordinal(array._memory) if kind == CUDA else 0


def _uuid(array):
    client = array._memory.client
    return 0 if client is None or array.device < 0 else client._devices()[array.device][0]


def _ordinal(memory):
    """The CUDA ordinal, in this process, of the device that reaches a memory."""
    if memory.mapped_ordinal >= 0:
        return memory.mapped_ordinal
    if memory.client is None or memory.device < 0 or type(memory.client) is _caid.Client:
        return max(memory.device, 0)  # a client of the driver alone: its indices are ordinals
    uuid, *_ = memory.client._devices()[memory.device]
    for ordinal, (visible, *_) in enumerate(driver_client(memory.client)._devices()):
        if visible == uuid:
            return ordinal
    return 0  # the device of an array of no bytes, which this process does not see


def export(array, stream, max_version, dl_device, copy):
    """A capsule with an array's tensor, for its ``__dlpack__()``."""
    device = device_of(array) if dl_device is None else _wanted(array, dl_device)
    version = _version(max_version)
    type_and_flags = _dtype(array, version)
    if not copy and (device[0] != CPU or array.host_ptr is not None or not array.size):
        return _shared(array, stream, device, version, *type_and_flags)
    if copy is False:
        raise _RefusedError(f"{array._label} comes to the host by a copy alone: copy=False")
    is_to_host = device[0] == CPU and not (copy and dl_device is None)
    to = _copied_to_host if is_to_host else _copied_on_device
    return to(array, stream, device, version, *type_and_flags)


def _wanted(array, dl_device):
    """The device that the consumer asks for. Raises where the array cannot be had there."""
    device = tuple(map(operator.index, dl_device))
    if device not in ((CPU, 0), _cudas_device_of(array)):
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
    if element.itemsize not in SIZES.get(kind, ()):
        raise BufferError(f"DLPack has no type for {element.descr or element.typestr}")
    if order not in ("|", NATIVE):
        raise BufferError(f"typestr {element.typestr!r}: DLPack has no swapped bytes")
    return (CODES[kind], 8 * element.itemsize, 1), 0


def _named_dtype(element, version):
    code, bits = _typestr.NAMED[element.name]
    lanes = _typestr.PACKED.get(element.name, 1)
    is_padded = bits < 8 and lanes == 1
    if is_padded and version < (1, 1):
        raise BufferError(f"{element.name} takes whole bytes, which DLPack before version 1.1 cannot tell")
    return (code, bits, lanes), IS_PADDED if is_padded else 0


def _shared(array, stream, device, version, dtype, flags):
    """A capsule with the memory itself."""
    if array.readonly and version < (1,):
        raise BufferError(
            f"{array._label} is read-only, which DLPack before version 1 cannot tell: it takes "
            'max_version=(1, 0), or the array opened "rw"'
        )
    flags |= READ_ONLY * array.readonly
    steps = _steps(array)
    let_wait(array, device, stream)
    memory = array._memory
    owner = memory if isinstance(memory, _caid.Lease) else memory.owner
    address = array.host_ptr if device[0] in (CPU, CUDA_HOST) else array.ptr
    if array.size == 0:
        address = 0
    return _caid.dlpack_export(
        owner, address, device, dtype, array.shape, steps, flags, version >= (1,)
    )


def _copied_on_device(array, stream, device, version, dtype, flags):
    """A capsule with a copy in the daemon's memory. The copy is enqueued on the stream; without one it is
    done on return."""
    memory = array.memory if array.memory in _HOST_TYPES else "device"
    client = array._memory.client
    if client is None or type(client) is _caid.Client:  # memory of another library
        client = default_client()
    element = array._layout.element
    with client.empty(array.shape, element, memory=memory, device=_uuid(array)) as copy:
        if stream in (None, NO_STREAM):
            copy.copy_from(array)
        else:
            let_wait(array, device, stream)
            copy.copy_from(array, stream=stream)
        return _shared(copy, NO_STREAM, device, version, dtype, flags | _IS_COPIED)


def _copied_to_host(array, stream, device, version, dtype, flags):
    """A capsule with a copy in ordinary memory, which is done on return."""
    import ctypes

    if stream not in (None, NO_STREAM):
        _any_stream.handle(stream)
    buffer = mmap.mmap(-1, array.nbytes or 1)  # page-aligned: some consumers need more than malloc() gives
    array.copy_to_host(memoryview(buffer)[: array.nbytes])
    owner = ctypes.c_char.from_buffer(buffer)
    steps = _geometry.c_strides(array.shape, 1)
    address = ctypes.addressof(owner) if array.size else 0
    return _caid.dlpack_export(
        owner, address, device, dtype, array.shape, steps, flags | _IS_COPIED, version >= (1,)
    )


def _steps(array):
    """Strides in elements. The step of a dimension of one element may be anything."""
    itemsize = array.itemsize
    if 0 in array.shape:
        return _geometry.c_strides(array.shape, 1)
    if any(step % itemsize for extent, step in zip(array.shape, array.strides) if extent > 1):
        raise BufferError(
            f"strides {array.strides} are no multiples of the itemsize, {itemsize}: DLPack "
            "counts elements"
        )
    return tuple(step // itemsize for step in array.strides)


def let_wait(array, device, stream):
    """Has the consumer's stream wait for the work on an array. Where no stream is named and the host reaches
    the memory, the host waits."""
    if stream is None and device[0] != CUDA:
        array.synchronize()
        return
    if stream == NO_STREAM:
        return
    stream = _any_stream.LEGACY if stream is None else stream
    _any_stream.handle(stream)
    memory, before = array._memory, array._live_stream
    if memory.client is None:
        return
    if before is not None:
        _pending.follow(memory.client, max(memory.mapped_device, 0), before, stream)
    _pending.order(memory, stream, array._layout.spans)
