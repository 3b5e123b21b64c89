# SPDX-License-Identifier: Apache-2.0
"""Data that new arrays are made of: whatever has elements, on the host or on a device."""

from __future__ import annotations

import contextlib

from .._base import _typestr
from .._base._errors import invalid
from . import _array, _cai, _copy, _dlpack

_BYTE = _typestr.of_typestr("|u1")
_PROTOCOLS = "__array_interface__", "__cuda_array_interface__", "__dlpack__", "__array__"


def is_array(x):
    """Whether it is an array or a tensor, and no plain value, of any library."""
    return isinstance(x, _array.Array) or any(hasattr(x, name) for name in _PROTOCOLS)


@contextlib.contextmanager
def side(data, dtype=None):
    """The side of the data in a copy, with the shape and the type of the array that is to be made of it. What
    is on the host, or has no type, is converted to the given one."""
    element = None if dtype is None else _element(dtype)
    if hasattr(data, "__cuda_array_interface__"):
        with _on_device(data) as array:
            yield _copy.device(array)
    elif isinstance(data, _array.Array):
        yield _copy.device(data)
    else:
        yield _on_host(data, element)


def _element(dtype):
    element, inner = _typestr.of_dtype(dtype)
    if inner:
        raise invalid(f"dtype {dtype!r}: of data, the type of one element")
    return element


def _on_device(data):
    """An Array over the data; by DLPack first, which has words for types that the CUDA Array Interface lacks."""
    if hasattr(data, "__dlpack__"):
        with contextlib.suppress(BufferError):
            return _dlpack.from_dlpack(data)
    return _cai.as_array(data)


def _on_host(data, element):
    found = _copy.host(data, element=element)
    if found.shape is None:  # bytes
        found = found._replace(shape=(found.data.nbytes,), strides=(1,), element=_BYTE)
    if element is None or _typestr.same(found.element, element):
        return found
    return _copy.host(_typestr.numpy().asarray(data, _typestr.to_numpy(element)))
