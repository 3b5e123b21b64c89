# SPDX-License-Identifier: Apache-2.0
"""Programs for cuda.bindings, the driver API in Python, as they would be written for a GPU: what
neither cuda.core's objects nor numba-cuda's own tests, which go through it, do."""
import ctypes
import os

import numpy as np
import pytest
from child import run_child
from cuda.bindings import driver as cu

BLOCK = 2 << 20


def ok(answer):
    """What a call gave back; it must have succeeded."""
    result, *values = answer
    assert result == cu.CUresult.CUDA_SUCCESS, result
    return values[0] if len(values) == 1 else tuple(values) or None


def use_device(ordinal=0):
    ok(cu.cuInit(0))
    device = ok(cu.cuDeviceGet(ordinal))
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(device))))
    return device


@pytest.fixture(scope="module", autouse=True)
def device():
    return use_device()


@pytest.fixture
def stream():
    stream = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    yield stream
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuStreamDestroy(stream))


def host_view(pointer, count, dtype):
    """An array over memory that the host may touch."""
    raw = (ctypes.c_byte * (count * np.dtype(dtype).itemsize)).from_address(int(pointer))
    return np.frombuffer(raw, dtype)


@pytest.fixture
def flags():
    """Eight 64-bit words of pinned memory, for host and streams."""
    pointer = ok(cu.cuMemHostAlloc(64, cu.CU_MEMHOSTALLOC_DEVICEMAP))
    words = host_view(pointer, 8, np.uint64)
    words[:] = 0
    yield words
    ok(cu.cuCtxSynchronize())
    ok(cu.cuMemFreeHost(pointer))


def address(words, index=0):
    return cu.CUdeviceptr(words[index:].ctypes.data)


def read_back(pointer, count, dtype):
    array = np.empty(count, dtype)
    ok(cu.cuMemcpyDtoH(array, pointer, array.nbytes))
    return array


def test_the_device_says_what_it_is(device):
    assert ok(cu.cuDeviceGetCount()) == 1
    assert ok(cu.cuDeviceGetName(128, device)).startswith(b"caid software device")
    uuid = bytes(ok(cu.cuDeviceGetUuid(device)).bytes).hex()
    assert uuid == os.environ["CAID_SOFTCUDA_UUID"][4:].replace("-", "")
    free, total = ok(cu.cuMemGetInfo())
    assert 0 < free <= total == ok(cu.cuDeviceTotalMem(device))
    pools = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
    assert ok(cu.cuDeviceGetAttribute(pools, device)) == 1


def test_stream_memory_operations(stream, flags):
    """One batch: wait for the host, tell it, and a 32-bit NOR wait that is over at once."""
    kind = cu.CUstreamBatchMemOpType
    wait, write, nor = (cu.CUstreamBatchMemOpParams() for _ in range(3))
    wait.waitValue.operation = kind.CU_STREAM_MEM_OP_WAIT_VALUE_64
    wait.waitValue.address, wait.waitValue.value64 = address(flags), 5
    wait.waitValue.flags = cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
    write.writeValue.operation = kind.CU_STREAM_MEM_OP_WRITE_VALUE_64
    write.writeValue.address, write.writeValue.value64 = address(flags, 1), 1 << 40
    nor.waitValue.operation = kind.CU_STREAM_MEM_OP_WAIT_VALUE_32
    nor.waitValue.address, nor.waitValue.value = address(flags), 0xF0
    nor.waitValue.flags = cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_NOR
    ok(cu.cuStreamBatchMemOp(stream, 3, [wait, write, nor], 0))
    assert flags[1] == 0
    flags[0] = 5
    ok(cu.cuStreamSynchronize(stream))
    assert flags[1] == 1 << 40


def block_properties():
    prop = cu.CUmemAllocationProp()
    prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    prop.requestedHandleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return prop


def map_block(handle, access):
    where = ok(cu.cuMemAddressReserve(BLOCK, 0, 0, 0))
    ok(cu.cuMemMap(where, BLOCK, 0, handle, 0))
    desc = cu.CUmemAccessDesc()
    desc.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    desc.location.id = 0
    desc.flags = access
    ok(cu.cuMemSetAccess(where, BLOCK, [desc], 1))
    return where


def unmap_block(where):
    ok(cu.cuMemUnmap(where, BLOCK))
    ok(cu.cuMemAddressFree(where, BLOCK))


READ_ONLY = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
READ_WRITE = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
FD = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def test_a_block_is_shared_by_its_fd():
    prop = block_properties()
    minimum = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    assert ok(cu.cuMemGetAllocationGranularity(prop, minimum)) == BLOCK
    handle = ok(cu.cuMemCreate(BLOCK, prop, 0))
    where = map_block(handle, READ_WRITE)
    ok(cu.cuMemsetD32(where, 41, BLOCK // 4))
    ok(cu.cuCtxSynchronize())
    fd = int(ok(cu.cuMemExportToShareableHandle(handle, FD, 0)))
    run_child("test_cuda_bindings", import_block, fd, fds=[fd])
    assert (read_back(where, 2, np.uint32) == [42, 41]).all()
    os.close(fd)
    unmap_block(where)
    ok(cu.cuMemRelease(handle))


def import_block(fd):
    """The other process: reads through a read-only mapping, which it cannot write, then adds 1."""
    use_device()
    handle = ok(cu.cuMemImportFromShareableHandle(int(fd), FD))
    where = map_block(handle, READ_ONLY)
    assert (read_back(where, BLOCK // 4, np.uint32) == 41).all()
    assert cu.cuMemsetD32(where, 0, 1)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
    unmap_block(where)
    where = map_block(handle, READ_WRITE)
    ok(cu.cuMemsetD32(where, 42, 1))
    ok(cu.cuCtxSynchronize())
    unmap_block(where)
    ok(cu.cuMemRelease(handle))


def test_kernels_are_said_to_be_missing():
    for name in (b"cuModuleLoadData", b"cuLibraryLoadData", b"cuLaunchKernel"):
        _, status = ok(cu.cuGetProcAddress(name, 13000, 0))
        assert status == cu.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
