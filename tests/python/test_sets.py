# SPDX-License-Identifier: Apache-2.0
"""Sets: names that change in one step (publish_many), and versions that are held whole."""

import os
import time

import numpy
import pytest
from conftest import PATIENCE_S, n_leases, wait_until

import caid

SWAPS = int(os.environ.get("CAID_TEST_SWAPS", 100))
READERS, NAMES = 8, 1000


def filled(client, value, **options):
    a = client.empty(4, "<i4", **options)
    a.copy_from_host(numpy.full(4, value, "<i4"))
    return a


def read(array):
    (value,) = set(array.copy_to_host().tolist())
    return value


def publish(client, name, values, **options):
    """A set of arrays of those values, which are kept by it alone."""
    arrays = {key: filled(client, value) for key, value in values.items()}
    try:
        return client.publish_many(name, arrays, **options)
    finally:
        for array in arrays.values():
            array.close()


# --- what is promised, by a model --------------------------------------------------------------


# --- many readers, while it changes ------------------------------------------------------------

READER = """
    import random
    with caid.connect() as c:
        print("ready", flush=True)
        seen = 0
        while True:
            with c.open_set("m/") as s:
                keys = [f"w{k}" for k in random.sample(range(int(sys.argv[1])), 20)]
                found = {a.metadata for a in s.open(keys).values()}
                assert found == {s.metadata}, (found, s.metadata)
                e = s.entries()
                assert len(e) == len(s) == int(sys.argv[1])
                assert {x.generation for x in e.values()} == {s.generation} and s.generation >= seen
                seen = s.generation
                if s.metadata < 0:
                    break
    print("ended", flush=True)
"""


def test_readers_never_see_a_mixture(client, child):
    """Of two groups of arrays, all of one are under the names, or all of the other."""
    groups = [{f"w{i}": client.empty(0, metadata=v) for i in range(NAMES)} for v in (0, 1, -1)]
    client.publish_many("m/", groups[0], metadata=0)
    readers = [child(READER, NAMES) for _ in range(READERS)]
    for reader in readers:
        reader.expect("ready")
    for i in range(SWAPS):
        client.publish_many("m/", groups[i % 2], metadata=i % 2)
    client.publish_many("m/", groups[2], metadata=-1)
    for reader in readers:
        reader.expect("ended")
    for group in groups:
        for array in group.values():
            array.close()


# --- memory, and who keeps it ------------------------------------------------------------------


def test_a_held_version_keeps_its_memory_and_the_last_holder_gives_it_back(daemon, client):
    publish(client, "m/", {"a": 1, "b": 2}, metadata={"v": 1})
    with daemon.connect(name="second") as other:
        old = [client.open_set("m/"), other.open_set("m/")]
        publish(client, "m/", {"b": 3})
        assert [[read(a) for a in s.values()] for s in old] == [[1, 2], [1, 2]]
        assert old[0].metadata == {"v": 1} and "c" not in old[0] and old[0].nbytes == 32
        (pins,) = (d for d in client.unnamed() if d.entry.members)
        assert (pins.entry.name, pins.entry.generation) == ("m/", old[0].generation)
        assert {h.client for h in pins.holders} >= {"second"}
        with client.open("m/a", generation=old[0].generation) as a:
            assert read(a) == 1, "by way of the version that is held"
        kept = old[1]["a"]
        for held in old:
            held.close()
        with pytest.raises(caid.ClosedError):
            old[0]["a"]
        assert read(kept) == 1, "what was taken out lives on"
        kept.close()
        wait_until(lambda: n_leases(client) == 0 and client.status().arrays == 2)
        with pytest.raises(caid.StaleError):
            client.open("m/a", generation=old[0].generation)


def test_the_next_version_may_have_arrays_of_the_last(client):
    publish(client, "m/", {"a": 1, "b": 2})
    with client.open_set("m/") as s, filled(client, 3) as new:
        with pytest.raises(caid.ReadOnlyError, match='"m/a" is open with mode "r"'):
            client.publish_many("m/", {"a": s["a"][1:]})
        client.publish_many("m/", {**s, "b": new, "part": new[1:]})
    with client.open_set("m/") as s:
        assert {key: read(a) for key, a in s.items()} == {"a": 1, "b": 3, "part": 3}
        assert s["part"].size == s["b"].size - 1
        with pytest.raises(KeyError, match="zz"):
            s["zz"]
        with pytest.raises(KeyError):
            s.open(["a", "zz"])


@pytest.mark.parametrize("after_s", [0, 0.002, 0.005, 0.01, None])
def test_a_publisher_that_is_killed_leaves_all_or_nothing(client, child, after_s):
    """Killed while it makes the set, fills it and publishes it, or when it has; None."""
    publisher = child(
        """
        with caid.connect() as c:
            arrays = {f"w{i}": c.empty(1) for i in range(1500)}
            print("ready", flush=True)
            input()
            c.publish_many("m/", arrays)
            print("done", flush=True)
            input()
        """
    )
    publisher.expect("ready")
    publisher.go()
    if after_s is None:
        publisher.expect("done")
    else:
        time.sleep(after_s)
    publisher.kill()
    wait_until(lambda: client.status().connections == 1 and client.status().leases == 0)
    there = len(client.list(prefix="m/"))
    assert there in ((1501,) if after_s is None else (0, 1501))
    client.unlink("m/", missing_ok=True)
    wait_until(lambda: client.status().arrays == 0)
    assert client.users()[0].names == 0


def test_generations_of_names_under_a_set_never_repeat(client):
    """The set takes the place of an array whose own generation is lower than that of a name under it."""
    with filled(client, 1) as a, filled(client, 2) as b:
        a.publish("m/")
        for _ in range(3):
            highest = b.publish("m/a")
    client.unlink("m/a")
    assert publish(client, "m/", {"a": 4}) > highest


# --- refusals ------------------------------------------------------------------------------------


def test_what_is_no_set_is_refused(client):
    with filled(client, 1) as a, filled(client, 2) as b:
        for arrays, error in [
            ({}, caid.InvalidError),
            ({"": a}, caid.InvalidNameError),
            ({"a\n": a}, caid.InvalidNameError),
            ({"k" * 254: a, "b": b}, caid.InvalidNameError),
        ]:
            with pytest.raises(error):
                client.publish_many("s/", arrays)
        with pytest.raises(caid.InvalidNameError, match='"s/" has the names'):
            client.publish_many("s", {"a": a})
        with pytest.raises(TypeError):
            client.publish_many("s/", {"a": "no array"})
        with client.empty(1, memory="managed") as managed, pytest.raises(caid.UnsupportedError):
            client.publish_many("s/", {"m": managed})
        assert client.list() == [] and client.users()[0].names == 0
        client.publish_many("s/", {"k" * 253: a, "b": a})
        with pytest.raises(caid.InvalidNameError):
            client.rename("s/", "s//")
        for call in (lambda: b.publish("s/zz"), lambda: client.unlink("s/b")):
            with pytest.raises(caid.InvalidError, match='of set "s/"'):
                call()
        assert [e.name for e in client.list(prefix="s/k")] == ["s/" + "k" * 253]
        assert client.show("s/b").entry.of_set
        for call in (client.open, client.open_set, client.show, client.unlink):
            with pytest.raises(caid.NotFoundError, match='there is a set "s/"$'):
                call("s")
        with pytest.raises(caid.NotFoundError, match='no array "s/c"$'):
            client.open("s/c")
        b.publish("t/x")
        with pytest.raises(caid.ExistsError):
            client.rename("s/", "t/", replace=True)
        with pytest.raises(caid.ExistsError):
            client.publish_many("s/", {"a": a}, replace=False)
        with client.open("s/") as s, pytest.raises(caid.InvalidError, match="pool, and no set"):
            client.publish_many("t/", {"a": a, "s": s})
        with client.open_set("s/") as s, client.open_set("s/") as t:
            with pytest.raises(TypeError, match="compares no elements"):
                s == t
            assert s == s and s is not None and len({s, t}) == 2
        b.publish("x")
        with pytest.raises(caid.InvalidError, match="not a set"):
            client.open_set("x")
        assert [e.name for e in client.list()][-1] == "x"


def test_a_watch_of_a_prefix_and_of_names_under_it(client):
    with client.watch("s/") as whole, client.watch("s/a") as one, client.watch("s/z") as none:
        first = publish(client, "s/", {"a": 1})
        assert whole.get(PATIENCE_S).generation == one.get(PATIENCE_S).generation == first
        second = publish(client, "s/", {"b": 1})
        assert (whole.get(PATIENCE_S).generation, one.get(PATIENCE_S).generation) == (second, 0)
        for watch in (whole, one, none):
            with pytest.raises(caid.TimedOutError):
                watch.get(0)
        with client.open("s/b", wait=True, timeout=PATIENCE_S) as b:
            assert b.generation == second
