# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors in caid's memory, published under names without a copy. Needs PyTorch 2.6.

>>> import torch, caid.torch
>>> pool = caid.torch.MemPool()
>>> with torch.cuda.use_mem_pool(pool):
...     w = torch.empty(1024, 768, device="cuda")
>>> caid.torch.publish("weights", w)            # in any process: caid.connect().open("weights")

PyTorch's caching allocator serves tensors as usual, and asks caid for its segments only. A process has
one set-up, since PyTorch calls plain C functions (docs/CONSUMERS.md).
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, NamedTuple

import torch

from . import _caid
from ._base._errors import DeviceError, Error, device as device_error
from ._base._records import ArenaMemory
from ._handoff import _any_stream
from ._interfaces import _resource, _torch_types
from ._memory import _arena
from ._session import _default
from ._session._client import Client

if not hasattr(torch.cuda, "MemPool"):
    raise ImportError(f"caid.torch needs PyTorch 2.6 or later, not {torch.__version__}")


class _Setup(NamedTuple):
    """What the C functions use in this process."""

    process: int
    client: Client
    options: dict[str, Any]  # memory, pool, and those of the arenas
    arenas: dict[int, _arena.Arena]  # by CUDA ordinal

    @property
    def is_usable(self):
        return self.process == os.getpid() and _default._is_alive(self.client)


_setup: _Setup | None = None
_allocator: Any = None  # PyTorch's, for all set-ups of the process
_lock = threading.Lock()


def allocator(
    client: Client | None = None,
    *,
    memory: ArenaMemory | None = None,
    pool: str | None = None,
    **options: Any,
) -> torch.cuda.memory.CUDAPluggableAllocator:
    """The allocator of this process, for ``torch.cuda.MemPool(a.allocator())``: see
    :class:`MemPool`, which is that.

    Given to ``torch.cuda.memory.change_current_allocator()``, as the first thing that is done with
    the GPU, all tensors are in caid's memory; but then nothing is cached, and PyTorch does not check
    whether an allocation has failed: it then uses a null pointer.

    The first call sets up what this process uses. A later call may leave arguments out; those that it
    gives have to be as in the set-up.

    Parameters
    ----------
    client : Client, optional
        Kept for the life of the process, as its arrays, and so this memory, are. By default that of
        :func:`caid.default_client`.
    memory : {"device", "legacy"}, optional
        As for :meth:`caid.Client.create`. By default "device".
    pool : str, optional
        Where to allocate and publish. By default the caller's own.
    **options
        For :meth:`caid.Client.arena`: ``block_size``, ``max_pending_count``, ... By
        default, what PyTorch gives back can be used again as soon as the GPU is done with it.

    Returns
    -------
    torch.cuda.memory.CUDAPluggableAllocator
        The same each time, for as long as the process lives.

    Raises
    ------
    RuntimeError
        An argument differs from the set-up of this process. Once that client is closed, or its daemon
        has gone, the next call makes a new set-up.
    NoDaemonError
        Nobody listens at the socket.
    DeviceError
        The daemon has none of the devices that PyTorch sees.
    NotFoundError, AccessError, InvalidError
        There is no such pool; the caller may not write it; there is no such kind of memory.
    """
    global _setup
    if memory is not None:
        options["memory"] = memory
    if pool is not None:
        options["pool"] = pool
    with _lock:
        if _setup is None or not _setup.is_usable:
            _setup = _set_up(client, options)
        else:
            _check_same(_setup, client, options)
        return _the_allocator()


def _the_allocator():
    """PyTorch's allocator object. PyTorch's pools have a plain pointer into it, and may end after all modules:
    so it is made once, and never freed."""
    global _allocator
    if _allocator is None:
        made = torch.cuda.memory.CUDAPluggableAllocator(
            _caid.__file__, "caid_torch_malloc", "caid_torch_free"
        )
        _caid.torch_keep((made, made.allocator()))
        _allocator = made
    return _allocator


def _set_up(client, options):
    options = {"memory": "device", "pool": None, "max_pending_count": 0, **options}
    client = _resource.client_of(client, options)
    arenas = _make_arenas(client, options)
    for ordinal, arena in arenas.items():
        _caid.torch_set(ordinal, arena)
    return _Setup(os.getpid(), client, options, arenas)


def _make_arenas(client, options):
    """Makes an arena for each device that both PyTorch and the daemon have. They have no memory yet."""
    arenas = {}
    for ordinal in range(torch.cuda.device_count()):
        with contextlib.suppress(DeviceError):
            arenas[ordinal] = _resource.arena_on(client, ordinal, None, options)
    if not arenas:
        raise device_error(
            f"the daemon has none of the {torch.cuda.device_count()} CUDA devices that PyTorch sees"
        )
    return arenas


def _check_same(setup, client, options):
    """Raises RuntimeError if an argument that was given differs from the set-up."""
    if client is not None and client is not setup.client:
        raise RuntimeError(f"caid.torch uses {setup.client!r} in this process already")
    other = {name: value for name, value in options.items() if setup.options.get(name) != value}
    if other:
        have = setup.options
        raise RuntimeError(f"caid.torch is set up with {have} in this process, not with {other}")


class MemPool(torch.cuda.MemPool):
    """A pool of PyTorch's, for ``torch.cuda.use_mem_pool()``, whose memory is caid's.

    Parameters
    ----------
    client, memory, pool
        See :func:`allocator`, which also takes options of the arenas: call it first for these.
    **options
        Of ``torch.cuda.MemPool``: ``use_on_oom``, ``no_split``.

    Notes
    -----
    If caid has no memory left, PyTorch raises ``torch.OutOfMemoryError``, also if the reason is a quota
    or a daemon that has gone: :func:`last_error` tells the reason.

    As every ``torch.cuda.MemPool``, it is of the device that is current when it is made. It keeps
    memory that its tensors leave for its later tensors, and gives it back when it and its tensors are
    gone.

    A pool whose daemon has gone works again when the next call of this or of :func:`allocator` has made
    a new set-up: what it allocates from then on is the new daemon's.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        memory: ArenaMemory | None = None,
        pool: str | None = None,
        **options: Any,
    ):
        super().__init__(allocator(client, memory=memory, pool=pool).allocator(), **options)


def last_error() -> Error | None:
    """The error of the last allocation or free that has failed since the previous call, or None. PyTorch does
    not get the reason."""
    return _caid.torch_error()


def arena(device: Any = None) -> _arena.Arena:
    """The arena of a device, for its figures and ``trim()``. `device` is what PyTorch takes for one; by default
    the current device.

    Raises
    ------
    DeviceError
        There is no arena on that device: see allocator().
    """
    ordinal = _ordinal(device)
    found = _arena_of(ordinal)
    if found is None:
        raise device_error(f"caid.torch has no arena on CUDA device {ordinal}: see MemPool()")
    return found


def _ordinal(device):
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def _arena_of(ordinal):
    setup = _setup
    if setup is None or setup.process != os.getpid():
        return None
    return setup.arenas.get(ordinal)


# --- publishing -----------------------------------------------------------------------------


def publish(
    name: str, tensor: torch.Tensor, *, stream: Any = None, metadata: Any = None
) -> int:
    """Puts a tensor that was made in a :class:`MemPool`, or a view of one, under a name of its pool, at
    once and without a copy. Parameters, result and errors are those of :meth:`caid.Arena.publish`; also
    ValueError: the tensor lies elsewhere; and TypeError: it is not dense, or caid lacks its type.

    Readers share the tensor's memory, and see later writes. It is used for nothing else meanwhile, even after
    this process has exited. Without `stream`, PyTorch's current stream of the tensor's device is waited for.
    """
    shown = _Shown(tensor)
    arena = _arena_with(tensor)
    if stream is None:
        stream = torch.cuda.current_stream(tensor.device)
    return arena.publish(name, shown, stream=_any_stream.handle(stream), metadata=metadata)


def _label(tensor):
    return f"a tensor {tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}"


def _arena_with(tensor):
    arena = _arena_of(tensor.device.index) if tensor.device.type == "cuda" else None
    if arena is not None and (not tensor.numel() or arena._has(tensor.data_ptr())):
        return arena
    raise ValueError(
        f"{_label(tensor)} is not in caid's memory: make it in torch.cuda.use_mem_pool("
        "caid.torch.MemPool()), or copy it into one that was"
    )


_BYTES = {1: "uint8", 2: "uint16", 4: "int32", 8: "int64", 16: "complex128"}
_ELEMENTS = _torch_types.elements(torch)


class _Shown:
    """A tensor's CUDA Array Interface, which keeps the tensor's memory. PyTorch's own refuses tensors that
    require a gradient."""

    __slots__ = ("__cuda_array_interface__", "_caid_element", "tensor")

    def __init__(self, tensor):
        _check_dense(tensor)
        self.tensor = tensor.detach()
        size = self.tensor.element_size()
        self._caid_element = _element(tensor)
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": self._caid_element.typestr,
            "data": (self.tensor.data_ptr(), False),
            "strides": None
            if tensor.is_contiguous()
            else tuple(step * size for step in tensor.stride()),
            "version": 3,
        }


def _check_dense(tensor):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a torch.Tensor is needed, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(
            f"{_label(tensor)} is {tensor.layout}: its parts have to be published one by one"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(
            f"{_label(tensor)} is yet to be conjugated or negated: resolve_conj(), resolve_neg()"
        )


def _element(tensor):
    element = _ELEMENTS.get(tensor.dtype)
    if element is None:
        same = _BYTES.get(tensor.element_size())
        how = f": publish its view(torch.{same}), and let readers view that" if same else ""
        raise TypeError(f"caid has no word for {tensor.dtype}{how}")
    return element
