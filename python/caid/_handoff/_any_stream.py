# SPDX-License-Identifier: Apache-2.0
"""CUDA streams of any library, as the numbers that libcaid takes."""

import operator
import os
import threading
from weakref import ref

LEGACY = 1  # the legacy default stream, CU_STREAM_LEGACY
PER_THREAD = 2  # another one in each thread, CU_STREAM_PER_THREAD

# Where libraries keep the handle: CuPy, Numba and cuda.core, PyTorch.
_ATTRIBUTES = ("ptr", "handle", "cuda_stream")


def handle(stream):
    """The number of a stream.

    Parameters
    ----------
    stream : int or object
        1 (the legacy default stream), 2 (the per-thread one), a CUstream; or an object that has
        ``__cuda_stream__()`` (cuda.core), ``ptr`` (CuPy), ``handle`` (Numba) or ``cuda_stream``
        (PyTorch). The default streams of CuPy, Numba and PyTorch, which have 0 there, are what
        these libraries mean by it.

    Raises
    ------
    ValueError
        0, which the CUDA Array Interface rules out: it is the legacy default stream for some and
        the per-thread one for others.
    TypeError
        No stream.
    """
    number = _number(stream) or _default(stream)
    if number == 0:
        raise ValueError(
            "stream 0 is ambiguous: 1 is the legacy default stream, 2 the per-thread one"
        )
    if not 0 < number < 1 << 64:
        raise ValueError(f"stream {number}: no CUstream")
    return number


class OfThread:
    """The per-thread default stream (2) of the thread that makes this. No other thread can name that
    stream."""

    __slots__ = ("thread",)

    def __init__(self):
        self.thread = ref(threading.current_thread())

    def __index__(self):
        return PER_THREAD

    @property
    def is_here(self):
        return self.thread() is threading.current_thread()


def of_now(stream):
    """A stream as it is kept for later use: 2 becomes the per-thread stream of this thread."""
    return OfThread() if stream is not None and handle(stream) == PER_THREAD else stream


class Bound:
    """The stream that arrays are bound to: their data is made on it. `kept` says that it exists as long as
    this object: caid's own streams are held, so that closing one does not end it."""

    __slots__ = ("stream", "kept", "_release", "__weakref__")

    def __init__(self, stream):
        self._release = None
        self.stream = of_now(stream)
        self.kept = handle(stream) <= PER_THREAD or owner(stream) is not None
        if hasattr(stream, "_hold"):
            stream._hold()
            self._release = stream._release

    def __del__(self):
        if self._release is not None:
            self._release()


def live(stream):
    """An array's stream as this thread can use it now. None where the stream has ended, and in threads that
    cannot name it. A stream that was closed and is held is given by its number."""
    if isinstance(stream, Bound):
        stream = stream.stream
    if isinstance(stream, OfThread):
        return stream if stream.is_here else None
    ended = getattr(stream, "_ended", None)  # caid's own streams have this
    if ended is None or not stream.closed:
        return stream
    return None if ended else stream._number


def is_default(stream):
    """Whether a stream is Numba's default, 0 or None."""
    return stream is None or (isinstance(stream, int) and stream == 0)


def numba_handle(stream):
    """The number of a stream; Numba's default is the legacy default stream."""
    return LEGACY if is_default(stream) else handle(stream)


def owner(stream):
    """The object that keeps a stream: None for a number, and for a :class:`caid.Stream` that was made
    from one."""
    wrapped = getattr(stream, "_wrapped", None)
    if wrapped is not None:
        return owner(wrapped)
    return None if hasattr(stream, "__index__") else stream


# Which stream each library means by 0: the legacy default stream, or the per-thread one where this variable
# is set. "cuda" is NVIDIA's bindings: their variable holds for every Numba whose handles are theirs.
_DEFAULTS = {
    "torch": None,
    "cupy": "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM",
    "numba": "NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM",
    "numba_cuda_mlir": None,
    "rmm": None,
    "cuda": "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",
}


def _maker(made):
    return type(made).__module__.partition(".")[0]


def _default(stream):
    """The number of a library's default stream; 0 for an object that is none."""
    library = _maker(stream)
    if library not in _DEFAULTS:
        return 0
    if _maker(getattr(stream, "handle", None)) == "cuda":
        library = "cuda"
    variable = _DEFAULTS[library]
    per_thread = variable is not None and os.environ.get(variable, "0") not in ("", "0")
    return PER_THREAD if per_thread else LEGACY


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
