# SPDX-License-Identifier: Apache-2.0
"""What frameworks_own.py adds to other projects' tests: arrays of NumPy, CuPy and PyTorch that lie in
caid's memory and are handed on by caid's DLPack, and caid's allocators. At its end the process writes
how often caid was asked to the file $CAID_TEST_FIGURES.
"""

import atexit
import functools
import os
import pathlib

import numpy

import caid
from caid._base import _typestr
from caid._memory import _array, _elements

figures = []  # a function each: how often


@atexit.register
def write_figures():
    pathlib.Path(os.environ["CAID_TEST_FIGURES"]).write_text(str(sum(figure() for figure in figures)))


@functools.lru_cache(maxsize=None)
def client():
    return caid.connect()


class Shared:
    """An array of a library's, with its _layout(): the address, strides in bytes, whether it is
    read-only."""

    n_exports = 0
    roots = []  # (first byte, end, caid's array): for the life of the process

    def __dlpack__(self, **options):
        Shared.n_exports += 1
        return self._as_caids().__dlpack__(**options)

    def __dlpack_device__(self):
        return self._as_caids().__dlpack_device__()

    def _as_caids(self):
        address, strides, readonly = self._layout()
        element, _ = _typestr.of_dtype(self.dtype)
        for first, end, root in Shared.roots:
            if first <= address < end:
                layout = _elements.Layout(root.ptr + address - first, tuple(self.shape), strides, element, readonly)
                view = _array.make(root._memory.share(), layout, root=False)
                return view if root.host_ptr else view.bind(self._stream())
        return caid.from_dlpack(self._plain())  # made of such an array, by its library


figures.append(lambda: Shared.n_exports)


def allocate(shape, dtype, memory="device"):
    root = client().empty(shape, dtype, memory=memory)
    first = root.host_ptr or root.ptr
    Shared.roots.append((first, first + max(root.nbytes, 1), root))
    return root


class NumPyArray(Shared, numpy.ndarray):
    def _layout(self):
        return self.ctypes.data, self.strides, not self.flags.writeable

    def copy(self, *args, **options):
        return of_numpy(super().copy(*args, **options), type(self))

    def astype(self, *args, **options):
        return of_numpy(super().astype(*args, **options), type(self))


def of_numpy(made, kind=NumPyArray):
    root = allocate((made.nbytes,), "u1", "pinned")
    shared = kind(made.shape, made.dtype, numpy.asarray(root)[: made.nbytes].data)
    shared[...] = made
    return shared


class NumPy:
    """The module `numpy`, for "np"."""

    ndarray = NumPyArray
    makers = ("arange", "array", "asarray", "ones", "zeros")

    def __getattr__(self, name):
        found = getattr(numpy, name)
        if name not in self.makers:
            return found
        return lambda *args, **options: of_numpy(found(*args, **options))


def of_cupy(function):
    """A function that makes arrays, in caid's memory."""
    import cupy

    class CuPyArray(Shared, cupy.ndarray):
        def _layout(self):
            return self.data.ptr, self.strides, False

        def _stream(self):
            return cupy.cuda.get_current_stream()

    def make(*args, **options):
        made = function(*args, **options)
        root = allocate(made.shape, made.dtype)
        memory = cupy.cuda.UnownedMemory(root.ptr, max(root.nbytes, 1), root)
        shared = CuPyArray(made.shape, made.dtype, cupy.cuda.MemoryPointer(memory, 0))
        shared[...] = made
        return shared

    return make


def of_torch(function):
    """The same, of tensors on a GPU."""
    import torch

    class TorchTensor(Shared, torch.Tensor):
        def _plain(self):
            return self.as_subclass(torch.Tensor)

        def _layout(self):
            return self.data_ptr(), tuple(step * self.element_size() for step in self.stride()), False

        def _stream(self):
            return torch.cuda.current_stream()

    def make(*args, **options):
        made = function(*args, **options)
        if not made.is_cuda:
            return made
        root = allocate(tuple(made.shape), made.dtype)
        shared = torch.from_dlpack(root).as_subclass(TorchTensor)
        return shared.copy_(made)

    return make


def serve_cupy():
    """CuPy allocates in caid's memory, with no pool of its own."""
    import cupy

    import caid.cupy

    allocator = caid.cupy.Allocator(client())
    cupy.cuda.set_allocator(allocator.malloc)
    figures.append(lambda: allocator.arena().info.n_allocs)


def serve_graphs_of_torch(kind="caid"):
    """What is allocated while PyTorch captures a graph is caid's, or in pools of its own kind."""
    import torch

    import caid.torch

    pools, graph = [], torch.cuda.CUDAGraph

    def new_pool():
        return caid.torch.MemPool(client()) if kind == "caid" else torch.cuda.MemPool()

    def graph_pool_handle():
        pools.append(new_pool())
        return pools[-1].id

    def capture_begin(self, pool=None, **options):
        self.pool_of_its_own = new_pool() if pool is None else None
        return begin(self, pool or self.pool_of_its_own.id, **options)

    begin, graph.capture_begin = graph.capture_begin, capture_begin
    torch.cuda.graph_pool_handle = torch.cuda.graphs.graph_pool_handle = graph_pool_handle
    if kind == "caid":
        figures.append(lambda: caid.torch.arena().info.n_allocs)
