# SPDX-License-Identifier: Apache-2.0
"""caid.rmm with a stand-in for RMM, which does not run without a GPU (frameworks.py)."""

import gc
import importlib
import os
import sys

import frameworks
import pytest
from conftest import NON_BLOCKING, Stream, in_threads, wait_until

import caid

KIB, MIB = 1 << 10, 1 << 20
SMALL = f'[pool "small"]\nowner = {os.getuid()}\nmode = 0600\nquota = 64M\n'


@pytest.fixture
def rmm(monkeypatch, soft):
    stand_in = frameworks.install(monkeypatch, frameworks.rmm())
    importlib.import_module("caid.rmm")
    yield stand_in
    del sys.modules["caid.rmm"], caid.rmm


@pytest.fixture
def resource(rmm, client):
    made = caid.rmm.MemoryResource(client, max_pending_count=0)
    yield made
    gc.collect()
    wait_until(lambda: made.arena.info.allocations == 0)
    made.arena.trim()


def test_memory_is_freed_with_its_buffer(rmm, resource):
    assert isinstance(resource, rmm.mr.CallbackMemoryResource)
    x = rmm.DeviceBuffer(size=KIB, mr=resource)
    assert (resource.arena.info.allocations, resource.arena.info.allocated) == (1, KIB)
    del x
    assert resource.arena.info.allocations == 0
    with pytest.raises(caid.InvalidError, match="is not where an allocation starts"):
        resource._deallocate_func(12345, KIB, frameworks.RmmStream())
    in_threads(4, lambda _: [rmm.DeviceBuffer(size=i * KIB, mr=resource) for i in range(50)] and None)
    assert resource.arena.info.allocations == 0


def test_a_published_buffer_is_kept(rmm, resource, client, other):
    x = rmm.DeviceBuffer(size=KIB, mr=resource)
    client.as_array(x).fill(7)
    resource.arena.publish("x", x)
    del x
    assert resource.arena.info.allocations == 1
    with other.open("x") as a:
        assert (a.copy_to_host() == 7).all()
    client.unlink("x")


def test_what_there_is_no_room_for_is_a_memory_error(rmm):
    with caid.LocalDaemon(config=SMALL) as d, d.connect() as c:
        resource = caid.rmm.MemoryResource(c, pool="small")
        with pytest.raises(MemoryError, match="bad_alloc") as e:
            rmm.DeviceBuffer(size=65 * MIB, mr=resource)
        assert type(e.value.__cause__.__cause__) is caid.QuotaError
    with pytest.raises(RuntimeError, match="closed"):
        rmm.DeviceBuffer(size=KIB, mr=resource)


def test_what_cannot_be_is_refused_at_once(rmm, client):
    with pytest.raises(caid.NotFoundError, match="no such"):
        caid.rmm.MemoryResource(client, pool="no such")
    with pytest.raises(caid.DeviceError):
        caid.rmm.MemoryResource(client, device=5)


def test_freed_memory_waits_for_the_stream_that_is_named(rmm, resource, streams):
    slow = frameworks.RmmStream(streams[0].number)
    x = rmm.DeviceBuffer(size=MIB, mr=resource, stream=slow)
    ptr = x.ptr
    streams[0].hold_up()
    del x
    assert resource.arena.info.draining == 1
    assert rmm.DeviceBuffer(size=MIB, mr=resource).ptr != ptr
    streams[0].gate.set()
    resource.arena.trim()
    assert rmm.DeviceBuffer(size=MIB, mr=resource).ptr == ptr


def test_what_a_stream_gave_back_serves_it_at_once(rmm, client):
    """The stream's order is enough, and no event is recorded; another stream, or size, gets other memory."""
    resource = caid.rmm.MemoryResource(client)

    def once(number, nbytes=MIB):
        return rmm.DeviceBuffer(size=nbytes, mr=resource, stream=frameworks.RmmStream(number)).ptr

    s, other = Stream(NON_BLOCKING), Stream(NON_BLOCKING)
    first = once(s.number)
    s.hold_up()
    assert {once(s.number) for _ in range(100)} == {first}
    assert first not in (once(other.number), once(s.number, MIB // 2), once(0))
    assert resource.arena.info.n_flushes == 0
    with other.captures():
        assert once(other.number) != once(other.number), "a graph runs elsewhere"
    s.close()
    again = Stream(NON_BLOCKING)
    assert once(again.number) != first, "a handle is used again"
    again.close(), other.close()


def test_a_default_stream_may_be_of_a_thread(rmm, client):
    resource = caid.rmm.MemoryResource(client)

    def twice(_):
        current = Stream()
        first, second = (rmm.DeviceBuffer(size=MIB, mr=resource).ptr for _ in range(2))
        assert first == second
        seen.append(first)
        current.close()

    seen = []
    in_threads(2, twice)
    assert len(set(seen)) == 2


def test_a_graph_may_be_captured_on_the_stream_that_is_named(rmm, resource):
    s = Stream(NON_BLOCKING)
    with s.captures():
        for _ in range(3):
            rmm.DeviceBuffer(size=KIB, mr=resource, stream=frameworks.RmmStream(s.number))
        assert resource.arena.info.pending == 3
    s.close()
    resource.arena.flush()
    assert resource.arena.info.pending == 0
