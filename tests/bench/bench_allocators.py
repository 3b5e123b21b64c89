# SPDX-License-Identifier: Apache-2.0
"""Allocating 1 MiB and freeing it again, warm: by Numba, CuPy, PyTorch and RMM with memory of their own
and with caid's. All take turns, in short rounds, in one process; a round's figure is its mean, and what is
printed are the medians of the rounds. A library that is not installed or does not run here is left out, with the
reason.

usage: bench_allocators.py SOCKET
"""

import contextlib
import itertools
import os
import statistics
import sys
import time

ROUNDS, PER_ROUND = 100, 1000
MIB = 1 << 20

# (what, against what, goal)
GOALS = (
    ("numba, caid.numba", "cupy, its own pool", 2.0),
    ("torch, caid.torch.MemPool", "torch, its own cache", 1.5),
    ("rmm, caid.rmm", "rmm, its asynchronous resource", 1.5),
)


def arena_rows(client):
    arena = client.arena()
    raw = arena._alloc
    yield "arena, _caid", lambda: raw(MIB)
    yield "arena, caid.Arena", lambda: arena.allocate(MIB)


def numba_rows(_client):
    import numpy

    if not hasattr(numpy, "row_stack"):  # numba-cuda 0.30 wants it; NumPy 2.5 has dropped it
        numpy.row_stack = numpy.vstack
    from numba import cuda
    from numba.cuda.cudadrv import driver

    context = cuda.current_context()
    plugin = context.memory_manager
    assert type(plugin).__module__ == "caid.numba", plugin
    own = driver.NumbaCUDAMemoryManager(context=context)
    own.initialize()
    yield "numba, its own", lambda: own.memalloc(MIB)
    yield "numba, caid.numba", lambda: plugin.memalloc(MIB)
    yield "numba, caid.numba, device_array", lambda: cuda.device_array(MIB, "u1")


def cupy_rows(client):
    import cupy

    import caid.cupy

    def by(malloc):
        return lambda: cupy.cuda.using_allocator(malloc)

    direct = caid.cupy.Allocator(client).malloc
    pooled = cupy.cuda.MemoryPool(caid.cupy.Allocator(client).malloc).malloc
    own = cupy.cuda.MemoryPool().malloc
    cupy.empty(1)
    make = lambda: cupy.empty(MIB, "u1")  # noqa: E731
    yield "cupy, its own pool", make, by(own)
    yield "cupy, caid.cupy.Allocator", make, by(direct)
    yield "cupy, MemoryPool on caid.cupy.Allocator", make, by(pooled)


def torch_rows(client):
    import torch

    import caid.torch

    pool = caid.torch.MemPool(client)

    make = lambda: torch.empty(MIB, dtype=torch.uint8, device="cuda")  # noqa: E731
    make()
    yield "torch, its own cache", make
    yield "torch, caid.torch.MemPool", make, lambda: torch.cuda.use_mem_pool(pool)


def rmm_rows(client):
    import rmm

    import caid.rmm

    direct = caid.rmm.MemoryResource(client)
    pooled = rmm.mr.PoolMemoryResource(caid.rmm.MemoryResource(client), initial_pool_size=4 * MIB)
    own = rmm.mr.CudaAsyncMemoryResource()
    for name, resource in (("its asynchronous resource", own), ("caid.rmm", direct), ("PoolMemoryResource on caid.rmm", pooled)):
        yield f"rmm, {name}", lambda mr=resource: rmm.DeviceBuffer(size=MIB, mr=mr)


class Row:
    """Something that allocates: what it gives is freed when it is dropped."""

    def __init__(self, name, make, within=contextlib.nullcontext):
        self.name, self.make, self.within = name, make, within
        self.rounds = []
        self.run()
        self.rounds.clear()

    def run(self):
        with self.within():
            self.rounds.append(mean_us(self.make))

    @property
    def median(self):
        return statistics.median(self.rounds)


def mean_us(make):
    start = time.perf_counter_ns()
    for _ in itertools.repeat(None, PER_ROUND):
        make()
    return (time.perf_counter_ns() - start) / PER_ROUND / 1e3


def rows(client):
    for library in arena_rows, numba_rows, cupy_rows, torch_rows, rmm_rows:
        try:
            yield from [Row(*row) for row in library(client)]
        except Exception as e:
            name = library.__name__.partition("_")[0]
            print(f"{name}: left out ({type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''})")


def main(socket):
    os.environ.update(CAID_SOCKET=socket, NUMBA_CUDA_MEMORY_MANAGER="caid.numba")
    import caid

    with caid.connect() as client:
        found = {row.name: row for row in rows(client)}
        for _ in range(ROUNDS):
            for row in found.values():
                row.run()
        print(f"allocating and freeing 1 MiB, means of {PER_ROUND}, medians of {ROUNDS}:")
        for row in found.values():
            print(f"  {row.name:40} {row.median:7.3f} us")
        for what, against, goal in GOALS:
            if what in found and against in found:
                ratios = [a / b for a, b in zip(found[what].rounds, found[against].rounds)]
                print(f"{what} / {against}: {statistics.median(ratios):.2f} (goal: {goal})")


if __name__ == "__main__":
    main(*sys.argv[1:])
