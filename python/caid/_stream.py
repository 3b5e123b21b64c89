# SPDX-License-Identifier: Apache-2.0
"""CUDA streams of any library, as the numbers that libcaid takes."""

import operator

LEGACY = 1  # the legacy default stream, CU_STREAM_LEGACY

# Where libraries keep the handle: CuPy, Numba and cuda.core, PyTorch.
_ATTRIBUTES = ("ptr", "handle", "cuda_stream")


def handle(stream):
    """The number of a stream.

    Parameters
    ----------
    stream : int or object
        1 (the legacy default stream), 2 (the per-thread one), a CUstream; or an object that has
        ``__cuda_stream__()`` (cuda.core), ``ptr`` (CuPy), ``handle`` (Numba) or ``cuda_stream``
        (PyTorch).

    Raises
    ------
    ValueError
        0, which the CUDA Array Interface rules out: it is the legacy default stream for some and
        the per-thread one for others.
    TypeError
        No stream.
    """
    number = _number(stream)
    if number == 0:
        raise ValueError(
            "stream 0 is ambiguous: 1 is the legacy default stream, 2 the per-thread one"
        )
    if not 0 < number < 1 << 64:
        raise ValueError(f"stream {number}: no CUstream")
    return number


def numba_handle(stream):
    """The same, where 0 and None are Numba's default: the legacy default stream."""
    if stream is None or (isinstance(stream, int) and stream == 0):
        return LEGACY
    return handle(stream)


def _number(stream):
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        # (version, handle): "CUDA Stream Protocol" in the documentation of cuda.core
        version_and_handle = protocol() if callable(protocol) else protocol
        return operator.index(version_and_handle[1])
    if hasattr(stream, "__index__"):
        return operator.index(stream)
    for name in _ATTRIBUTES:
        found = getattr(stream, name, None)
        if found is not None:
            # Numba's is a ctypes c_void_p, whose value is None for 0; cuda.bindings' has int().
            return int((found.value or 0) if hasattr(found, "value") else found)
    raise TypeError(f"stream: an int or a stream object is needed, not {type(stream).__name__}")
