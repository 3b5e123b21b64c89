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


def settled(client):
    """Whether the daemon has nothing of anybody else's, nor any memory."""
    client.flush()
    s, memory = client.status(), client.memory_info()
    left = s.arrays, s.names, s.leases, s.blocks, s.brackets, s.pages, s.timelines, s.pending, s.jobs, memory.used
    return not any(left) and (s.connections, s.release_errors) == (1, 0)


def seen(notes):
    """Which value each version had, in any reader's eyes."""
    found = {}
    for line in notes.read_text().splitlines():
        version, value = map(int, line.split()[:2])
        assert found.setdefault(version, value) == value, f"version {version} is {value}, and {found[version]}"
    return set(found.values())


def test_kills(start, tmp_path):
    """Of publishers, loaders, readers and the daemon, at any moment: a version is whole, the same in all readers' eyes,
    and does not change while one has it; and in the end nothing is left."""
    notes, chance = tmp_path / "notes", random.Random(1)
    notes.touch()
    works = [(models.publisher,), (models.publisher,), (models.publish,), (models.load, tmp_path)]
    works += [(models.serve, True, notes), (models.serve, False, notes)]
    with contextlib.closing(Restarts(tmp_path)) as daemon, daemon.connect() as client:
        if is_soft := client.host_accessible:  # PyTorch's stand-in reads where the tensors are
            works += [(models.advance, notes), (models.keep, notes)]
        weights.load(models.write_version(tmp_path / "first", 1), "m", client=client)
        processes = [start(client, *work) for work in works]
        pids = [{process.pid} for process, _ in processes]
        for n in range(N_KILLS):
            time.sleep(chance.random() * 0.05)
            assert all(process.exitcode is None for process, _ in processes), n
            if n % 4 == 0:
                daemon.restart()
                continue
            i = chance.randrange(len(works))
            process, end = processes[i]
            process.kill()
            process.join()
            end.close()
            processes[i] = start(client, *works[i])
            pids[i].add(processes[i][0].pid)
        for its in pids[:4]:  # each kind has come to its versions
            wait_until(lambda: any(seen(notes) & set(models.values_of(pid)) for pid in its), lambda: its)
        hows = {line.split()[2] for line in notes.read_text().splitlines()}
        assert hows == ({"newer", "advance", "keep"} if is_soft else {"newer"})
        for _, end in processes:
            end.close()
        for process in processes:
            finish(*process)
        with weights.open("m", client=client) as w:
            models.value_of(w)
            daemon.restart()
            models.value_of(w)
            with weights.open(f"m@{w.version}", client=client) as again:
                assert models.value_of(again) == models.value_of(w) and w.newer() is None
        weights.unload("m", client=client)
        wait_until(lambda: (client.withdraw(gone=True), settled(client))[1], lambda: (client.status(), client.list()))
        wait_until(lambda: daemon.kept_memory() == [], daemon.kept_memory)
