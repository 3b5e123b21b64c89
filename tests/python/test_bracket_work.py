# SPDX-License-Identifier: Apache-2.0
"""Brackets and the work of streams: in one process, in two and in three."""

import threading

import pytest
from brackets import contents, filled
from conftest import PATIENCE_S



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
