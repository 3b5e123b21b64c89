# SPDX-License-Identifier: Apache-2.0
"""Programs for cuda.core, NVIDIA's objects for Python, as they would be written for a GPU."""
import multiprocessing
import os

import numpy as np
import pytest
from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    Event,
    EventOptions,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    ManagedMemoryResourceOptions,
    PinnedMemoryResource,
    PinnedMemoryResourceOptions,
    Stream,
    VirtualMemoryResource,
    system,
)
from cuda.core.utils import StridedMemoryView

KIB, MIB = 1 << 10, 1 << 20
SECONDS = 60


@pytest.fixture(autouse=True)
def device():
    device = Device()
    device.set_current()
    return device


@pytest.fixture
def stream(device):
    stream = device.create_stream()
    yield stream
    stream.sync()
    stream.close()


def host_bytes(stream, n=MIB):
    """A pinned buffer and NumPy's view of it."""
    buffer = LegacyPinnedMemoryResource().allocate(n, stream=stream)
    return buffer, np.from_dlpack(buffer).view(np.uint8)


def contents(buffer, stream):
    copy, view = host_bytes(stream, buffer.size)
    buffer.copy_to(copy, stream=stream)
    stream.sync()
    return view.copy()


def run_child(function, *args):
    process = multiprocessing.get_context("spawn").Process(target=function, args=args)
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0


def test_the_device_says_what_it_is(device):
    assert device.uuid == os.environ["CAID_SOFTCUDA_UUID"][4:]
    assert device.name.startswith("caid software device")
    assert device.properties.memory_pools_supported
    assert device.properties.handle_type_posix_file_descriptor_supported
    assert device.properties.can_use_64_bit_stream_mem_ops
    assert system.get_num_devices() == 1


def test_streams_and_events(device, stream):
    options = EventOptions(timing_enabled=True)
    start, end = stream.record(options=options), stream.record(options=options)
    end.sync()
    assert start.is_done and end - start >= 0
    second = device.create_stream()
    second.wait(stream)
    second.wait(end)
    second.sync()
    assert Stream.from_handle(int(second.handle)).context == second.context


def resource_of(kind, device):
    if kind == "the device's":
        return device.memory_resource
    if kind == "pool":
        return DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=8 * MIB))
    if kind == "pinned":
        return PinnedMemoryResource(PinnedMemoryResourceOptions(max_size=8 * MIB))
    if kind == "managed":
        return ManagedMemoryResource(ManagedMemoryResourceOptions(preferred_location=device.device_id))
    return VirtualMemoryResource(device)


@pytest.mark.parametrize("kind", ["the device's", "pool", "pinned", "managed", "virtual"])
def test_memory_of_every_resource(kind, device, stream):
    resource = resource_of(kind, device)
    buffer = resource.allocate(2 * MIB, stream=stream)
    source, view = host_bytes(stream, 2 * MIB)
    view[:] = np.arange(view.size) % 251
    source.copy_to(buffer, stream=stream)
    assert (contents(buffer, stream) == view).all()
    buffer.fill(b"\x34\x12", stream=stream)
    assert (contents(buffer, stream).view(np.uint16) == 0x1234).all()
    assert buffer.is_device_accessible
    assert buffer.is_host_accessible == (kind in ("pinned", "managed"))
    if buffer.is_host_accessible:
        assert np.from_dlpack(buffer).view(np.uint16)[0] == 0x1234
    buffer.close(stream)


def test_a_pool_counts_what_is_used(device, stream):
    pool = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=8 * MIB))
    buffers = [pool.allocate(MIB, stream=stream) for _ in range(3)]
    assert pool.attributes.used_mem_current == 3 * MIB
    assert pool.attributes.used_mem_high == 3 * MIB <= pool.attributes.reserved_mem_current
    for buffer in buffers:
        buffer.close(stream)
    stream.sync()
    assert pool.attributes.used_mem_current == 0


def test_virtual_memory_grows_and_keeps_its_contents(device, stream):
    resource = VirtualMemoryResource(device)
    buffer = resource.allocate(2 * MIB, stream=stream)
    buffer.fill(7, stream=stream)
    stream.sync()
    grown = resource.modify_allocation(buffer, 4 * MIB)
    assert grown.size == 4 * MIB
    assert (contents(grown, stream)[: 2 * MIB] == 7).all()


def test_a_buffer_is_a_dlpack_producer(device, stream):
    buffer = device.memory_resource.allocate(KIB, stream=stream)
    view = StridedMemoryView.from_any_interface(buffer, stream_ptr=-1)
    assert view.ptr == int(buffer.handle) and view.device_id == 0 and view.is_device_accessible
    assert view.shape == (KIB,)


# --- between processes ----------------------------------------------------------------------------


def test_a_pools_memory_is_shared(device, stream):
    """cuda.core's way: the pool's fd and the buffer's descriptor travel by pickle."""
    pool = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=2 * MIB, ipc_enabled=True))
    buffer = pool.allocate(64 * KIB, stream=stream)
    buffer.fill(11, stream=stream)
    stream.sync()
    run_child(use_shared_buffer, buffer)
    assert (contents(buffer, stream) == 12).all()
    buffer.close(stream)


def use_shared_buffer(buffer):
    device = Device()
    device.set_current()
    stream = device.create_stream()
    assert buffer.is_mapped and buffer.memory_resource.is_mapped
    assert (contents(buffer, stream) == 11).all()
    buffer.fill(12, stream=stream)
    stream.sync()
    buffer.close(stream)


def test_an_event_is_shared(device, stream):
    event = stream.record(options=EventOptions(ipc_enabled=True))
    run_child(wait_for_shared_event, event.ipc_descriptor)
    event.sync()
    assert event.is_done


def wait_for_shared_event(descriptor):
    device = Device()
    device.set_current()
    stream = device.create_stream()
    event = Event.from_ipc_descriptor(descriptor)
    stream.wait(event)
    stream.sync()
    assert event.is_done and event.is_ipc_enabled
