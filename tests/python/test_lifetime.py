# SPDX-License-Identifier: Apache-2.0
"""How long things live in one process: close(), with, garbage, threads, fork, exit."""

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
import weakref

import pytest
from conftest import PATIENCE_S, forked, in_thread, in_threads, n_leases, n_live, refuses, wait_until

import caid
from caid import _caid


# --- close() --------------------------------------------------------------------------------


def test_close_ends_the_lease_and_is_idempotent(client):
    a = client.empty(10)
    assert n_leases(client) == 1 and not a.closed
    a.close()
    assert a.closed and n_leases(client) == 0
    a.close()
    assert (a.shape, a.typestr, a.strides, a.name, a.nbytes) == ((10,), "<f8", (8,), None, 80)
    assert repr(a) == "<caid.Array closed>"


def test_a_closed_array_is_not_used(client):
    with client.create("a", (2, 3)) as a:
        pass
    with client.open("a") as b, client.empty(48, "|u1") as raw:
        for use in (
            lambda: a.ptr,
            lambda: a[0],
            lambda: a.T,
            lambda: a.view(),
            lambda: a.reshape(6),
            lambda: a.__cuda_array_interface__,
            lambda: a.__array_interface__,
            lambda: a.copy_to_host(),
            lambda: a.copy_from_host(bytes(48)),
            lambda: a.copy_from(b),
            lambda: b.copy_to(a),
            lambda: raw.copy_from(a),
        ):
            with refuses(caid.ClosedError, match="array 'a' is closed"):
                use()


def test_the_lease_ends_with_the_last_view(client):
    a = client.empty((4, 4))
    v, w = a[1:], a.T
    a.close()
    assert n_leases(client) == 1
    x = v[1]
    v.close()
    v.close()
    w.close()
    assert n_leases(client) == 1 and not x.closed
    x.copy_from_host(bytes(32))
    x.close()
    assert n_leases(client) == 0


def test_garbage_ends_the_lease(client):
    a = client.empty(4)
    v = a[1:]
    with pytest.warns(ResourceWarning, match="unclosed <caid.Array"):
        del a
    assert n_leases(client) == 1
    del v  # views do not warn
    assert n_leases(client) == 0


def test_cycles_are_collected(daemon, client):
    class Client(caid.Client):  # with a __dict__
        pass

    with pytest.warns(ResourceWarning):
        c = Client(daemon.address)
        c.a = c.empty(4)
        c.view = c.a[1:]
        alive = weakref.ref(c)
        del c
        gc.collect()
    assert alive() is None
    gc.collect()  # the warnings, which are gone, had named the objects
    wait_until(lambda: client.status().connections == 1)


def test_closing_the_client_closes_its_arrays(daemon, client):
    with daemon.connect() as c:
        a = c.create("a", 4)
        v = a[1:]
    assert c.closed and a.closed and v.closed
    with pytest.raises(caid.ClosedError, match="array 'a' is closed"):
        a.copy_to_host()
    for use in (c.list, c.ping, c.status, c.fileno, c.dispatch, c.memory_info, lambda: c.open("a")):
        with pytest.raises(caid.ClosedError, match="the client is closed"):
            use()
    c.close()
    assert repr(c) == f"<caid.Client {daemon.address!r} closed>"
    wait_until(lambda: n_leases(client) == 0)
    assert [entry.name for entry in client.list()] == ["a"]
    v.close()
    a.close()


def test_an_array_keeps_its_client(daemon, client):
    a = daemon.connect().create("a", 4, "|u1")
    gc.collect()
    a.copy_from_host(b"data")
    assert bytes(a.copy_to_host()) == b"data"
    with pytest.warns(ResourceWarning, match="unclosed <caid.Client"):
        a.close()
        del a
    wait_until(lambda: client.status().connections == 1)


def test_a_client_connects_once(daemon, client):
    with pytest.raises(RuntimeError, match="connects once"):
        client.__init__(daemon.address)
    client.ping()


OF_A_CLIENT = {
    "a stream": (lambda c: c.stream(), "streams", lambda s: s.synchronize()),
    "an event": (lambda c: c.event(ipc=True), "events", lambda e: e.record(1)),
    "a timeline": (lambda c: c.timeline("t"), None, lambda tl: tl.signal(None, 1)),
}


@pytest.mark.parametrize("make, kind, use", OF_A_CLIENT.values(), ids=OF_A_CLIENT.keys())
def test_it_keeps_its_client_and_ends_with_it(daemon, client, soft, make, kind, use):
    c = daemon.connect()
    kept = weakref.ref(c)
    thing = make(c)
    with client.stream():  # the context stays
        before = kind and n_live(kind)
        del c
        gc.collect()
        use(thing)
        kept().close()
        assert thing.closed and (kind is None or n_live(kind) == before - 1)
    with pytest.raises(caid.ClosedError):
        use(thing)
    thing.close()
    del thing
    gc.collect()
    assert kept() is None
    wait_until(lambda: client.timelines() == [])
    with daemon.connect() as c:
        pass
    with pytest.raises(caid.ClosedError, match="the client is closed"):
        make(c)


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_nothing_is_duplicated(client, arena, how):
    with client.create("a", 4) as a, client.stream() as s, client.timeline("t") as tl:
        for thing, what in (
            (client, "connect anew"),
            (s, "pickled"),
            (client.event(), "ipc_handle"),
            (tl, "pass its name"),
            (a.read(), "pickled"),
            (arena, "cannot be copied or pickled"),
            (arena.allocate(1), "cannot be copied or pickled"),
        ):
            with pytest.raises(TypeError, match=what):
                how(thing)


@pytest.mark.parametrize(
    "cls",
    [caid.Array, caid.Stream, caid.Event, caid.Timeline, caid.Watch, caid.Bracket, caid.Arena]
    + [caid.Allocation, _caid.Arena, _caid.Lease, _caid.HostView],
)
def test_what_others_make_is_not_made_by_hand(cls):
    with pytest.raises(TypeError, match="comes from"):
        cls()


LEFT_OPEN = {
    "Client": lambda c: caid.connect(c.status().socket),
    "Array": lambda c: c.empty(4),
    "Stream": lambda c: c.stream(),
    "Timeline 't' signals": lambda c: c.timeline("t"),
    "Watch 'w'": lambda c: c.watch("w"),
}


@pytest.mark.parametrize("what", LEFT_OPEN)
def test_what_is_left_open_is_told_of_and_ends(client, soft, what):
    LEFT_OPEN[what](client).close()
    before = n_live("streams")
    with pytest.warns(ResourceWarning, match=f"unclosed <caid.{what}"):
        LEFT_OPEN[what](client)
        gc.collect()
    assert n_live("streams") == before and client.timelines() == []
    wait_until(lambda: client.status().watches == 0 and client.status().connections == 1)
    closed = LEFT_OPEN[what](client)
    closed.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del closed
        gc.collect()


def test_what_never_connected_is_not_told_of():
    with pytest.raises(caid.NoDaemonError):
        caid.connect("/nonexistent")


# --- threads --------------------------------------------------------------------------------


def test_one_array_is_closed_by_many_threads(client):
    for _ in range(30):
        a = client.empty(4)
        keep = a[1:]
        start = threading.Barrier(4)

        in_threads(4, lambda _: (start.wait(), a.close())[1])
        assert a.closed and not keep.closed and n_leases(client) == 1
        keep.close()
        assert n_leases(client) == 0


def test_a_client_is_closed_under_calls(daemon, client):
    """Calls under way end with a result or an error; none crashes, none hangs."""
    for _ in range(10):
        c = daemon.connect()
        a = c.empty((64, 1024), "|u1")

        def work():
            while True:
                c.ping()
                a.copy_to_host(bytearray(65536))

        threads = [in_thread(work) for _ in range(4)]
        c.close()
        for thread, ended in threads:
            thread.join(PATIENCE_S)
            assert isinstance(ended[0], (caid.ClosedError, caid.DisconnectedError))
        a.close()
    wait_until(lambda: client.status().connections == 1)


# --- fork and exit --------------------------------------------------------------------------


OF_THE_PARENT = {
    "an array": (
        lambda c: c.create("a", 4),
        lambda a: [a.copy_to_host, lambda: a.read().begin(), a.discard],
        lambda a: a.copy_to_host(),
    ),
    "a stream": (
        lambda c: c.stream(),
        lambda s: [s.synchronize, s.query, lambda: s.add_callback(print)],
        lambda s: s.synchronize(),
    ),
    "an event": (
        lambda c: c.event(ipc=True),
        lambda e: [e.query, e.synchronize, lambda: e.record(1)],
        lambda e: (e.record(1), e.synchronize()),
    ),
    "a timeline": (
        lambda c: c.timeline("t"),
        lambda tl: [lambda: tl.signal(None, 1), lambda: tl.wait(None, 1)],
        lambda tl: (tl.signal(None, 1), tl.wait(None, 1)),
    ),
    "an arena": (
        lambda c: c.arena(),
        lambda a: [lambda: a.allocate(1), lambda: a.find(1), a.trim],
        lambda a: a.allocate(1),
    ),
}


@pytest.mark.parametrize("make, uses, still", OF_THE_PARENT.values(), ids=OF_THE_PARENT.keys())
def test_a_forked_child_is_refused_and_does_no_harm(client, make, uses, still):
    calls = [client.ping, client.fileno, client.timelines, client.stream, client.event]
    thing = make(client)
    if hasattr(thing, "synchronize"):
        still(thing)
    forked(*calls, *uses(thing), work=lambda: (thing.close(), client.close(), gc.collect()))
    still(thing)
    thing.close()
    client.ping()


def test_a_forked_child_frees_nothing_of_an_arena(client, arena):
    held = [arena.allocate(100)]
    forked(lambda: arena.publish("x", held[0]), work=held.clear)
    assert arena.info.allocations == 1


def read_in_a_child(address, queue):
    with caid.connect(address) as c, c.open("a") as a:
        queue.put(bytes(a.copy_to_host(bytearray(4))))


def test_multiprocessing_children_connect_anew(daemon, client):
    """Before the first array is mapped no CUDA library is loaded: fork and connect."""
    code = """
import multiprocessing, sys
import caid
from test_lifetime import read_in_a_child
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    with caid.connect(sys.argv[1]) as c:
        c.ping()
        queue = context.Queue()
        child = context.Process(target=read_in_a_child, args=(sys.argv[1], queue))
        child.start()
        print(queue.get(timeout=60).decode())
        child.join()
    sys.exit(child.exitcode)
"""
    with client.create("a", 4, "|u1") as a:
        a.copy_from_host(b"data")
        for method in multiprocessing.get_all_start_methods():
            out = subprocess.run(
                [sys.executable, "-c", code, daemon.address, method],
                cwd=os.path.dirname(__file__),
                capture_output=True,
                text=True,
            )
            assert (out.stdout, out.returncode) == ("data\n", 0), out.stderr


EXITS = {
    "arrays and clients are left open": "keep = [c, c.create('x', 4), c.empty(4)[1:]]",
    "a cycle": "c.create('x', 4).__class__; l = [c]; l.append(l)",
    "numpy sees the memory": "import numpy; keep = numpy.asarray(c.create('x', 4))",
    "a thread waits": """
import threading, time
t = threading.Thread(target=lambda: [c.ping() for _ in iter(int, 1)], daemon=True)
t.start()
""",
}


@pytest.mark.parametrize("what", EXITS.values(), ids=EXITS.keys())
def test_the_interpreter_exits_cleanly(child, client, what, soft):
    code = f"c = caid.connect()\n{what}"
    assert child(code, PYTHONWARNINGS="ignore").finish() == (0, "")
    wait_until(lambda: client.status().connections == 1)
    assert n_leases(client) == 0


WAITS = {
    "calls": "while True: c.ping()",
    "a watch": "with c.watch('w') as watch: list(watch)",
    "a timeline": "with c.open_timeline('t') as tl: tl.wait(None, 1)",
    "a timeline on a stream": "with c.open_timeline('t') as tl: tl.wait(1, 1)",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_ctrl_c_ends_a_wait(child, client, wait):
    with client.timeline("t"):
        c = child(
            f"""
            with caid.connect() as c:
                try:
                    print("up", flush=True)
                    {wait}
                except KeyboardInterrupt:
                    c.ping()
                    sys.exit(7)
            """
        )
        c.expect("up")
        time.sleep(0.1)
        os.kill(c.pid, signal.SIGINT)
        assert c.finish()[0] == 7


# --- leaks ----------------------------------------------------------------------------------


def test_nothing_leaks(client):
    """Bytes of Python's allocators after many rounds are those after few."""
    client.create("a", (2, 3), [("x", "<f4")]).close()

    def turn():
        with client.open("a") as a, a[::-1].T as v:
            v.copy_to_host(bytearray(v.nbytes))
            v.__cuda_array_interface__
            with caid.as_array(a):
                pass
        for b in client.open_many(["a", "a"], "rw"):
            b.close()
        client.empty(3).close()
        client.list()
        client.show("a")
        client.status()
        client.pools()
        client.memory_info()
        for refused in (lambda: client.open("absent"), lambda: client.empty(2**70), lambda: a[0]):
            try:
                refused()
            except caid.Error:
                pass

    tracemalloc.start()
    for _ in range(20):
        turn()
    gc.collect()
    few, objects = tracemalloc.get_traced_memory()[0], len(gc.get_objects())
    for _ in range(200):
        turn()
    gc.collect()
    many = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(gc.get_objects()) - objects < 50
    assert many - few < 200 * 16  # less than the smallest object for each round
