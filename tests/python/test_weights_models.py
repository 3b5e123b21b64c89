# SPDX-License-Identifier: Apache-2.0
"""More models than memory: those that nobody has open are dropped, and loaded again, with the same bytes, by who may and
one at a time; also where loaders are killed."""

import asyncio
import contextlib
import json
import os
import pathlib
import random
import tempfile

import models
import numpy
import pytest
from conftest import PATIENCE_S, Child, in_a_thread, in_threads, n_blocks, run_async, wait_until
from hypothesis import given, settings, strategies as st
from uids import taking

import caid
from caid import weights
from caid.weights import _again, _load
from caid.weights._turn import turn

ROOM, MIB = 4, 1 << 20  # models, of 2 MiB each
CONFIG = """
[user-pools]
quota = 8M
[pool "shared"]
mode = 0666
quota = 8M
[pool "readable"]
mode = 0644
quota = 8M
"""
THEM = 12345
with open("/proc/sys/kernel/overflowuid") as file:
    OVERFLOW = int(file.read())
N_ANSWERS = 10 * int(os.environ.get("CAID_STRESS_KILLS", 30))


@pytest.fixture(scope="module")
def daemon():
    with caid.LocalDaemon(driver="soft", config=CONFIG) as d:
        os.chmod(os.path.dirname(d.address), 0o755)  # for another user
        yield d


def took_all(client, pool=None):
    """Takes all of a pool's memory, once."""
    client.flush()
    with contextlib.suppress(caid.QuotaError), client.empty(ROOM * 2 * MIB, "|u1", pool=pool):
        return True
    return False


def drop_all(client, pool=None):
    """When what others have closed has been given up."""
    wait_until(lambda: took_all(client, pool))
    client.flush()


def is_there(client, name="m", pool=None):
    try:
        with client.open_set(f"{name}/", pool=pool):
            return True
    except caid.DroppedError:
        return False


@pytest.fixture
def dropped(client, tmp_path):
    """dropped(name, value): a model that was dropped; its path."""

    def make(name="m", value=7, pool=None):
        path = models.write_version(tmp_path / f"{name}.safetensors", value)
        weights.load(path, name, pool=pool, client=client, keep="droppable")
        drop_all(client, pool)
        assert not is_there(client, name, pool)
        return path

    yield make
    for pool in None, "shared", "readable":
        for entry in client.list(pool=pool):
            if not entry.of_set:
                client.unlink(entry.name, pool=pool)
        client.unlink("m/", pool=pool, missing_ok=True)


def value_of(client, name="m", **options):
    with weights.open(name, client=client, timeout=PATIENCE_S, **options) as w:
        return models.value_of(w)


# --- loaded again -----------------------------------------------------------------------------

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["float16", "<f8", numpy.float16]),
        "only": st.sampled_from(["a*", ["a*", "c"], ["*"]]).map(lambda some: some if len(some) > 1 else iter(some)),
        "shard": st.sampled_from([(0, 2), (1, 2, ("a*",)), (1, 4, ["c"], ["a*"])]),
        "tie": st.sampled_from([{"b.tied": "a.0"}, {}]),
    },
)
METADATA = st.dictionaries(st.text("kl", min_size=1), st.sampled_from(["", "é", "v" * 5000]), max_size=2)


def contents(w):
    return {key: (a.shape, a.typestr, a.copy_to_host().tobytes()) for key, a in w.items()}, w.file_metadata


def test_what_is_loaded_again_is_the_same(client, other, tmp_path, dropped):
    @settings(max_examples=25)
    @given(OPTIONS, METADATA, st.integers(0, 1 << 32))
    def check(options, metadata, seed):
        some = numpy.random.default_rng(seed).normal(size=32).astype("<f4").tobytes()
        tensors = {key: ("F32", (8, 4), some[i:] + some[:i]) for i, key in enumerate(("a.0", "a.1", "c"))}
        path = models.write(tmp_path / "m.safetensors", tensors, metadata)
        version = weights.load(path, "m", client=client, keep="droppable", priority=seed, **options)
        for who in other, client:
            with weights.open("m", client=client) as w:
                before = contents(w)
            other.flush()
            drop_all(client)
            assert not is_there(other)
            with weights.open("m", client=who) as w:
                assert w.version > version and contents(w) == before
                version = w.version

    check()


def test_of_two_the_lower_priority_goes_first(client, tmp_path, dropped):
    for name, priority in ("high", 1), ("low", 0):
        path = models.write_version(tmp_path / name, 1)
        weights.load(path, name, client=client, keep="droppable", priority=priority)
    client.flush()
    with client.empty(2 * (ROOM - 1) * MIB, "|u1"):
        assert is_there(client, "high") and not is_there(client, "low")


def test_a_device_that_is_full(tmp_path):
    """What a process still has mapped is waited for."""
    paths = [models.write_version(tmp_path / f"{i}", i) for i in range(5)]
    with caid.LocalDaemon(driver="soft", memory=3 * 2 * MIB) as daemon, daemon.connect() as c, daemon.connect() as other:
        for i, path in enumerate(paths):
            weights.load(path, f"m{i}", client=c, keep="droppable")
        for who, i in (c, 0), (other, 4), (other, 1):
            assert value_of(who, f"m{i}") == i
        with weights.open("m2", client=c), weights.open("m3", client=c), weights.open("m4", client=c):
            with pytest.raises(caid.OutOfMemoryError):
                weights.open("m0", client=other)


@pytest.mark.parametrize(
    "options", [{"keep": "never"}, {"priority": 1}, {"keep": "droppable", "priority": -1}, {"keep": "droppable", "memory": "pinned"}, {"keep": "droppable", "only": ["x" * 4000, "*"]}]
)  # fmt: skip
def test_what_is_refused(client, tmp_path, options):
    path = models.write_version(tmp_path / "m", 1)
    with pytest.raises(caid.InvalidError):
        weights.load(path, "m", client=client, **options)
    assert client.list() == []


def test_files_that_have_changed_are_told(client, other, dropped):
    path = dropped()
    path.rename(path.with_suffix(".away"))
    with pytest.raises(FileNotFoundError, match=f"m was dropped .* open.path=.*{path}"):
        weights.open("m", client=client)
    assert not is_there(client)
    models.write_version(path, 8)
    with pytest.warns(UserWarning, match=f"^m: files have changed since version .* was loaded: {path}$"):
        assert value_of(client) == 8
    drop_all(client)
    assert value_of(other) == 8


def test_a_set_that_tells_nothing(client, dropped):
    with client.array(numpy.zeros(1)) as array:
        lease = client._set_create(array._memory, (("a", 0, "<f8", None, (1,), None),))
    lease._publish_droppable("m/", "[1]", 0, 0, 0, 1)
    lease.close()
    drop_all(client)
    with pytest.raises(caid.DroppedError, match="^m: .* load[(][)] it$"):
        weights.open("m", client=client)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["device", "/etc"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
RECIPE = {"model": ["/m"], "files": "", "device": "GPU-0", "dtype": "<f2", "only": [], "shard": [0, 1, [], []], "tie": {}}


@given(st.dictionaries(st.sampled_from(sorted(RECIPE)), JSON, max_size=3), st.sets(st.sampled_from(sorted(RECIPE))))
def test_recipes_are_checked(changes, absent):
    """What is taken has the types of what load() writes."""
    told = {key: value for key, value in {**RECIPE, **changes}.items() if key not in absent}
    found = _again._recipe_in(json.dumps({"reload": told}))
    if found is None:
        assert changes or absent
        return
    for key, value in found.items():
        assert type(value) is type(RECIPE[key])
    assert all(type(path) is str for path in found["model"]) and found["model"] is not None


def test_a_full_device_gets_what_others_have_mapped_last(tmp_path, monkeypatch):
    """Who has closed a small model has it mapped yet, and unmaps it by itself."""
    monkeypatch.setenv("CAID_SOFTCUDA_MEMORY", "16M")
    path = models.write_version(tmp_path / "m.safetensors", 7)

    def took_all():
        with contextlib.suppress(caid.OutOfMemoryError), taker.empty(16 * MIB, "|u1"):
            return True
        return False

    with caid.LocalDaemon(driver="soft") as d, d.connect() as holder, d.connect() as taker:
        weights.load(path, "m", client=holder, keep="droppable")
        with weights.open("m", client=holder) as w:
            assert models.value_of(w) == 7
            assert not took_all()
        assert is_there(holder)
        wait_until(took_all)
        assert not is_there(holder)


# --- by whom ----------------------------------------------------------------------------------


def test_all_who_wait_get_one_version(client, other, dropped):
    for _ in range(5):
        dropped()
        versions = []

        def take(i):
            with weights.open("m", client=(client, other)[i % 2]) as w:
                assert models.value_of(w) == 7
                versions.append(w.version)

        in_threads(4, take)
        assert len(set(versions)) == 1


def test_a_newer_model_is_not_displaced(client, other, dropped, tmp_path, monkeypatch):
    """Loaded by another one until the moment of publishing; also if it has been dropped, too, since."""
    newer = models.write_version(tmp_path / "newer", 9)
    publish = _load.Loading.publish
    for keep in "always", "droppable":
        dropped()

        def late(loading, keep=keep, **after):
            monkeypatch.setattr(_load.Loading, "publish", publish)
            weights.load(newer, "m", client=other, keep=keep)
            if keep == "droppable":
                took_all(other)
            return publish(loading, **after)

        monkeypatch.setattr(_load.Loading, "publish", late)
        assert value_of(client) == 9


def test_asyncio(client, dropped, monkeypatch):
    async def take():
        async with asyncio.timeout(PATIENCE_S) if hasattr(asyncio, "timeout") else contextlib.AsyncExitStack():
            with await weights.async_open("m", client=client) as w:
                return models.value_of(w)

    dropped()
    assert run_async(take()) == 7

    async def cancelled():
        with turn(client, "m"):
            task = asyncio.ensure_future(take())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    dropped()
    run_async(cancelled())  # the loop ends at once
    assert is_there(client)
    client.flush()
    assert not client.show("m/").holders


def test_newer_loads_it_too(client, other, dropped, tmp_path):
    with weights.open(dropped() and "m", client=client) as w:
        second = models.write_version(tmp_path / "second", 8)
        weights.load(second, "m", client=other, keep="droppable")
        other.flush()
        with other.empty((ROOM - 1) * 2 * MIB, "|u1"):
            assert not is_there(other)
        other.flush()
        with w.newer() as newer:
            assert models.value_of(newer) == 8 and models.value_of(w) == 7


OTHER_USER = """
    import caid.weights, pathlib, warnings
    pool, path, keep = sys.argv[1:4]
    if keep:
        caid.weights.load(path, "m", pool=pool, keep="droppable")
    else:
        try:
            with caid.weights.open("m", pool=pool) as w:
                print(w.version, flush=True)
        except caid.NotFoundError as e:
            print(e, flush=True)
"""


def as_them(daemon, *args, them=THEM):
    done = Child(OTHER_USER, daemon.env, *args, **taking(them, them))
    out, errors = done.process.communicate(timeout=PATIENCE_S)
    assert done.process.returncode == 0, errors
    return out


@pytest.fixture
def for_all():
    """A folder that every user may read: pytest's own are closed again by whoever starts it next."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


def test_another_users_path_is_not_read(daemon, client, dropped, for_all, tmp_path, monkeypatch):
    """It could name a file that this user alone may read. His own path is."""
    theirs = models.write_version(for_all / "theirs", 7)
    as_them(daemon, "shared", theirs, "keep")
    drop_all(client, "shared")
    with monkeypatch.context() as m:
        m.setattr(_again, "read_model", lambda paths: pytest.fail(f"{paths} are read"))
        with pytest.raises(caid.DroppedError, match=f"^m: .* user {THEM} loaded it: open[(]path="):
            weights.open("m", pool="shared", client=client)
    assert not is_there(client, pool="shared")
    mine = models.write_version(tmp_path / "mine", 8)
    with pytest.warns(UserWarning, match=f"files have changed .*{mine}$"):
        assert value_of(client, pool="shared", path=mine) == 8
    drop_all(client, "shared")
    assert value_of(client, pool="shared") == 8


def test_the_user_who_stands_for_many_is_nobodys_own(daemon, client, dropped, for_all):
    path = models.write_version(for_all / "theirs", 7)
    as_them(daemon, "shared", path, "keep", them=OVERFLOW)
    drop_all(client, "shared")
    assert f"user {OVERFLOW} loaded it: open(path=" in as_them(daemon, "shared", "", "", them=OVERFLOW)
    assert not is_there(client, pool="shared")


def test_who_may_not_write_the_pool(daemon, client, dropped):
    dropped(pool="readable")
    assert as_them(daemon, "readable", "", "").startswith("m: it was dropped as memory was short; user 0, or another one who may write")
    assert not is_there(client, pool="readable")
    assert value_of(client, pool="readable") == 7
    assert as_them(daemon, "readable", "", "").strip().isdecimal()


# --- turns, and kills ---------------------------------------------------------------------------

TAKES_A_TURN = """
    from caid.weights._turn import turn
    with turn(caid.default_client(), "m"):
        step("has it")
    step("ended it")
"""


def names(client):
    return [entry.name for entry in client.list()]


@pytest.mark.parametrize("ends", [lambda process: process.kill(), lambda process: process.go()])
def test_turns(client, other, child, ends):
    first = child(TAKES_A_TURN)
    first.expect("has it")
    with pytest.raises(caid.TimedOutError, match=f"^m: .* {first.pid} loads it$"):
        turn(client, "m", timeout=0)
    having = []

    def take(who):
        with turn(who, "m", timeout=PATIENCE_S):
            having.append(who)
            assert len(having) == 1 and names(who) == ["m.turn"]
            having.remove(who)
        return who

    waiting = [in_a_thread(lambda who=who: take(who)) for who in (client, other) * 2]
    assert not any(got for _, got in waiting)
    ends(first)
    for thread, got in waiting:
        thread.join(PATIENCE_S)
        assert got in ([client], [other])
    assert names(client) == []


def test_a_turn_within_a_turn(client):
    with turn(client, "m"), pytest.raises(caid.DeadlockError, match="^m: .* loads it$"):
        turn(client, "m")
    with pytest.raises(ZeroDivisionError), turn(client, "m"):
        1 / 0
    assert names(client) == []


ANSWERS = """
    import random, models, caid.weights
    choose, client = random.Random(int(sys.argv[1])), caid.connect()
    while True:
        i = choose.randrange(12)
        with caid.weights.open(f"m{i}", client=client) as w:
            told = i, w.version, models.value_of(w)
        client.flush()  # which the others' loads need
        print(*told, flush=True)
"""


def test_twelve_models_in_the_memory_of_four(daemon, client, tmp_path, dropped):
    """Whose workers, which load, are killed at any moment: each answer is of the model that was asked for."""
    seed = int(os.environ.get("CAID_TEST_SEED", random.randrange(1 << 32)))
    print(f"CAID_TEST_SEED={seed}")
    choose, workers, versions = random.Random(seed), {}, set()
    for i in range(12):
        path = models.write_version(tmp_path / f"{i}", i)
        weights.load(path, f"m{i}", client=client, keep="droppable", priority=i % 2)
        client.flush()
    try:
        for n in range(N_ANSWERS):
            at = choose.randrange(3)
            if at not in workers:
                workers[at] = Child(ANSWERS, daemon.env, seed + n)
            line = workers[at].process.stdout.readline()
            asked, version, value = map(int, line.split()) if line else pytest.fail(workers[at].finish()[1])
            versions.add((asked, version))
            assert asked == value
            if choose.random() < 0.1:
                killed = workers.pop(at)
                killed.kill()
                wait_until(lambda: killed.pid not in [c.pid for c in client.connections()])  # the daemon has seen it
    finally:
        for worker in workers.values():
            worker.kill()
    assert len(versions) > 12
    wait_until(lambda: n_blocks(client) <= ROOM, client.memory_info)
    for i in range(12):
        assert value_of(client, f"m{i}") == i
        client.flush()
    for i in range(12):
        client.unlink(f"m{i}/")
