# SPDX-License-Identifier: Apache-2.0
"""Functions by the names and arguments that users of ``numba.cuda`` know.

They take two more keywords:

client : Client, optional
    Without it :func:`caid.default_client`; functions that need no daemon (memory of this process alone) use
    this process's driver (``CAID_CUDA_DRIVER``).
device : int or str
    Index or UUID of the device; Numba has its current context's.

``stream`` is 0 (or None), Numba's default, which here is the legacy default stream; or anything
that :meth:`caid.Array.close` takes. With that, copies are enqueued on that stream, as
:meth:`caid.Array.copy_to_host` says; without, they have happened when a function returns. A new
array is bound to the stream, as by :meth:`caid.Array.bind`: its ``__cuda_array_interface__`` names
it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Iterator

from .._base import _geometry, _typestr
from .._base._driver import driver_client
from .._base._errors import device as device_error, invalid
from .._base._records import PointerInfo
from .._handoff import _any_stream, _pending
from .._handoff._stream import Stream
from .._memory import _array, _cai, _copy
from .._memory._array import Array
from .._memory._layout import Layout
from .._session import _default
from .._session._making import ATTACH_HOST

if TYPE_CHECKING:
    import numpy

    from .._session._client import Client
    from .._handoff._event import Event

__all__ = [
    "default_stream",
    "device_array",
    "device_array_like",
    "event",
    "event_elapsed_time",
    "external_stream",
    "is_cuda_array",
    "legacy_default_stream",
    "managed_array",
    "mapped",
    "mapped_array",
    "mapped_array_like",
    "per_thread_default_stream",
    "pinned",
    "pinned_array",
    "pinned_array_like",
    "pointer_info",
    "stream",
    "to_device",
]

_PORTABLE, _MAPPED, _WRITE_COMBINED = 1, 2, 4  # enum cuda_host_flags
_ATTRIBUTES = 1, 4, 8  # CU_POINTER_ATTRIBUTE_CONTEXT, _HOST_POINTER, _IS_MANAGED


# --- layouts --------------------------------------------------------------------------------


def _layout(shape, dtype, strides, order):
    """(shape, numpy.dtype, strides, nbytes) of an array to be made, in host memory."""
    element, inner = _typestr.of_dtype(dtype)
    try:
        dtype = _typestr.to_numpy(element)
    except TypeError as e:
        raise invalid(f"typestr {element.typestr!r}: {e}") from None
    shape = _geometry.dims("shape", shape) + inner
    if order not in ("C", "F"):
        raise invalid(f"order {order!r}: 'C' or 'F'")
    if any(extent < 0 for extent in shape):
        raise invalid(f"shape {shape}: negative")
    if strides is not None:
        strides = _geometry.dims("strides", strides)
        if len(strides) != len(shape) or any(step < 0 for step in strides):
            raise invalid(f"strides {strides} for shape {shape}: as many, none negative")
    elif order == "F":
        strides = _geometry.f_strides(shape, element.itemsize)
    else:
        strides = _geometry.c_strides(shape, element.itemsize)
    return shape, dtype, strides, _geometry.extent(shape, strides, dtype.itemsize)[1]


def _driver(client, device):
    """(client of the driver alone, CUDA ordinal): on which memory of this process is made."""
    local = driver_client(client)
    if client is not None:  # `device` is an index of the daemon's
        device = client._uuid_of(device)
    if not isinstance(device, str):
        return local, device
    for ordinal, (uuid, *_) in enumerate(local._devices()):
        if uuid == device:
            return local, ordinal
    raise device_error(f"device {device!r} is not visible in this process")


# --- device arrays --------------------------------------------------------------------------


def device_array(
    shape: Any,
    dtype: Any = "<f8",
    strides: Any = None,
    order: str = "C",
    stream: Any = 0,
    *,
    client: Client | None = None,
    device: int | str = 0,
) -> Array:
    """An array in device memory, its contents undefined: ``client.empty()`` by Numba's arguments.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : str, numpy.dtype or anything that numpy.dtype takes
    strides : tuple of int, optional
        Steps in bytes, none negative; `order` is not looked at then.
    order : {"C", "F"}
    stream : int or stream object
        On which its data will be made.
    client : Client, optional
        :func:`caid.default_client` without it, or this process's driver where no daemon is wanted.
    device : int or str
        Index or UUID.

    Returns
    -------
    Array
        Unnamed, writable.
    """
    _any_stream.numba_handle(stream)
    client = client or _default.default_client()
    order = order if strides is None else "C"
    made = client.empty(shape, dtype, strides=strides, order=order, device=device)
    return made._bind(stream)


def device_array_like(
    ary: Any, stream: Any = 0, *, client: Client | None = None, device: int | str = 0
) -> Array:
    """device_array() with the shape and type of another array, of any library. It is contiguous,
    with its dimensions in the other's order."""
    shape, dtype, strides, order = _cai.like(ary)
    return device_array(shape, dtype, strides, order, stream, client=client, device=device)


def to_device(
    obj: Any,
    stream: Any = 0,
    copy: bool = True,
    to: Any = None,
    *,
    client: Client | None = None,
    device: int | str = 0,
) -> Any:
    """Puts an array into device memory.

    Parameters
    ----------
    obj : array_like
        A caid array is given back as it is, memory of another library on the device is looked at
        and not copied; anything else is made an array of by NumPy, strided ones, too, or is a tensor
        in the host's memory.
    stream : int or stream object
        With one the copy is enqueued there, else it is done on return.
    copy : bool
        Without it nothing is copied: the new array's contents are undefined, `to` is as it was.
    to : Array or object with ``__cuda_array_interface__``, optional
        Where to copy; it has the shape and type of `obj`.
    client, device
        As in device_array().

    Returns
    -------
    Array
        Or `to`.
    """
    _any_stream.numba_handle(stream)
    if to is None:
        return _new_on_device(obj, stream, copy, client, device)
    if copy:
        with _cai.taken(to) as target:
            target.copy_to_device(obj, stream)
    return to


def _new_on_device(obj, stream, copy, client, device):
    if isinstance(obj, _array.Array):
        return obj
    client = client or _default.default_client()
    if hasattr(obj, "__cuda_array_interface__"):
        return client.as_array(obj)
    try:
        host = _typestr.numpy().asanyarray(obj)
        made = device_array_like(host, stream, client=client, device=device)
    except TypeError:  # a tensor whose type NumPy has no word for: PyTorch's of bfloat16
        host, tensor = obj, _copy.tensor(obj)
        if tensor is None:
            raise
        made = device_array(tensor.shape, tensor.element, stream=stream, client=client, device=device)
    if copy:
        try:
            made.copy_from_host(host, stream)
        except BaseException:
            made.close()
            raise
    return made


# --- page-locked memory of this process -----------------------------------------------------


def pinned_array(
    shape: Any,
    dtype: Any = "<f8",
    strides: Any = None,
    order: str = "C",
    *,
    client: Client | None = None,
    device: int | str = 0,
) -> numpy.ndarray[Any, Any]:
    """A NumPy array in page-locked memory of this process, its contents undefined. The memory is
    freed with the last array that sees it.

    To share page-locked memory between processes: ``client.create(memory="pinned")``.

    Raises
    ------
    DriverError, OutOfMemoryError
        The driver page-locks no more.
    """
    return _host_array(shape, dtype, strides, order, 0, client, device)[0]


def pinned_array_like(
    ary: Any, *, client: Client | None = None, device: int | str = 0
) -> numpy.ndarray[Any, Any]:
    """pinned_array() with the shape and type of another, as device_array_like()."""
    return pinned_array(*_cai.like(ary), client=client, device=device)


def mapped_array(
    shape: Any,
    dtype: Any = "<f8",
    strides: Any = None,
    order: str = "C",
    stream: Any = 0,
    portable: bool = False,
    wc: bool = False,
    *,
    client: Client | None = None,
    device: int | str = 0,
) -> numpy.ndarray[Any, Any]:
    """A NumPy array in page-locked memory of this process that kernels reach: it has a
    ``__cuda_array_interface__``, and so have its views.

    Parameters
    ----------
    shape, dtype, strides, order, stream, client, device
        As in device_array().
    portable : bool
        Page-locked for every device, not for `device` alone.
    wc : bool
        Write-combined: faster for the device to read, and slow for the host to read.

    Raises
    ------
    DriverError, OutOfMemoryError
        The driver page-locks no more.
    """
    _any_stream.numba_handle(stream)
    flags = _MAPPED | (_PORTABLE if portable else 0) | (_WRITE_COMBINED if wc else 0)
    array, memory = _host_array(shape, dtype, strides, order, flags, client, device)
    from . import _ndarray

    return _ndarray.reachable(array, memory.nbytes, memory.device_ptr, stream)


def mapped_array_like(
    ary: Any,
    stream: Any = 0,
    portable: bool = False,
    wc: bool = False,
    *,
    client: Client | None = None,
    device: int | str = 0,
) -> numpy.ndarray[Any, Any]:
    """mapped_array() with the shape and type of another, as device_array_like()."""
    return mapped_array(*_cai.like(ary), stream, portable, wc, client=client, device=device)


def _host_array(shape, dtype, strides, order, flags, client, device):
    """(NumPy array, its HostMemory)"""
    from . import _ndarray

    shape, dtype, strides, nbytes = _layout(shape, dtype, strides, order)
    local, ordinal = _driver(client, device)
    memory = local._host_alloc(ordinal, max(nbytes, 1), flags)
    return _ndarray.over(memory, shape, dtype, strides, order), memory


def managed_array(
    shape: Any,
    dtype: Any = "<f8",
    strides: Any = None,
    order: str = "C",
    stream: Any = 0,
    attach_global: bool = True,
    *,
    client: Client | None = None,
    device: int | str = 0,
) -> numpy.ndarray[Any, Any]:
    """A NumPy array in managed memory of this process, which the driver moves to where it is used:
    it has a ``__cuda_array_interface__``, and so have its views.

    Parameters
    ----------
    shape, dtype, strides, order, stream, client, device
        As in device_array().
    attach_global : bool
        Whether any stream on any device may use the memory; else the host has it, and only devices
        that reach it at the same time as the host may.

    Raises
    ------
    OutOfMemoryError, UnsupportedError
        There is not that much; the device has no managed memory.
    """
    from . import _ndarray

    _any_stream.numba_handle(stream)
    shape, dtype, strides, nbytes = _layout(shape, dtype, strides, order)
    local, ordinal = _driver(client, device)
    flags = 0 if attach_global else ATTACH_HOST
    lease = local._create(
        None, (max(nbytes, 1),), "|u1", None, None, None, ordinal, flags, "managed", 0, None, 0
    )
    try:
        view = lease.host_view(0, lease.nbytes, False)
    finally:
        lease.close()  # the view has a share
    array = _ndarray.over(view, shape, dtype, strides, order)
    start = array.__array_interface__["data"][0]
    return _ndarray.reachable(array, lease.nbytes, start, stream)


# --- page-locking what is there -------------------------------------------------------------


@contextlib.contextmanager
def pinned(
    *arrays: numpy.ndarray[Any, Any], client: Client | None = None, device: int | str = 0
) -> Iterator[None]:
    """A ``with`` block in which the memory of NumPy arrays is page-locked, so that the driver's
    copies from and to it are direct. When one of them cannot be, those before it are undone.

    Raises
    ------
    TypeError
        Not a NumPy array.
    DriverError
        The driver does not page-lock that memory; it is page-locked already.
    """
    with contextlib.ExitStack() as stack:
        for array in arrays:
            _lock(stack, array, 0, client, device)
        yield


@contextlib.contextmanager
def mapped(
    *arrays: numpy.ndarray[Any, Any],
    stream: Any = 0,
    client: Client | None = None,
    device: int | str = 0,
) -> Iterator[Any]:
    """A ``with`` block in which the memory of NumPy arrays is page-locked and reached by the
    device. Its value is a device array for each: one by itself, more as a tuple.

    At the end the arrays are closed, once the work on `stream` is done, for which it waits.

    Parameters
    ----------
    *arrays : numpy.ndarray
        With any strides.
    stream : int or stream object
        On which the device arrays are used.
    client, device
        As in device_array().

    Raises
    ------
    TypeError, DriverError
        As pinned().
    """
    number = _any_stream.numba_handle(stream)
    with contextlib.ExitStack() as stack:
        views = [_map(stack, array, stream, client, device) for array in arrays]
        try:
            yield views[0] if len(views) == 1 else tuple(views)
        finally:
            if views:
                local, ordinal = _driver(client, device)
                local._stream_synchronize(number, ordinal)
            for view in views:
                _pending.wait(view._memory)


def _map(stack, array, stream, client, device):
    """The device view of an array that is page-locked until the stack is unwound."""
    local, ordinal = _driver(client, device)
    start, pointer = _lock(stack, array, _MAPPED, client, device)
    element, _ = _typestr.of_dtype(array.dtype)
    address = array.__array_interface__["data"][0]
    layout = Layout(
        pointer + address - start if pointer else 0,
        array.shape,
        array.strides,
        element,
        not array.flags.writeable,
    )
    view = _array.make(_cai.ForeignMemory(local, ordinal, array), layout, root=False)
    stack.callback(view.close)
    return view._bind(stream)


def _lock(stack, array, flags, client, device):
    """Page-locks an array's memory until the stack is unwound; does nothing for an array of no bytes. Gives
    (start, device address or 0)."""
    np = _typestr.numpy()
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{type(array).__name__}: a numpy.ndarray is needed")
    low, high = _geometry.extent(array.shape, array.strides, array.itemsize)
    start = array.__array_interface__["data"][0] + low
    if high == low:
        return start, 0
    local, ordinal = _driver(client, device)
    pointer = local._host_register(ordinal, start, high - low, flags)
    stack.callback(local._host_unregister, ordinal, start)
    return start, pointer


# --- streams, events, pointers --------------------------------------------------------------


def stream(*, client: Client | None = None, device: int | str = 0) -> Stream:
    """A new stream: :meth:`caid.Client.stream`. To be closed."""
    return (client or _default.default_client()).stream(device)


def external_stream(ptr: Any, *, client: Client | None = None, device: int | str = 0) -> Stream:
    """The stream of another library: :meth:`caid.Stream.from_handle`, of the default client."""
    return Stream.from_handle(ptr, client or _default.default_client(), device)


def legacy_default_stream(*, client: Client | None = None, device: int | str = 0) -> Stream:
    """The legacy default stream, which is Numba's default here."""
    return external_stream(_any_stream.LEGACY, client=client, device=device)


default_stream = legacy_default_stream


def per_thread_default_stream(*, client: Client | None = None, device: int | str = 0) -> Stream:
    """The per-thread default stream: another one in each thread."""
    return external_stream(_any_stream.PER_THREAD, client=client, device=device)


def event(timing: bool = True, *, client: Client | None = None, device: int | str = 0) -> Event:
    """A new event: :meth:`caid.Client.event`."""
    return (client or _default.default_client()).event(device, timing=timing)


def event_elapsed_time(evtstart: Event, evtend: Event) -> float:
    """Milliseconds of the GPU's from where one event was recorded to where another was. Raises
    InvalidError for one without timing, DriverError for one that is not passed or not recorded."""
    return evtstart._elapsed(evtend)


def is_cuda_array(obj: object) -> bool:
    """Whether something has a ``__cuda_array_interface__``, valid or not."""
    return hasattr(obj, "__cuda_array_interface__")


def pointer_info(ptr: int, *, client: Client | None = None) -> PointerInfo:
    """What the driver, this process's or that of `client`, knows of a pointer of any library, into
    memory that the device reaches: PointerInfo. Raises InvalidError for any other.

    Sources: CUDA Driver API, cuPointerGetAttribute(); CUDA Array Interface, "Pointer Attributes".
    """
    local = driver_client(client)
    device_ptr, device = local._pointer_resolve(ptr)
    context, host_ptr, managed = (local._pointer_attribute(ptr, n) for n in _ATTRIBUTES)
    return PointerInfo(context or None, device, device_ptr, host_ptr or None, bool(managed))
