# SPDX-License-Identifier: Apache-2.0
"""Names: waited for, created by one of many, asked about, changed and removed, while others do the
same."""


import numpy
import pytest
from conftest import in_a_thread, in_threads

import caid

N_PARTIES = 4


@pytest.fixture
def parties(daemon, client):
    """Connections, as of so many processes."""
    made = [daemon.connect() for _ in range(N_PARTIES)]
    yield made
    for c in made:
        c.close()


def test_a_name_that_is_taken_says_how_to_open_it(client):
    client.create("w", 4).close()
    with pytest.raises(caid.ExistsError, match=r'"w" exists .*exist_ok=True') as raised:
        client.create("w", 4)
    assert raised.value.errno == 17 and raised.value.code == caid.ErrorCode.EXISTS


# --- open(wait=True) ------------------------------------------------------------------------


def test_a_name_is_waited_for(client, other):
    thread, results = in_a_thread(lambda: client.open("w", "rw", wait=True))
    assert results == []
    with other.create("w", 4, "u1") as a:
        thread.join()
        with results[0] as b, client.open("w", wait=True, timeout=0) as c:
            assert not b.readonly and c.readonly and b.generation == c.generation == a.generation


def test_a_name_that_does_not_come(client):
    for timeout in (0, 0.05, 1e-9):
        with pytest.raises(caid.TimedOutError, match="no array 'w' came"):
            client.open("w", wait=True, timeout=timeout)
    with pytest.raises(caid.NotFoundError, match="no-such"):  # a pool is not waited for
        client.open("w", pool="no-such", wait=True)
    for wrong in ({"timeout": 1}, {"wait": True, "generation": 1}):
        with pytest.raises(caid.InvalidError, match="wait"):
            client.open("w", **wrong)
    with pytest.raises(ValueError, match="timeout"):
        client.open("w", wait=True, timeout=-1)


def test_a_name_that_goes_before_it_is_opened(client, monkeypatch):
    """The news of it has come, and the array has gone: the next one is waited for."""
    looks = []
    open_now = caid._caid.Client._open

    def opening(self, *args):
        looks.append(args)
        if len(looks) == 1:
            client.create("w", 4).close()
            raise caid.NotFoundError(2, "not yet")
        if len(looks) == 2:
            client.unlink("w")
        if len(looks) == 3:
            client.create("w", 16).close()
        return open_now(self, *args)

    monkeypatch.setattr(caid.Client, "_open", opening, raising=False)
    with client.open("w", wait=True, timeout=30) as a:
        assert a.shape == (16,) and len(looks) >= 3


def test_close_ends_the_wait(daemon):
    c = daemon.connect()
    thread, results = in_a_thread(lambda: c.open("w", wait=True))
    c.close()
    thread.join()
    assert isinstance(results[0], (caid.CancelledError, caid.ClosedError))


# --- create(exist_ok=True) ------------------------------------------------------------------


def test_one_creates_and_the_others_open(client, parties):
    """As many rounds as show something. "exclusive" makes creating take its time."""
    for _ in range(20):
        made, waited = [], []

        def race(i, made=made, waited=waited):
            if i >= N_PARTIES:
                waited.append(parties[i - N_PARTIES].open("w", wait=True))
            else:
                made.append(parties[i].create("w", (3, 4), "<i4", exclusive=True, exist_ok=True))

        in_threads(2 * N_PARTIES, race)
        assert sum(a.created for a in made) == 1 and not any(a.created for a in waited)
        (creator,) = (a for a in made if a.created)
        creator.copy_from_host(numpy.full((3, 4), 7, "<i4"))
        for a in made + waited:
            assert a.copy_to_host().tolist() == [[7] * 4] * 3
            assert a.generation == creator.generation
            a.close()
        client.unlink("w")


def test_names_that_come_and_go_are_created_or_opened(parties):
    """Whoever asks gets an array, while others take the name away."""

    def churn(i):
        for _ in range(50):
            with parties[i].create("w", 4, "u1", exist_ok=True) as a, a[1:] as view:
                assert a.shape == (4,) and not a.readonly and view.created == a.created
            parties[i].unlink("w", missing_ok=True)

    in_threads(N_PARTIES, churn)


def test_a_creation_that_failed_is_not_waited_for(client, monkeypatch):
    """A name was being created, and then could not be: there is no news of that."""
    refused = [caid.ExistsError(17, "is being created")] * 2
    create = caid.Client._create_lease

    def creating(self, *args):
        if refused:
            raise refused.pop()
        return create(self, *args)

    monkeypatch.setattr(caid.Client, "_create_lease", creating)
    with client.create("w", 4, exist_ok=True) as a:
        assert a.created


@pytest.mark.parametrize(
    "change, differs",
    [
        ({"shape": (2, 4)}, r"shape \(2, 3\), not \(2, 4\)"),
        ({"dtype": "<i4"}, "type '?<f4'?, not '?<i4'?"),
        ({"dtype": [("x", "<f4")]}, r"type .*<f4.*, not \[\[\"x\""),
        ({"order": "F"}, r"strides \(12, 4\), not \(4, 8\)"),
        ({"strides": (64, 4)}, r"strides \(12, 4\), not \(64, 4\)"),
        ({"memory": "pinned"}, "memory 'device', not 'pinned'"),
    ],
)
def test_what_is_there_is_another_array(client, change, differs):
    with client.create("w", (2, 3), "<f4", metadata={"a": 1}):
        asked = {"shape": (2, 3), "dtype": "<f4", **change}
        with pytest.raises(caid.ExistsError, match=differs) as caught:
            client.create("w", **asked, exist_ok=True)
        assert caught.value.errno == 17
        with client.create("w", (2, 3), "f4", exist_ok=True, alignment=256, metadata=2) as same:
            assert same.metadata == {"a": 1} and not same.created
        with pytest.raises(caid.ExistsError):
            client.create("w", (2, 3), "<f4")


def test_what_is_there_is_the_same_array(client):
    """Strides that are never stepped along are no difference; alignment is one."""
    fields = [("x", "<f4"), ("y", "<i2", (3,))]
    for shape, dtype in [((1, 5), "<f8"), ((0, 3), "<f8"), ((), "u1"), (3, "bfloat16"), (2, fields)]:
        with client.create("w", shape, dtype):
            client.create("w", shape, dtype, order="F", exist_ok=True).close()
        client.unlink("w")
    with client.create("first", 1, "u1"), client.create("w", 1, "u1") as a:
        assert a.ptr % (1 << 20), "it comes after another one"
        with pytest.raises(caid.ExistsError, match=f"aligned to .* bytes, not {1 << 20}"):
            client.create("w", 1, "u1", alignment=1 << 20, exist_ok=True)


def test_what_was_not_created_here(client, other):
    with client.create("w", 4) as a, other.open("w") as b, client.empty(4) as c:
        assert (a.created, b.created, c.created) == (True, False, True)
        with caid.from_cuda_array_interface(c.__cuda_array_interface__, owner=c) as foreign:
            assert not foreign.created


# --- asking and renaming --------------------------------------------------------------------


def test_exists(client):
    client.create("a/b", 1).close()
    assert "a/b" in client and "a" not in client
    assert client.exists("a/b", pool=client.status().pool) is True
    assert client.exists("a/b", pool="no-such-pool") is False
    with pytest.raises(caid.InvalidNameError):
        client.exists("")
    with pytest.raises(TypeError):
        client.exists(5)


def test_rename(client, other):
    with client.create("old", 4, "<i4", metadata=[1]) as a, client.watch("old") as was:
        was.get()
        a.copy_from_host([0, 1, 2, 3])
        generation = other.rename("old", "new")
        assert was.get(60).generation == 0 and "old" not in client
        assert a.name == "old"
        with other.open("new", generation=generation) as b:
            assert b.metadata == [1] and b.copy_to_host().tolist() == [0, 1, 2, 3]
    with client.create("taken", 8, "<i4") as held:
        for name in ("taken", "new"):
            with pytest.raises(caid.ExistsError):
                client.rename("new", name)
        assert client.rename("new", "taken", replace=True) == held.generation + 1
        assert [(e.name, e.shape) for e in client.list()] == [("taken", (4,))]
    with pytest.raises(caid.InvalidNameError):
        client.rename("taken", "")


# --- patterns -------------------------------------------------------------------------------


def test_a_pattern_is_one_only_where_it_is_asked_for(client):
    for name in ("run/1", "run/2", "runs", "other"):
        client.create(name, 0, "u1").close()
    for pattern, names in {"run*": ["run/1", "run/2", "runs"], "*/[!1]": ["run/2"], "run": [], "o????": ["other"]}.items():
        assert [e.name for e in client.list(pattern=pattern)] == names
    with pytest.raises(caid.NotFoundError, match="a letter, not a pattern"):
        client.open("run*")
    with pytest.warns(UserWarning, match="a letter"):
        client.watch("run*").close()
    with pytest.raises(caid.InvalidError, match="exclude"):
        client.list(prefix="r", pattern="r*")
    client.create("run*", 0, "u1").close()
    client.open("run*").close()
    client.watch("run*").close()  # no warning, which would be an error here
    assert [e.name for e in client.list(pattern="run[*]")] == ["run*"]


# --- unlink ---------------------------------------------------------------------------------


def test_unlink_what_starts_alike(client, parties):
    names = [f"frame/{i}" for i in range(1500)]
    for name in (*names, "frame", "other"):
        client.create(name, 0, "u1").close()
    removed = []
    in_threads(N_PARTIES, lambda i: removed.append(parties[i].unlink(prefix="frame/")))
    assert sum(removed) == len(names), "each by one of them"
    assert [e.name for e in client.list()] == ["frame", "other"]
    assert client.unlink(prefix="frame/") == 0
    assert client.unlink("frame") == 1 and client.unlink("frame", missing_ok=True) == 0
    with pytest.raises(caid.NotFoundError):
        client.unlink("frame")
    with pytest.raises(caid.InvalidError, match="empty"):
        client.unlink(prefix="")
    for wrong in ({}, {"name": "other", "prefix": "o"}):
        with pytest.raises(TypeError, match="either"):
            client.unlink(**wrong)
    assert "other" in client
