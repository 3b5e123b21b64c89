# SPDX-License-Identifier: Apache-2.0
"""What test_dask.py runs at Dask's workers, which import little."""

import ctypes
import gc
import random
import time

import caid
import distributed
import numpy


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


def driver_calls(_after=None):
    reply = ctypes.create_string_buffer(1 << 16)
    assert ctypes.CDLL(caid.softcuda_path()).caid_softcuda_control(b"calls", reply, len(reply)) >= 0
    return sum(int(line.split()[1]) for line in reply.value.decode().splitlines())


def slow_sum(*arrays):
    time.sleep(random.random() / 20)
    return sum(map(total, arrays))


def forget_errors(dask_worker):
    """Dask keeps its last lines of log with their tracebacks, and those what was being sent."""
    dask_worker._deque_handler.clear()
    gc.collect()
