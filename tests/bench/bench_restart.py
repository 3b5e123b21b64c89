# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed, and another started at once, beside its keeper: how long until it is ready, and for how
long a client's loop of open and close is out. By blocks, each of which is imported anew, and by arrays. As root, also
what a quiet uid with 100,000 arrays feels of two others that have as much as they may, a million of a kind."""

import os
import pathlib
import statistics
import subprocess
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


# ---- hoards ----

UIDS, QUIET = (64100, 64101), 64001
LIMITS = "[limits]\narrays = 1000000\nleases = 1000000\n"
HOARDS = {
    "nothing": "pass",
    "tickets": "a = c.create('a', 1, '|u1'); many(lambda i: kept.append(caid.Reference(a)))",
    "names": "many(lambda i: c.create(f'{i:07}' + 'n' * 80, 0, '|u1').close())",
    "arrays": "many(lambda i: c.create(f'{i:07}', 1, '|u1').close())",
}
HOARDER = """
import itertools, sys
import caid
kept = []

def many(make):
    try:
        for i in itertools.count():
            make(i)
    except (caid.LimitError, caid.QuotaError, caid.OutOfMemoryError):
        pass

with caid.Client() as c:
    exec(sys.argv[1])
    print(c.users()[0].host >> 20, flush=True)
    sys.stdin.read()
"""
VICTIM = """
import sys, threading, time
import caid
over, times = [], []

def loop(c):
    while not over:
        begin = time.perf_counter()
        c.open("x").close()
        end = time.perf_counter()
        times.append((end, end - begin))

with caid.Client() as c:
    for i in range(100_000):
        c.create(f"array{i}", 512, "|u1").close()
    c.create("x", 512, "|u1").close()
    thread = threading.Thread(target=loop, args=(c,))
    thread.start()
    print("ready", flush=True)
    while line := sys.stdin.readline():
        since, until = map(float, line.split())
        while not times or times[-1][0] < until:
            time.sleep(0.01)
        took = sorted(t for end, t in times if since < end)
        times.clear()
        print(*(1e6 * took[int(len(took) * part)] for part in (0.5, 0.99)), 1e3 * took[-1], flush=True)
    over.append(1)
    thread.join()
"""


def run_as(uid, address, *command):
    return subprocess.Popen([sys.executable, "-c", *command], env={**os.environ, "CAID_SOCKET": address}, text=True,
                            user=uid, group=uid, extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def ask(victim, since, until):
    victim.stdin.write(f"{since} {until}\n")
    victim.stdin.flush()
    return [float(word) for word in victim.stdout.readline().split()]


def is_whole(address):
    with caid.Client(address) as c:
        c.status()
    return time.perf_counter()


def hoard(what, code):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        restarts = Restarts(pathlib.Path(folder), LIMITS)
        victim = run_as(QUIET, restarts.address, VICTIM)
        hoarders = [run_as(uid, restarts.address, HOARDER, code) for uid in UIDS]
        try:
            mib = [int(h.stdout.readline()) for h in hoarders]
            victim.stdout.readline()
            since = time.perf_counter()
            time.sleep(1)
            quiet = ask(victim, since, time.perf_counter())
            since = time.perf_counter()
            restarts.restart()
            whole = is_whole(restarts.address)
            p50, p99, out = ask(victim, since, whole)
        finally:
            for child in (victim, *hoarders):
                child.stdin.close()
                child.wait()
            restarts.close()
    print(f"two others have {what}, {mib[0]} and {mib[1]} MiB: open and close of the quiet one are out for {out:.0f} ms, "
          f"all is back after {1e3 * (whole - since):.0f} ms; p50 and p99 until then {p50:.0f} and {p99:.0f} us, before "
          f"{quiet[0]:.0f} and {quiet[1]:.0f} us", flush=True)


if os.geteuid() == 0:
    for what, code in HOARDS.items():
        hoard(what, code)
