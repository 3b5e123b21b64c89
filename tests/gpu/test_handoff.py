# SPDX-License-Identifier: Apache-2.0
"""Arrays whose producer, another process, has a kernel running on them still: each library sees what
that kernel writes, and without the bracket would not have. Then producers that are killed meanwhile.

Needs an NVIDIA GPU; a library that is not installed is skipped by name.
"""

import subprocess
import time

import pytest
from conftest import needs, start

N = 1 << 18
BOUND = 1.0  # seconds that anybody may wait for the dead
KILLS = 50

# Runs for `ticks` of the clock, then fills. All of its threads run at once, so it writes nothing before.
HOLD = """
.version 6.3
.target sm_75
.address_size 64
.visible .entry hold(.param .u64 hold_at, .param .u32 hold_value, .param .u64 hold_ticks)
{
    .reg .pred early;
    .reg .u32 value, i, j, k;
    .reg .u64 at, ticks, begun, now, step;
    ld.param.u64 at, [hold_at];
    ld.param.u32 value, [hold_value];
    ld.param.u64 ticks, [hold_ticks];
    mov.u64 begun, %clock64;
again:
    mov.u64 now, %clock64;
    sub.u64 now, now, begun;
    setp.lt.u64 early, now, ticks;
    @early bra again;
    mov.u32 i, %ctaid.x;
    mov.u32 j, %ntid.x;
    mov.u32 k, %tid.x;
    mad.lo.u32 i, i, j, k;
    cvta.to.global.u64 at, at;
    mul.wide.u32 step, i, 4;
    add.u64 at, at, step;
    st.global.u32 [at], value;
    ret;
}
"""
TICKS = 2_000_000_000  # some 1 s

# By the driver alone, so that it is there at once. A line of standard input is a value to write.
PRODUCER = f"""
import ctypes, sys

cuda = ctypes.CDLL("libcuda.so.1")

def must(name, *args):
    result = getattr(cuda, name)(*args)
    assert result == 0, (name, result)

context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
must("cuInit", 0)
must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
must("cuCtxSetCurrent", context)
must("cuModuleLoadData", ctypes.byref(module), {HOLD.encode()!r})
must("cuModuleGetFunction", ctypes.byref(kernel), module, b"hold")

def fill(array, value, ticks, stream):
    args = ctypes.c_uint64(array.device_ptr), ctypes.c_uint32(value), ctypes.c_uint64(ticks)
    params = (ctypes.c_void_p * 3)(*map(ctypes.addressof, args))
    must("cuLaunchKernel", kernel, {N} // 256, 1, 1, 256, 1, 1, 0, ctypes.c_void_p(stream.ptr), params, None)

def say(what):
    print(what, flush=True)

c = caid.connect()
a = c.open("shared", "rw")
s = c.stream(non_blocking=True)
"""

WRITE = PRODUCER + f"""
with a.write(s) as v:
    fill(v, 1, 0, s)
s.synchronize()
say("ready")
for line in sys.stdin:
    with a.write(s) as v:
        fill(v, int(line), {TICKS}, s)
    assert not s.query(), "the kernel was to run still"
    say("ended")
"""

# total(x) adds the array up on a stream of the library, and waits for that alone; s is the bracket's stream.
CONSUMERS = {
    "cupy": """
import cupy
s = cupy.cuda.Stream(non_blocking=True)

def total(x):
    with s:
        return int(cupy.asarray(x).sum(dtype="i8"))
""",
    "cupy by DLPack": """
import cupy
own, s = cupy.cuda.Stream(non_blocking=True), c.stream(non_blocking=True)

def total(x):
    with own:
        return int(cupy.from_dlpack(x).sum(dtype="i8"))
""",
    "numba": """
import numpy
if not hasattr(numpy, "row_stack"):  # numba-cuda 0.30 wants it; NumPy 2.5 has dropped it
    numpy.row_stack = numpy.vstack
from numba import cuda
s = cuda.stream()

@cuda.jit
def add(x, out):
    partial = 0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        partial += x[i]
    cuda.atomic.add(out, 0, partial)

def total(x):
    out = cuda.to_device(numpy.zeros(1, "i8"), stream=s)
    add[32, 256, s](cuda.as_cuda_array(x), out)
    host = out.copy_to_host(stream=s)
    s.synchronize()
    return int(host[0])
""",
    # torch.as_tensor does not look at the stream that an array names: the safe way is that the bracket's
    # stream is the one that torch works on.
    "torch": """
import torch
s = torch.cuda.Stream()

def total(x):
    with torch.cuda.stream(s):
        return int(torch.as_tensor(x, device="cuda").sum().item())
""",
    "torch by DLPack": """
import torch
own, s = torch.cuda.Stream(), c.stream(non_blocking=True)

def total(x):
    with torch.cuda.stream(own):
        return int(torch.from_dlpack(x).sum().item())
""",
    "jax by DLPack": """
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
s = c.stream(non_blocking=True)

def total(x):
    x = jax.dlpack.from_dlpack(x)
    return int(jnp.sum(x.astype("int64")).block_until_ready())
""",
}

# Read-only arrays cannot be had by all of them, so it is opened "rw".
CONSUME = """
import sys
c = caid.connect()
a = c.open("shared", "rw")
{library}
warm = total(a)
print("ready", flush=True)
sys.stdin.readline()
early = total(a)
with a.read(s) as v:
    late = total(v)
print(warm, early, late)
"""


class Talker:
    """A process that says and is told lines."""

    def __init__(self, daemon, script, *args):
        self.process = start(daemon.env, script, args, stdin=subprocess.PIPE)

    def hears(self, what):
        line = self.process.stdout.readline().strip()
        if line != what:
            self.process.kill()
            pytest.fail(f"{line!r}, not {what!r}: {self.process.communicate()[1]}")

    def tell(self, what=""):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def rest(self):
        out, err = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, err
        return out

    def kill(self):
        """When that was."""
        now = time.monotonic()
        self.process.kill()
        self.process.communicate()
        return now


@pytest.fixture
def array(daemon):
    with daemon.connect() as c, c.create("shared", N, "<i4") as a:
        yield a
        c.unlink("shared")


@pytest.fixture
def producer(daemon, array):
    process = Talker(daemon, WRITE)
    process.hears("ready")
    yield process
    process.rest()


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_sees_what_a_running_kernel_of_another_process_writes(daemon, producer, consumer):
    needs(consumer.split()[0])
    process = Talker(daemon, CONSUME.format(library=CONSUMERS[consumer]))
    process.hears("ready")
    producer.tell(7)
    producer.hears("ended")
    process.tell()
    warm, early, late = map(int, process.rest().split())
    assert (warm, late) == (N, 7 * N)
    assert early == N, "the kernel was over before the array was read: this test shows nothing"


def test_two_brackets_one_kernel_each(daemon, array):
    """The second producer writes after the first one's kernel, which is still running when it begins."""
    first, second = (Talker(daemon, WRITE) for _ in range(2))
    for process in (first, second):
        process.hears("ready")
    for i, process in enumerate((first, second, first)):
        process.tell(i + 2)
        process.hears("ended")
    begin = time.monotonic()
    with array.read() as v:
        assert (v.copy_to_host() == 4).all()
    print(f"three kernels of some 1 s: over {time.monotonic() - begin:.1f} s after the last was enqueued")
    for process in (first, second):
        process.rest()


# What the library asks the driver meanwhile, of its own accord and to find out that the stream captures, must not
# end the capture. A blocking stream: the legacy default stream must not be asked for, either.
CAPTURE = PRODUCER + f"""
import time
import cupy
x = cupy.zeros(16, "i4")
x += 1
graph_stream = cupy.cuda.Stream()
with a.write(s) as v:
    fill(v, 1, {TICKS}, s)
with graph_stream:
    graph_stream.begin_capture()
    x += 1
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        try:
            a.read(graph_stream).begin()
        except caid.InvalidError as e:
            assert "captures" in str(e), e
        else:
            sys.exit("a capturing stream was taken")
        time.sleep(0.05)
    graph = graph_stream.end_capture()
    graph.launch()
    graph_stream.synchronize()
assert (x == 2).all()
say("captured")
"""


def test_a_capture_is_left_alone(daemon, array):
    needs("cupy")
    process = Talker(daemon, CAPTURE)
    process.hears("captured")
    process.rest()


# A reader for every kill, and what it says when it was told: when that was, on the clock that all
# processes share.
READ = """
import sys, time
import numpy
c = caid.connect()
a = c.open("shared", "rw")
s = c.stream(non_blocking=True)
host = caid.pinned_array(a.shape, "i4")

def say(what):
    print(what, flush=True)

say("ready")
for line in sys.stdin:
    try:
        if line.strip() == "before":
            say("begins")
        with a.read(s) as v:
            v.copy_to_host(host, stream=s)
            if line.strip() == "after":
                say("begins")
            s.synchronize()
    except caid.AbandonedError:
        say(time.monotonic())
    else:
        say("not told")
        continue
    with a.write(s) as v:
        v.copy_from_host(numpy.zeros(a.shape, "i4"), stream=s)
    with a.read() as v:
        assert (v.copy_to_host() == 0).all()
    say("healed")
"""

# "before": its kernel runs, and its bracket is open. "after": the bracket has ended, the kernel runs.
DIE = PRODUCER + f"""
say("ready")
sys.stdin.readline()
bracket = a.write(s)
fill(bracket.begin(), 9, {5 * TICKS}, s)
if sys.argv[1] == "after":
    bracket.end()
say("runs")
sys.stdin.readline()
"""


@pytest.fixture
def reader(daemon, array):
    with daemon.connect() as c:
        if c.devices[0].mps:
            pytest.skip("under MPS a client that is killed in a kernel can stop the others")
    process = Talker(daemon, READ)
    process.hears("ready")
    yield process
    process.rest()


def test_producers_killed_while_their_kernel_runs(daemon, reader):
    waited = []
    for i in range(KILLS):
        when = ("before", "after")[i % 2]
        producer = Talker(daemon, DIE, when)
        producer.hears("ready")
        producer.tell()
        producer.hears("runs")
        reader.tell(when)
        reader.hears("begins")
        time.sleep(0.005 * (i % 5))
        killed = producer.kill()
        told = reader.process.stdout.readline().strip()
        assert told != "not told", f"kill {i}: {when} the end"
        waited.append(float(told) - killed)
        reader.hears("healed")
    print(f"{KILLS} kills: told within {max(waited) * 1000:.0f} ms")
    assert max(waited) < BOUND
    with daemon.connect() as c:
        assert c.status().brackets == 0
