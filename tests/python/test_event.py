# SPDX-License-Identifier: Apache-2.0
"""Events: between streams of this process, and of two."""

import gc
import os

import pytest
from conftest import PATIENCE_S, Held, in_thread, n_live, refuses, until_it_waits, wait_until

import caid


@pytest.fixture
def two(client):
    """Two streams that nothing orders."""
    with client.stream(non_blocking=True) as s, client.stream(non_blocking=True) as t:
        yield s, t


def test_an_event_is_passed_with_what_was_before_it(client, two):
    s, t = two
    e = client.event()
    assert e.query() and e.device == 0 and e.handle > 0
    e.synchronize()
    with Held(s) as held:
        e.record(s)
        assert not e.query()
        thread, ended = in_thread(e.synchronize)
        e.wait(t)
        called = []
        t.add_callback(lambda *_: called.append(held.gate.is_set()))
        thread.join(0.02)
        assert not ended and not called and not t.query()
        held.gate.set()
        t.synchronize()
        assert called == [True]
        thread.join(PATIENCE_S)
        assert ended == [None] and e.query()


@pytest.mark.parametrize("method", ["record", "wait"])
def test_any_stream_is_taken_but_none(client, two, method):
    call = getattr(client.event(), method)
    for stream in (1, 2, two[0], two[0].handle, caid.Stream.from_handle(two[0])):
        call(stream)
    for default in (None, 0):  # Numba's
        call(default)
    with pytest.raises(TypeError, match="a stream object is needed"):
        call("1")


def test_an_event_ends(client, two, soft):
    before = n_live("events")
    e = client.event()
    assert n_live("events") == before + 1 and repr(e) == f"<caid.Event {e.handle:#x} device=0>"
    e.close()
    e.close()
    assert e.closed and repr(e) == "<caid.Event closed>" and n_live("events") == before
    for use in (
        lambda: e.handle,
        lambda: e.ipc_handle,
        lambda: e.record(1),
        lambda: e.wait(1),
        e.query,
        e.synchronize,
    ):
        with refuses(caid.ClosedError, match="the event is closed"):
            use()
    client.event()
    gc.collect()
    wait_until(lambda: n_live("events") == before)


def test_close_while_another_thread_waits(client, two):
    e = client.event()
    with Held(two[0]) as held:
        e.record(two[0])
        thread, ended = in_thread(e.synchronize)
        until_it_waits(thread)
        e.close()
        held.gate.set()
        thread.join(PATIENCE_S)
    assert ended == [None]


# --- of other processes ---------------------------------------------------------------------

RECORDER = """
import threading
with caid.connect() as c, c.stream() as s, c.empty(64, "|u1") as _:
    e, gate = c.event(ipc=True), threading.Event()
    s.add_callback(lambda *_: gate.wait(60))
    e.record(s)
    step(e.ipc_handle.hex())
    gate.set()
    s.synchronize()
    step("passed")
"""


def handle_of(child):
    return bytes.fromhex(child.process.stdout.readline())


def test_a_stream_waits_for_another_process(child, client, two):
    c = child(RECORDER)
    handle = handle_of(c)
    assert len(handle) == 64
    e = caid.Event.from_ipc_handle(handle, client)
    e.wait(two[0])
    assert not e.query() and not two[0].query()
    with refuses(caid.UnsupportedError):
        e.ipc_handle
    c.go()
    c.expect("passed")
    two[0].synchronize()
    assert e.query()
    e.synchronize()
    c.go()
    assert c.finish() == (0, "")


def test_without_a_daemon(child, client):
    c = child(RECORDER)
    e = caid.Event.from_ipc_handle(bytearray(handle_of(c)))
    assert not e.query()
    c.go()
    c.expect("passed")
    e.synchronize()
    c.go()
    assert c.finish() == (0, "")


def test_what_is_no_handle(client):
    with refuses(caid.UnsupportedError):
        client.event().ipc_handle
    with pytest.raises(caid.DeviceError):
        client.event(device=7)
    for wrong in (b"", bytes(63), bytes(65)):
        with pytest.raises(ValueError, match=f"{len(wrong)} bytes, not 64"):
            caid.Event.from_ipc_handle(wrong, client)
    for wrong in (None, "x" * 64, 64):
        with pytest.raises(TypeError):
            caid.Event.from_ipc_handle(wrong, client)
    with pytest.raises(caid.DriverError):
        caid.Event.from_ipc_handle(os.urandom(64), client)
