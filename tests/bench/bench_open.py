# SPDX-License-Identifier: Apache-2.0
"""open + close of an array whose block is mapped, from Python, against the floor in C.

Daemon and floor are placed alike, as in bench_open.c.

usage: bench_open.py SOCKET BENCH_FLOOR, as the daemon's user or root
"""

import os
import statistics
import subprocess
import sys
import time

import caid

ROUNDS, PER_ROUND = 100, 50


def open_close_ns(client, n):
    times = []
    for _ in range(n):
        start = time.perf_counter_ns()
        client.open("bench").close()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times)


class Floor:
    """The program that measures bare round trips."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def median_ns(self, n):
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def place(self, here, there):
        """Its two ends: the program, and the child that answers it."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as f:
            (child,) = f.read().split()
        os.sched_setaffinity(self.process.pid, {here})
        os.sched_setaffinity(int(child), {there})

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def run(client, floor, where):
    rounds = [(floor.median_ns(PER_ROUND), open_close_ns(client, PER_ROUND))
              for _ in range(ROUNDS)]
    floor_us = statistics.median(f for f, _ in rounds) / 1e3
    open_us = statistics.median(o for _, o in rounds) / 1e3
    print(f"open + close, block mapped, Python, {where}: {open_us:.1f} us; "
          f"floor: {floor_us:.1f} us; ratio {open_us / floor_us:.2f}", flush=True)


def main(socket, floor_program):
    floor = Floor(floor_program)
    cpus = os.sched_getaffinity(0)
    here, *others = sorted(cpus)
    with caid.connect(socket) as client, client.create("bench", (1024, 768), "<f4"), \
            client.open("bench"):
        floor.median_ns(1)  # its child is there
        daemon = client.status().pid
        os.sched_setaffinity(0, {here})
        for where, there in zip(("one CPU", "two CPUs"), (here, *others)):
            os.sched_setaffinity(daemon, {there})
            floor.place(here, there)
            run(client, floor, where)
        os.sched_setaffinity(daemon, cpus)
        client.unlink("bench")
    floor.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
