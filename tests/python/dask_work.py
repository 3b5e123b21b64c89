# SPDX-License-Identifier: Apache-2.0
"""What test_dask.py runs at Dask's workers, which import little."""

import gc
import random
import sys
import time

import caid
import distributed
import frameworks
import numpy
from engines import driver_calls


class Counts(distributed.WorkerPlugin):
    """What a worker writes to others, in bytes."""

    name = "counts"

    def setup(self, worker):
        from distributed.comm.tcp import TCP

        worker.written, write = 0, TCP.write

        async def counted(comm, *args, **options):
            n = await write(comm, *args, **options)
            worker.written += n
            return n

        TCP.write = counted


def make(n, value=1):
    with caid.default_client().empty(n, "<i8") as x:
        x.copy_from_host(numpy.arange(n) * value)
        return x.view()


def held(x):
    """How many arrays of that size the daemon has, and their holders."""
    arrays = [d for d in caid.default_client().unnamed() if d.entry.nbytes == x.nbytes]
    return len(arrays), sum(len(d.holders) for d in arrays)


def total(x):
    return int(x.copy_to_host().sum())


def n_calls(_after=None):
    return driver_calls()


def install_cupy():
    stand_in = frameworks.cupy()
    sys.modules.update({"cupy": stand_in, **frameworks.submodules(stand_in)})


def make_cupy(n):
    """Where Plugin(cupy=True) has CuPy allocate."""
    x = sys.modules["cupy"].ndarray((n,), "<i8", sys.modules["cupy"].cuda.get_allocator()(8 * n))
    x.nbytes = 8 * n
    with caid.as_array(x) as a:
        a.copy_from_host(numpy.arange(n))
    return x


def total_cupy(x):
    assert isinstance(x, sys.modules["cupy"].ndarray)
    with caid.as_array(x) as a:
        return total(a)


def n_allocated():
    return sum(arena.info.allocations for arena in caid._memory._arena._open)


def slow_sum(*arrays):
    time.sleep(random.random() / 20)
    return sum(map(total, arrays))


def forget_errors(dask_worker):
    """Dask keeps its last lines of log with their tracebacks, and those what was being sent."""
    dask_worker._deque_handler.clear()
    gc.collect()
