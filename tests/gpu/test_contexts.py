# SPDX-License-Identifier: Apache-2.0
"""Streams of green contexts and of priorities, and graphs: brackets, timelines and arenas are right on them. Needs an
NVIDIA GPU and cuda.bindings."""

from conftest import needs, run

SETUP = """
import ctypes, numpy, pytest
from cuda.bindings import driver as cu

MIB, ROUNDS = 1 << 20, 500
RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED

def must(found):
    assert found[0] == 0, found
    return found[1] if len(found) == 2 else found[1:]

must(cu.cuInit(0))
device = must(cu.cuDeviceGet(0))
must(cu.cuCtxSetCurrent(must(cu.cuDevicePrimaryCtxRetain(device))))

def green(priority=0):
    sms = must(cu.cuDeviceGetDevResource(device, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    groups = must(cu.cuDevSmResourceSplitByCount(1, sms, 0, 16))[0]
    desc = must(cu.cuDevResourceGenerateDesc(groups[:1], 1))
    context = must(cu.cuGreenCtxCreate(desc, device, cu.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM))
    return int(must(cu.cuGreenCtxStreamCreate(context, 1, priority)))

def fill(array, value, stream):
    for i in range(ROUNDS):  # some 10 ms at least
        must(cu.cuMemsetD8Async(array.device_ptr, value if i == ROUNDS - 1 else 99, array.nbytes, stream))

def is_busy(stream):
    return cu.cuStreamQuery(stream)[0] == cu.CUresult.CUDA_ERROR_NOT_READY

def hands_over(write, read, put):
    # another client sees what one has enqueued, and nobody has waited for
    with caid.connect() as ours, caid.connect() as theirs:
        with ours.create("x", 64 * MIB, "|u1") as a, theirs.open("x") as b:
            host = caid.pinned_array(64 * MIB, "|u1", client=theirs)
            for value in range(1, 6):
                with a.write(write) as v:
                    put(v, value)
                assert is_busy(write), "the writer was to be busy still"
                with b.read(read) as v:
                    must(cu.cuMemcpyDtoHAsync(host.ctypes.data, v.device_ptr, v.nbytes, read))
                must(cu.cuStreamSynchronize(read))
                assert (host == value).all(), value
            ours.unlink("x")
"""


def script(body):
    return SETUP + body


def test_green_contexts(daemon):
    needs("cuda.bindings")
    run(daemon.env, script("""
s, t = green(), green(-1)
hands_over(s, t, lambda v, value: fill(v, value, s))

with caid.connect() as c, c.empty(64 * MIB, "|u1") as a, c.timeline("seen") as line:
    fill(a, 7, s)
    line.signal(s, 1)
    line.wait(t, 1)
    must(cu.cuStreamSynchronize(t))
    assert not is_busy(s), "t has waited for s"

with caid.connect() as c, c.arena() as arena:
    first = arena._alloc_on(MIB, s)  # ordered by the stream, as caid.rmm is
    must(cu.cuMemsetD8Async(first, 1, MIB, s))
    arena._free_on(first, s)
    assert arena._alloc_on(MIB, s) == first
    assert arena._alloc_on(MIB, t) != first
    must(cu.cuStreamSynchronize(s))
"""))


def test_priorities(daemon):
    needs("cuda.bindings")
    run(daemon.env, script("""
with caid.connect() as c:
    low, high = (c.stream(non_blocking=True, priority=p) for p in (0, -5))
    assert must(cu.cuStreamGetPriority(high.ptr)) < must(cu.cuStreamGetPriority(low.ptr)) == 0
    for write, read in (low.ptr, high.ptr), (high.ptr, low.ptr):
        hands_over(write, read, lambda v, value: fill(v, value, write))
"""))


def test_graphs(daemon):
    """A bracket cannot be captured, and says so; the capture goes on. A graph is launched in a bracket."""
    needs("cuda.bindings")
    run(daemon.env, script("""
with caid.connect() as c, c.create("g", MIB, "|u1") as a:
    s = c.stream(non_blocking=True)
    must(cu.cuStreamBeginCapture(s.ptr, RELAXED))
    for bracket in a.write, a.read:
        with pytest.raises(caid.InvalidError, match="captures a graph"):
            with bracket(s):
                pass
    must(cu.cuMemsetD8Async(a.device_ptr, 1, MIB, s.ptr))
    must(cu.cuStreamEndCapture(s.ptr))
    c.unlink("g")

    write, read, other = [c.stream(non_blocking=True) for _ in range(3)]
    made = {}

    def launch(v, value):
        if value not in made:
            must(cu.cuStreamBeginCapture(other.ptr, RELAXED))
            fill(v, value, other.ptr)
            made[value] = must(cu.cuGraphInstantiate(must(cu.cuStreamEndCapture(other.ptr)), 0))
        must(cu.cuGraphLaunch(made[value], write.ptr))

    hands_over(write.ptr, read.ptr, launch)
"""))
