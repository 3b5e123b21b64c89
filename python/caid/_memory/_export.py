# SPDX-License-Identifier: Apache-2.0
"""Producer of the CUDA Array Interface and of NumPy's array interface: their dicts, and the exported
stream."""

import os
import warnings

from .._base import _geometry, _typestr
from .._handoff import _any_stream, _pending, _stream

_DEVICE_ONLY = ("device", "legacy", None)  # kinds that the host reaches with the software driver alone


def is_synchronous():
    """Whether streams are exported and waited for, which CAID_CAI_SYNC=0 turns off."""
    return os.environ.get("CAID_CAI_SYNC") != "0"


def export_version():
    """Version of the dict that ``__cuda_array_interface__`` gives: CAID_CAI_EXPORT_VERSION."""
    text = os.environ.get("CAID_CAI_EXPORT_VERSION", "3")
    if text not in ("2", "3"):
        raise ValueError(f"CAID_CAI_EXPORT_VERSION={text}: 2 or 3")
    return int(text)


def _common(array):
    layout = array._layout
    described = {
        "shape": layout.shape,
        "typestr": layout.element.typestr,
        "strides": None if array.is_c_contiguous() else layout.strides,
        "version": 3,
    }
    if layout.element.descr is not None:
        described["descr"] = _typestr.descr_list(layout.element.descr)
    return described


def cuda(array):
    """``__cuda_array_interface__``"""
    if array.memory == "pinned":
        raise AttributeError(
            "__cuda_array_interface__: pinned memory is the host's; create it as 'mapped'"
        )
    memory = array._memory
    if memory.device != memory.mapped_device and array.memory in _DEVICE_ONLY and memory.mapped_ordinal >= 0:
        _warn_of_link(array)
    described = _common(array)
    described["data"] = (array.ptr, array.readonly)
    described["version"] = export_version()
    if described["version"] >= 3:
        described["stream"] = _exported_stream(array) if is_synchronous() else None
    elif is_synchronous():
        array.synchronize()
    return described


def _warn_of_link(array):
    warnings.warn(
        f"{array!r} lies on another device than the one it was opened for. CuPy's asarray() makes a private copy"
        " of it; cupy.from_dlpack() makes none.",
        stacklevel=4,
    )


def _exported_stream(array):
    stream = array._live_stream
    if stream is None:
        return _pending.stream_for(array._memory, array._layout.spans)
    _pending.order(array._memory, stream, array._layout.spans)
    return _any_stream.handle(stream)


def on_stream(stream, **described):
    """``__cuda_array_interface__`` of memory without marks: all its work is on `stream`, or none is known."""
    described["version"] = export_version()
    stream = stream if is_synchronous() else None
    if described["version"] >= 3:
        described["stream"] = None if stream is None else _any_stream.handle(stream)
    elif stream is not None:
        _stream.Stream.from_handle(stream).synchronize()
    return described


def bytes_at(ptr, nbytes):
    """``__cuda_array_interface__`` of an Allocation."""
    return on_stream(None, shape=(nbytes,), typestr="|u1", strides=None, data=(ptr, False))


def numpy(array):
    """``__array_interface__``"""
    memory, layout = array._memory, array._layout
    low, high = _geometry.extent(layout.shape, layout.strides, layout.element.itemsize)
    if not memory.host and (high or not _is_the_hosts(array)):
        raise AttributeError("__array_interface__: the host does not reach device memory")
    if is_synchronous():
        array.synchronize()
    start = layout.ptr + low - memory.ptr if high else 0
    described = _common(array)
    described["data"] = memory.host_view(start, high - low, layout.readonly)
    described["offset"] = -low
    return described


def _is_the_hosts(array):
    """Whether the host would reach the memory of an array of no bytes."""
    if array.memory in _DEVICE_ONLY:
        return array.pool is not None and array._memory.client._host_accessible
    return True
