# SPDX-License-Identifier: Apache-2.0
"""PyTorch and CuPy with caid as their allocator: where their arrays lie, publishing them without a copy,
what keeps them, running out of memory, and captured graphs.

Needs an NVIDIA GPU; a library that is not installed is skipped by name.
"""

import os
import subprocess
import sys
import time

import pytest
from conftest import needs, run, start

import caid

SECONDS = 120
SMALL = f'[pool "small"]\nowner = {os.getuid()}\nmode = 0600\nquota = 64M\n'

# What publishers begin with. A step is said, and goes on when the test says so.
PREAMBLE = """
import gc, os, sys, time, weakref

def step(line):
    print(line, flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the test has gone")

def until(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        gc.collect()
        time.sleep(0.01)

MIB = 1 << 20
"""
TORCH = PREAMBLE + """
import torch, caid.torch

def lies_in_caid(tensor):
    try:
        caid.torch.arena().find(tensor.data_ptr())
    except caid.NotFoundError:
        return False
    return True
"""
CUPY = PREAMBLE + """
import cupy, caid.cupy

def lies_in(allocator, array):
    try:
        allocator.arena().find(array.data.ptr)
    except caid.NotFoundError:
        return False
    return True
"""

# Opens "weights", says its sum, and once more when it is asked to.
READER = """
import sys
with caid.connect() as c, c.open("weights") as a:
    for _ in range(2):
        x = a.copy_to_host()
        print(a.shape, a.typestr, a.metadata, int(x.astype("i8").sum()), flush=True)
        sys.stdin.readline()
"""


class Process:
    """A script that says what it has done line by line."""

    def __init__(self, daemon, script):
        self.process = start(daemon.env, script, stdin=subprocess.PIPE)

    def line(self):
        line = self.process.stdout.readline().rstrip("\n")
        if not line:
            out, err = self.process.communicate(timeout=SECONDS)
            pytest.fail(f"it ended with {self.process.returncode}: {err}")
        return line

    def expect(self, line):
        got = self.line()
        assert got == line, got

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self):
        out, err = self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == 0, err
        return out

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def process(daemon):
    started = []

    def begin(script):
        started.append(Process(daemon, script))
        return started[-1]

    yield begin
    for p in started:
        p.kill()


@pytest.fixture
def nothing_left(daemon):
    """Afterwards the daemon has no array: all that was published is gone with its name."""
    with daemon.connect() as c:
        yield
        deadline = time.monotonic() + 30
        while c.status().arrays or c.status().leases:
            c.flush()
            assert time.monotonic() < deadline, (c.list(), c.unnamed(), c.status())
            time.sleep(0.01)


# --- publishing -----------------------------------------------------------------------------

TORCH_PUBLISHES = TORCH + """
pool = caid.torch.MemPool()
with torch.cuda.use_mem_pool(pool):
    torch.empty(1, device="cuda")
    before = torch.cuda.memory_allocated()
    w = torch.arange(MIB, dtype=torch.int32, device="cuda").reshape(1024, 1024)
assert lies_in_caid(w) and not lies_in_caid(torch.empty(MIB, device="cuda"))
start = w.data_ptr()
caid.torch.publish("weights", w[:, ::2], metadata={"step": 7})
del w
gc.collect()
assert torch.cuda.memory_allocated() - before == 4 * MIB, "the tensor was to be kept"
step("published")

# What is allocated from now on has other memory.
with torch.cuda.use_mem_pool(pool):
    others = [torch.zeros(MIB, dtype=torch.int32, device="cuda") for _ in range(16)]
assert start not in [x.data_ptr() for x in others]
torch.cuda.synchronize()
with caid.connect() as c:
    c.unlink("weights")
step("unlinked")
assert torch.cuda.memory_allocated() - before == 17 * 4 * MIB, "it is open yet"
step("held")
until(lambda: torch.cuda.memory_allocated() - before == 16 * 4 * MIB, "nobody has it: it was to go")
with torch.cuda.use_mem_pool(pool):
    again = torch.empty(MIB, dtype=torch.int32, device="cuda")
assert again.data_ptr() == start
print("let go")
"""

CUPY_PUBLISHES = CUPY + """
allocator = caid.cupy.Allocator()
cupy.cuda.set_allocator({allocator})
cupy.empty(1)
arena = allocator.arena()
arena.flush()
w = cupy.arange(MIB, dtype="i4").reshape(1024, 1024)
assert lies_in(allocator, w)
with cupy.cuda.using_allocator(cupy.cuda.memory._malloc):
    assert not lies_in(allocator, cupy.empty(MIB))
start = w.data.ptr
view = w[:, ::2]
kept = weakref.ref(view)
allocator.publish("weights", view, metadata={{"step": 7}})
del w, view
gc.collect()
assert kept() is not None
step("published")

others = [cupy.zeros(MIB, "i4") for _ in range(16)]
assert start not in [x.data.ptr for x in others]
cupy.cuda.runtime.deviceSynchronize()
with caid.connect() as c:
    c.unlink("weights")
step("unlinked")
assert arena.info.published == 1 and kept() is not None, "it is open yet"
step("held")
until(lambda: arena.info.published == 0 and kept() is None, "nobody has it: it was to go")
print("let go")
"""
PUBLISHERS = {
    "torch": TORCH_PUBLISHES,
    "cupy": CUPY_PUBLISHES.format(allocator="allocator.malloc"),
    "cupy under a MemoryPool": CUPY_PUBLISHES.format(
        allocator="cupy.cuda.MemoryPool(allocator.malloc).malloc"
    ),
}


@pytest.mark.parametrize("library", PUBLISHERS)
def test_what_is_published_is_kept_until_nobody_has_it(daemon, process, nothing_left, library):
    needs(library.split()[0])
    publisher = process(PUBLISHERS[library])
    publisher.expect("published")
    reader = process(READER)
    told = f"(1024, 512) <i4 {{'step': 7}} {sum(range(0, 1 << 20, 2))}"
    reader.expect(told)
    publisher.go()
    publisher.expect("unlinked")
    reader.go()
    reader.expect(told)
    publisher.go()
    publisher.expect("held")
    reader.go()
    reader.finish()
    publisher.go()
    assert publisher.finish() == "let go\n"


TORCH_LEAVES = TORCH + """
pool = caid.torch.MemPool()
with torch.cuda.use_mem_pool(pool):
    w = torch.full((1024, 512), 7, dtype=torch.int32, device="cuda")
first = caid.torch.publish("weights", w)
with torch.cuda.use_mem_pool(pool):
    w = torch.full((1024, 512), 8, dtype=torch.int32, device="cuda")
assert caid.torch.publish("weights", w) == first + 1
"""
CUPY_LEAVES = CUPY + """
allocator = caid.cupy.Allocator()
cupy.cuda.set_allocator(allocator.malloc)
for value in 7, 8:
    allocator.publish("weights", cupy.full((1024, 512), value, "i4"))
"""


LEAVERS = {"torch": TORCH_LEAVES, "cupy": CUPY_LEAVES}


@pytest.mark.parametrize("library", LEAVERS)
def test_it_outlives_its_publisher(daemon, nothing_left, library):
    needs(library)
    run(daemon.env, LEAVERS[library])
    with daemon.connect() as c:
        with c.open("weights") as a:
            assert (a.copy_to_host() == 8).all()
        c.unlink("weights")


def test_torch_refuses_what_it_cannot_publish(daemon, nothing_left):
    needs("torch")
    run(daemon.env, TORCH + """
def refused(error, *args):
    try:
        caid.torch.publish(*args)
    except error as e:
        return str(e)
    raise SystemExit(f"not refused: {args}")

here = torch.zeros(4, device="cuda")
assert "use_mem_pool" in refused(ValueError, "x", here)
pool = caid.torch.MemPool()
with torch.cuda.use_mem_pool(pool):
    w = torch.zeros(4, 4, device="cuda", requires_grad=True)
    b = w.detach().bfloat16()
    z = torch.zeros(4, dtype=torch.complex64, device="cuda")
assert "use_mem_pool" in refused(ValueError, "x", here)
assert "use_mem_pool" in refused(ValueError, "x", torch.zeros(4))
assert "resolve_conj" in refused(TypeError, "x", z.conj())
refused(TypeError, "x", w.to_sparse())
caid.torch.publish("weights", w[:0])
refused(caid.InvalidNameError, "", w)
caid.torch.publish("weights", w)
caid.torch.publish("weights", w.t())
caid.torch.publish("weights", b)
with caid.connect() as c, c.open("weights") as a:
    assert "bfloat16" in repr(a) and torch.from_dlpack(a).dtype == torch.bfloat16
caid.torch.publish("weights", torch.view_as_real(z))
caid.torch.publish("weights", z)
try:
    caid.torch.MemPool(memory="legacy")
except RuntimeError as e:
    assert "set up" in str(e), e
else:
    raise SystemExit("set up twice")
with caid.connect() as c:
    c.unlink("weights")
""")


# --- out of memory --------------------------------------------------------------------------

TORCH_RUNS_OUT = TORCH + """
c = caid.connect()
pool = caid.torch.MemPool(c, pool="small")

def take(mib):
    with torch.cuda.use_mem_pool(pool):
        return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")

x = take(40)
try:
    y = take(40)
except torch.OutOfMemoryError:
    error = caid.torch.last_error()
    assert type(error) is caid.QuotaError and "small" in str(error), repr(error)
    assert caid.torch.last_error() is None
else:
    raise SystemExit("80 MiB of a quota of 64 MiB")
del x
take(40).fill_(1)
torch.cuda.synchronize()
del pool
gc.collect()
pool = caid.torch.MemPool(c, pool="small")
x = take(50)
x.fill_(2)
assert int(x[-1]) == 2
print("recovered")
"""
CUPY_RUNS_OUT = CUPY + """
allocator = caid.cupy.Allocator(pool="small")

def take(mib):
    x = cupy.empty(mib * MIB, "u1")
    x.fill(mib)
    return x

with cupy.cuda.using_allocator(allocator.malloc):
    x = take(40)
    try:
        y = take(40)
    except cupy.cuda.runtime.CUDARuntimeError as e:
        assert e.status == 2 and type(e.__cause__) is caid.QuotaError, (e.status, repr(e.__cause__))
    else:
        raise SystemExit("80 MiB of a quota of 64 MiB")
    del x
    x = take(50)
    assert int(x[-1]) == 50
    del x
with cupy.cuda.using_allocator(cupy.cuda.MemoryPool(allocator.malloc).malloc):
    x = take(40)
    try:
        y = take(40)
    except cupy.cuda.memory.OutOfMemoryError:
        pass
    else:
        raise SystemExit("80 MiB of a quota of 64 MiB")
    del x
    x = take(50)
    assert int(x[-1]) == 50
print("recovered")
"""


RUN_OUT = {"torch": TORCH_RUNS_OUT, "cupy": CUPY_RUNS_OUT}


@pytest.mark.parametrize("library", RUN_OUT)
def test_out_of_memory_is_the_librarys_own_error(library):
    needs(library)
    with caid.LocalDaemon(config=SMALL) as daemon:
        assert run(daemon.env, RUN_OUT[library]) == "recovered\n"


# --- what the GPU still uses ----------------------------------------------------------------

# Writes 7 after some 0.5 s; then whoever got the memory too early has sevens.
SLOW = """
KERNEL = r'''extern "C" __global__ void slow(int *x) {
    long long begun = clock64();
    while (clock64() - begun < 1000000000)
        ;
    x[blockIdx.x * blockDim.x + threadIdx.x] = 7;
}'''
slow = cupy.RawKernel(KERNEL, "slow")
"""


def test_freed_memory_is_not_used_while_a_kernel_writes_it(daemon, nothing_left):
    """By CuPy with no pool of its own, which has no thought of streams."""
    needs("cupy")
    run(daemon.env, CUPY + SLOW + """
allocator = caid.cupy.Allocator()
cupy.cuda.set_allocator(allocator.malloc)
one, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
N = 64 * 256
x = cupy.zeros(N, "i4")
slow((64,), (256,), (x,))  # what follows is compiled now, and takes no time then
bool((cupy.full(N, 1, "i4") == 1).all())
cupy.cuda.runtime.deviceSynchronize()
for _ in range(3):
    with one:
        slow((64,), (256,), (x,))
    start = x.data.ptr
    del x
    for n in range(50):  # more than wait in a queue
        cupy.empty(N, "i4")
    with other:
        taken = [cupy.full(N, 1, "i4") for _ in range(200)]
    assert not one.done, "the kernel was to run still"
    assert start not in [y.data.ptr for y in taken]
    one.synchronize()
    other.synchronize()
    assert all(bool((y == 1).all()) for y in taken)
    x = taken.pop()
    del taken
del x
""")


# --- graphs ---------------------------------------------------------------------------------

TORCH_CAPTURES = TORCH + """
pool = caid.torch.MemPool()
with torch.cuda.use_mem_pool(pool):
    static = torch.zeros(1024, 512, dtype=torch.int32, device="cuda")
    spare = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(20)]
assert lies_in_caid(static)
(static * 2 + 1).sum()  # what is loaded at first use is loaded
torch.cuda.synchronize()
del spare
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph{pool}):
    out = static * 2
    big = torch.ones(48 * MIB, dtype=torch.uint8, device="cuda")
    out += big[0]
{check}
for value in 3, 4:
    static.fill_(value)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((out == 2 * value + 1).all()), out
"""


def test_torch_captures_a_graph_that_uses_a_pool(daemon, nothing_left):
    needs("torch")
    run(daemon.env, TORCH_CAPTURES.format(pool="", check=""))


def test_torch_captures_a_graph_that_allocates_in_a_pool(daemon, nothing_left):
    """Blocks are leased meanwhile; what the graph writes is published, and replays show."""
    needs("torch")
    check = "assert lies_in_caid(out) and lies_in_caid(big), 'the graph has a pool of its own'"
    run(daemon.env, TORCH_CAPTURES.format(pool=", pool=pool.id", check=check) + """
caid.torch.publish("weights", out)
with caid.connect() as c:
    with c.open("weights") as a:
        assert (a.copy_to_host() == 9).all()
        static.fill_(5)
        graph.replay()
        torch.cuda.synchronize()
        assert (a.copy_to_host() == 11).all()
    c.unlink("weights")
""")


@pytest.mark.parametrize("non_blocking", [True, False])
@pytest.mark.parametrize("pool", ["allocator", "cupy.cuda.MemoryPool(allocator.malloc)"])
def test_cupy_captures_a_graph(daemon, nothing_left, pool, non_blocking):
    """It allocates and frees meanwhile as it likes: more than waits in a queue, and with a lease."""
    needs("cupy")
    run(daemon.env, CUPY + f"""
allocator = caid.cupy.Allocator()
cupy.cuda.set_allocator(({pool}).malloc)
x = cupy.zeros(1000, "i4")
(x * 2 + 1).sum()  # what is loaded at first use is loaded
stream = cupy.cuda.Stream(non_blocking={non_blocking})
cupy.cuda.runtime.deviceSynchronize()
with stream:
    stream.begin_capture()
    for n in range(30):
        cupy.empty(MIB + n, "u1")
    cupy.empty(40 * MIB, "u1")
    out = x * 2 + 1
    allocator.arena().flush()
    graph = stream.end_capture()
if {pool!r} == "allocator":
    assert allocator.arena().info.pending >= 31
for value in 3, 4:
    x.fill(value)
    cupy.cuda.runtime.deviceSynchronize()
    graph.launch(stream)
    stream.synchronize()
    assert bool((out == 2 * value + 1).all())
""")


# --- examples -------------------------------------------------------------------------------

EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "..", "examples")


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_the_example_runs(library):
    needs(library)
    program = os.path.join(EXAMPLES, f"publish_weights_{library}.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["the same bytes"]), done
