# SPDX-License-Identifier: Apache-2.0
"""Weights that are swapped under readers: never a mixture, and never a leak; also when loaders, publishers, readers
and the daemon are killed."""

import contextlib
import multiprocessing
import os
import random
import time

import models
import pytest
from conftest import PATIENCE_S, wait_until
from restarts import Restarts

import caid
from caid import weights

SWAPS = int(os.environ.get("CAID_TEST_SWAPS", 100))
N_KILLS = int(os.environ.get("CAID_STRESS_KILLS", 100))
READERS = 8
CONTEXT = multiprocessing.get_context("forkserver")
multiprocessing.set_forkserver_preload(["caid.weights", "pytest"])


@pytest.fixture
def files(tmp_path):
    return [models.write_version(tmp_path / f"{value}", value) for value in range(1, 4)]


@pytest.fixture
def start():
    """start(client, work, *args): a process of models.py, once it works; (process, its pipe)."""
    processes = []

    def run(client, work, *args):
        end, its = CONTEXT.Pipe()
        process = CONTEXT.Process(target=models.run, args=(its, client._socket, work, *args))
        process.start()
        its.close()
        processes.append(process)
        end.recv()
        return process, end

    yield run
    for process in processes:
        process.kill()
        process.join()


def finish(process, end):
    end.close()
    process.join(PATIENCE_S)
    assert process.exitcode == 0


def check_whole(client, n_versions=1):
    """One version is there, and the memory, arrays and leases are those of so many."""
    with weights.open("m", client=client) as w:
        models.value_of(w)
    wait_until(lambda: ledger(client) == expected(n_versions), lambda: ledger(client))


def ledger(client):
    client.flush()
    memory, status = client.memory_info(), client.status()
    return memory.blocks, memory.pinned, status.leases, status.names, status.release_errors


def expected(n_versions):
    return n_versions, 0, 0, min(n_versions, 1), 0


def test_readers_that_swap_never_see_a_mixture(client, files, start):
    weights.load(files[0], "m", client=client)
    readers = [start(client, models.serve, i % 2) for i in range(READERS)]
    for i in range(SWAPS):
        weights.load(files[i % len(files)], "m", client=client)
    check = weights.open("m", client=client)
    assert check.version == client.show("m/").entry.generation and models.value_of(check) == (SWAPS - 1) % 3 + 1
    check.close()
    wait_until(lambda: client.memory_info().blocks <= 2)  # of the readers, too, while they live
    for reader in readers:
        finish(*reader)
    check_whole(client)
    weights.unload("m", client=client)
    wait_until(lambda: ledger(client) == expected(0), lambda: ledger(client))


def test_a_version_lives_as_long_as_its_last_reader(client, other, files):
    weights.load(files[0], "m", client=client)
    with weights.open("m", client=client) as first, weights.open("m", client=other) as second:
        assert first.newer() is None
        version = weights.load(files[1], "m", client=client)
        with weights.open(f"m@{version}", client=client) as newest, second.newer() as newer:
            assert newer.version == newest.version and newer["layer.0"].readonly
            assert [models.value_of(w) for w in (first, second, newer, newest)] == [1, 1, 2, 2]
        with pytest.raises(caid.StaleError):
            weights.open(f"m@{first.version}", client=client)
        second.close()
        other.flush()
        kept = first["layer.3"]
        first.close()
        assert client.memory_info().blocks == 2 and kept.copy_to_host()[0] == 1
        kept.close()
    check_whole(client)
    watched = weights.open("m", client=client)
    weights.unload("m", client=client)
    with pytest.raises(caid.NotFoundError):
        watched.newer()
    assert models.value_of(watched) == 2
    watched.close()


KINDS = ["load", "publish", "publisher", "serve"]


@pytest.mark.parametrize("turn", range(len(KINDS)), ids=KINDS)
def test_kills(client, files, start, turn):
    """Of one that works, at any moment, while a reader looks."""
    weights.load(files[0], "m", client=client)
    chance = random.Random(turn)
    reader = start(client, models.serve, False)
    for n in range(N_KILLS // 2):
        args = {"load": [files], "publish": [[4, 5]], "publisher": [[4, 5], n % 2], "serve": [n % 2]}[KINDS[turn]]
        process, end = start(client, getattr(models, KINDS[turn]), *args)
        time.sleep(chance.random() * 0.03)
        process.kill()
        process.join()
        end.close()
        wait_until(lambda: client.status().connections == 2)
        with weights.open("m", client=client) as w:
            assert models.value_of(w) in (1, 2, 3, 4, 5)
            version = w.version
    assert KINDS[turn] == "serve" or version > N_KILLS // 8  # they were killed in the midst of it
    finish(*reader)
    wait_until(lambda: client.status().connections == 1)
    if KINDS[turn] == "publisher":  # the array of the one that was killed goes with another one
        weights.publisher("m", models.LIKE, client=client).close()
    if KINDS[turn] == "publish":  # its arrays share blocks
        weights.load(files[0], "m", client=client)
    check_whole(client)


def test_a_daemon_that_is_killed(files, start, tmp_path):
    """While a model is loaded, published and read: nobody notices, and it is there after."""
    with contextlib.closing(Restarts(tmp_path)) as daemon, daemon.connect() as client:
        weights.load(files[2], "m", client=client)
        works = (models.load, files), (models.publish, [4, 5]), (models.publisher, [4, 5], True), (models.serve, True), (models.serve, False)
        processes = [start(client, *work) for work in works]
        chance = random.Random(4)
        for _ in range(N_KILLS // 4):
            time.sleep(chance.random() * 0.05)
            daemon.restart()
            with weights.open("m", client=client) as w:
                assert models.value_of(w) in (1, 2, 3, 4, 5)
        for process in processes:
            finish(*process)
        version = weights.load(files[1], "m", client=client)
        check_whole(client)
        with weights.open("m", client=client) as w:
            daemon.restart()
            assert models.value_of(w) == 2
            with weights.open(f"m@{version}", client=client) as again:
                assert models.value_of(again) == 2 and w.newer() is None
        weights.unload("m", client=client)
        wait_until(lambda: ledger(client) == expected(0), lambda: ledger(client))
