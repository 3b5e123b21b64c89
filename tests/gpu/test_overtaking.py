# SPDX-License-Identifier: Apache-2.0
"""The order of work on the stream of a CUDA Array Interface: python.test_overtaking on real streams of
CuPy, Numba and PyTorch. Each order is also looked at without it (CAID_CAI_SYNC=0), where it has to fail.

Needs an NVIDIA GPU; a library that is not installed is skipped by name.
"""

import pytest
from conftest import needs, run

SETUP = """
import contextlib
import cupy, numpy
c = caid.connect()
s = c.stream(non_blocking=True)
there = c.empty(1 << 20, "<i4")
threes = caid.pinned_array(1 << 20, "<i4", client=c)
threes[:] = 3
there.copy_from_host(threes)
spin = cupy.RawKernel('extern "C" __global__ void spin(long long n)'
                      '{ long long from = clock64(); while (clock64() - from < n); }', "spin")
with cupy.cuda.Stream(non_blocking=True) as first:  # compiled before it has to be quick
    spin((1,), (1,), (1,))
    cupy.ones(8, "i4").copy()
    first.synchronize()

def hold(stream):  # for some 0.3 s
    with cupy.cuda.Stream.from_external(stream):
        spin((1,), (1,), (600_000_000,))

def only(values):
    found = set(numpy.unique(values).tolist())
    assert len(found) == 1, found
    return found.pop()
"""

# make() gives an array of ones and fill(x, value) changes it, on a stream that the array names.
PRODUCERS = {
    "cupy": """
current = p = cupy.cuda.Stream(non_blocking=True)
x = cupy.ones(1 << 20, "i4")
def fill(value):
    with p:
        x.fill(value)
def now():
    with p:
        return x.copy()
""",
    "numba": """
if not hasattr(numpy, "row_stack"):  # numba-cuda 0.30 wants it; NumPy 2.5 has dropped it
    numpy.row_stack = numpy.vstack
from numba import cuda
current, p = contextlib.nullcontext(), cuda.stream()
x = cuda.device_array(1 << 20, numpy.int32, stream=p)
@cuda.jit
def set_all(x, value):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        x[i] = value
def fill(value): set_all[256, 256, p](x, value)
def now():
    y = cuda.device_array(1 << 20, numpy.int32, stream=p)
    y.copy_to_device(x, stream=p)
    return y
fill(1)
""",
    "torch": """
import torch
p = torch.cuda.Stream()
current = torch.cuda.stream(p)
x = torch.ones(1 << 20, dtype=torch.int32, device="cuda")
def fill(value):
    with torch.cuda.stream(p):
        x.fill_(value)
def now():
    with torch.cuda.stream(p):
        return x.clone()
""",
}

# The consumer uses x on s, and the producer goes on at once on its own stream.
USES = {
    "copy_from": ("there.copy_from(x, stream=s)", "there.copy_to_host()", 1, 2),
    "as_array": ("there.copy_from(caid.as_array(x), stream=s)", "there.copy_to_host()", 1, 2),
    "from_dlpack": ("there.copy_from(caid.from_dlpack(x, stream=p), stream=s)", "there.copy_to_host()", 1, None),
    "from_dlpack, no stream": ("there.copy_from(caid.from_dlpack(x), stream=s)", "there.copy_to_host()", 1, None),
    "copy_to": ("there.copy_to(x, stream=s)", "seen", 3, 1),
    "to_device": ("caid.to_device(there, stream=s, to=x)", "seen", 3, 1),
}


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("library", PRODUCERS)
def test_the_producer_does_not_overtake(daemon, library, use, sync):
    needs("cupy", library)
    call, result, right, wrong = USES[use]
    if wrong is None and (library == "numba" or not sync):
        pytest.skip("DLPack knows no such setting, and Numba's arrays no DLPack")
    script = f"""
{SETUP}
{PRODUCERS[library]}
fill(1)
now()  # all is compiled before it has to be quick
p.synchronize()
hold(s)
with current:
    {call}
assert not s.query(), "it was to be held still"
seen = now()
fill(2)
p.synchronize()
for method in ("get", "copy_to_host", "cpu"):
    seen = getattr(seen, method, lambda: seen)()
s.synchronize()
print(only({result}))
"""
    out = run({**daemon.env, "CAID_CAI_SYNC": str(int(sync))}, script)
    assert int(out) == (right if sync else wrong)


def test_cupys_stream_lives_as_long_as_the_array(daemon):
    """CuPy names its current stream, and lets it end while the array lives."""
    needs("cupy")
    script = f"""
{SETUP}
with cupy.cuda.Stream(non_blocking=True):
    x = cupy.ones(1 << 20, "i4")
    y = caid.as_array(x)
z = cupy.asarray(y)
y.copy_to(there, stream=s)
s.synchronize()
print(only(y.copy_to_host()), only(there.copy_to_host()))
"""
    assert run(daemon.env, script).split() == ["1", "1"]


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("who", ["a", "a.bind(s)", "before"])
def test_work_that_is_announced_is_waited_for(daemon, who, sync):
    """A kernel outside of a bracket, on a stream that an array is bound to."""
    needs("cupy")
    script = f"""
{SETUP}
a = caid.device_array(1 << 20, "<i4", stream=s, client=c)
a.copy_from(there)
before, y = a[:], cupy.asarray(a)
a.bind(s)
s.synchronize()
hold(s)
with cupy.cuda.Stream.from_external(s):
    y.fill(1)
with cupy.cuda.Stream(non_blocking=True) as own:
    seen = cupy.asarray({who}).copy()
    own.synchronize()
print(only(seen.get()))
s.synchronize()
"""
    assert int(run({**daemon.env, "CAID_CAI_SYNC": str(int(sync))}, script)) == (1 if sync else 3)


CONSUMERS = {
    "cupy": """
y = cupy.asarray(m)
def read():
    with cupy.cuda.Stream.from_external(named):
        return y.copy()
""",
    "numba": """
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack
from numba import cuda
y = cuda.as_cuda_array(m)
def read():
    out = cuda.device_array(1 << 20, numpy.int32, stream=y.stream)
    out.copy_to_device(y, stream=y.stream)
    return out
""",
}


@pytest.mark.parametrize("library", CONSUMERS)
def test_caid_does_not_overtake(daemon, library):
    """What a consumer enqueues by the dict's stream, instead of waiting, comes before caid's next use."""
    needs("cupy", library)
    script = f"""
{SETUP}
m = c.empty(1 << 20, "<i4")
twos = caid.pinned_array(1 << 20, "<i4", client=c)
threes[:], twos[:] = 1, 2
hold(s)
m.copy_from_host(threes, stream=s)
named = caid.Stream.from_handle(m.__cuda_array_interface__["stream"], c)
{CONSUMERS[library]}
hold(named)
out = read()
assert not named.query(), "it was to be held still"
m.copy_from_host(twos)
named.synchronize()
print(only(out.get() if hasattr(out, "get") else out.copy_to_host()), only(m.copy_to_host()))
"""
    assert run(daemon.env, script).split() == ["1", "2"]
