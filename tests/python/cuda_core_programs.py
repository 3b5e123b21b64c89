# SPDX-License-Identifier: Apache-2.0
"""Programs for cuda.core whose memory is caid's: run by test_cuda_core.py, on either driver, in a Python
that has cuda.core."""

import gc
import os
import random

import cuda.core
import numpy as np
import pytest
from conftest import Held, in_threads, wait_until

import caid
import caid.cuda_core

KIB, MIB = 1 << 10, 1 << 20
SMALL = f'[pool "small"]\nowner = {os.getuid()}\nmode = 0600\nquota = 64M\n'


@pytest.fixture(autouse=True)
def device():
    device = cuda.core.Device()
    device.set_current()
    return device


@pytest.fixture
def resource(client, device):
    made = caid.cuda_core.MemoryResource(device, client, max_pending_count=0)
    yield made
    gc.collect()
    wait_until(lambda: made.arena.info.allocations == 0)
    made.arena.trim()


@pytest.fixture
def stream(device):
    made = device.create_stream()
    yield made
    made.sync()
    made.close()


@pytest.fixture
def held(device, client):
    """A stream of cuda.core's that does not get on until the gate is opened."""
    with client.stream() as s, Held(s) as h:
        yield device.create_stream(s), h.gate
        h.gate.set()
        s.synchronize()


def test_it_is_one_of_cuda_cores(resource, device, stream):
    assert isinstance(resource, cuda.core.MemoryResource)
    buffer = resource.allocate(KIB, stream=stream)
    assert (buffer.size, buffer.device_id, buffer.memory_resource) == (KIB, device.device_id, resource)
    assert buffer.is_device_accessible and not buffer.is_host_accessible
    assert (resource.arena.info.allocations, resource.arena.info.allocated) == (1, KIB)
    twin = resource.allocate(KIB, stream)  # before 1.0 by its place
    buffer.fill(7, stream=stream)
    buffer.copy_to(twin, stream=stream)
    resource.publish("twin", twin, stream=stream)
    with resource.arena._client.open("twin") as a:
        assert (a.copy_to_host() == 7).all() and a.shape == (KIB,)
    twin.close(stream)
    del buffer
    assert resource.arena.info.allocations == 0


def test_a_published_buffer_may_be_closed(resource, client, other, stream):
    buffer = resource.allocate(MIB, stream=stream)
    buffer.fill(b"\x01\x02\x03\x04", stream=stream)
    generation = resource.publish("w", buffer, shape=(512, 256), dtype="<u4", stream=stream, metadata=7)
    buffer.close()
    filler = [resource.allocate(MIB, stream=stream) for _ in range(4)]
    for buffer in filler:
        buffer.fill(0, stream=stream)
    stream.sync()
    with other.open("w") as a:
        assert (a.generation, a.shape, a.metadata) == (generation, (512, 256), 7)
        assert (a.copy_to_host() == 0x04030201).all()
    client.unlink("w")
    wait_until(lambda: resource.arena.info.published == 0)


def named_by_close(resource, stream, slow):
    buffer = resource.allocate(MIB, stream=stream)
    ptr = int(buffer.handle)
    buffer.close(slow)
    return ptr


def named_by_allocate(resource, stream, slow):
    return int(resource.allocate(MIB, stream=slow).handle)


def named_by_deallocate(resource, stream, slow):
    ptr = resource._served.allocate(MIB, stream).ptr
    resource.deallocate(ptr, MIB, stream=slow)
    with pytest.raises(caid.InvalidError, match="nothing that begins"):
        resource.deallocate(ptr, MIB, stream=slow)
    return ptr


@pytest.mark.parametrize("free", [named_by_close, named_by_allocate, named_by_deallocate])
def test_freed_memory_waits_for_the_stream_that_is_named(resource, held, stream, free):
    slow, gate = held
    ptr = free(resource, stream, slow)
    gc.collect()
    assert resource.arena.info.draining == 1
    second = resource.allocate(MIB, stream=stream)
    assert int(second.handle) != ptr
    gate.set()
    resource.arena.trim()
    assert resource.arena.info.draining == 0
    third = resource.allocate(MIB, stream=stream)
    assert int(third.handle) == ptr


def test_a_graph_may_be_captured_on_the_stream_that_is_named(resource, device):
    """What is freed meanwhile waits: to look whether it may be used again would end the capture."""
    builder = device.create_graph_builder().begin_building("relaxed")
    for _ in range(3):
        resource.allocate(KIB, stream=builder).close(builder)
    assert resource.arena.info.pending == 3
    builder.end_building()
    builder.close()
    resource.arena.flush()
    assert resource.arena.info.pending == 0


def test_an_allocation_that_fails_leaves_nothing(resource, client, stream):
    with pytest.raises(TypeError):
        resource.allocate(KIB, stream="none")
    with pytest.raises(caid.InvalidError):
        resource.allocate(-1, stream=stream)
    assert resource.arena.info.allocations == 0 and not resource._served._allocations
    with pytest.raises(caid.NotFoundError, match="no such"):
        caid.cuda_core.MemoryResource(client=client, pool="no such")
    with caid.LocalDaemon(config=SMALL) as d, d.connect() as c:
        small = caid.cuda_core.MemoryResource(0, c, pool="small")
        with pytest.raises(caid.QuotaError):
            small.allocate(65 * MIB, stream=stream)


def test_threads(resource, device):
    """What lies in each is what its thread has written there."""

    def work(i):
        device.set_current()
        chosen, mine = random.Random(i), []
        stream = device.create_stream()
        for step in range(60):
            buffer = resource.allocate(chosen.randrange(1, 64) * KIB, stream=stream)
            buffer.fill((i + 4 * step) % 256, stream=stream)
            mine.append((buffer, (i + 4 * step) % 256))
            if len(mine) > 5:
                buffer, value = mine.pop(chosen.randrange(len(mine)))
                stream.sync()
                assert (seen(resource, buffer) == value).all()
                buffer.close(stream)
        while mine:
            mine.pop()[0].close(stream)
        stream.sync()
        stream.close()

    in_threads(4, work)
    assert resource.arena.info.allocations == 0


def seen(resource, buffer):
    allocation = resource._served.at(int(buffer.handle))
    return np.asarray(resource.arena._client.as_array(allocation).copy_to_host())
