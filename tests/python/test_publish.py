# SPDX-License-Identifier: Apache-2.0
"""Publishing: names that move from array to array, at once and as a whole (I8)."""


import contextlib

import numpy
import pytest
from conftest import Held, after_gate, n_leases, wait_until
from restarts import Restarts

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


# --- views ----------------------------------------------------------------------------------

VIEWS = {
    "a row": lambda a: a[1],
    "rows": lambda a: a[1:3],
    "columns": lambda a: a[:, ::2],
    "transposed": lambda a: a.T,
    "a column": lambda a: a[1:, 2],
    "an element": lambda a: a[2, 3, ...],
    "flat": lambda a: a.reshape(-1),
    "bytes": lambda a: a.view("|u1")[1:, 1:6],
    "one backwards": lambda a: a[2:3][::-1],
    "all": lambda a: a.view(),
}


@pytest.mark.parametrize("look", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("memory", ["device", "legacy", "pinned", "mapped"])
def test_a_view_is_published_as_what_it_is(client, other, look, memory):
    twin = numpy.arange(24, dtype="<i4").reshape(4, 6)
    with client.create("a", data=twin, memory=memory) as a:
        with look(a) as view:
            generation = view.publish("v", metadata={"step": 1})
            assert (a.name, a.metadata, view.name) == ("a", None, "a")  # the name of the whole stays
        of = look(twin)
        with other.open("v", "rw") as v:
            assert (v.shape, v.dtype, v.memory, v.metadata) == (of.shape, of.dtype, memory, {"step": 1})
            assert v.tolist() == of.tolist() and v.generation == generation
            of[...] = v[...] = 7
            assert a.tolist() == twin.tolist()  # they are the same bytes
            with a.write(timeout=0), v.write(timeout=0):  # brackets of their own
                pass
    client.unlink("a")
    with other.open("v") as v:  # which keeps the memory
        assert (v.copy_to_host() == 7).all()
    client.unlink("v")
    wait_until(lambda: n_leases(client) == 0 and client.memory_info().allocated == 0)


def test_a_view_has_what_publish_offers(client, other):
    with client.array(numpy.arange(8)) as a, client.empty(8, "u1") as beside:
        assert a[:4].publish("v") + 1 == a[4:].publish("v")
        with pytest.raises(caid.ExistsError):
            a[:2].publish("v", replace=False)
        a[:2].publish("w", replace=False, ttl=1000, companion=beside)
        assert client.show("w").entry.ttl_ns > 0 and a.name is None
        with other.open("v") as v, other.open("w") as w, w.open_companion() as c:
            assert (v.tolist(), w.tolist(), c.shape) == ([4, 5, 6, 7], [0, 1], (8,))
        a[:0].publish("v")
        with other.open("v") as v:
            assert (v.shape, v.nbytes) == ((0,), 0)
        with a[1:] as view, pytest.raises(caid.UnsupportedError, match="no companion"):
            beside.publish("pair", companion=view)


def test_a_view_that_cannot_be_published_says_what_to_do(client, other):
    packed = numpy.zeros(4, dtype=[("n", "u1"), ("x", "<f4")])
    with client.create("a", (4, 6), "<i4") as a, other.open("a") as b, client.array(packed) as p:
        with pytest.raises(caid.InvalidError, match=r"strides \(-24, 4\).*the other way round.*copy"):
            a[::-1].publish("v")
        with pytest.raises(caid.ReadOnlyError, match='open with mode "r"'):
            b[1:].publish("v")
        with pytest.raises(caid.InvalidError, match="publish it as bytes|misaligned|multiple"):
            p["x"].publish("v")
        with caid.as_array(a[1:]) as theirs:
            theirs.publish("v")  # of a caid array as_array() gives a view
        with other.open("v", "rw") as v, pytest.raises(caid.InvalidError, match="a part of another one itself.*copy"):
            v[1:].publish("w")
        with pytest.raises(caid.InvalidNameError):
            a[1:].publish("")
        a.close()
        with pytest.raises(caid.ClosedError):
            a[1:].publish("w")
    assert [entry.name for entry in client.list()] == ["a", "v"]
    wait_until(lambda: n_leases(client) == 0)


def test_work_on_a_view_is_waited_for(client, other, streams):
    s, _ = streams
    with client.zeros(1000, "<i4") as a:
        s.hold_up_copy(a[500:], 7)
        after_gate(s.gate, lambda: a[500:].publish("v"))
        with other.open("v") as v:
            assert read(v) == 7


def test_a_view_has_its_name_after_a_restart(tmp_path):
    with contextlib.closing(Restarts(tmp_path)) as r, r.connect() as c:
        with c.array(numpy.arange(8)) as a:
            a[2:6:2].publish("v")
            r.restart()
            a[1:3].publish("w")
        with c.open("v") as v, c.open("w") as w:
            assert (v.tolist(), w.tolist()) == ([2, 4], [1, 2])


# --- companions -----------------------------------------------------------------------------


def test_a_companion_goes_with_its_array(client, other):
    with client.empty(8, "u1") as a, client.empty(8, "u1", memory="pinned") as b:
        numpy.asarray(b)[:] = 5
        first = a.publish("pair", companion=b)
        with pytest.raises(caid.InvalidError, match="goes with one array"), client.empty(8, "u1") as c:
            c.publish("another", companion=b)
        with pytest.raises(caid.InvalidError, match="companion of another"):
            b.publish("alone")
        with pytest.raises(TypeError):
            a._memory.publish("pair", None, 0, False, "b", 0)
        assert a.publish("pair", companion=b) == first + 1
    with other.open("pair") as a, a.open_companion() as b:
        assert b.readonly and b.memory == "pinned" and (numpy.asarray(b) == 5).all() and b.name is None
        with pytest.raises(caid.NotFoundError, match="no companion"):
            b.open_companion()
    client.unlink("pair")


def test_what_is_published_behind_work(client, other):
    with client.stream() as s, client.empty(64, "<i4") as a, Held(s) as held:
        lease = a._memory
        with pytest.raises(caid.InvalidError):
            lease._publish_wait(None)
        a.copy_from_host(numpy.full(64, 7, "<i4"), stream=s)
        lease._publish_behind("w", '"m"', s.handle)
        for _ in range(3):
            with pytest.raises(caid.TimedOutError):
                lease._publish_wait(0.01)
            with pytest.raises(caid.NotFoundError):
                other.open("w")
        held.gate.set()
        generation = lease._publish_wait(None)
        assert (a.name, a.generation, a.metadata) == ("w", generation, "m")
        with other.open("w") as b:
            assert (read(b), b.generation) == (7, generation)
