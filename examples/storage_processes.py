# SPDX-License-Identifier: Apache-2.0
"""Diffusion on a ring that lies in two storages, of a process each. Before each step a process fetches its halo
from the other's storage, by its name; then the same on one array, to compare. Needs no CuPy.

usage: storage_processes.py [STEPS]
"""

import multiprocessing
import os
import sys
from multiprocessing.synchronize import Barrier

import numpy as np

import caid
import caid.storage as cs

HALO, WIDTH, HEIGHT, RATE = 1, 64, 96, 0.1


def fetch(mine: cs.Storage, other: cs.Storage) -> None:
    """What the other process has beside it: nobody writes there before it has been read."""
    with other.read() as theirs:
        edges = theirs[-2 * HALO : -HALO].copy(), theirs[HALO : 2 * HALO].copy()
    with mine.write() as u:
        u[:HALO], u[-HALO:] = edges


def step(mine: cs.Storage) -> None:
    with mine.write() as u:
        u[HALO:-HALO] += RATE * (u[: -2 * HALO] - 2 * u[HALO:-HALO] + u[2 * HALO :])


def work(name: str, name_of_other: str, barrier: Barrier, steps: int) -> None:
    mine, other = cs.open(name, "rw"), cs.open(name_of_other, "rw")
    for _ in range(steps):
        barrier.wait()  # both have made the step before
        fetch(mine, other)
        barrier.wait()  # both have what they need
        step(mine)


def main(steps: int = 100) -> None:
    start = np.random.default_rng(7).random((2 * WIDTH, HEIGHT))
    names = [f"diffusion {os.getpid()}/{side}" for side in ("left", "right")]
    halves = [
        cs.zeros((WIDTH + 2 * HALO, HEIGHT), halo=(HALO, 0), defaults="gt:gpu", name=name) for name in names
    ]
    for half, values in zip(halves, np.split(start, 2)):
        half.domain_view[...] = values
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    workers = [spawn.Process(target=work, args=(*each, barrier, steps)) for each in (names, names[::-1])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = np.concatenate([half.domain_view.to_numpy() for half in halves])
    for name in names:
        caid.default_client().unlink(name)
    expected = start
    for _ in range(steps):
        expected = expected + RATE * (np.roll(expected, 1, 0) - 2 * expected + np.roll(expected, -1, 0))
    assert np.allclose(found, expected)
    print(f"{steps} steps in two processes: the spread went from {start.std():.3f} to {found.std():.3f}")


if __name__ == "__main__":
    with caid.LocalDaemon() as daemon:
        os.environ.update(daemon.env)  # where storages are made, and looked for
        main(*map(int, sys.argv[1:]))
