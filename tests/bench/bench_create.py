# SPDX-License-Identifier: Apache-2.0
"""empty() + close() of 1 MiB from Python, warm, in a process with a primary context.

The daemon is placed as in bench_create.c, which has the figures of the driver beside it.

usage: bench_create.py SOCKET, as the daemon's user or root
"""

import os
import sys
import time

import caid

N, SHAPE = 4000, (1 << 20,)


def run(client, where):
    times = []
    begun = time.perf_counter_ns()
    for _ in range(N):
        start = time.perf_counter_ns()
        client.empty(SHAPE, "u1").close()
        times.append(time.perf_counter_ns() - start)
    mean_us = (time.perf_counter_ns() - begun) / N / 1e3
    times.sort()
    print(f"create + close of 1 MiB, Python, {where}: median {times[N // 2] / 1e3:.1f} us, "
          f"99 % within {times[N * 99 // 100] / 1e3:.1f} us, mean {mean_us:.1f} us", flush=True)


def main(socket):
    cpus = os.sched_getaffinity(0)
    here, *others = sorted(cpus)
    with caid.connect(socket) as client, client.empty((1,), "u1") as held:
        held.copy_to_host()  # the context of the device is retained from here on
        daemon = client.status().pid
        os.sched_setaffinity(0, {here})
        for where, there in zip(("one CPU", "two CPUs"), (here, *others)):
            os.sched_setaffinity(daemon, {there})
            run(client, where)
        os.sched_setaffinity(daemon, cpus)


if __name__ == "__main__":
    main(*sys.argv[1:])
