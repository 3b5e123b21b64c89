# SPDX-License-Identifier: Apache-2.0
"""Eight actors, of a process each, play games by a policy, and write what came of them to their rows of one batch: all
at a time, so that a round takes as long as one of them. The learner reads the whole batch when all have written.

usage: rl_batch.py [ROUNDS]
"""

import multiprocessing
import sys
import time
from multiprocessing.synchronize import Barrier

import numpy as np
from numpy.typing import NDArray

import caid

ACTORS, GAMES, SECONDS = 8, 16, 0.05
BEST = np.array([0.7, -0.2])  # what is to be found


def play(rng: np.random.Generator, mean: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
    """What was tried, and the reward, a row for each game."""
    time.sleep(SECONDS)  # a longer game
    tried = rng.normal(mean, spread, (GAMES, len(mean)))
    return np.column_stack([tried, -((tried - BEST) ** 2).sum(axis=1)])


def act(address: str, n: int, rounds: int, all_are_in: Barrier) -> None:
    rng = np.random.default_rng(n)
    with caid.connect(address) as client, client.open("batch", "rw") as batch, client.watch("policy") as changes:
        all_are_in.wait(60)  # they have started
        for i, _ in zip(range(rounds), changes):
            with client.open("policy") as policy:
                mean = policy.copy_to_host()
            with batch[n * GAMES : (n + 1) * GAMES].write() as rows:  # in the way of nobody but the learner
                all_are_in.wait(60)
                rows.copy_from_host(play(rng, mean, 0.7**i))


def learn(client: caid.Client, batch: caid.Array, rounds: int, all_are_in: Barrier) -> NDArray[np.float64]:
    mean = np.zeros(len(BEST))
    for _ in range(rounds):
        with client.array(mean) as policy:
            policy.publish("policy")
        all_are_in.wait(60)  # in their brackets
        with batch.read() as rows:  # after all eight
            results = rows.copy_to_host()
        elite = results[results[:, -1].argsort()][-ACTORS * GAMES // 8 :]
        mean = elite[:, :-1].mean(axis=0)
    return mean


def main(rounds: int = 12) -> int:
    spawn = multiprocessing.get_context("spawn")
    all_are_in = spawn.Barrier(ACTORS + 1)
    with caid.LocalDaemon() as daemon, daemon.connect() as client:
        with client.create("batch", (ACTORS * GAMES, len(BEST) + 1), "<f8") as batch:
            actors = [spawn.Process(target=act, args=(daemon.address, n, rounds, all_are_in)) for n in range(ACTORS)]
            for actor in actors:
                actor.start()
            all_are_in.wait(60)
            start = time.monotonic()
            mean = learn(client, batch, rounds, all_are_in)
            seconds = time.monotonic() - start
            for actor in actors:
                actor.join()
    off = np.abs(mean - BEST).max()
    print(f"{rounds} rounds of {ACTORS} actors took {seconds:.1f} s: the policy is off by {off:.3f}")
    print(f"one after the other they would have played for {rounds * ACTORS * SECONDS:.1f} s")
    return sum(actor.exitcode != 0 for actor in actors)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
