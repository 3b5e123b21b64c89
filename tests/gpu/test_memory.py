# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, publishing and closing, with kernels that run meanwhile.

Needs an NVIDIA GPU and CuPy.
"""

import time

import numpy
import pytest
from conftest import needs, run, start

import caid

N = 1 << 20
MIB = 1 << 20

# Waits for so many clock ticks before it fills: it is still running when the host goes on.
SLOW_FILL = """
extern "C" __global__ void slow_fill(int *x, int value, long long ticks) {
    long long start = clock64();
    while (clock64() - start < ticks) {}
    x[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
"""
TICKS = 400_000_000  # some 0.2 s
BLOCK = 256

PREAMBLE = f"""
import cupy, numpy
N, TICKS = {N}, {TICKS}
slow_fill = cupy.RawKernel(r'''{SLOW_FILL}''', "slow_fill")

class Pointer:  # what a kernel takes: the address alone
    def __init__(self, a):
        self.__cuda_array_interface__ = {{
            "shape": a.shape, "typestr": a.typestr, "data": (a.device_ptr, False), "version": 3}}

def fill(a, value, ticks=0):
    slow_fill((a.size // {BLOCK},), ({BLOCK},), (cupy.asarray(Pointer(a)), numpy.int32(value),
                                                 numpy.int64(ticks)))
"""


def on_gpu(script, indent=4):
    """A script with the preamble before it."""
    lines = [line[indent:] for line in script.strip("\n").splitlines()]
    return PREAMBLE + "\n".join(lines)


@pytest.fixture(autouse=True)
def all_of_it_comes_back(daemon):
    needs("cupy")
    yield
    with daemon.connect() as c:
        for entry in c.list():
            c.unlink(entry.name)
        deadline = time.monotonic() + 60
        while c.memory_info().blocks:
            c.flush()
            assert time.monotonic() < deadline, c.memory_info()
            time.sleep(0.01)
        assert c.status().release_errors == 0


def test_the_host_is_told_that_it_does_not_see_device_memory(daemon):
    with daemon.connect() as c, c.create("a", 4, "<i4") as a, c.empty((0, 2)) as none:
        for x in a, a[0], none, [a, a]:
            with pytest.raises(TypeError, match="copy_to_host"):
                numpy.asarray(x)
        for compare in lambda: a == numpy.zeros(4), lambda: numpy.zeros(4) == a, lambda: 3 in a:
            with pytest.raises(TypeError, match="copy"):
                compare()
        assert not hasattr(a, "__array_interface__")


def test_dask_computes_with_what_is_there(daemon):
    needs("dask")
    import dask

    def total(x):
        return int(x.copy_to_host().sum())

    with daemon.connect() as c, c.create("a", 4, "<i4") as a:
        sums = []
        for value in 1, 2:
            a.fill(value)
            sums.append(dask.delayed(total, pure=True)(a))
        assert sums[0].key != sums[1].key and dask.compute(sums[1]) == (8,)


@pytest.mark.parametrize("memory", ["pinned", "mapped"])
def test_two_processes_and_kernels_share_host_memory(daemon, memory):
    """A kernel's stores in one process are what NumPy sees in another, and the other way round."""
    with daemon.connect() as c, c.create("shared", N, "<i4", memory=memory) as a:
        x = numpy.asarray(a)
        x[:] = 1
        script = on_gpu("""
    with caid.connect() as c, c.open("shared", "rw") as a:
        y = numpy.asarray(a)
        assert (y == 1).all()
        device = cupy.asarray(Pointer(a))
        assert int(device.sum()) == N
        fill(a, 7, TICKS // 10)
        cupy.cuda.runtime.deviceSynchronize()
        assert (y == 7).all()
        y[::2] = 3
        assert int(device.sum()) == N // 2 * 10
        del y
        """)
        run(daemon.env, script)
        assert (x[::2] == 3).all() and (x[1::2] == 7).all()
        with c.empty(N, "<i4") as d:
            d.copy_from(a)
            assert (d.copy_to_host() == x).all()
        del x


OPENERS = {
    "cupy": """
    import cupy, sys
    handle, offset, size = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    runtime = cupy.cuda.runtime
    base = runtime.ipcOpenMemHandle(handle)
    memory = cupy.cuda.UnownedMemory(base, size, None)
    x = cupy.ndarray((4096,), "i4", cupy.cuda.MemoryPointer(memory, offset))
    print(int(x.sum()))
    x += 1
    runtime.deviceSynchronize()
    runtime.ipcCloseMemHandle(base)
    """,
    "numba": """
    import sys, numpy
    if not hasattr(numpy, "row_stack"):  # numba-cuda 0.30 wants it; NumPy 2.5 has dropped it
        numpy.row_stack = numpy.vstack
    from numba import cuda
    handle = tuple(bytes.fromhex(sys.argv[1]))
    with cuda.open_ipc_array(handle, shape=4096, dtype="i4", offset=int(sys.argv[2])) as x:
        host = x.copy_to_host()
        print(int(host.sum()))
        x.copy_to_device(host + 1)
        cuda.synchronize()
    """,
}


@pytest.mark.parametrize("library", OPENERS)
def test_legacy_handles_are_opened_by_other_libraries(daemon, library):
    needs(library)
    with daemon.connect() as c, c.empty(10, "|u1", memory="legacy"):
        with c.create("legacy", 4096, "<i4", memory="legacy") as a:
            a.copy_from_host(numpy.arange(4096, dtype="<i4"))
            handle = a.ipc_handle
            assert handle.offset > 0
            args = [handle.handle.hex(), str(handle.offset), str(handle.size)]
            process = start(daemon.env, OPENERS[library], args=args)
            out, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
            assert int(out) == 4096 * 4095 // 2
            assert (a.copy_to_host() == numpy.arange(1, 4097)).all()
            assert c.memory_info().context


def test_the_daemons_context_is_there_as_long_as_legacy_memory_is(daemon):
    """By the driver's own figure for free memory, each time anew; other kinds of memory stay."""
    with daemon.connect() as c, c.empty(MIB, "|u1") as kept:
        kept.copy_from_host(numpy.full(MIB, 7, "|u1"))
        for _ in range(3):
            before = c.memory_info().free
            with c.empty(MIB, "|u1", memory="legacy"):
                with_context = c.memory_info()
            deadline = time.monotonic() + 60
            while c.memory_info().context:
                c.flush()
                assert time.monotonic() < deadline
            after = c.memory_info().free
            print(f"free before {before:,}, with it {with_context.free:,}, after {after:,}")
            assert with_context.context
            assert before - with_context.free > 256 * MIB > 10 * abs(before - after)
        assert (kept.copy_to_host() == 7).all()


@pytest.mark.parametrize("stream", ["None", "s", "s.ptr"])
def test_publish_waits_for_the_kernel_that_writes(daemon, stream):
    script = on_gpu(f"""
    with caid.connect() as c:
        s = cupy.cuda.Stream(non_blocking=True)
        for value in (1, 2, 3):
            with c.empty(N, "<i4") as a:
                with s:
                    fill(a, value, TICKS)
                assert not s.done, "the kernel was to run still"
                a.publish("published", stream={stream})
                assert s.done
                with c.open("published") as b:
                    assert (b.copy_to_host() == value).all()
    """)
    run(daemon.env, script)
    with daemon.connect() as c, c.open("published") as a:
        assert (a.copy_to_host() == 3).all()


@pytest.mark.parametrize("stream", ["", "s", "stream=s.ptr"])
def test_a_close_does_not_give_memory_on_that_a_kernel_writes(daemon, stream):
    """The array that is created next may get the same range, but not before the kernel is done."""
    run(daemon.env, on_gpu(f"""
    import time
    with caid.connect() as c:
        s, free = cupy.cuda.Stream(non_blocking=True), c.memory_info().free
        with c.empty(256, "<i4"):  # the block stays mapped
            for _ in range(3):
                a = c.empty(N // 4, "<i4")
                with s:
                    fill(a, 1, TICKS)
                begin = time.monotonic()
                a.close({stream})
                assert not s.done, "close() waited"
                with c.empty(N // 4, "<i4") as b:
                    b.copy_from_host(numpy.zeros(N // 4, "<i4"))
                    s.synchronize()
                    assert (b.copy_to_host() == 0).all(), "a closed array's kernel wrote here"
    """))


def test_ten_thousand_arrays_come_and_go(daemon):
    """The driver's own figure for free memory is where it was."""
    with daemon.connect() as c:
        for memory in ("device", "pinned"):  # what a process has from its first use on
            with c.empty(MIB, "|u1", memory=memory) as a:
                a.copy_from_host(bytes(MIB))
            c.flush()
        before = c.memory_info()
        for i in range(10_000):
            c.empty(MIB, "|u1").close()
            if i % 10 == 0:
                c.empty(MIB, "|u1", memory="pinned").close()
        c.flush()
        after = c.memory_info()
        print(f"free before {before.free:,}, after {after.free:,}; {after.releases} releases")
        assert (after.free, after.used, after.blocks) == (before.free, before.used, before.blocks)


def test_helpers_with_kernels(daemon):
    run(daemon.env, on_gpu("""
    host = numpy.arange(N, dtype="i4")
    with caid.pinned(host), caid.to_device(host) as a:
        assert int(cupy.asarray(a).sum(dtype="i8")) == int(host.sum(dtype="i8"))
    with caid.mapped(host) as a:
        fill(a, 5)
    assert (host == 5).all()
    for make in (caid.mapped_array, caid.managed_array):
        x = make(N, "i4")
        x[:] = 2
        y = cupy.asarray(x)
        assert y.data.ptr == x.device_ptr and int(y.sum()) == 2 * N
        y += 1
        cupy.cuda.runtime.deviceSynchronize()
        assert (x == 3).all()
        del y
    p = caid.pinned_array(N, "i4")
    p[:] = 9
    d = cupy.empty(N, "i4")
    d.set(p)
    assert int(d.sum()) == 9 * N
    caid.default_client().close()
    """))


def test_events_pointers_and_priorities(daemon):
    run(daemon.env, on_gpu("""
    import ctypes
    s, start, end = caid.stream(), caid.event(), caid.event()
    with cupy.cuda.Stream.from_external(s), caid.device_array(N, "i4", stream=s) as a:
        start.record(s)
        fill(a, 6, TICKS)
        end.record(s)
        assert (a.copy_to_host() == 6).all()
        assert caid.event_elapsed_time(start, end) == -caid.event_elapsed_time(end, start) > 0
        assert caid.pointer_info(a.ptr + 4) == (None, 0, a.ptr + 4, None, False)
    theirs, managed, pinned = cupy.empty(4), caid.managed_array(4), caid.pinned_array(4)
    info = caid.pointer_info(theirs.data.ptr)
    assert info.context and not info.managed and not info.host_accessible
    info = caid.pointer_info(managed.device_ptr)
    assert info.managed and info.host_ptr == managed.ctypes.data
    info = caid.pointer_info(pinned.ctypes.data)
    assert info.context and info.host_ptr == pinned.ctypes.data and not info.managed
    high, found = caid.default_client().stream(priority=-1), ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuStreamGetPriority(ctypes.c_void_p(high.ptr), ctypes.byref(found)) == 0
    assert found.value == -1
    for stream in (s, high):
        stream.close()
    caid.default_client().close()
    """))


def test_read_only_host_memory_is_enforced_for_kernels(daemon):
    """Registered read-only: a kernel's store ends that process's context, and changes nothing."""
    with daemon.connect() as c, c.create("guarded", 4096, "<i4", memory="mapped") as a:
        numpy.asarray(a)[:] = 4
        run(daemon.env, on_gpu("""
    c = caid.connect()
    a = c.open("guarded")
    assert int(cupy.asarray(a).sum()) == 4 * 4096
    fill(a, 9)
    try:
        cupy.cuda.runtime.deviceSynchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        pass
    else:
        raise SystemExit("a kernel wrote read-only memory")
    import os
    os._exit(0)  # the context is gone: nothing can be cleaned up
        """))
        assert (numpy.asarray(a) == 4).all()


def test_the_kinds_are_told_apart(daemon):
    with daemon.connect() as c:
        with c.empty(4) as device, c.empty(4, memory="pinned") as pinned:
            assert device.host_ptr is None and not hasattr(device, "__array_interface__")
            assert pinned.host_ptr and not hasattr(pinned, "__cuda_array_interface__")
            with pytest.raises(caid.UnavailableError, match="legacy"):
                device.ipc_handle
