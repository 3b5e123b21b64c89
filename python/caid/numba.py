# SPDX-License-Identifier: Apache-2.0
"""Numba's device memory from caid: an External Memory Management plugin for Numba (0.56 and later),
numba-cuda (0.20 and later) and Numba-CUDA-MLIR (0.6 and later; the package numba_cuda_mlir), which
may be used side by side. ``NUMBA_CUDA_MEMORY_MANAGER=caid.numba`` sets it, or, before the first
context, ``cuda.set_memory_manager(caid.numba.MemoryManager)``. docs/NUMBA.md has the rest.

Numba makes one MemoryManager for each context. A manager has a client and an arena of its own
(_Source), from its first allocation until reset(), and may have others afterwards. An allocation
lives as long as Numba's pointer to it, or a view of that, does. Its block lives as long as the
process has it mapped: so arrays outlive the daemon and, unusable, the reset.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import operator
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Iterator

import numpy

from ._base._errors import (
    DisconnectedError, Error, InvalidError, NO_ROOM, NoDaemonError, invalid, unsupported,
)
from ._base import _imports
from ._base._lifetime import attribute
from ._handoff import _any_stream
from ._interfaces import _numba_ipc
from ._session._default import _Default

if TYPE_CHECKING:
    from ._memory._arena import Arena

# The libraries, in the order in which they are looked for.
_DRIVERS = ("numba.cuda.cudadrv.driver", "numba_cuda_mlir.numba_cuda.cudadrv.driver")


def _installed():
    return [name for name in _DRIVERS if importlib.util.find_spec(name.partition(".")[0])]


if not _installed():
    raise ImportError("caid.numba: neither Numba nor numba_cuda_mlir is installed")

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LARGEST_BLOCK = 1 << 40
_INVALID_VALUE, _OUT_OF_MEMORY = 1, 2  # of CUDA


class _Library:
    """The classes that a manager needs from the driver module of its context's library."""

    def __init__(self, name, driver):
        if not hasattr(driver, "HostOnlyCUDAMemoryManager"):
            raise ImportError("caid.numba: Numba's CUDA simulator has no device memory")
        self.name, self.driver = name, driver
        self.Memory = type("Memory", (Memory, driver.MemoryPointer), {"__module__": __name__})
        # Pointers are of NVIDIA's bindings, except in a classic Numba that was not told to use them.
        if getattr(driver, "USE_NV_BINDING", True):
            self.pointer, self._code = driver.binding.CUdeviceptr, driver.binding.CUresult
        else:
            self.pointer, self._code = driver.drvapi.cu_device_ptr, int
        self.IpcHandle = type("IpcHandle", (IpcHandle, driver.IpcHandle), {"__module__": __name__})
        self.IpcHandle._library = self
        driver._CudaIpcImpl = _numba_ipc.implementation(self)

    @functools.lru_cache(maxsize=None)
    def manager(self, cls):
        """A subclass of `cls`, a MemoryManager, and of the library's base classes."""
        bases = cls, self.driver.GetIpcHandleMixin, self.driver.HostOnlyCUDAMemoryManager
        return type(cls.__name__, bases, {"__module__": cls.__module__, "__doc__": cls.__doc__})

    def error(self, code, message):
        return self.driver.CudaAPIError(self._code(code), f"caid: {message}")

    def ipc_handle(self, handle):
        if self._code is int:
            return self.driver.drvapi.cu_ipc_mem_handle.from_buffer_copy(handle)
        made = self.driver.binding.CUipcMemHandle()
        made.reserved = handle
        return made

    def bytes_of(self, handle):
        """The 64 bytes of one of the library's handles."""
        return bytes(handle) if self._code is int else bytes(handle.reserved)


@functools.lru_cache(maxsize=None)
def _library(name):
    return _Library(name, importlib.import_module(name))


def _library_of(context):
    """The library of a context; without a context the one that the program has imported."""
    if context is not None:
        return _library(context.__class__.__module__)
    return _library(min(_installed(), key=lambda name: name not in sys.modules))


class Memory:
    """A MemoryPointer of the library, which memalloc() returns. It owns itself, so that Numba counts its
    views, which keep it. The allocation ends with it; no finalizer is needed."""

    allocation: Any  # caid.Allocation
    ticket: _numba_ipc.Ticket | None = None  # for other processes, once a handle was asked for

    def free(self) -> None:
        """Frees the memory now. Arrays that still have it must not be used."""
        if self.allocation is None:
            raise RuntimeError("Freeing dead memory")
        self.allocation = self.ticket = None


class IpcHandle:
    """An IpcHandle of the library, which get_ipc_handle() returns for memory of the kind "device", with a
    ticket in place of CUDA's 64 bytes. It can be pickled by any means."""

    _library: _Library
    handle: Any
    size: int
    source_info: Any
    offset: int

    def __reduce__(self) -> Any:
        handle = self._library.bytes_of(self.handle)
        return _arrived, (self._library.name, handle, self.size, self.source_info, self.offset)


def _arrived(library, handle, size, source_info, offset):
    """The IpcHandle in the process to which it was sent."""
    library = _library(library)
    return library.IpcHandle(None, library.ipc_handle(handle), size, source_info, offset)


class _Source:
    """A client of the daemon and its arena, for one device."""

    def __init__(self, ordinal, memory, pool, block_size):
        self.client = _Default()  # ends with the process, without a warning
        self._held = None
        try:
            self.device = self.client._find_device(ordinal)
            if memory not in self.client.devices[self.device].kinds:
                raise unsupported(
                    f"device {ordinal} has no {memory!r} memory: memory / CAID_NUMBA_MEMORY"
                )
            self.arena: Arena = self.client.arena(
                self.device, memory=memory, pool=pool, block_size=block_size
            )
        except BaseException:
            self.client.close()
            raise

    def hold(self):
        """Nothing is freed until let_go(): neither here nor at the daemon, which may be gone."""
        if self._held is None:
            with contextlib.ExitStack() as stack:
                stack.enter_context(self.arena.defer_cleanup())
                with contextlib.suppress(DisconnectedError):
                    stack.enter_context(self.client.defer_cleanup())
                self._held = stack.pop_all()

    def let_go(self):
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def free_bytes(self):
        """Bytes that an allocation could get from the arena, and from the empty blocks that caid keeps."""
        info = attribute(self.arena, "info")
        free = max(info.bytes - info.allocated - info.draining_bytes, 0)
        with contextlib.suppress(DisconnectedError):
            free += self.client.memory_info(self.device).reserve
        return free

    def close(self):
        """Ends all allocations, and waits for the GPU: the end of the context may follow."""
        try:
            self.let_go()
            self.arena._end()
        finally:
            self.client.close()


class Deallocations:
    """What waits to be freed, with the interface of Numba's own queue: host and managed memory in a queue of
    Numba's, and device memory in the arena's. Each queue has the limits for itself."""

    def __init__(self, host: Any):
        self._host = host
        self._lock = threading.RLock()  # the source, and whether it is held
        self.source: _Source | None = None

    def add_item(self, dtor: Any, handle: Any, *size: int) -> None:
        """Adds host memory: Numba's finalizers call this."""
        self._host.add_item(dtor, handle, *size)

    def clear(self) -> None:
        """Frees all that waits, unless disabled."""
        try:
            self._host.clear()
        finally:
            source = self.source
            if source is not None:
                source.arena.flush()

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """Nothing is freed meanwhile. May be nested; its end frees nothing by itself."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._settle)  # after the end of Numba's own
            stack.enter_context(self._host.disable())
            self._settle()
            yield

    def use(self, source: _Source | None) -> None:
        with self._lock:
            self.source = source
            self._settle()

    def _settle(self):
        """Holds or releases the source, as the deferral says now."""
        with self._lock:
            if self.source is None:
                return
            if self.is_disabled:
                self.source.hold()
            else:
                self.source.let_go()

    @property
    def is_disabled(self) -> bool:
        return self._host.is_disabled

    def __len__(self):
        return len(self._host) + self._pending()[0]

    @property
    def _size(self):
        return self._host._size + self._pending()[1]

    @property
    def _max_pending_bytes(self):
        return self._host._max_pending_bytes

    @property
    def n_host(self) -> int:
        """int: entries of Numba's own queue."""
        return len(self._host)

    @property
    def memory_capacity(self) -> int:
        """int: bytes of which the ratio is taken."""
        return self._host.memory_capacity

    @memory_capacity.setter
    def memory_capacity(self, capacity):
        self._host.memory_capacity = capacity

    def _pending(self):
        """(entries, bytes) that wait in the arena."""
        source = self.source
        return (0, 0) if source is None else source.arena.pending


class MemoryManager:
    """Numba's memory manager: device memory is caid's; page-locked host memory and managed memory,
    which one process has alone, stay with Numba. An instance is of a subclass that also derives from
    HostOnlyCUDAMemoryManager of its context's library.

    Attributes
    ----------
    memory : str
        "device", the default; or "legacy", whose handles any process can open by CUDA alone, if the pool
        may have such memory.
    pool : str or None
        The pool that the blocks are leased from; None: the user's own.
    block_size : int
        Bytes leased at a time, up to 2^40; 0: the arena's default.

    Notes
    -----
    A subclass may set them. For each that is None, the environment is read when the manager is made:
    ``CAID_NUMBA_MEMORY``, ``CAID_NUMBA_POOL``, ``CAID_NUMBA_BLOCK_SIZE``.
    """

    memory: str | None = None
    pool: str | None = None
    block_size: int | None = None

    def __new__(cls, *args: Any, context: Any = None, **kwargs: Any) -> MemoryManager:
        library = _library_of(context)
        made = object.__new__(library.manager(cls))
        made._library, made._config = library, library.driver.config
        return made

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.memory, self.pool, self.block_size = _read_options(type(self))
        self.deallocations = Deallocations(self.deallocations)
        self._lock = threading.RLock()  # making and ending the source
        self._forget()
        if self.context is not None:  # none where set_memory_manager() only looks
            self._proxy = weakref.proxy(self.context)

    def _forget(self):
        self._alloc = self._first_alloc
        self._limits = None  # of Numba's configuration, that the arena has been told
        self.deallocations.use(None)

    # --- where the memory comes from ----------------------------------------------------------

    @property
    def source(self) -> _Source:
        """The client and arena of this manager, which are made if there are none."""
        with self._lock:
            if self.deallocations.source is None:
                ordinal = int(self.context.device.id)
                source = _connect(ordinal, self.memory, self.pool, self.block_size)
                self.deallocations.use(source)
                self._alloc = source.arena._alloc
            return self.deallocations.source

    @property
    def arena(self) -> Arena:
        """caid.Arena: that of this manager, until reset()."""
        return self.source.arena

    def _first_alloc(self, nbytes):
        return self.source.arena._alloc(nbytes)

    def _set_limits(self, limits):
        """Numba reads its limits at every free; here they are read at every allocation."""
        count, ratio = limits
        capacity = int(self.deallocations.memory_capacity)
        self.source.arena._set_limits(max(count, 0), ratio, capacity)
        self._limits = limits

    # --- what Numba calls ---------------------------------------------------------------------

    def initialize(self) -> None:
        """Called often. The daemon is not asked for anything before the first allocation."""
        if not self.deallocations.memory_capacity:
            self.deallocations.memory_capacity = self._info_of_driver().total

    def _info_of_driver(self):
        return self._library.driver.NumbaCUDAMemoryManager.get_memory_info(self)

    def memalloc(self, size: int) -> Memory:
        """Device memory.

        Raises
        ------
        CudaAPIError
            The device is out of memory, or a quota or limit of caid is reached; or `size` is not valid. The
            code is CUDA's.
        NoDaemonError, DisconnectedError
            There is no daemon to ask for memory, and none is left in the leased blocks.
        DeviceError, UnsupportedError
            The daemon does not have the device, or no such kind of memory on it.
        NotFoundError, AccessError
            There is no such pool; the caller may not write it; or it may not have "legacy" memory.
        """
        limits = self._config.CUDA_DEALLOCS_COUNT, self._config.CUDA_DEALLOCS_RATIO
        try:
            if limits != self._limits:
                self._set_limits(limits)
            allocation = self._alloc(size)
        except Error as e:
            allocation = self._alloc_otherwise(size, e)
        library = self._library
        memory = library.Memory(self._proxy, library.pointer(allocation.ptr), size)
        memory.allocation = allocation
        return memory

    def _alloc_otherwise(self, size, error):
        """The arena has tried twice. What waits in Numba's own queue may be device memory, too."""
        if isinstance(error, NO_ROOM) and self.deallocations.n_host:
            self.deallocations.clear()
            try:
                return self._alloc(size)
            except NO_ROOM as e:
                error = e
        if isinstance(error, NO_ROOM):
            raise self._library.error(_OUT_OF_MEMORY, error) from error
        if isinstance(error, InvalidError) and not 0 <= size < 1 << 64:
            code = _INVALID_VALUE if size < 0 else _OUT_OF_MEMORY
            raise self._library.error(code, error) from error
        if isinstance(error, DisconnectedError):
            advice = "arrays that exist stay usable; for new ones, reset the context once caid is back"
            raise DisconnectedError(error.errno, f"{error}: {advice}") from error
        raise error

    def get_memory_info(self) -> Any:
        """(free, total) bytes. What is free in the arena, and what caid keeps in reserve, counts as free.
        Until there is an arena, only the driver is asked."""
        info = self._info_of_driver()
        source = self.deallocations.source
        if source is not None:
            info = info._replace(free=min(info.free + source.free_bytes(), info.total))
        return info

    def get_ipc_handle(self, memory: Any) -> Any:
        """A handle for other processes. For memory of the kind "device" it is a ticket, which a process can open
        that imports :mod:`caid.numba` or unpickles the handle. The ticket lasts as long as the handle or the array
        does in this process, and for ``ticket_ttl`` of caid.conf(5) after this process has ended. Before it is
        given, the work of the context is waited for. For "legacy" memory it is CUDA's handle, which any library
        can open; a process that has it may write all that lies in the same block of the arena.

        Raises
        ------
        LimitError, QuotaError
            The user has reached the limit of leases.
        """
        if not self._has(memory):  # managed memory, or that of another library: Numba's way
            return super().get_ipc_handle(memory)
        library, identity = self._library, self.context.device.get_device_identity()
        if self.memory == "device":
            ticket = self._ticket_of(memory)
            handle = library.ipc_handle(ticket.handle)
            offset = memory.device_pointer_value - ticket.start
            return library.IpcHandle(memory, handle, memory.size, identity, offset=offset)
        found = self.arena.ipc_handle(memory.device_pointer_value)
        handle = library.ipc_handle(found.handle)
        return library.driver.IpcHandle(memory, handle, memory.size, identity, offset=found.offset)

    def _ticket_of(self, memory):
        """The allocation's one ticket; of an array that has come by way of another library, its pointer's."""
        holder = memory.owner if isinstance(memory.owner, Memory) else memory
        ticket = getattr(holder, "ticket", None)
        if ticket is None:
            ticket = holder.ticket = _numba_ipc.Ticket(self.arena, memory.device_pointer_value)
        else:
            self.context.synchronize()  # as a new ticket does
        return ticket

    def reset(self) -> None:
        """Ends all memory, if there is any. The next allocation makes a new client and arena."""
        try:
            super().reset()
        finally:
            with self._lock:
                source = self.deallocations.source
                self._forget()
            if source is not None:
                source.close()

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """Nothing is freed meanwhile: host memory, the arena's, and the user's at the daemon."""
        with super().defer_cleanup():  # by Deallocations.disable()
            yield

    @property
    def interface_version(self) -> int:
        return 1

    # --- beyond Numba ---------------------------------------------------------------------------

    def publish(self, name: str, array: Any, *, metadata: Any = None, stream: Any = None) -> int:
        """:func:`caid.numba.publish` of an array of this manager's."""
        if array.size > 0 and not self._has(array.gpu_data):
            raise invalid(f"array {name!r}: {_why_elsewhere(array)}")
        if stream is not None:
            stream = self._stream_number(stream)
        return self.arena.publish(name, _Described(array), metadata=metadata, stream=stream)

    def _has(self, memory):
        source, address = self.deallocations.source, memory.device_pointer_value
        return source is not None and address is not None and source.arena._has(address)

    def _stream_number(self, stream):
        """0 is Numba's default stream, which its environment may make the per-thread one."""
        if _any_stream.is_default(stream):
            stream = self.context.get_default_stream()
        return _any_stream.handle(stream)


_numba_memory_manager = MemoryManager


def _register(driver):
    if hasattr(driver, "BaseCUDAMemoryManager"):  # not Numba's simulator
        driver.BaseCUDAMemoryManager.register(MemoryManager)


for _name in _DRIVERS:
    _imports.when_imported(_name, _register)


def publish(name: str, array: Any, *, metadata: Any = None, stream: Any = None) -> int:
    """Puts a Numba array, a slice of one, or a record, under a name of the manager's pool, at once and without
    a copy. Parameters, result and errors are those of :meth:`caid.Arena.publish`; also TypeError: it is no
    device array of Numba, or caid is not the manager of its context; and InvalidError: its memory ended with
    cuda.close() or reset().

    `stream` is the one on which the array was written (0 is Numba's default stream). Without it, all work of the
    context is waited for, whatever stream the array was made on.
    """
    context = getattr(getattr(array, "gpu_data", None), "context", None)
    if context is None:
        raise TypeError(f"{type(array).__name__} is no device array of Numba's")
    try:
        manager = context.memory_manager
    except ReferenceError:  # Numba's arrays do not keep it
        raise invalid(f"array {name!r}: its context is gone") from None
    if not isinstance(manager, MemoryManager):
        raise TypeError(
            f"the array is memory of {type(manager).__name__}'s: set "
            "NUMBA_CUDA_MEMORY_MANAGER=caid.numba"
        )
    return manager.publish(name, array, metadata=metadata, stream=stream)


# --- helpers ----------------------------------------------------------------------------------


class _Described:
    """An array's CUDA Array Interface, with the fields of its records and without a stream: Numba names the
    one that the array was made on, whichever it was written on since."""

    def __init__(self, array):
        self.array = array

    @property
    def __cuda_array_interface__(self):
        described = {**self.array.__cuda_array_interface__, "stream": None}
        if self.array.dtype.names:
            described["descr"] = self.array.dtype.descr
        return described


def _why_elsewhere(array):
    if isinstance(getattr(array.gpu_data, "owner", None), Memory):
        return "its memory ended with cuda.close() or reset(): make it anew"
    if isinstance(array, numpy.ndarray):
        return "mapped and managed memory is not caid's: copy it, cuda.to_device(numpy.array(x))"
    return "it is memory of another library: copy it, as by cuda.to_device(x.copy_to_host())"


def _read_options(cls):
    """(memory, pool, block size) as the class has them, or else the environment."""
    memory = cls.memory or os.environ.get("CAID_NUMBA_MEMORY") or "device"
    if memory not in ("legacy", "device"):
        raise invalid(f'memory / CAID_NUMBA_MEMORY is {memory!r}: "legacy" or "device"')
    pool = cls.pool or os.environ.get("CAID_NUMBA_POOL") or None
    if not isinstance(pool, (str, type(None))):
        raise invalid(f"pool / CAID_NUMBA_POOL is {pool!r}: the name of a pool")
    block_size = cls.block_size
    if block_size is None:
        block_size = os.environ.get("CAID_NUMBA_BLOCK_SIZE") or "0"
        return memory, pool, _checked_size(block_size, _bytes_of(block_size))
    return memory, pool, _checked_size(block_size, block_size)


def _checked_size(given, size):
    try:
        size = operator.index(size)
    except TypeError:
        size = -1
    if not 0 <= size <= _LARGEST_BLOCK:
        raise invalid(
            f"block_size / CAID_NUMBA_BLOCK_SIZE is {given!r}: bytes, from 0 to 2^40; in the "
            "environment also as 64M"
        )
    return size


def _bytes_of(text):
    """The size that a text says; None if it says none."""
    digits, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20:  # int() refuses thousands
        return None
    return int(digits) * _UNITS.get(unit, 1)


def _connect(ordinal, *options):
    try:
        return _Source(ordinal, *options)
    except NoDaemonError as e:
        advice = "start caid, or set CAID_SOCKET, or leave Numba its own memory manager"
        raise NoDaemonError(e.errno, f"{e}: {advice}") from e
