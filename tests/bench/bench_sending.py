# SPDX-License-Identifier: Apache-2.0
"""An array that goes to another process through a multiprocessing.Queue, against a tensor of PyTorch's
through torch.multiprocessing's: put, got, its first value read there, and answered by a number.

usage: bench_sending.py, with CAID_SOCKET of a daemon
"""

import multiprocessing
import statistics
import time

import caid

N = 16 << 20  # elements, of 4 bytes
ROUNDS, PER_ROUND = 30, 20
GOAL = 0.5


def answer(inbox, outbox):
    for a in iter(inbox.get, None):
        outbox.put(a[:1].copy_to_host()[0] if isinstance(a, caid.Array) else a[0].item())
        if isinstance(a, caid.Array):
            a.close()
        del a


class Way:
    """One way of sending, and the process that answers."""

    def __init__(self, context, thing):
        self.thing = thing
        self.inbox, self.outbox = context.Queue(), context.Queue()
        self.process = context.Process(target=answer, args=(self.inbox, self.outbox))
        self.process.start()
        self.times = []
        self.round()  # what is mapped, imported and compiled once
        self.times.clear()

    def round(self):
        for _ in range(PER_ROUND):
            start = time.perf_counter_ns()
            self.inbox.put(self.thing)
            assert self.outbox.get() == 1
            self.times.append(time.perf_counter_ns() - start)

    def end(self):
        self.inbox.put(None)
        self.process.join()
        return statistics.median(self.times) / 1e3


def torch_way():
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    return Way(torch.multiprocessing.get_context("spawn"), torch.ones(N, device="cuda"))


def main():
    theirs = torch_way()
    with caid.default_client().ones(N, "<f4") as a:
        ours = Way(multiprocessing.get_context("spawn"), a)
        for _ in range(ROUNDS):
            for way in filter(None, (ours, theirs)):
                way.round()
        ours_us = ours.end()
    print(f"64 MiB through a Queue, read and answered, caid: median {ours_us:.0f} us", flush=True)
    if theirs is None:
        print("PyTorch's: left out, it is not here, or has no GPU")
        return
    theirs_us = theirs.end()
    print(f"PyTorch's: median {theirs_us:.0f} us; ratio {ours_us / theirs_us:.2f} (goal: {GOAL})")


if __name__ == "__main__":
    main()
