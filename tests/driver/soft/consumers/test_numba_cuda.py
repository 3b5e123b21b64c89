# SPDX-License-Identifier: Apache-2.0
"""Programs for numba-cuda, as they would be written for a GPU, but without kernels."""
import multiprocessing

import numpy as np
import pytest
from numba import cuda

SECONDS = 60


@pytest.fixture
def data():
    return np.arange(64 * 1024, dtype=np.float64).reshape(256, 256)


def test_arrays_go_there_and_back(data):
    there = cuda.to_device(data)
    assert (there.copy_to_host() == data).all()
    assert (there[3:5].copy_to_host() == data[3:5]).all()
    copy = cuda.device_array_like(there)
    copy.copy_to_device(there)
    assert (copy.copy_to_host() == data).all()
    with pytest.raises(ValueError):
        copy.copy_to_device(data[:5])


def test_streams_and_events(data):
    stream, other = cuda.stream(), cuda.stream()
    pinned, back = cuda.pinned_array(data.shape), cuda.pinned_array(data.shape)
    pinned[:] = data
    start, end = cuda.event(), cuda.event()
    start.record(stream)
    there = cuda.to_device(pinned, stream=stream)
    end.record(stream)
    end.wait(other)
    there.copy_to_host(back, stream=other)
    other.synchronize()
    assert (back == data).all()
    assert cuda.event_elapsed_time(start, end) >= 0 and end.query()


def test_registered_mapped_and_managed_memory(data):
    with cuda.pinned(data):
        assert (cuda.to_device(data).copy_to_host() == data).all()
    mapped = cuda.mapped_array(16, dtype=np.int32)
    mapped[:] = 7
    assert (cuda.as_cuda_array(mapped).copy_to_host() == 7).all()
    managed = cuda.managed_array(16, dtype=np.int32)
    managed[:] = 8
    assert (cuda.as_cuda_array(managed).copy_to_host() == 8).all()


def test_freed_memory_comes_back(data):
    context = cuda.current_context()
    context.memory_manager.deallocations.clear()
    free, total = context.get_memory_info()
    there = cuda.to_device(data)
    assert context.get_memory_info().free <= free - data.nbytes
    del there
    context.memory_manager.deallocations.clear()
    assert tuple(context.get_memory_info()) == (free, total)


def test_a_foreign_stream_and_a_foreign_array(data):
    there = cuda.to_device(data)
    wrapped = cuda.as_cuda_array(there)
    assert wrapped.__cuda_array_interface__["data"] == there.__cuda_array_interface__["data"]
    stream = cuda.stream()
    foreign = cuda.external_stream(int(stream.handle))
    wrapped.copy_to_device(-data, stream=foreign)
    foreign.synchronize()
    assert (there.copy_to_host() == -data).all()


def test_an_array_is_shared(data):
    there = cuda.to_device(data)
    cuda.synchronize()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=negate, args=(there.get_ipc_handle(),))
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0
    assert (there.copy_to_host() == -data).all()


def negate(handle):
    with handle as there:
        there.copy_to_device(-there.copy_to_host())
        cuda.synchronize()
