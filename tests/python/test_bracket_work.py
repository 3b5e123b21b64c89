# SPDX-License-Identifier: Apache-2.0
"""Brackets and the work of streams: in one process, in two and in three."""

import threading

import pytest
from brackets import contents, filled
from conftest import PATIENCE_S, softcuda

import caid


def one_after_the_other(client, shared, out):
    """A write on one client's stream, a read on the other's. Whether the first was done when the
    second had been enqueued behind it."""
    a, b = shared
    with client.stream(non_blocking=True) as s, client.stream(non_blocking=True) as t:
        with a.write(s) as v:
            v.copy_from_host(filled(7), stream=s)
        with b.read(t) as v:
            was_done = s.query()
            v.copy_to_host(out, stream=t)  # holds the host: the memory is not page-locked
        t.synchronize()
        s.synchronize()
        return was_done


def test_a_read_comes_after_the_write(client, shared, slow, memops):
    out = bytearray(4000)
    assert not one_after_the_other(client, shared, out), "no host waited"
    assert out == filled(7)


def test_and_not_where_the_wait_is_left_out(client, shared, slow, memops):
    """This is what the test before finds out by."""
    softcuda("delay 20000 4711")
    softcuda("fail cuStreamWaitValue64=skip")
    try:
        seen = set()
        for _ in range(20):
            shared[0].copy_from_host(bytes(4000))
            out = bytearray(4000)
            one_after_the_other(client, shared, out)
            seen.add(bytes(out) == filled(7))
    finally:
        softcuda("clear")
    assert False in seen


def test_the_host_comes_after_the_work_of_streams(client, shared, slow):
    a, b = shared
    with client.stream() as s:
        with a.write(s) as v:
            v.copy_from_host(filled(7), stream=s)
        assert not s.query()
        with pytest.raises(caid.TimedOutError), b.read(timeout=0):
            pass
        with b.read() as v:
            assert s.query() and contents(v) == filled(7)


def test_a_stream_comes_after_the_host(client, shared, slow):
    a, b = shared
    out = bytearray(4000)
    with client.stream() as s:
        with a.write() as v:
            v.copy_from_host(filled(8))
        with b.read(s) as v:
            v.copy_to_host(out, stream=s)
        s.synchronize()
    assert out == filled(8)


def test_copies_on_other_streams_come_before_the_end(client, other, shared, memops):
    a, b = shared
    gate = threading.Event()
    s, t = (client.stream(non_blocking=True) for _ in range(2))
    u = other.stream(non_blocking=True)
    with s, t, u, client.empty_like(a) as source, other.empty_like(a) as target:
        source.copy_from_host(filled(9))
        t.add_callback(lambda *_: gate.wait(PATIENCE_S))
        with a.write(s) as v:
            v.copy_from(source, stream=t)
        with b.read(u) as v:
            target.copy_from(v, stream=u)
        s_is_held, u_is_held = not s.query(), not u.query()
        gate.set()
        u.synchronize()
        assert contents(target) == filled(9) and s_is_held and u_is_held


def test_what_a_bracket_has_left_is_pending(client, shared):
    """Outside brackets the dict names a stream on which to wait for it."""
    a, _ = shared
    gate = threading.Event()
    with client.stream() as s:
        with a.read(s) as v:
            s.add_callback(lambda *_: gate.wait(PATIENCE_S))
        assert v.__cuda_array_interface__["stream"] == s.ptr
        assert a.__cuda_array_interface__["stream"] not in (None, s.ptr)
        gate.set()
        a.synchronize()
        assert a.__cuda_array_interface__["stream"] is None
        gate.clear()
        with pytest.raises(KeyError), a.write(s):
            s.add_callback(lambda *_: gate.wait(PATIENCE_S))
            raise KeyError
        assert a.__cuda_array_interface__["stream"] is not None
        gate.set()
        a.synchronize()
    a.discard()


COUNTER = """
import numpy, threading
on_streams = sys.argv[1] == "streams"
with caid.connect() as c, c.stream() as s, c.open("shared", "rw") as a:
    memory = numpy.asarray(a)

    def add(*_):
        memory[0] += 1

    step("up")
    for _ in range(20):
        with a.write(s if on_streams else None):
            s.add_callback(add) if on_streams else add()
    s.synchronize()
    step("done")
"""


@pytest.mark.parametrize("on", ["streams", "the host"])
def test_three_processes_write(child, client, shared, soft, on):
    pytest.importorskip("numpy")
    a, _ = shared
    children = [child(COUNTER, on, CAID_SOFTCUDA_DELAY_US="2000") for _ in range(3)]
    for c in children:
        c.expect("up")
    for c in children:
        c.go()
    for c in children:
        c.expect("done")
    with a.read() as v:
        assert int.from_bytes(contents(v[:1]), "little") == 60
    for c in children:
        c.go()
        assert c.finish() == (0, "")


PIPELINE = """
source, target = sys.argv[1:]
with caid.connect() as c, c.stream() as s, c.open(source) as a, c.open(target, "rw") as b:
    step("up")
    with c.bracket(s, read=[a], write=[b]) as (v, w):
        w.copy_from(v, stream=s)
    step("handed on")
    s.synchronize()
"""


def test_work_goes_on_through_three_processes(child, client, slow):
    """None waits for its stream before it hands on."""
    arrays = [client.create(f"stage {i}", 1000, "<i4") for i in range(3)]
    for a in arrays:
        a.copy_from_host(bytes(4000))
    delay = {"CAID_SOFTCUDA_DELAY_US": "50000"}
    children = [child(PIPELINE, f"stage {i}", f"stage {i + 1}", **delay) for i in range(2)]
    for c in children:
        c.expect("up")
    with client.stream() as s:
        with arrays[0].write(s) as v:
            v.copy_from_host(filled(5), stream=s)
        for c in children:
            c.go()
            c.expect("handed on")
        out = bytearray(4000)
        with arrays[2].read(s) as v:
            v.copy_to_host(out, stream=s)
        s.synchronize()
        assert out == filled(5)
    for c in children:
        c.go()
        assert c.finish() == (0, "")
    for a in arrays:
        a.close()
