# SPDX-License-Identifier: Apache-2.0
"""What debuggers, completion and duck typing do with objects, in all their states: attributes raise AttributeErrors
alone, and methods the errors themselves."""

import asyncio
import inspect
import pickle
import rlcompleter
from multiprocessing.reduction import ForkingPickler

import numpy
import pytest
from members import THINGS, members, outcome

import caid
import caid.storage
from caid._interfaces import _reference


@pytest.fixture
def client(monkeypatch):
    """Of a daemon of its own: what a closed client leaves stays until the process exits."""
    with caid.LocalDaemon() as daemon, daemon.connect() as c:
        monkeypatch.setenv("CAID_SOCKET", daemon.address)
        yield c


def look(thing):
    assert inspect.getmembers(thing) and rlcompleter.Completer({"x": thing}).attr_matches("x.") and repr(thing)
    return {name for name in dir(thing) if hasattr(thing, name)}


@pytest.mark.parametrize("what", THINGS)
@pytest.mark.parametrize("end", ["its own", "its client's"])
def test_open_and_closed(client, what, end):
    cls, make, _ = THINGS[what]
    with caid.connect() as c, c.create("a", (2, 3)) as a:
        thing = make(c, a)
        look(thing)
        (thing if end == "its own" and hasattr(thing, "close") else c).close()
        look(thing)
        for name in members(cls):
            said = asyncio.run(outcome(cls, thing, name))
            assert not said.startswith(("AttributeError", "UnavailableError")), name


def test_an_attribute_says_why(client):
    with client.empty(4) as a, client.stream() as s, client.arena() as arena, arena.allocate(8) as x:
        assert "ptr" in look(a) and "ipc_handle" not in look(a)
    for thing, name in (a, "ptr"), (a, "T"), (s, "handle"), (arena, "info"), (x, "__cuda_array_interface__"):
        assert name not in look(thing)
        with pytest.raises(caid.UnavailableError, match="closed") as raised:
            getattr(thing, name)
        assert isinstance(raised.value.__cause__, caid.ClosedError)
    for use in numpy.asarray, caid.as_array, caid.from_dlpack:
        with pytest.raises(caid.ClosedError):
            use(a)
    with pytest.raises(caid.ClosedError):
        caid.as_array(x)
    with pytest.raises(caid.ClosedError), caid.storage.fields(read=[a]):
        pass


def test_what_has_arrived(client):
    with client.empty(4) as a:
        message = bytes(ForkingPickler.dumps(a))
        with caid.Reference(a) as reference:
            look(reference)
        look(reference)
    pickle.loads(message).close()
    with pickle.loads(message) as b:
        assert "T" not in look(b)
        with pytest.raises(caid.NotFoundError):
            numpy.asarray(b)
    assert "dtype" not in look(_reference._arrived("x"))
    caid.default_client().close()


@pytest.mark.parametrize("memory", ["pinned", "mapped", "managed"])
def test_memory_of_the_host(client, memory):
    with client.empty(4, memory=memory) as a:
        look(a)
    look(a)


@pytest.mark.parametrize("options", [{"device": None}, {"device": "gpu"}, {"defaults": "gt:gpu"}, {"managed": "cuda"}])
def test_storages(client, options):
    storage = caid.storage.zeros((2, 3), **options)
    look(storage)
    caid.default_client().close()
    look(storage)
