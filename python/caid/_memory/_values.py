# SPDX-License-Identifier: Apache-2.0
"""Assignment of host values to the elements of an array: one value for all, or values that NumPy converts and
broadcasts. libcaid is given a source whose steps are 0, or one of equal shape and type.
"""

from __future__ import annotations

import contextlib
import struct

from .._base import _typestr
from .._base._errors import unsupported
from .._handoff import _pending
from . import _cai, _copy

# Types whose plain values need no NumPy, with their codes in the module struct.
_CODES = {"b1": "?", "f2": "e", "f4": "f", "f8": "d"}
_CODES.update({"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"})


# What repr() shows the values of: as many elements as NumPy prints all of, of no more bytes than this.
_SHOWN, _SHOWN_BYTES = 1000, 1 << 16


def shown(array):
    """The elements as text, as they lie there; "" where they are many, or could not be had at once, for
    whatever reason."""
    try:
        if not 0 < array.size <= _SHOWN or array.nbytes > _SHOWN_BYTES:
            return ""
        if not _pending.is_idle(array._memory, array._live_stream, array._layout.spans):
            return ""
        np = _typestr.numpy()
        host = np.empty(array.shape, _dtype(array._layout.element))
        _copy.peek(array, host)
        text = np.array2string(host, separator=", ", prefix=" ")
    except Exception:
        return ""
    return ("\n " if "\n" in text else " ") + text


def fill(array, value, stream):
    """array.fill()"""
    _spread(array, _bytes_of(value, array._layout.element), stream)


def clear(array, stream):
    """Sets all bytes of the elements to 0: of each type, what numpy.zeros() has."""
    _spread(array, bytes(array.itemsize), stream)


def _spread(array, data, stream):
    """Copies the bytes of one element to all of them."""
    layout = array._layout
    source = _copy.Side(data, False, layout.shape, (0,) * len(layout.shape), layout.element)
    _copy.copy(_copy.device(array), source, stream)


def _bytes_of(value, element):
    """The bytes of a value, as NumPy converts it."""
    code = None if type(value) not in (bool, int, float) else _CODES.get(element.typestr[1:])
    if code is not None:
        with contextlib.suppress(struct.error, OverflowError):  # NumPy decides about a value that does not fit
            return struct.pack(element.typestr[0].replace("|", "=") + code, value)
    one = _typestr.numpy().empty((), _dtype(element))
    one[()] = value
    return one.tobytes()


def _dtype(element):
    dtype = _typestr.to_numpy(element)
    if element.name is not None and dtype.kind == "V" and dtype.isbuiltin != 2:
        raise unsupported(f"values of type {element.name} need the package ml_dtypes")
    return dtype


def assign(array, x, stream=0):
    """array[...] = x"""
    on_device = isinstance(x, type(array)) or hasattr(x, "__cuda_array_interface__")
    tensor = None if on_device else _tensor(x, array._layout.element)
    if tensor is not None:
        _copy.copy(_copy.device(array), _broadcast(tensor, array.shape))
        return
    if not on_device and _is_scalar(x):
        fill(array, x, stream)
        return
    if not on_device:
        _copy.copy(_copy.device(array), _host(x, array.shape, _dtype(array._layout.element)), stream)
        return
    with _cai.side(x) as source:
        if source.shape != array.shape:
            x = source.array.copy_to_host()
            source = _host(x, array.shape, x.dtype)
        _copy.copy(_copy.device(array), source, stream)


def _tensor(x, element):
    """The side of a tensor in the host's memory that has the array's type, which NumPy may have no word for; of
    all else None."""
    if not hasattr(x, "__dlpack__") or hasattr(x, "__array_interface__"):
        return None
    try:
        side = _copy.tensor(x)
    except BufferError:  # NumPy says why, or takes it
        return None
    return side if side is not None and _typestr.same(side.element, element) else None


def _broadcast(side, shape):
    """The side of its elements in an array of that shape, as NumPy broadcasts it on assignment."""
    own = list(zip(side.shape, side.strides))
    while len(own) > len(shape) and own[0][0] == 1:
        del own[0]
    missing = len(shape) - len(own)
    if missing < 0 or any(n not in (1, wanted) for (n, _), wanted in zip(own, shape[missing:])):
        raise ValueError(f"shape {side.shape} cannot be broadcast to {tuple(shape)}")
    strides = (0,) * missing + tuple(0 if n == 1 else step for n, step in own)
    return side._replace(shape=tuple(shape), strides=strides)


def _is_scalar(x):
    return isinstance(x, (bool, int, float, complex, str, bytes)) or getattr(x, "ndim", None) == 0


def _host(x, shape, dtype):
    """The side of what NumPy makes of `x` in an array of that shape and type."""
    np = _typestr.numpy()
    if isinstance(x, np.ndarray) and (x.shape, x.dtype) == (shape, dtype):
        return _copy.host(x)
    if isinstance(x, np.ma.MaskedArray):
        raise NotImplementedError("masked arrays are not taken")
    one = np.empty(() if getattr(x, "ndim", None) == 0 else shape, dtype)
    one[...] = x
    return _copy.host(np.broadcast_to(one, shape))
