# SPDX-License-Identifier: Apache-2.0
"""Consumer of the CUDA Array Interface, versions 0 to 3."""

from __future__ import annotations

import contextlib
import operator
import sys
from typing import TYPE_CHECKING, Any

from .._base import _geometry, _typestr
from .._base._driver import driver_client
from .._base._errors import closed, invalid, unsupported
from .._base._lifetime import attribute
from .._caid import Client
from .._handoff import _any_stream, _pending
from . import _array, _copy, _export
from ._layout import Described, Layout

if TYPE_CHECKING:
    from ._array import Array

_VERSIONS = range(4)


class ForeignMemory:
    """A memory, as Array uses it, that another library owns. Each share of it is an object.

    It keeps the owner alive until it is closed, and knows the client whose driver reaches it.
    """

    __slots__ = ("client", "device", "owner", "closed", "pending")

    # Attributes that only leases have.
    name = pool = memory = metadata = uid = None
    generation = block = host = 0
    mapped_ordinal = -1
    created = False

    @property
    def mapped_device(self):
        return self.device

    def __init__(self, client, device, owner, pending=None):
        self.client = client
        self.device = device
        self.owner = owner
        self.closed = False
        self.pending = pending or _pending.Marks()  # of all shares

    @property
    def _live(self):
        return not self.closed and (self.client is None or self.client._live)

    def check(self):
        if self.closed:
            raise closed("the array is closed")
        if self.client is not None:
            self.client._check()

    def share(self):
        self.check()
        return ForeignMemory(self.client, self.device, self.owner, self.pending)

    def close(self, _stream=None):
        self.closed = True
        self.owner = None

    def ipc_handle(self):
        raise unsupported("memory of another library: it has its own handles")


def as_array(
    obj: Any, sync: bool = True, *, client: Client | None = None
) -> Array:
    """An Array over the memory of another library's array. Nothing is copied.

    Parameters
    ----------
    obj : object
        An object with ``__cuda_array_interface__``, or such a dict, of versions 0 to 3. A
        :class:`caid.Array` gives a view.
    sync : bool
        Whether to wait, on the host, for the stream that the interface names, and to have that stream
        wait for what caid does with the array on others. The environment's ``CAID_CAI_SYNC=0`` does
        away with it everywhere, and with naming streams, too.
    client : Client, optional
        Whose driver reaches the memory. Without it, this process's driver is opened
        (``CAID_CUDA_DRIVER``), with no daemon.

    Returns
    -------
    Array
        It keeps `obj` alive. The stream has to live as long as `obj`, as the specification says:
        copies on other streams come after what is on it, and before what is enqueued on it later.

    Raises
    ------
    TypeError
        No CUDA Array Interface.
    NotImplementedError
        The array has a mask.
    ValueError
        Stream 0, which the specification rules out as ambiguous.
    InvalidError
        Anything else that the specification does not allow; a pointer the device cannot reach.

    Notes
    -----
    The rules are those of the CUDA Array Interface, version 3, "Synchronization" and "Python
    Interface Specification".
    """
    return _of(obj, client, sync, sync)


def from_cuda_array_interface(
    desc: dict[str, Any],
    owner: object = None,
    sync: bool = True,
    *,
    client: Client | None = None,
) -> Array:
    """An Array over the memory that a dict of the CUDA Array Interface tells of.

    Parameters
    ----------
    desc : dict
    owner : object, optional
        What owns the memory: kept alive. Without it the caller sees to that.
    sync, client
        As in :func:`as_array`, with its errors.
    """
    return _take(desc, owner, client, sync, sync)


def taken(obj):
    """as_array() for the time of one copy. The copy orders the streams itself, so nothing is waited for
    here."""
    return _of(obj, None, True, False)


@contextlib.contextmanager
def side(obj, *, target=False, element=None):
    """The side of anything in a copy. Device memory of other origin is looked at while the block runs."""
    if isinstance(obj, _array.Array):
        yield _copy.device(obj)
    elif hasattr(obj, "__cuda_array_interface__"):
        with taken(obj) as foreign:
            yield _copy.device(foreign)
    else:
        yield _copy.host(obj, target=target, element=element)


def _of(obj, client, sync, wait):
    if isinstance(obj, _array.Array):
        return obj.view()
    if isinstance(obj, dict):
        return _take(obj, None, client, sync, wait)
    desc = attribute(obj, "__cuda_array_interface__")
    if desc is None:
        raise TypeError(f"{type(obj).__name__} has no __cuda_array_interface__")
    return _take(desc, obj, client, sync, wait)


def read(desc: dict[str, Any]) -> Described:
    """Reads a dict of the interface; asks no driver. Raises the errors of as_array()."""
    if not isinstance(desc, dict):
        raise TypeError(f"__cuda_array_interface__: a dict is needed, not {type(desc).__name__}")
    _check_version(desc)
    element = _typestr.of_typestr(_entry(desc, "typestr"), desc.get("descr"))
    shape, strides = _layout(desc, element)
    ptr, readonly = _data(desc)
    return Described(ptr, shape, strides, element, readonly, _named_stream(desc))


def _take(desc, owner, client, sync, wait):
    """An Array over the memory of the dict. sync: it has the stream of the dict. wait: the host waits for
    that stream."""
    ptr, shape, strides, element, readonly, stream = read(desc)
    device = -1
    if 0 in shape:  # nothing to reach, nothing to wait for
        ptr = 0
    else:
        client = client or driver_client()
        ptr, device = client._pointer_resolve(ptr)
    used = sync and _export.is_synchronous() and ptr != 0
    kept = _stream_to_keep(stream, owner) if used else None
    if kept is not None and wait:
        client._stream_synchronize(_any_stream.handle(kept), max(device, 0))
    memory = ForeignMemory(client, device, owner)
    layout = Layout(ptr, shape, strides, element, readonly)
    return _array.make(memory, layout, root=False, stream=kept)


def _stream_to_keep(number, owner):
    """The stream that an Array keeps. The stream that a dict names lives as long as the dict's object, but
    CuPy names the current stream, and a stream that has ended is a SIGSEGV in the driver: so its stream
    object is kept. PyTorch names no stream: its current one is kept."""
    current = current_stream(owner)
    if current is not None and number in (None, getattr(current, "ptr", None)):
        return current
    return _any_stream.of_now(number)


def current_stream(owner):
    """The current stream of an array's library, as the library's object; None where it is not known."""
    torch = sys.modules.get("torch")
    if isinstance(owner, getattr(torch, "Tensor", ())):
        return torch.cuda.current_stream(owner.device)
    if type(owner).__module__.partition(".")[0] == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream()
    return None


def like(a):
    """(shape, dtype, strides, order) for a new array like another: contiguous, with the dimensions
    in the order of the other's steps.

    The rule is Numba's, cuda/api.py: _contiguous_strides_like_array().
    """
    if isinstance(a, _array.Array):
        a_dtype, itemsize, shape, steps = a._layout.element, a.itemsize, a.shape, a.strides
    elif hasattr(a, "__cuda_array_interface__") and not hasattr(a, "__array_interface__"):
        with as_array(a, sync=False) as foreign:
            return like(foreign)
    else:
        a = _typestr.numpy().asanyarray(a)
        a_dtype, itemsize, shape, steps = a.dtype, a.itemsize, a.shape, a.strides
    if _geometry.is_c_contiguous(shape, steps, itemsize):
        return shape, a_dtype, None, "C"
    if _geometry.is_f_contiguous(shape, steps, itemsize):
        return shape, a_dtype, None, "F"
    if len(shape) <= 1:
        return shape, a_dtype, None, "C"
    strides, step = [0] * len(shape), itemsize
    for axis in sorted(range(len(shape)), key=steps.__getitem__):
        strides[axis] = step
        step *= shape[axis]
    return shape, a_dtype, tuple(strides), "C"


# --- the dict's entries ---------------------------------------------------------------------


def _entry(desc, key):
    try:
        return desc[key]
    except KeyError:
        raise invalid(f"__cuda_array_interface__: no {key!r}") from None


def _check_version(desc):
    version = desc.get("version", 0)
    if version not in _VERSIONS:
        raise invalid(f"__cuda_array_interface__: version {version!r}; 0 to 3 are known")
    if desc.get("mask") is not None:
        raise NotImplementedError("__cuda_array_interface__: masked arrays are not taken")


def _layout(desc, element):
    shape = _dims("shape", _entry(desc, "shape"))
    if any(extent < 0 for extent in shape):
        raise invalid(f"__cuda_array_interface__: shape {shape}: negative")
    if desc.get("strides") is None:
        return shape, _geometry.c_strides(shape, element.itemsize)
    strides = _dims("strides", desc["strides"])
    if len(strides) != len(shape):
        raise invalid(f"__cuda_array_interface__: strides {strides} for shape {shape}")
    return shape, strides


def _dims(key, value):
    try:
        return tuple(map(operator.index, value))
    except TypeError:
        raise invalid(f"__cuda_array_interface__: {key} {value!r}: not a tuple of int") from None


def _data(desc):
    data = _entry(desc, "data")
    try:
        ptr, readonly = data
        return operator.index(ptr), bool(readonly)
    except (TypeError, ValueError):
        raise invalid(f"__cuda_array_interface__: data {data!r}: not (int, bool)") from None


def _named_stream(desc):
    stream = desc.get("stream")
    if stream is None:
        return None
    try:
        stream = operator.index(stream)
    except TypeError:
        raise invalid(f"__cuda_array_interface__: stream {stream!r}: not an int") from None
    if stream == 0:
        raise ValueError(
            "__cuda_array_interface__: stream 0 is ambiguous: None, 1 (legacy default) or 2 "
            "(per-thread default)"
        )
    return stream
