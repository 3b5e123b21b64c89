# SPDX-License-Identifier: Apache-2.0
"""A stand-in for PyTorch, where that is not installed: as much of it as caid.weights uses, on NumPy."""

import contextlib
import types

import numpy

from caid._base import _typestr
from caid._interfaces import _torch_types


class Dtype(str):
    itemsize = property(lambda self: element_of(self).itemsize)


def element_of(name):
    return _typestr.named(name) or _typestr.of_typestr(_torch_types._KINDS[name])


class Tensor:
    """As much of a tensor of PyTorch as is used of it, over NumPy's array of bytes."""

    def __init__(self, memory, dtype="uint8", shape=None, steps=(1,), start=0):
        self.memory, self.dtype, self.start = memory, Dtype(dtype), start
        self.shape, self.steps = memory.shape if shape is None else shape, steps

    def numel(self):
        return self.shape[0]

    def __getitem__(self, upto):
        return Tensor(self.memory[upto], self.dtype)

    def view(self, dtype):
        assert self.shape[0] % dtype.itemsize == 0
        return Tensor(self.memory, dtype, (self.shape[0] // dtype.itemsize,))

    def as_strided(self, shape, steps, start):
        return Tensor(self.memory, self.dtype, shape, steps, start)

    def unbind(self):
        (n, *shape), (step, *steps) = self.shape, self.steps
        return [Tensor(self.memory, self.dtype, tuple(shape), tuple(steps), self.start + i * step) for i in range(n)]

    data = property(lambda self: Tensor(self.memory, self.dtype, self.shape, self.steps, self.start))

    def contiguous(self):
        raw = numpy.frombuffer(bytearray(bytes_of(OWN, self)), "u1")
        made = Tensor(raw, self.dtype, self.shape)
        made.steps = tuple(numpy.empty(self.shape, "u1").strides)
        return made

    def to(self, device):
        """What is not on the CPU is a copy."""
        return self if device == "cpu" else Tensor(self.memory.copy(), self.dtype, self.shape, self.steps, self.start)

    def stride(self):
        return self.steps

    def data_ptr(self):
        return self.memory.ctypes.data + self.start * self.dtype.itemsize


def _from_dlpack(array):
    element = array._layout.element
    array.__dlpack__()  # raises for what has no type
    known = (name for name in (*_torch_types._KINDS, *_typestr.NAMED) if element_of(name) == element)
    steps = tuple(step // element.itemsize for step in array.strides)
    memory = numpy.from_dlpack(array) if array.dtype == "u1" and array.ndim == 1 else numpy.empty(0, "u1")
    return Tensor(memory, next(known), array.shape, steps)


def _foreach_copy(targets, sources):
    for target, source in zip(targets, sources):
        target.memory[:] = numpy.frombuffer(bytes_of(OWN, source), "u1")


OWN = types.ModuleType("torch")
OWN.from_dlpack, OWN.Tensor, OWN.no_grad = _from_dlpack, Tensor, contextlib.nullcontext
OWN._foreach_copy_ = _foreach_copy
OWN._C = types.SimpleNamespace()
vars(OWN).update({name: Dtype(name) for name in (*_torch_types._KINDS, *_typestr.NAMED)})


def bytes_of(torch, tensor):
    """Its elements in C order."""
    if torch is OWN:
        size = tensor.dtype.itemsize
        strides = tuple(step * size for step in tensor.steps)
        raw = numpy.ndarray(tensor.shape, f"V{size}", tensor.memory, tensor.start * size, strides)
        return raw.tobytes()
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def name_of(torch, dtype):
    return str(dtype).partition(".")[2] if torch is not OWN else dtype
