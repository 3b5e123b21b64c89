# SPDX-License-Identifier: Apache-2.0
"""Consumer of the CUDA Array Interface, versions 0 to 3."""

from __future__ import annotations

import operator
import os
from typing import Any, NamedTuple, Optional

from . import _array, _caid, _geometry, _interface, _pending, _typestr
from ._errors import closed, invalid, unsupported

_VERSIONS = range(4)


class ForeignMemory:
    """Device memory that something else owns, as Array wants it; each share is an object.

    It keeps the owner alive until it is closed, and knows the client whose driver reaches it.
    """

    __slots__ = ("client", "device", "owner", "closed", "pending")

    # What only leases have.
    name = pool = memory = metadata = None
    generation = block = host = 0
    access = -1

    @property
    def access_device(self):
        return self.device

    def __init__(self, client, device, owner, pending=None):
        self.client = client
        self.device = device
        self.owner = owner
        self.closed = False
        self.pending = pending or _pending.Marks()  # of all shares

    def share(self):
        if self.closed:
            raise closed("the array is closed")
        return ForeignMemory(self.client, self.device, self.owner, self.pending)

    def close(self, _stream=None):
        self.closed = True
        self.owner = None

    def ipc_handle(self):
        raise unsupported("memory of another library: it has its own handles")


_driver = (0, None)  # process id, client


def driver_client():
    """The client that is used where none is given: this process's driver, with no daemon."""
    global _driver
    pid, client = _driver
    if pid != os.getpid():  # first use, or first in a child
        client = _caid.Client._local(None)
        _driver = (os.getpid(), client)
    return client


def as_array(
    obj: Any, sync: bool = True, *, client: _caid.Client | None = None
) -> _array.Array:
    """An Array over the memory of another library's array. Nothing is copied.

    Parameters
    ----------
    obj : object
        An object with ``__cuda_array_interface__``, or such a dict, of versions 0 to 3. A
        :class:`caid.Array` gives a view.
    sync : bool
        Whether to wait, on the host, for the stream that the interface names. The environment's
        ``CAID_CAI_SYNC=0`` does away with it everywhere, and with naming streams, too.
    client : Client, optional
        Whose driver reaches the memory. Without it, this process's driver is opened
        (``CAID_CUDA_DRIVER``), with no daemon.

    Returns
    -------
    Array
        It keeps `obj` alive.

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
    return _of(obj, client, _synchronize if sync else _ignore)


def from_cuda_array_interface(
    desc: dict[str, Any],
    owner: object = None,
    sync: bool = True,
    *,
    client: _caid.Client | None = None,
) -> _array.Array:
    """An Array over the memory that a dict of the CUDA Array Interface tells of.

    Parameters
    ----------
    desc : dict
    owner : object, optional
        What owns the memory: kept alive. Without it the caller sees to that.
    sync, client
        As in :func:`as_array`, with its errors.
    """
    return _take(desc, owner, client, _synchronize if sync else _ignore)


def taken(obj, after):
    """as_array() for a copy on the stream `after`, which waits for that of the interface, instead of
    the host; None: the host does."""
    if after is None:
        return as_array(obj)

    def order(client, device, stream):
        _pending.follow(client, device, stream, after)

    return _of(obj, None, order)


def _of(obj, client, come_after):
    if isinstance(obj, _array.Array):
        return obj.view()
    if isinstance(obj, dict):
        return _take(obj, None, client, come_after)
    try:
        desc = obj.__cuda_array_interface__
    except AttributeError:
        raise TypeError(f"{type(obj).__name__} has no __cuda_array_interface__") from None
    return _take(desc, obj, client, come_after)


# What comes after the stream of an interface: the host, nothing.


def _synchronize(client, device, stream):
    client._stream_synchronize(stream, device)


def _ignore(_client, _device, _stream):
    pass


class Described(NamedTuple):
    """What a dict of the interface says."""

    ptr: int
    shape: tuple
    strides: tuple
    element: _typestr.Element
    readonly: bool
    stream: Optional[int]


def read(desc: dict[str, Any]) -> Described:
    """Looks at the dict alone. Raises what as_array() does."""
    if not isinstance(desc, dict):
        raise TypeError(f"__cuda_array_interface__: a dict is needed, not {type(desc).__name__}")
    _check_version(desc)
    element = _typestr.of_typestr(_entry(desc, "typestr"), desc.get("descr"))
    shape, strides = _layout(desc, element)
    ptr, readonly = _data(desc)
    return Described(ptr, shape, strides, element, readonly, _stream(desc))


def _take(desc, owner, client, come_after):
    ptr, shape, strides, element, readonly, stream = read(desc)
    device = -1
    if 0 in shape:  # nothing to reach, nothing to wait for
        ptr = 0
    else:
        client = client or driver_client()
        ptr, device = client._pointer_resolve(ptr)
        if stream is not None and _interface.is_synchronous():
            come_after(client, max(device, 0), stream)
    memory = ForeignMemory(client, device, owner)
    layout = _array.Layout(ptr, shape, strides, element, readonly)
    return _array.make(memory, layout, root=False)


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


def _stream(desc):
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
