# SPDX-License-Identifier: Apache-2.0
"""Consumer of DLPack: other libraries' arrays. _dlpack_export.py names the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _caid
from .._base import _geometry, _typestr
from .._base._driver import driver_client
from .._base._errors import InvalidError
from .._handoff import _any_stream, _pending
from . import _array, _cai
from ._dlpack_export import (
    CODES, CPU, CUDA, CUDA_HOST, CUDA_MANAGED, IS_PADDED, NATIVE, NO_STREAM, READ_ONLY, SIZES, let_wait,
)
from ._layout import Layout

if TYPE_CHECKING:
    from ._array import Array

_MAX_VERSION = (1, 1)
_KINDS = {code: kind for kind, code in CODES.items()}
_NAMES = {(*code, _typestr.PACKED.get(name, 1)): name for name, code in _typestr.NAMED.items()}


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
        if stream != NO_STREAM:
            let_wait(view, (CUDA, 0), stream)
        return view
    if stream is None and _device_type(x) == CUDA:
        stream = _cai.current_stream(x)
    number = _stream_to_ask(stream)
    tensor, element, strides = take(x, number)
    kind, _ = tensor.device
    ptr, device = 0, -1
    if 0 in tensor.shape:
        client = None
    else:
        client = client or driver_client()
        ptr, device = _resolve(client, tensor, kind)
    memory = _cai.ForeignMemory(client, device, tensor)
    used_on = None
    if number != NO_STREAM and kind in (CUDA, CUDA_MANAGED):
        used_on = _any_stream.LEGACY if stream is None else stream
        _pending.note([memory], used_on)
    layout = Layout(ptr, tensor.shape, strides, element, bool(tensor.flags & READ_ONLY))
    return _array.make(memory, layout, root=False, stream=_to_keep(used_on))


def _to_keep(stream):
    """The stream that an Array keeps; None for a number, since nobody knows how long its stream lives."""
    if stream is None or _any_stream.handle(stream) > _any_stream.PER_THREAD:
        return None if _any_stream.owner(stream) is None else stream
    return _any_stream.of_now(stream)


def take(x, number):
    """(Tensor, element, strides in bytes) of another library's array, whose use on the stream of that
    number, or on none (-1), comes after the work on it. Raises what from_dlpack() does."""
    tensor = _caid.dlpack_import(_ask(x, _device_type(x), number))
    _check_device(x, tensor.device[0])
    return tensor, *_layout(tensor)


def take_on_host(x):
    """What take() gives of a tensor in the host's memory; None where `x` is none."""
    if not hasattr(x, "__dlpack__") or _device_type(x) not in (CPU, CUDA_HOST):
        return None
    return take(x, NO_STREAM)


def _stream_to_ask(stream):
    if stream is None:
        return _any_stream.LEGACY
    return NO_STREAM if stream == NO_STREAM else _any_stream.handle(stream)


def _device_type(x):
    try:
        kind, _ = x.__dlpack_device__()
    except AttributeError:
        raise TypeError(f"{type(x).__name__} has no __dlpack__") from None
    _check_device(x, kind)
    return kind


def _check_device(x, kind):
    if kind not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        raise BufferError(f"{type(x).__name__} is on DLPack device type {int(kind)}, not CUDA's")


def _ask(x, kind, number):
    # A producer of host memory takes no stream.
    known = {} if kind in (CPU, CUDA_HOST) else {"stream": number}
    try:
        return x.__dlpack__(max_version=_MAX_VERSION, **known)
    except TypeError as e:
        # A producer from before DLPack 1 says "unexpected keyword argument 'max_version'" or "takes no
        # keyword arguments". Any other error is the producer's own.
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
    if bits < 8 and bool(tensor.flags & IS_PADDED) != (lanes == 1):
        element = kind = None
    if element is None and kind and bits % 8 == 0 and itemsize in SIZES[kind]:
        element = _typestr.of_typestr(f"{NATIVE}{kind}{itemsize}")
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
        if kind != CPU:
            raise
        raise BufferError(
            "memory of the host that is not page-locked: the device does not reach it"
        ) from None
