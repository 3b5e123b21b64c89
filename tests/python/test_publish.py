# SPDX-License-Identifier: Apache-2.0
"""Publishing: names that move from array to array, at once and as a whole (I8)."""

import os

import numpy
import pytest
from conftest import n_leases, wait_until

import caid

N_GENERATIONS = int(os.environ.get("CAID_TEST_GENERATIONS", 1000))  # ./dev test --long: 10000
N_READERS = 8


def filled(client, value, **options):
    a = client.empty(64, "<i4", **options)
    a.copy_from_host(numpy.full(64, value, "<i4"))
    return a


def read(array):
    (value,) = set(array.copy_to_host().tolist())
    return value


def test_publish_puts_an_array_under_a_name(client):
    with filled(client, 1) as a:
        assert (a.name, a.generation) == (None, 0)
        first = a.publish("w", metadata={"step": 1})
        assert (a.name, a.generation, a.metadata) == ("w", first, {"step": 1}) and first > 0
        with client.open("w") as b:
            assert (b.generation, b.metadata, read(b)) == (first, {"step": 1}, 1)
    with client.open("w") as b:
        assert read(b) == 1
    assert "'w'" in repr(b)


def test_publish_replaces_and_old_ones_live_while_held(client):
    generations = []
    with filled(client, 1) as a, filled(client, 2) as b:
        generations.append(a.publish("w"))
        held = client.open("w")
        generations.append(b.publish("w"))
        assert generations[1] == generations[0] + 1
        assert (read(held), held.generation) == (1, generations[0])
    with client.open("w") as now, client.open("w", generation=generations[0]) as old:
        assert (read(now), read(old)) == (2, 1)
        assert [old.generation, now.generation] == generations
    with client.open("w", generation=generations[1]) as same:
        assert read(same) == 2
    held.close()
    client.flush()
    for generation in (generations[0], generations[1] + 1, 2**63):
        with pytest.raises(caid.StaleError, match="w") as caught:
            client.open("w", generation=generation)
        assert caught.value.code == caid.ErrorCode.STALE
    with pytest.raises(caid.StaleError, match="none of that name"):
        client.open("absent", generation=1)
    for wrong in (-1, 2**64):
        with pytest.raises(caid.InvalidError, match="generation"):
            client.open("w", generation=wrong)


def test_an_array_has_one_name(client):
    with filled(client, 1) as a:
        a.publish("first", metadata=[1])
        a.publish("second")
        assert [entry.name for entry in client.list()] == ["second"]
        assert (a.name, a.metadata) == ("second", [1])
        a.publish("second", metadata=[2])
        assert client.show("second").metadata == [2]


def test_generations_of_a_name_do_not_repeat(client):
    seen = set()
    for i in range(5):
        with filled(client, i) as a:
            seen.add(a.publish("w"))
        client.unlink("w")
    with client.create("w", 4) as a:
        seen.add(a.generation)
    assert len(seen) == 6


def test_created_arrays_are_published_on(client):
    with client.create("w", 64, "<i4") as a, filled(client, 2) as b:
        a.copy_from_host(numpy.full(64, 1, "<i4"))
        assert b.publish("w") == a.generation + 1
        assert (a.name, read(a)) == ("w", 1)  # the name that it had
        with pytest.raises(caid.ExistsError):
            client.create("w", 4)


@pytest.mark.parametrize("memory", ["legacy", "pinned", "mapped"])
def test_other_memory_is_published(client, memory):
    with filled(client, 7, memory=memory) as a:
        a.publish("w", stream=1)
    with client.open("w") as b:
        assert (read(b), b.memory) == (7, memory)


def test_what_cannot_be_published(client):
    with filled(client, 1) as a:
        with pytest.raises(caid.UnsupportedError, match="a view"), a[1:] as view:
            view.publish("w")
        for name in ("", "x" * 256, "a\nb", "\ud800"):
            with pytest.raises(caid.InvalidNameError):
                a.publish(name)
        for name in (None, 5):
            with pytest.raises(TypeError, match="name"):
                a.publish(name)
        assert a.name is None
    with pytest.raises(caid.ClosedError):
        a.publish("w")
    assert client.list() == []


def test_a_read_only_lease_publishes_too(client):
    """Permission is the pool's, not the lease's: whoever may write it may name what is in it."""
    with filled(client, 3) as a:
        a.publish("w")
    with client.open("w") as b:
        b.publish("copy of w")
    assert [entry.name for entry in client.list()] == ["copy of w"]


READER = """
import numpy
n = int(sys.argv[1])
seen = last = 0
with caid.connect(name="reader") as c:
    print("up", flush=True)
    while last < n:
        with c.open("w") as a:
            values = a.copy_to_host()
            value = int(values[0])
            assert (values == value).all(), f"torn: {sorted(set(values.tolist()))}"
            assert a.metadata == value, (a.metadata, value)
            assert value >= last, (value, last)
            seen += value > last
            last = value
print(seen, flush=True)
"""


def test_readers_never_see_a_torn_or_vanished_array(client, child):
    """Eight processes open, check and close; a writer publishes, each generation filled with its
    number, and forgets the one before."""
    with filled(client, 0) as a:
        base = a.publish("w", metadata=0)
    readers = [child(READER, N_GENERATIONS) for _ in range(N_READERS)]
    for reader in readers:
        reader.expect("up")
    for i in range(1, N_GENERATIONS + 1):
        with filled(client, i) as a:
            assert a.publish("w", metadata=i) == base + i
    for reader in readers:
        out, errors = reader.process.communicate(timeout=180)
        assert reader.process.returncode == 0, errors
        assert 0 < int(out) <= N_GENERATIONS
    wait_until(lambda: client.status().arrays == 1)


def test_a_killed_publisher_leaves_a_whole_array(client, child):
    for i in range(3):
        c = child(
            """
            import numpy
            with caid.connect() as c:
                print("up", flush=True)
                for i in range(10**9):
                    with c.empty(64, "<i4") as a:
                        a.copy_from_host(numpy.full(64, i, "<i4"))
                        a.publish("w", metadata=i)
            """
        )
        c.expect("up")
        wait_until(lambda: client.list() and client.show("w").entry.generation > 20 * (i + 1))
        c.kill()
        with client.open("w") as a:
            assert read(a) == a.metadata
    wait_until(lambda: client.status().arrays == 1)


def test_many_names_are_opened_at_once(client):
    """As many as a packet does not hold; the blocks are mapped once each."""
    names = [f"layer/{i}" for i in range(2_000)]
    for i, name in enumerate(names):
        with client.create(name, 4, "<i4", metadata=i) as a:
            a.copy_from_host(numpy.full(4, i, "<i4"))
    arrays = client.open_many(names)
    assert [a.name for a in arrays] == names
    assert [a.metadata for a in arrays] == list(range(len(names)))
    assert arrays[1234].copy_to_host().tolist() == [1234] * 4
    assert len({a._memory.block for a in arrays}) <= client.memory_info().blocks < 10
    assert client.status().leases == len(names)
    for a in arrays:
        a.close()
    assert n_leases(client) == 0
    for name in names:
        client.unlink(name)


