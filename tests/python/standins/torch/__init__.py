# SPDX-License-Identifier: Apache-2.0
"""A stand-in for PyTorch on a CPU, where that is not installed: as much of it as caid.vllm uses, on NumPy."""

import sys
import types

import numpy

__version__ = "0 (a stand-in)"
strided = "torch.strided"
OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})
_C = types.SimpleNamespace()
version = types.SimpleNamespace(cuda=None)
cuda = types.SimpleNamespace(
    is_available=lambda: False, is_initialized=lambda: False, current_device=lambda: 0, get_device_properties=None
)
_devices = ["cpu"]


class dtype(str):
    itemsize = property(lambda self: _numpys[self].itemsize)


_numpys = {
    name: numpy.dtype(name) for name in ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64")
}
_numpys["bfloat16"] = numpy.dtype("u2")  # its bits
globals().update({name: dtype(name) for name in _numpys})
_default = [dtype("float32")]


class device(str):
    """Also a block in which tensors are made on it."""

    type = property(lambda self: self.partition(":")[0])

    def __enter__(self):
        _devices.append(self)

    def __exit__(self, *_):
        _devices.pop()


class Tensor:
    __slots__ = "_memory", "dtype", "device"
    layout = strided

    def __init__(self, memory, dtype, device="cpu"):
        self._memory, self.dtype, self.device = memory, dtype, globals()["device"](device)

    shape = property(lambda self: self._memory.shape)
    ndim = property(lambda self: self._memory.ndim)
    nbytes = property(lambda self: self._memory.nbytes)
    is_meta = property(lambda self: self.device == "meta")

    @property
    def data(self):
        return Tensor(self._memory, self.dtype, self.device)

    @data.setter
    def data(self, other):
        self._memory, self.dtype, self.device = other._memory, other.dtype, other.device

    def numel(self):
        return self._memory.size

    def data_ptr(self):
        return self._memory.ctypes.data

    def stride(self):
        return tuple(step // self.dtype.itemsize for step in self._memory.strides)

    def clone(self):
        return Tensor(self._memory.copy(), self.dtype, self.device)

    def to(self, device, copy=False):
        return self.clone() if copy else self

    def view(self, what):
        if isinstance(what, dtype):
            return Tensor(self._memory.view(_numpys[what]), what)
        return Tensor(self._memory.reshape(what), self.dtype)

    def as_strided(self, shape, steps, start):
        strides = tuple(step * self.dtype.itemsize for step in steps)
        return Tensor(numpy.lib.stride_tricks.as_strided(self._memory[start:], shape, strides), self.dtype)

    def unbind(self):
        return [Tensor(row, self.dtype) for row in self._memory]

    def __getitem__(self, some):
        return Tensor(self._memory[some], self.dtype)

    def copy_(self, other):
        assert self.shape == other.shape
        self._memory[...] = other._memory

    def fill_(self, value):
        self._memory[...] = value

    def numpy(self):
        return self._memory


def from_numpy(array):
    return Tensor(array, dtype(array.dtype.name))


def from_dlpack(array):
    return from_numpy(numpy.from_dlpack(array))


def frombuffer(buffer, dtype):
    return Tensor(numpy.frombuffer(buffer, _numpys[dtype]), dtype)


def empty(shape, dtype=None, device=None):
    dtype, device = dtype or _default[0], device or _devices[-1]
    memory = numpy.lib.stride_tricks.as_strided(numpy.zeros(1, _numpys[dtype]), shape, (0,) * len(shape))
    return Tensor(memory if device == "meta" else numpy.empty(shape, _numpys[dtype]), dtype, device)


def get_default_dtype():
    return _default[0]


def set_default_dtype(name):
    _default[0] = dtype(name)


class Parameter(Tensor):
    def __init__(self, tensor, requires_grad=True):
        super().__init__(tensor._memory, tensor.dtype, tensor.device)


class Module:
    def __init__(self):
        for kind in "_parameters", "_buffers", "_modules":
            self.__dict__[kind] = {}
        self._non_persistent_buffers_set = set()

    def __setattr__(self, name, value):
        if isinstance(value, (Parameter, Module)):
            (self._parameters if isinstance(value, Parameter) else self._modules)[name] = value
        elif name in self._buffers or name in self._parameters:
            (self._buffers if name in self._buffers else self._parameters)[name] = value
        else:
            self.__dict__[name] = value

    def __getattr__(self, name):
        for kind in "_parameters", "_buffers", "_modules":
            if name in self.__dict__[kind]:
                return self.__dict__[kind][name]
        raise AttributeError(name)

    def register_parameter(self, name, tensor):
        self._parameters[name] = tensor

    def register_buffer(self, name, tensor, persistent=True):
        self._buffers[name] = tensor
        (self._non_persistent_buffers_set.discard if persistent else self._non_persistent_buffers_set.add)(name)

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self):
        return (module for _, module in self.named_modules())

    def eval(self):
        return self


nn = types.ModuleType("torch.nn")
nn.Module, nn.Parameter, nn.functional = Module, Parameter, types.SimpleNamespace(linear="torch.nn.functional.linear")
sys.modules["torch.nn"] = nn
