# SPDX-License-Identifier: Apache-2.0
"""Publishing: names that move from array to array, at once and as a whole (I8)."""


import numpy
import pytest
from conftest import n_leases

import caid

def filled(client, value, **options):
    a = client.empty(64, "<i4", **options)
    a.copy_from_host(numpy.full(64, value, "<i4"))
    return a


def read(array):
    (value,) = set(array.copy_to_host().tolist())
    return value


def test_publish_replaces_and_old_ones_live_while_held(client):
    generations = []
    with filled(client, 1) as a, filled(client, 2) as b:
        assert (a.name, a.generation) == (None, 0)
        generations.append(a.publish("w", metadata={"step": 1}))
        assert (a.name, a.generation, a.metadata) == ("w", generations[0], {"step": 1})
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
        assert a.name is None
    with pytest.raises(caid.ClosedError):
        a.publish("w")
    assert client.list() == []


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


# --- companions -----------------------------------------------------------------------------


def test_a_companion_goes_with_its_array(client, other):
    with client.empty(8, "u1") as a, client.empty(8, "u1", memory="pinned") as b:
        numpy.asarray(b)[:] = 5
        first = a.publish("pair", companion=b)
        with pytest.raises(caid.InvalidError, match="goes with one array"), client.empty(8, "u1") as c:
            c.publish("another", companion=b)
        with pytest.raises(caid.InvalidError, match="companion of another"):
            b.publish("alone")
        with b[1:] as view, pytest.raises(caid.UnsupportedError, match="a view"):
            a.publish("pair", companion=view)
        with pytest.raises(TypeError):
            a._memory.publish("pair", None, 0, False, "b", 0)
        assert a.publish("pair", companion=b) == first + 1
    with other.open("pair") as a, a.open_companion() as b:
        assert b.readonly and b.memory == "pinned" and (numpy.asarray(b) == 5).all() and b.name is None
        with pytest.raises(caid.NotFoundError, match="no companion"):
            b.open_companion()
    client.unlink("pair")
