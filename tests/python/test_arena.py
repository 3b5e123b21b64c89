# SPDX-License-Identifier: Apache-2.0
"""Arenas: allocating, and freeing in every place and at every end."""

import gc
import threading
import weakref

import numpy as np
import pytest
from arenas import MIB, fill
from conftest import PATIENCE_S, forked, in_threads, n_leases, refuses, wait_until

import caid


# --- allocating -----------------------------------------------------------------------------


def test_memory_is_allocated_and_used(client, arena):
    x = arena.allocate(4000)
    y = arena.allocate(4000)
    assert x.ptr % 512 == 0 and y.ptr % 512 == 0 and abs(x.ptr - y.ptr) >= 4000
    assert x.nbytes == 4000 and repr(x) == f"<caid.Allocation {x.ptr:#x} nbytes=4000>"
    fill(client, x, np.arange(1000, dtype="<i4"))
    fill(client, y, np.full(1000, 7, "<i4"))
    got = client.as_array(x).copy_to_host().view("<i4")
    assert (got == np.arange(1000)).all()
    info = arena.info
    assert (info.allocations, info.allocated, info.n_allocs) == (2, 8000, 2)
    assert (info.blocks, info.bytes, info.n_leased) == (1, 32 * MIB, 1)
    assert isinstance(info, caid.ArenaInfo)


def test_freed_memory_waits_and_is_used_again(arena):
    first = arena.allocate(MIB).ptr  # freed at once
    assert arena.pending == (1, MIB)
    arena.flush()
    assert arena.pending == (0, 0)
    arena.trim()
    assert arena.info.blocks == 0
    assert arena.allocate(MIB).ptr and first


def test_an_allocation_is_found_by_any_address_in_it(arena):
    x = arena.allocate(1000)
    found = arena.find(x.ptr + 999)
    assert found == (x.ptr, 1000, found.block, found.offset) and found.block > 0
    with pytest.raises(caid.NotFoundError):
        arena.find(x.ptr + MIB)
    ptr = x.ptr
    del x
    assert arena.find(ptr) == found  # freed, and not used again yet
    with pytest.raises(caid.InvalidError):
        arena.find(-1)


def test_the_interface_of_an_allocation(arena, monkeypatch):
    x = arena.allocate(100)
    told = {"shape": (100,), "typestr": "|u1", "strides": None, "data": (x.ptr, False)}
    assert x.__cuda_array_interface__ == {**told, "version": 3, "stream": None}
    monkeypatch.setenv("CAID_CAI_EXPORT_VERSION", "2")
    assert x.__cuda_array_interface__ == {**told, "version": 2}


def test_sizes_that_are_none(arena):
    for size in (-1, 1 << 64):
        with pytest.raises(caid.InvalidError, match="nbytes"):
            arena.allocate(size)
    with pytest.raises(TypeError):
        arena.allocate("1")
    assert arena.info.n_allocs == 0


def test_options_that_are_none(client):
    for wrong in ("pinned", "managed", None, 7):
        with pytest.raises(caid.InvalidError, match="'device' or 'legacy'"):
            client.arena(memory=wrong)
    for limit in ("max_pending_count", "max_pending_ratio", "max_pending_age"):
        with pytest.raises(caid.InvalidError, match=f"{limit} -1"):
            client.arena(**{limit: -1})
    for device in (-1, 99, "GPU-none"):
        with pytest.raises(caid.DeviceError):
            client.arena(device)
    with client.arena(client.devices[0].uuid) as a:
        assert (a.device, a.memory, a.pool, a.closed) == (0, "device", None, False)
        assert repr(a) == "<caid.Arena device=0>"
    assert repr(a) == "<caid.Arena device=0 closed>"


def test_a_pool_that_is_not_there(client):
    with client.arena(pool="nobodys") as a, pytest.raises(caid.NotFoundError):
        a.allocate(1)


def test_the_device_of_an_ordinal(client):
    assert client._find_device(0) == 0
    for ordinal in (-1, 99):
        with pytest.raises(caid.DeviceError):
            client._find_device(ordinal)


# --- limits of what waits -------------------------------------------------------------------


def test_other_limits(arena):
    arena.set_limits(100, 0.5, 4096)
    for n in (1, 2, 3, 4, 0):
        arena.allocate(512)
        assert arena.pending == (n, n * 512)
    with pytest.raises(TypeError):
        arena.set_limits(1, "x")
    for wrong, text in (
        ((-1, 0.2), "count -1"),
        ((1, -0.5), "ratio -0.5"),
        ((1, float("nan")), "ratio nan"),
        ((1, 0.2, -1), "capacity"),
    ):
        with pytest.raises(caid.InvalidError, match=text):
            arena.set_limits(*wrong)
    arena.set_limits(1, 0)
    arena.allocate(512)
    assert arena.pending == (0, 0)
    arena.close()
    with pytest.raises(caid.ClosedError):
        arena.set_limits(1, 0.2)


# --- ends -----------------------------------------------------------------------------------


def test_close_ends_calls_and_no_memory(client):
    a = client.arena()
    x, y = a.allocate(100), a.allocate(100)
    a.close()
    a.close()
    for use in (
        lambda: a.allocate(1),
        lambda: a.find(x.ptr),
        lambda: a.ipc_handle(x.ptr),
        lambda: a.publish("x", x),
        lambda: a.publish("x", x, shape=0),
        lambda: a.info,
        lambda: a.pending,
        a.flush,
        a.trim,
        lambda: a.set_limits(1, 1),
        a.defer_cleanup().__enter__,
    ):
        with refuses(caid.ClosedError, match="the arena is closed"):
            use()
    fill(client, y, np.full(100, 5, "u1"))
    x = None  # its memory goes
    assert n_leases(client) == 1
    assert (client.as_array(y).copy_to_host() == 5).all()
    del y
    assert n_leases(client) == 0


def test_an_arena_is_collected(client):
    a = client.arena()
    x = a.allocate(100)
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert n_leases(client) == 1
    del x
    assert gone() is None and n_leases(client) == 0


def test_end_takes_what_was_allocated(client):
    a = client.arena()
    x = a.allocate(100)
    a._end()
    assert a.closed and n_leases(client) == 0
    a._end()
    assert x.ptr
    del x
    b = client.arena()
    y = b.allocate(100)
    b.close()
    assert n_leases(client) == 1
    b._end()  # closed before
    assert n_leases(client) == 0
    del y


def test_a_client_that_is_closed_leaves_memory(child):
    c = child(
        """
        import numpy as np
        with caid.connect() as c, caid.connect() as other:
            a = c.arena()
            x, y = a.allocate(1000), a.allocate(1000)
            c.close()
            assert a.closed
            try:
                a.allocate(1)
            except caid.ClosedError:
                pass
            other.as_array(x).copy_from_host(np.full(1000, 3, "u1"))
            assert (other.as_array(x).copy_to_host() == 3).all()
            del x, a
            other.as_array(y).copy_from_host(np.full(1000, 4, "u1"))
            del y
        """
    )
    assert c.finish() == (0, "")


def test_cycles_with_the_client_are_collected(daemon, client):
    class Client(caid.Client):  # with a __dict__
        pass

    with pytest.warns(ResourceWarning, match="unclosed <caid.Client"):
        c = Client(daemon.address)
        c.arena_of_it = c.arena()
        c.memory = c.arena_of_it.allocate(100)
        alive, memory = weakref.ref(c), weakref.ref(c.memory)
        del c
        gc.collect()
    assert alive() is None and memory() is None
    gc.collect()
    wait_until(lambda: client.status().connections == 1)


# --- threads --------------------------------------------------------------------------------


def test_memory_is_freed_in_any_thread(client, arena):
    """Without a current context: the thread has none."""
    made = [arena.allocate(512) for _ in range(100)]
    in_threads(4, lambda _: [made.pop() for _ in range(25)] and None)
    gc.collect()
    assert arena.info.allocations == 0


CLOSED_MEANWHILE = """
def allocate():
    try:
        while True:
            a.allocate(1 << 20)
    except caid.ClosedError:
        ended.append(True)

import threading, time
c = caid.connect()
a = c.arena(block_size=2 << 20)
ended = []
threads = [threading.Thread(target=allocate) for _ in range(3)]
for thread in threads:
    thread.start()
while a.info.n_allocs < 100:
    time.sleep(0.001)
{"close": a.close, "end": a._end, "client": c.close}[sys.argv[1]]()
for thread in threads:
    thread.join()
assert ended == [True] * 3
c.close()
"""


@pytest.mark.parametrize("how", ["close", "end", "client"])
def test_closed_while_others_allocate(child, client, how):
    """What somebody has got meanwhile, its client closed, stays with that process."""
    c = child(CLOSED_MEANWHILE, how)
    assert c.finish() == (0, "")


# --- the end of the interpreter -------------------------------------------------------------

AT_EXIT = {
    "globals": "x = a.allocate(100)",
    "a module's": "import json; json.x = a.allocate(100); del a, c",
    "builtins'": "import builtins; builtins.x = a.allocate(100)",
    "a cycle's": """
class Node: pass
node = Node()
node.me, node.x, node.a, node.c = node, a.allocate(100), a, c
gc.disable()
del node, a, c""",
    "a thread's": """
def hold():
    x = a.allocate(100)
    up.set()
    threading.Event().wait()
up = threading.Event()
threading.Thread(target=hold, daemon=True).start()
up.wait()""",
    "a busy thread's": """
def churn():
    while True:
        kept = [a.allocate(1 << 20) for _ in range(40)]
        up.set()
up = threading.Event()
threading.Thread(target=churn, daemon=True).start()
up.wait()""",
    "made at exit": """
import atexit
atexit.register(lambda: globals().update(x=a.allocate(100)))""",
    "of a closed client": "x = a.allocate(100); c.close()",
    "published": "x = a.allocate(100); a.publish('x', x)",
    "freed by a finalizer": """
import weakref
class Owner: pass
owner = Owner()
held = [a.allocate(100)]
weakref.finalize(owner, held.clear)""",
}


@pytest.mark.parametrize("what", AT_EXIT)
def test_allocations_at_the_end_of_the_interpreter(child, client, what):
    c = child("import gc, threading\nc = caid.connect()\na = c.arena()\n" + AT_EXIT[what])
    assert c.finish() == (0, "")
    wait_until(lambda: client.status().connections == 1)


# --- handles --------------------------------------------------------------------------------


def test_the_handle_of_legacy_memory(client):
    with client.arena(memory="legacy") as a:
        assert repr(a) == "<caid.Arena device=0 memory='legacy'>"
        x, y = a.allocate(1000), a.allocate(1000)
        of_x, of_y = a.ipc_handle(x.ptr), a.ipc_handle(y.ptr + 8)
        assert isinstance(of_x, caid.IpcHandle) and len(of_x.handle) == 64
        assert of_x.handle == of_y.handle
        assert of_y.offset - of_x.offset == y.ptr + 8 - x.ptr and of_x.size >= 2000
        with pytest.raises(caid.NotFoundError):
            a.ipc_handle(x.ptr + 16 * MIB)
        a.publish("x", x, shape=250, dtype="<f4")
        with client.open("x") as b:
            assert b.memory == "legacy"


# --- allocating under threads of the driver -------------------------------------------------


def test_callbacks_of_streams_allocate_beside(client, arena):
    """A callback holds the GIL in a thread of the driver's, while others allocate and free."""
    n, done = 200, threading.Event()
    left = [n]

    def callback(_stream, _status, _arg):
        left[0] -= 1
        if left[0] == 0:
            done.set()

    with client.stream() as s:
        for _ in range(n):
            s.add_callback(callback)
            for _ in range(12):
                arena.allocate(512)
        assert done.wait(PATIENCE_S)
        s.synchronize()


# --- close() --------------------------------------------------------------------------------


def test_an_allocation_is_closed_once(arena):
    with arena.allocate(MIB) as x:
        ptr = x.ptr
        assert not x.closed
    assert x.closed and repr(x) == f"<caid.Allocation {ptr:#x} nbytes={MIB} closed>"
    for use in (lambda: x.ptr, lambda: x.__cuda_array_interface__, lambda: arena.publish("x", x)):
        with refuses(caid.ClosedError):
            use()
    arena.trim()
    y = arena.allocate(MIB)
    assert y.ptr == ptr
    x.close()
    forked(work=x.close)
    x = None
    gc.collect()
    assert (arena.info.allocations, arena.pending) == (1, (0, 0)) and y.ptr == ptr


def test_an_allocation_may_be_closed_by_many_at_once(arena):
    for _ in range(20):
        x = arena.allocate(MIB)
        in_threads(4, lambda _, x=x: x.close())
    assert arena.info.allocations == 0 and arena.info.n_allocs == 20
