# SPDX-License-Identifier: Apache-2.0
"""Programs for cuda.bindings, the driver API in Python, as they would be written for a GPU."""
import ctypes
import os

import numpy as np
import pytest
from child import run_child
from cuda.bindings import driver as cu

MIB = 1 << 20
BLOCK = 2 * MIB


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


def test_copies_and_fills():
    data = np.arange(MIB, dtype=np.float32)
    there, copy = ok(cu.cuMemAlloc(data.nbytes)), ok(cu.cuMemAlloc(data.nbytes))
    ok(cu.cuMemcpyHtoD(there, data, data.nbytes))
    ok(cu.cuMemcpyDtoD(copy, there, data.nbytes))
    assert (read_back(copy, data.size, data.dtype) == data).all()
    ok(cu.cuMemsetD32(copy, 7, data.size))
    assert (read_back(copy, data.size, np.uint32) == 7).all()
    for pointer in (there, copy):
        ok(cu.cuMemFree(pointer))


def test_an_error_has_a_name():
    result, = cu.cuMemFree(cu.CUdeviceptr(12345))
    assert result == cu.CUresult.CUDA_ERROR_INVALID_VALUE
    assert ok(cu.cuGetErrorName(result)) == b"CUDA_ERROR_INVALID_VALUE"


def test_an_event_holds_another_stream(stream, flags):
    second = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    event = ok(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    there = ok(cu.cuMemAlloc(8))
    ok(cu.cuStreamWaitValue64(stream, address(flags), 1, cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ))
    ok(cu.cuMemsetD8Async(there, 11, 8, stream))
    ok(cu.cuEventRecord(event, stream))
    ok(cu.cuStreamWaitEvent(second, event, 0))
    ok(cu.cuMemcpyDtoHAsync(flags[1:].ctypes.data, there, 8, second))
    assert cu.cuEventQuery(event)[0] == cu.CUresult.CUDA_ERROR_NOT_READY
    assert cu.cuStreamQuery(second)[0] == cu.CUresult.CUDA_ERROR_NOT_READY
    flags[0] = 1
    ok(cu.cuStreamSynchronize(second))
    ok(cu.cuEventQuery(event))
    assert flags[1] == 0x0B0B0B0B0B0B0B0B
    ok(cu.cuMemFree(there))
    ok(cu.cuEventDestroy(event))
    ok(cu.cuStreamDestroy(second))


def test_events_tell_the_time_between_them(stream):
    start, end = ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
    ok(cu.cuEventRecord(start, stream))
    ok(cu.cuEventRecord(end, stream))
    ok(cu.cuEventSynchronize(end))
    assert ok(cu.cuEventElapsedTime(start, end)) >= 0
    for event in (start, end):
        ok(cu.cuEventDestroy(event))


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


def test_a_host_function_runs_in_the_streams_order(stream, flags):
    seen = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: seen.append((data, int(flags[0]))))
    ok(cu.cuStreamWriteValue64(stream, address(flags), 3, 0))
    ok(cu.cuLaunchHostFunc(stream, cu.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value), 77))
    ok(cu.cuStreamSynchronize(stream))
    assert seen == [(77, 3)]


def register(page):
    """The first whole page of the array, registered."""
    pointer = -(-page.ctypes.data // 4096) * 4096
    ok(cu.cuMemHostRegister(pointer, 4096, cu.CU_MEMHOSTREGISTER_DEVICEMAP))
    return pointer


HOST, DEVICE = cu.CUmemorytype.CU_MEMORYTYPE_HOST, cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
KINDS = {
    "device": (lambda page: ok(cu.cuMemAlloc(4096)), cu.cuMemFree, DEVICE, False),
    "pinned": (lambda page: ok(cu.cuMemHostAlloc(4096, 0)), cu.cuMemFreeHost, HOST, False),
    "registered": (register, cu.cuMemHostUnregister, HOST, False),
    "managed": (lambda page: ok(cu.cuMemAllocManaged(4096, 1)), cu.cuMemFree, DEVICE, True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_pointer_is(kind):
    allocate, free, memory_type, managed = KINDS[kind]
    page = np.zeros(2 * 4096, np.uint8)
    pointer = allocate(page)
    there = cu.CUdeviceptr(int(pointer))
    attribute = cu.CUpointer_attribute
    assert ok(cu.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, there)) == memory_type
    assert ok(cu.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, there)) == managed
    ok(cu.cuMemsetD8(there, 9, 4096))
    ok(cu.cuCtxSynchronize())
    if kind != "device":
        assert (host_view(pointer, 4096, np.uint8) == 9).all()
    ok(free(pointer))


# --- virtual memory management ------------------------------------------------------------------


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


# --- pools --------------------------------------------------------------------------------------


def used(pool):
    return int(ok(cu.cuMemPoolGetAttribute(pool, cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)))


def test_the_devices_own_pool(device, stream):
    pool = ok(cu.cuDeviceGetDefaultMemPool(device))
    before = used(pool)
    pointer = ok(cu.cuMemAllocAsync(MIB, stream))
    ok(cu.cuMemsetD8Async(pointer, 3, MIB, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert used(pool) >= before + MIB
    assert (read_back(pointer, MIB, np.uint8) == 3).all()
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert used(pool) == before


def new_pool():
    props = cu.CUmemPoolProps()
    props.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.handleTypes = FD
    props.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    props.location.id = 0
    return ok(cu.cuMemPoolCreate(props))


def test_a_pool_is_shared_by_its_fd(stream):
    pool = new_pool()
    pointer = ok(cu.cuMemAllocFromPoolAsync(MIB, pool, stream))
    ok(cu.cuMemsetD32Async(pointer, 17, MIB // 4, stream))
    ok(cu.cuStreamSynchronize(stream))
    fd = int(ok(cu.cuMemPoolExportToShareableHandle(pool, FD, 0)))
    data = bytes(ok(cu.cuMemPoolExportPointer(pointer)).reserved)
    run_child("test_cuda_bindings", import_pool, fd, data.hex(), fds=[fd])
    assert (read_back(pointer, 2, np.uint32) == [18, 17]).all()
    os.close(fd)
    ok(cu.cuMemFreeAsync(pointer, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemPoolDestroy(pool))


def import_pool(fd, data):
    use_device()
    pool = ok(cu.cuMemPoolImportFromShareableHandle(int(fd), FD, 0))
    exported = cu.CUmemPoolPtrExportData()
    exported.reserved = bytes.fromhex(data)
    pointer = ok(cu.cuMemPoolImportPointer(pool, exported))
    assert (read_back(pointer, MIB // 4, np.uint32) == 17).all()
    ok(cu.cuMemsetD32(pointer, 18, 1))
    ok(cu.cuCtxSynchronize())
    ok(cu.cuMemFree(pointer))
    ok(cu.cuMemPoolDestroy(pool))


# --- legacy handles -----------------------------------------------------------------------------


def test_legacy_memory_and_event_handles(stream):
    pointer = ok(cu.cuMemAlloc(4096))
    both = cu.CUevent_flags.CU_EVENT_DISABLE_TIMING | cu.CUevent_flags.CU_EVENT_INTERPROCESS
    event = ok(cu.cuEventCreate(both))
    ok(cu.cuMemsetD8Async(pointer, 5, 4096, stream))
    ok(cu.cuEventRecord(event, stream))
    memory_handle, event_handle = ok(cu.cuIpcGetMemHandle(pointer)), ok(cu.cuIpcGetEventHandle(event))
    peers = cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    assert cu.cuIpcOpenMemHandle(memory_handle, peers)[0] == cu.CUresult.CUDA_ERROR_INVALID_CONTEXT
    run_child("test_cuda_bindings", open_handles, *(bytes(h.reserved).hex() for h in (memory_handle, event_handle)))
    assert (read_back(pointer, 2, np.uint8) == [6, 5]).all()
    ok(cu.cuEventDestroy(event))
    ok(cu.cuMemFree(pointer))


def open_handles(memory, event):
    use_device()
    memory_handle, event_handle = cu.CUipcMemHandle(), cu.CUipcEventHandle()
    memory_handle.reserved, event_handle.reserved = bytes.fromhex(memory), bytes.fromhex(event)
    peers = cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    pointer, event = ok(cu.cuIpcOpenMemHandle(memory_handle, peers)), ok(cu.cuIpcOpenEventHandle(event_handle))
    stream = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    ok(cu.cuStreamWaitEvent(stream, event, 0))
    ok(cu.cuStreamSynchronize(stream))
    assert (read_back(pointer, 4096, np.uint8) == 5).all()
    ok(cu.cuMemsetD8(pointer, 6, 1))
    ok(cu.cuCtxSynchronize())
    ok(cu.cuIpcCloseMemHandle(pointer))
    ok(cu.cuEventDestroy(event))


def test_kernels_are_said_to_be_missing():
    for name in (b"cuModuleLoadData", b"cuLibraryLoadData", b"cuLaunchKernel"):
        _, status = ok(cu.cuGetProcAddress(name, 13000, 0))
        assert status == cu.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
