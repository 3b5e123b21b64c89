# SPDX-License-Identifier: Apache-2.0
"""Copies between a device array and anything that has elements, by libcaid's one copy call.

A copy that is given a stream is enqueued there, and comes after what is on that stream. Where an array has a
stream of its own, a bracket's or another library's, the copy also comes after what is on that one, and before
what is enqueued there later. A copy that is given no stream comes after all work on its arrays that caid
knows of, and is done when the call returns.
"""

import sys
from typing import Any, NamedTuple, Optional

from .. import _caid
from .._base import _geometry, _typestr
from .._base._errors import read_only
from .._handoff import _any_stream, _pending
from . import _dlpack
from ._dlpack_export import READ_ONLY


class Side(NamedTuple):
    """One side of a copy: a device array, a NumPy array, or raw bytes. Bytes have neither shape nor type, and
    take those of the other side."""

    data: Any  # address, or a contiguous buffer on the host
    writable: bool
    shape: Optional[tuple] = None
    strides: Optional[tuple] = None
    element: Optional[_typestr.Element] = None
    array: Any = None  # the Array, of a device side
    owner: Any = None  # what keeps the address valid, of a NumPy array

    @property
    def on_host(self):
        return self.array is None

    @property
    def kept(self):
        """What has to be kept until the copy is done. For a lease that is nothing, since it ends after its
        work."""
        if self.on_host:
            return self.data if self.owner is None else self.owner
        return getattr(self.array._memory, "owner", None)


def device(array):
    """The side of an Array."""
    ptr, layout = array._address(), array._layout
    return Side(
        ptr, not layout.readonly, layout.shape, layout.strides, layout.element, array
    )


def host(x, *, target=False, element=None):
    """The side of a NumPy array, of a buffer or of a tensor; for a source, also of all that NumPy
    makes an array of: lists and scalars, which have no type, of the element's.

    Raises
    ------
    TypeError
        `x` is in device memory; or it is a target and no array and no buffer.
    """
    if _is_ndarray(x):
        return _ndarray(x)
    if hasattr(x, "__cuda_array_interface__"):
        raise TypeError(f"{type(x).__name__} is in device memory: use copy_from() or copy_to()")
    try:
        view = memoryview(x)
    except (TypeError, BufferError):
        return _target(x) if target else _source(x, element)
    if view.format in ("B", "b", "c") and view.ndim == 1 and view.contiguous:
        return Side(view, not view.readonly)
    return _ndarray(_typestr.numpy().asarray(view))


def _target(x):
    found = tensor(x)
    if found is None:
        raise TypeError(f"{type(x).__name__}: neither array nor buffer") from None
    return found


def _source(x, element):
    dtype = None if element is None or hasattr(x, "__array__") else _typestr.to_numpy(element)
    try:
        return _ndarray(_typestr.numpy().asarray(x, dtype))
    except TypeError:  # also of tensors whose type NumPy has no word for: PyTorch's of bfloat16
        found = tensor(x)
        if found is None:
            raise
        return found


def tensor(x):
    """The side of a tensor in the host's memory, by DLPack; None where `x` is none."""
    taken = _dlpack.take_on_host(x)
    if taken is None:
        return None
    held, element, strides = taken
    return Side(held.ptr, not held.flags & READ_ONLY, held.shape, strides, element, owner=held)


def _is_ndarray(x):
    np = sys.modules.get("numpy")
    return np is not None and isinstance(x, np.ndarray)


def _ndarray(x):
    if isinstance(x, _typestr.numpy().ma.MaskedArray):
        raise NotImplementedError("masked arrays are not taken")
    element, _ = _typestr.of_dtype(x.dtype)
    address, readonly = x.__array_interface__["data"]
    return Side(address, not readonly, x.shape, x.strides, element, owner=x)


def settle(array):
    """Waits on the host for the work on an array that caid knows of, and for what the array's stream has
    been given."""
    memory, stream = array._memory, array._live_stream
    if stream is not None:
        memory.client._stream_synchronize(_any_stream.handle(stream), max(memory.mapped_device, 0))
    _pending.wait(memory, array._layout.spans)
    _pending.release()


def copy(target, source, stream=None):
    """Copies all elements. One side at least is a device array.

    Raises
    ------
    TypeError, ValueError
        No stream; other shapes or types.
    """
    if not _any_stream.is_default(stream):
        _any_stream.handle(stream)
    if not target.writable:
        _refuse(target)
    _match(target, source)
    _run(target, source, None if _any_stream.is_default(stream) else stream)


def peek(array, out):
    """Copies the elements to a NumPy array, as they lie there: nobody's work is waited for."""
    _call(_ndarray(out), device(array), array.shape, True)


def _refuse(target):
    if target.array is not None:
        raise read_only(f"{target.array._label} is read-only")
    raise ValueError("the target on the host is read-only")


def _match(target, source):
    typed = [end for end in (target, source) if end.shape is not None]
    for end in (target, source):
        nbytes = _geometry.size(typed[0].shape) * typed[0].element.itemsize
        if end.shape is None and end.data.nbytes != nbytes:
            raise ValueError(f"the buffer has {end.data.nbytes} bytes, the array {nbytes}")
    if len(typed) < 2:
        return
    if target.shape != source.shape:
        raise ValueError(f"shapes differ: {source.shape} to {target.shape}")
    if not _typestr.same(target.element, source.element):
        raise TypeError(f"types differ: {_describe(source)} to {_describe(target)}")


def _describe(end):
    return end.element.descr or end.element.type_name


def _run(target, source, stream):
    shape = source.shape if target.shape is None else target.shape
    if 0 in shape:
        return
    if _overlap(target, source):
        # libcaid copies elements in any order, so overlapping arrays are copied by way of host memory, and
        # waited for.
        _come_after(target, source, stream)
        between = Side(memoryview(bytearray(target.array.nbytes)), True)
        _call(between, source, shape)
        _call(target, between, shape)
    elif stream is None:
        _come_after(target, source, None)
        _call(target, source, shape)
    else:
        _enqueue(target, source, shape, stream)


def _come_after(target, source, stream):
    """Waits for all work that a copy without a stream comes after, and for a given stream; not for the legacy
    default stream, which such copies are on."""
    for end in (target, source):
        if end.array is not None:
            settle(end.array)
    if stream is not None and _any_stream.handle(stream) != _any_stream.LEGACY:
        memory = _runner(target, source)
        memory.client._stream_synchronize(_any_stream.handle(stream), max(memory.mapped_device, 0))


def _enqueue(target, source, shape, stream):
    memory = _runner(target, source)
    client, ordinal = memory.client, max(memory.mapped_device, 0)
    arrays = [end.array for end in (target, source) if end.array is not None]
    before = [array for array in arrays if not _is_on(array, stream, ordinal)]
    for array in before:
        _come_after_stream(array, stream, ordinal)
    keep = tuple(end.kept for end in (target, source) if end.kept is not None)
    mark = _pending.mark(client, ordinal, stream, keep or None)
    lists = _pending.lists([array._memory for array in arrays], keeps=bool(keep))
    try:
        _call(target, source, shape, mark, lists)
        _narrow(mark, arrays)
    finally:
        for array in before:
            if _is_within_reach(array, stream, ordinal):
                mark.wait(_any_stream.handle(array._live_stream))
            else:
                mark.synchronize()


def _narrow(mark, arrays):
    """The copy is work on the views that it is of, where it has one of each memory."""
    if len({array._memory.pending for array in arrays}) == len(arrays):
        for array in arrays:
            if isinstance(array._memory, _caid.Lease) and array._layout.shape != array._memory.shape:
                _pending.narrow(mark, array._memory, array._layout.spans)


def _is_on(array, stream, ordinal):
    """Whether an array has no stream of its own, or has this one."""
    own = array._live_stream
    if own is None:  # an ended bracket orders nothing, nor does an array without a stream
        return array._stream is None or array._memory.pool is not None
    return _any_stream.handle(own) == _any_stream.handle(stream) and (
        _any_stream.handle(stream) > _any_stream.PER_THREAD or _device(array) == ordinal
    )


def _is_within_reach(array, stream, ordinal):
    """Whether the array's stream and this one can be made to wait for each other here; else the host waits. A
    default stream is that of a device, and stream 2 also that of a thread."""
    own = array._live_stream
    return own is not None and (
        _device(array) == ordinal
        or min(_any_stream.handle(own), _any_stream.handle(stream)) > _any_stream.PER_THREAD
    )


def _come_after_stream(array, stream, ordinal):
    memory = array._memory
    if _is_within_reach(array, stream, ordinal):
        _pending.follow(memory.client, _device(array), array._live_stream, stream)
    else:
        settle(array)


def _device(array):
    return max(array._memory.mapped_device, 0)


def _call(target, source, shape, mark=None, lists=()):
    memory = _runner(target, source)
    element = source.element or target.element
    # Another thread may close an array or a client meanwhile: so _copy() holds the leases, and these shares
    # other libraries' memory.
    memories = [end.array._memory for end in (target, source) if end.array is not None]
    leases = tuple(m for m in memories if isinstance(m, _caid.Lease))
    shares = [m.share() for m in memories if not isinstance(m, _caid.Lease)]
    memory.client._copy(
        target.data,
        source.data,
        shape,
        element.itemsize,
        target.strides,
        source.strides,
        target.on_host,
        source.on_host,
        max(memory.mapped_device, 0),
        leases,
        mark,
        lists,
    )
    del shares


def _runner(target, source):
    """The memory whose client makes the copy, on the device that it is mapped for: the side that is the
    daemon's, if there is one."""
    memories = [end.array._memory for end in (target, source) if end.array is not None]
    return min(memories, key=lambda memory: memory.block == 0)


def _overlap(target, source):
    if target.on_host or source.on_host:
        return False
    a, b = _span(target), _span(source)
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def _span(end):
    """(block, low, high): for memory of the daemon's the bytes of its block, which a process may have mapped
    at two addresses; else addresses, with 0 for the block."""
    low, high = _geometry.extent(end.shape, end.strides, end.element.itemsize)
    memory = end.array._memory
    if memory.block == 0:  # not the daemon's
        return 0, end.data + low, end.data + high
    start = memory.offset + end.data - memory.ptr
    return memory.block, start + low, start + high
