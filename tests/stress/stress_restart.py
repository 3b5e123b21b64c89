# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the daemon, again and again, under 8 processes that create, publish, hand over, send, take and read, of which
one is killed now and then. Of what was acknowledged nothing is lost and no byte is wrong; no request is
blamed (InternalError), neither one that is being handled nor a begin or watch that waits; in the end the daemon has
nothing, and the keeper only what it had at the start.

environment: CAID_STRESS_KILLS, 100
"""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "python"))

from conftest import wait_until  # noqa: E402
from restarts import Restarts  # noqa: E402

WORKERS, WORKER_KILLS = 8, 4  # of so many kills of the daemon, one is followed by that of a process


class Workers:
    def __init__(self, restarts):
        self.restarts = restarts
        self.processes = [self.start(i) for i in range(WORKERS)]

    def start(self, i):
        command = [sys.executable, HERE / "restart_worker.py", str(i), str(WORKERS), self.restarts.folder / f"notes{i}"]
        return subprocess.Popen(command, env={**os.environ, **self.restarts.env})

    def check(self):
        for process in self.processes:
            if process.poll() is not None:
                sys.exit(f"a process has ended by itself: {process.returncode}\n{self.restarts.log()[-4000:]}")

    def kill(self, i):
        self.processes[i].kill()
        self.processes[i].wait()

    def replace(self, i):
        self.kill(i)
        self.processes[i] = self.start(i)


def n_published(restarts):
    return sum(notes.read_text().count("done") for notes in restarts.folder.glob("notes*"))


def is_empty(client):
    client.flush()
    s, memory = client.status(), client.memory_info()
    left = (s.arrays, s.names, s.leases, s.blocks, s.brackets, s.pages, s.timelines, s.pending, s.jobs)
    charged = [
        (u.arrays, u.names, u.leases, u.brackets, u.pages, u.bytes, u.pinned, u.connections) for u in client.users()
    ]
    return (not any(left) and charged == [(0,) * 7 + (1,)]) and (s.connections, memory.used) == (1, 0)


def end(restarts, workers):
    """Each looks for all of its own once more, as it begins; then all is taken away."""
    for i in range(WORKERS):
        workers.replace(i)
    n = n_published(restarts)
    wait_until(lambda: n_published(restarts) > n + 20 * WORKERS)
    workers.check()
    for i in range(WORKERS):
        workers.kill(i)
    with restarts.connect() as c:
        for entry in c.list():
            if not entry.of_set:
                c.unlink(entry.name)
        wait_until(lambda: (c.withdraw(gone=True), is_empty(c))[1])
    wait_until(lambda: restarts.kept_memory() == [])


def main():
    n, rng = int(os.environ.get("CAID_STRESS_KILLS", 100)), random.Random(1)
    slowest = 0
    with tempfile.TemporaryDirectory() as folder:
        restarts = Restarts(pathlib.Path(folder))
        workers, begun = Workers(restarts), time.monotonic()
        wait_until(lambda: n_published(restarts) > 20 * WORKERS)
        try:
            for i in range(n):
                time.sleep(rng.random() * 0.4)
                workers.check()
                start = time.monotonic()
                restarts.restart()
                slowest = max(slowest, time.monotonic() - start)
                if i % WORKER_KILLS == 0:
                    workers.replace(rng.randrange(WORKERS))
            end(restarts, workers)
        finally:
            for i in range(WORKERS):
                workers.kill(i)
        print(f"{n} kills of the daemon in {time.monotonic() - begun:.1f} s, back within {slowest * 1e3:.0f} ms; "
              f"{n_published(restarts)} changes acknowledged, 0 lost")
        restarts.close()


main()
