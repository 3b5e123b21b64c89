# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed, and another started at once, beside its keeper: how long until it is ready, and for how
long a client's loop of open and close is out. By blocks, each of which is imported anew, and by arrays."""

import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "python"))
os.environ["CAID_SOFTCUDA_MEMORY"] = "16G"

from restarts import Restarts  # noqa: E402

import caid  # noqa: E402

ROUNDS = 5
# Blocks of their own; arrays beside them.
CASES = (0, 0), (0, 1000), (1000, 0), (4096, 0), (0, 100_000), (4096, 100_000)


def fill(address, n_blocks, n_arrays):
    with caid.Client(address) as c:
        for i in range(n_blocks):
            c.create(f"block{i}", 512, "|u1", exclusive=True).close()
        for i in range(n_arrays):
            c.create(f"array{i}", 512, "|u1").close()
        c.create("x", 512, "|u1").close()
        return c.status()


class Loop:
    """Opens and closes one array; longest_s is the longest time without."""

    def __init__(self, address):
        self.address, self.over, self.longest_s = address, False, 0
        self.last = time.perf_counter()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        with caid.Client(self.address) as client:
            while not self.over:
                client.open("x").close()
                now = time.perf_counter()
                self.longest_s, self.last = max(self.longest_s, now - self.last), now

    def end(self):
        """Not before it has been back."""
        seen = self.last
        while self.last == seen:
            time.sleep(0.001)
        self.over = True
        self.thread.join()
        return self.longest_s


def kill(restarts):
    loop = Loop(restarts.address)
    time.sleep(0.1)
    start = time.perf_counter()
    restarts.restart()
    ready_s = time.perf_counter() - start
    return ready_s, loop.end()


def measure(n_blocks, n_arrays):
    with tempfile.TemporaryDirectory() as folder:
        restarts = Restarts(pathlib.Path(folder))
        try:
            status = fill(restarts.address, n_blocks, n_arrays)
            ready_s, out_s = zip(*(kill(restarts) for _ in range(ROUNDS)))
        finally:
            restarts.close()
    ready, out = (f"{statistics.median(s) * 1e3:.1f} ({max(s) * 1e3:.1f})" for s in (ready_s, out_s))
    print(f"{status.blocks} blocks, {status.arrays} arrays: ready after {ready} ms, open and close are out for {out} ms; "
          f"median of {ROUNDS} (most)", flush=True)


for case in CASES:
    measure(*case)
