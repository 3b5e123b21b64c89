# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for CuPy and PyTorch, of which neither runs without a GPU: as much of them as caid.cupy
and caid.torch use, by the names and with the rules of their own sources. No arithmetic, no kernels.
"""

import ctypes
import functools
import sys
import types
import weakref

import numpy


def install(monkeypatch, module):
    """`module`, a stand-in, and its submodules, are what is imported from now on."""
    for name, submodule in {module.__name__: module, **submodules(module)}.items():
        monkeypatch.setitem(sys.modules, name, submodule)
    monkeypatch.delitem(sys.modules, f"caid.{module.__name__}", raising=False)
    return module


def submodules(module):
    found = {}
    for value in vars(module).values():
        if isinstance(value, types.ModuleType) and value.__name__.startswith(f"{module.__name__}."):
            found.update({value.__name__: value, **submodules(value)})
    return found


def namespace(name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    return module


class Device:
    def __init__(self, type, index):
        self.type, self.index, self.id = type, index, index

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


# --- CuPy -----------------------------------------------------------------------------------


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        self.status = status
        super().__init__(f"CUDA error {status}")


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        if device_id < 0:
            raise RuntimeError("a GPU would be asked")
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem, offset):
        assert mem.ptr != 0 or offset == 0
        self.ptr, self.mem, self.device_id = mem.ptr + offset, mem, mem.device_id


class MemoryPool:
    """As CuPy's: keeps what is freed, and gives it back when there is no memory."""

    def __init__(self, allocator):
        self._alloc, self._free = allocator, []

    def malloc(self, size):
        try:
            return self._alloc(size)
        except CUDARuntimeError as e:
            if e.status != 2:
                raise
            self._free.clear()
            return self._alloc(size)

    def keep(self, pointer):
        self._free.append(pointer)


class CupyArray:
    def __init__(self, shape, dtype, memptr, strides=None):
        self.dtype, self.shape, self.data = numpy.dtype(dtype), shape, memptr
        self._strides, self.size = strides, int(numpy.prod(shape))
        self.device = Device("cuda", memptr.device_id)

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape, "typestr": self.dtype.str, "descr": self.dtype.descr, "version": 3,
            "strides": self._strides, "data": (self.data.ptr, False), "stream": 1,
        }


class CupyStream:
    """Its default stream is 0 to CuPy."""

    def __init__(self, ptr=0):
        self.ptr = ptr


CupyStream.__module__ = "cupy.cuda.stream"


def cupy():
    """A module whose current device and stream are attributes, `ordinal` and `stream`."""
    runtime = namespace("cupy.cuda.runtime", CUDARuntimeError=CUDARuntimeError)
    cuda = namespace(
        "cupy.cuda", runtime=runtime, UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer,
        MemoryPool=MemoryPool,
    )
    made = namespace("cupy", cuda=cuda, ndarray=CupyArray, ordinal=0, stream=CupyStream())
    made.from_dlpack = lambda x: CupyArray(x.shape, x.dtype, MemoryPointer(UnownedMemory(x.ptr, 0, x, 0), 0))
    cuda.get_allocator = lambda: cuda.allocator
    cuda.set_allocator = functools.partial(setattr, cuda, "allocator")
    cuda.set_allocator(None)
    runtime.getDevice = lambda: made.ordinal
    cuda.get_current_stream = lambda device_id=-1: made.stream
    return made


# --- PyTorch --------------------------------------------------------------------------------


class PluggableAllocator:
    """Finds the two functions as torch.cuda.memory.CUDAPluggableAllocator does."""

    def __init__(self, path, alloc_name, free_name):
        library = ctypes.CDLL(path)
        of = ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
        self.malloc = declare(getattr(library, alloc_name), ctypes.c_void_p, *of)
        self.free = declare(getattr(library, free_name), None, ctypes.c_void_p, *of)

    def allocator(self):
        return self


def declare(function, result, *args):
    function.restype, function.argtypes = result, args
    return function


class MemPool:
    """Without a cache. It does not keep its allocator, as PyTorch's does not."""

    def __init__(self, allocator=None, use_on_oom=False, no_split=False):
        self._allocator, self.no_split = weakref.ref(allocator), no_split

    @property
    def allocator(self):
        allocator = self._allocator()
        assert allocator is not None, "the allocator is freed: PyTorch would crash"
        return allocator

    def storage(self, nbytes, device=0):
        return Storage(self.allocator, nbytes, device)


class Storage:
    """Freed with the object, as a tensor's is."""

    def __init__(self, allocator, nbytes, device):
        self.allocator, self.nbytes, self.device = allocator, nbytes, device
        self.ptr = allocator.malloc(nbytes, device, None)
        if self.ptr is None:
            raise MemoryError("CUDA out of memory")

    def __del__(self):
        if getattr(self, "ptr", None) is not None:
            self.allocator.free(self.ptr, self.nbytes, self.device, None)


class DType:
    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize

    def __repr__(self):
        return f"torch.{self.name}"


class Tensor:
    """Strides count elements. `lazy` is "conj" or "neg"."""

    def __init__(self, storage, shape, dtype, strides=None, offset=0, device="cuda", layout="strided",
                 requires_grad=False, lazy=None):
        self.storage, self.shape, self.dtype, self.layout = storage, shape, dtype, layout
        self._strides, self._offset, self._lazy, self.requires_grad = strides, offset, lazy, requires_grad
        self.device = Device(device, storage.device if device == "cuda" else None)

    def stride(self):
        return self._strides or tuple(
            numpy.cumprod((1, *self.shape[:0:-1]))[::-1].tolist() if self.shape else ())

    def is_contiguous(self):
        return self._strides is None

    def data_ptr(self):
        return self.storage.ptr + self._offset

    def numel(self):
        return int(numpy.prod(self.shape))

    def element_size(self):
        return self.dtype.itemsize

    def is_conj(self):
        return self._lazy == "conj"

    def is_neg(self):
        return self._lazy == "neg"

    def detach(self):
        made = Tensor.__new__(Tensor)
        vars(made).update(vars(self), requires_grad=False)
        return made

    @property
    def __cuda_array_interface__(self):
        raise AssertionError("it is for tensors that want no gradient, and tells of no bfloat16")


class TorchStream:
    """The stream that PyTorch starts with is 0."""

    def __init__(self, cuda_stream=0):
        self.cuda_stream = cuda_stream


TorchStream.__module__ = "torch.cuda.streams"

SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2,
    "float32": 4, "float64": 8, "complex64": 8, "complex128": 16, "uint16": 2, "quint8": 1,
}


def torch():
    """A module whose number of devices, current device and stream are attributes."""
    memory = namespace("torch.cuda.memory", CUDAPluggableAllocator=PluggableAllocator)
    cuda = namespace("torch.cuda", memory=memory, MemPool=MemPool)
    dtypes = {name: DType(name, size) for name, size in SIZES.items()}
    made = namespace(
        "torch", cuda=cuda, Tensor=Tensor, strided="strided", __version__="0 (a stand-in)", n_devices=1,
        ordinal=0, stream=TorchStream(), **dtypes,
    )
    cuda.device_count = lambda: made.n_devices
    cuda.current_device = lambda: made.ordinal
    cuda.current_stream = lambda device=None: made.stream
    return made


# --- RMM ------------------------------------------------------------------------------------


class RmmStream:
    """Its default stream is 0."""

    def __init__(self, number=0):
        self.number = number

    def __cuda_stream__(self):
        return 0, self.number


RmmStream.__module__ = "rmm.pylibrmm.stream"


class CallbackMemoryResource:
    """Of what the first function raises, MemoryError alone becomes std::bad_alloc, and that MemoryError."""

    def __init__(self, allocate_func, deallocate_func):
        self._allocate_func, self._deallocate_func = allocate_func, deallocate_func

    def allocate(self, nbytes, stream):
        try:
            return self._allocate_func(nbytes, stream)
        except MemoryError as e:
            raise MemoryError(f"std::bad_alloc: {e}") from e
        except Exception as e:
            raise RuntimeError(str(e)) from e


class DeviceBuffer:
    """Freed with the object, on the stream that it was made on."""

    def __init__(self, *, size, mr, stream=None):
        self.size, self.mr, self.stream = size, mr, stream or RmmStream()
        self.ptr = mr.allocate(size, self.stream)

    def __del__(self):
        if hasattr(self, "ptr"):
            self.mr._deallocate_func(self.ptr, self.size, self.stream)

    @property
    def __cuda_array_interface__(self):
        return {"data": (self.ptr, False), "shape": (self.size,), "strides": None, "typestr": "|u1", "version": 0}


def rmm():
    mr = namespace("rmm.mr", CallbackMemoryResource=CallbackMemoryResource)
    return namespace("rmm", mr=mr, DeviceBuffer=DeviceBuffer)
