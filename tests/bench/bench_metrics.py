# SPDX-License-Identifier: Apache-2.0
"""What asking for metrics a thousand times a second costs an open: open + close alone and beside it, in turn.

usage: bench_metrics.py SOCKET
"""

import contextlib
import multiprocessing
import statistics
import sys
import time

import caid

ROUNDS, ROUND_S, RATE = 20, 0.5, 1000


def ask(address, asks, ends, asked):
    """Metrics, RATE times a second while `asks` is set."""
    with caid.connect(address) as client:
        while not ends.is_set():
            asks.wait()
            due = time.monotonic()
            while asks.is_set():
                client.metrics()
                asked.value += 1
                due += 1 / RATE
                time.sleep(max(0, due - time.monotonic()))


def opens(client):
    """How long each open + close of a round takes, in microseconds."""
    end, found = time.monotonic() + ROUND_S, []
    while time.monotonic() < end:
        start = time.perf_counter_ns()
        client.open("bench").close()
        found.append((time.perf_counter_ns() - start) / 1e3)
    return found


@contextlib.contextmanager
def asking(address):
    context = multiprocessing.get_context("spawn")
    asks, ends, asked = context.Event(), context.Event(), context.Value("Q")
    process = context.Process(target=ask, args=(address, asks, ends, asked))
    process.start()
    try:
        yield asks, asked
    finally:
        ends.set()
        asks.set()
        asks.clear()
        process.join()


def main(address):
    times = {False: [], True: []}
    with caid.connect(address) as client, client.create("bench", (1000,), "<f4"), asking(address) as (asks, asked):
        for i in range(2 * ROUNDS):
            beside = bool(i % 2)
            (asks.set if beside else asks.clear)()
            time.sleep(0.05)
            times[beside] += opens(client)
        client.unlink("bench")
    rate = asked.value / (ROUNDS * (ROUND_S + 0.05))
    alone, beside = (statistics.median(times[key]) for key in (False, True))
    means = [statistics.mean(times[key]) for key in (False, True)]
    print(f"open + close alone: {alone:.1f} us; beside {rate:.0f} metrics/s: {beside:.1f} us; ratio {beside / alone:.2f} "
          f"(means: {means[0]:.1f}, {means[1]:.1f} us, ratio {means[1] / means[0]:.2f})")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
