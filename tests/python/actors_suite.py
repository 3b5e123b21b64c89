# SPDX-License-Identifier: Apache-2.0
"""caid.ray with two nodes on two daemons that stand for two machines: what test_ray.py runs. The actors are in
actors.py."""

import os
import random

import caid
import caid.ray
import pytest
import ray
from actors import Actor, twin
from conftest import wait_until
from engines import N_KILLS, left, two_machines, wait_until_nothing_is_left
from ray.cluster_utils import Cluster

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
N_SEEDS = 24
STORE = 80 << 20  # bytes: Ray's least
PATIENCE_S = 20  # of a transfer whose other end was killed


@pytest.fixture(scope="module")
def machines():
    with two_machines() as daemons:
        yield daemons


@pytest.fixture(scope="module")
def start(machines):
    """start(machine): an actor there."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_rdt_fetch_fail_timeout_milliseconds", str(PATIENCE_S * 500))
        patched.setenv("CAID_SOCKET", machines[0].address)
        patched.setenv("PYTHONPATH", os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]))
        cluster = Cluster()
        for machine in "01":
            cluster.add_node(num_cpus=2, resources={machine: 1000}, object_store_memory=STORE, include_dashboard=False)
        ray.init(address=cluster.address, log_to_driver=False)

        def new(machine):
            env = {"env_vars": {"CAID_SOCKET": machines[machine].address}}
            return Actor.options(resources={str(machine): 1}, runtime_env=env).remote()

        yield new
        ray.shutdown()
        cluster.shutdown()


def test_by_reference_within_and_by_value_between(start, machines):
    maker, near, far = start(0), start(0), start(1)
    for seed in range(N_SEEDS):
        ref = maker.make.remote(seed)
        assert ray.get([near.is_right.remote(ref), far.is_right.remote(ref)]) == [True, True], seed
    assert ray.get(maker.served.remote()) == sum(twin(seed)[1].nbytes for seed in range(N_SEEDS))
    ref = maker.full.remote(4, 7)
    ray.wait([ref])
    actors = maker, near, far
    before = ray.get([actor.copies.remote() for actor in actors])
    assert [ray.get(actor.copies.remote(ref)) for actor in actors] == [n + (actor is far) for n, actor in zip(before, actors)]
    assert ray.get(near.first.remote(ref, write=8)) == 7
    assert ray.get(far.first.remote(ref, write=9)) == 8  # its own
    assert ray.get(near.first.remote(ref)) == 8
    with ray.get(ref) as here:  # the driver is on the first machine
        assert here.copy_to_host().tolist() == [8] * 4
    (held,) = ray.get(far.put.remote(4, 5))
    assert ray.get([near.first.remote(held), maker.first.remote(held)]) == [5, 5]
    wait_until(lambda: left(machines)[::2] == [1, 1], facts=lambda: left(machines))  # the actors' closes are on their way
    del ref, held
    wait_until_nothing_is_left(machines)


@pytest.mark.parametrize("older", [False, True], ids=["driver", "older_ray"])
def test_an_owner_is_made_where_there_is_none(start, machines, older):
    """For an array of a driver's, and of anybody's in a Ray without tensor transports."""
    near, far, putter = start(0), start(1), start(0)
    if older:
        (ref,) = ray.get(putter.put_of_an_older_ray.remote(4, 3))
    else:
        with caid.default_client().full(4, 3, "<i8") as a:
            ref = caid.ray.put(a[::2])
    assert ray.get(near.first.remote(ref, write=5)) == 3
    assert ray.get(far.first.remote(ref, write=6)) == 5
    assert ray.get(near.first.remote(ref)) == 5
    with ray.get(ref) as a, ray.get(ref) as b:
        assert (a.shape, a.ptr) == (b.shape, b.ptr) and a.copy_to_host().tolist() == [5] * a.size
    del ref
    wait_until_nothing_is_left(machines)
    with pytest.raises(TypeError):
        caid.ray.put(5)


def test_two_receive_from_each_other(start, machines):
    a, b = start(0), start(1)
    refs = [a.full.remote(1000, 1), b.full.remote(1000, 2)]
    for _ in range(5):
        assert ray.get([b.first.remote(refs[0]), a.first.remote(refs[1])]) == [1, 2]
    del refs
    wait_until_nothing_is_left(machines)


def test_kills_leave_nothing(start, machines):
    """Of who makes an array, or one of two that receive it, at a moment at random."""
    chance, actors = random.Random(22), [start(0), start(0), start(1)]
    for n in range(N_KILLS):
        ref = actors[0].full.remote(100_000, n)
        firsts = [actor.first.remote(ref) for actor in actors[1:]]
        victim = chance.randrange(3)
        ray.wait(firsts, num_returns=2, timeout=chance.random() * 0.1)
        ray.kill(actors[victim])
        for actor, first in zip(actors[1:], firsts):
            try:
                assert ray.get(first, timeout=PATIENCE_S) == n
            except (ray.exceptions.RayError, caid.NotFoundError):
                assert actors[victim] in (actor, actors[0])
        actors[victim] = start(victim // 2)
        del ref, firsts, first
        wait_until_nothing_is_left(machines)
