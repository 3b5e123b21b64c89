# SPDX-License-Identifier: Apache-2.0
"""Diffusion on a ring that lies in two storages, which exchange halos before each step; then the same on one
array, to compare. With CuPy the steps run on the GPU, and the halos are exchanged there; without it, on the host.

usage: halo_exchange.py [STEPS]
"""

import importlib.util
import os
import sys

import numpy as np

import caid
import caid.storage as cs

HALO, WIDTH, HEIGHT, RATE = 1, 64, 96, 0.1
ON_GPU = importlib.util.find_spec("cupy") is not None
DEVICE = "gpu" if ON_GPU else None


def new() -> cs.Storage:
    return cs.zeros((WIDTH + 2 * HALO, HEIGHT), halo=(HALO, 0), alignment_size=128, device=DEVICE)


def exchange(left: cs.Storage, right: cs.Storage) -> None:
    """Each side's halo is what the other has beside it. Both are up to date on the GPU after a step, so
    these copies stay there."""
    for a, b in (left, right), (right, left):
        a[:HALO] = b.domain_view[-HALO:]
        a[-HALO:] = b.domain_view[:HALO]


def step(old: cs.Storage, new: cs.Storage) -> None:
    with cs.fields(read=[old], write=[new], device=DEVICE) as (u, v):
        if ON_GPU:
            import cupy

            u, v = cupy.asarray(u), cupy.asarray(v)
        v[HALO:-HALO] = u[HALO:-HALO] + RATE * (u[: -2 * HALO] - 2 * u[HALO:-HALO] + u[2 * HALO :])


def main(steps: int = 100) -> None:
    start = np.random.default_rng(7).random((2 * WIDTH, HEIGHT))
    halves, others = (new(), new()), (new(), new())
    for half, values in zip(halves, np.split(start, 2)):
        half.domain_view[...] = values
    expected = start
    for _ in range(steps):
        exchange(*halves)
        for old, each in zip(halves, others):
            step(old, each)
        halves, others = others, halves
        expected = expected + RATE * (np.roll(expected, 1, 0) - 2 * expected + np.roll(expected, -1, 0))
    found = np.concatenate([half.domain_view.to_numpy() for half in halves])
    assert np.allclose(found, expected)
    where = "on the GPU" if ON_GPU else "on the host"
    print(f"{steps} steps {where}: the spread went from {start.std():.3f} to {found.std():.3f}")


if __name__ == "__main__":
    with caid.LocalDaemon() as daemon:
        os.environ.update(daemon.env)  # where storages on the GPU are made
        main(*map(int, sys.argv[1:]))
