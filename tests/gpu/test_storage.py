# SPDX-License-Identifier: Apache-2.0
"""caid.storage on hardware: all four classes, with kernels of Numba and CuPy.

Needs an NVIDIA GPU; a library that is not installed is skipped by name.
"""

import pathlib

import pytest
from conftest import needs, run

KINDS = {
    "CPUStorage": "",
    "GPUStorage": 'device="gpu", managed=None',
    "SoftwareManagedGPUStorage": 'device="gpu"',
    "CUDAManagedGPUStorage": 'device="gpu", managed="cuda"',
}
PREAMBLE = """
import warnings
import numpy as np
import caid.storage as cs
warnings.simplefilter("ignore", RuntimeWarning)  # of buffers on one side alone

def contents(s):
    with cs.fields(read=[s]) as (a,):
        return a.copy()
"""

OF_NUMBA = PREAMBLE + """
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
from numba import cuda

@cuda.jit
def laplacian(u, v):
    i, j = cuda.grid(2)
    if 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        v[i, j] = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4 * u[i, j]

N, rng, stream = 200, np.random.default_rng(1), cuda.stream()
u = cs.zeros((N, N + 3), halo=(1, 1), alignment_size=128, layout=(1, 0), {options})
v = cs.zeros_like(u)
assert type(u).__name__ == "{kind}", type(u)
for step in range(5):
    host = rng.random(u.shape)
    u[...] = host
    with cs.fields(read=[u], write=[v], device="gpu", stream=stream) as (a, b):
        laplacian[(13, 13), (16, 16), stream](a, b)
    expected = host[:-2, 1:-1] + host[2:, 1:-1] + host[1:-1, :-2] + host[1:-1, 2:] - 4 * host[1:-1, 1:-1]
    assert np.allclose(contents(v.domain_view), expected), step
    assert v[1, 1] == contents(v)[1, 1]
print("right")
"""

OF_CUPY = PREAMBLE + """
import cupy
u = cs.full((30, 40), 2, "f4", layout=(1, 0), alignment_size=64, {options})
state = getattr(u, "sync_state", None)
u[...] = cupy.arange(1200, dtype="f8").reshape(30, 40)
assert state is None or state.state == cs.SyncState.SYNC_DEVICE_DIRTY
expected = np.arange(1200, dtype="f4").reshape(30, 40)
assert (contents(u) == expected).all()
if u.device:
    c = u.to_cupy()
    assert c.strides == u.strides and int(u.device_data.ptr) == c.data.ptr
    c += 1
    expected += 1
    cupy.cuda.get_current_stream().synchronize()
    assert (contents(u) == expected).all() and (cupy.asnumpy(cupy.from_dlpack(u)) == expected).all()
    assert (cupy.asnumpy(u.to_ndarray()) == expected).all()
u[[1, 2], 3:5] = cupy.full((2, 2), 7, "f4")
expected[[1, 2], 3:5] = 7
u[0] = u[1]
expected[0] = expected[1]
u[cupy.array([5, 6])] = 9
expected[[5, 6]] = 9
assert (contents(u) == expected).all() and u[5, 5] == 9
assert (u[np.array([1, 5])] == expected[[1, 5]]).all()

class Foreign:  # whose memory is written as soon as it is released
    array = cupy.full((30, 40), 3, "f4")
    def release():
        with cupy.cuda.Stream(non_blocking=True) as other:
            Foreign.array.fill(4)
            other.synchronize()
    __gt_data_interface__ = {"gpu": {**array.__cuda_array_interface__, "stream": None, "release": release}}

spin = cupy.RawKernel('extern "C" __global__ void spin(long long n)'
                      '{ long long from = clock64(); while (clock64() - from < n); }', "spin")
cupy.cuda.get_current_stream().synchronize()
with cupy.cuda.Stream(non_blocking=True):
    u[...] = Foreign()
    Foreign.array.fill(3)  # all of it is compiled
    spin((1,), (1,), (1,))
    cupy.cuda.Device().synchronize()
    spin((1,), (1,), (600_000_000,))
    u[...] = Foreign()
assert (contents(u) == 3).all()
records = cs.zeros((2,), [("a", "f4"), ("b", "i1")], {options})  # CuPy has no such type
records[...] = np.array((1.5, 2), records.dtype)
assert contents(records).tolist() == [(1.5, 2)] * 2
print("right")
"""


# On a stream p of the library: fill(a, value) comes late. Elsewhere: take() reads what a dict tells of.
LATE = {
    "numba": """
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
from numba import cuda
p, q = cuda.stream(), cuda.stream()

@cuda.jit
def late(x, value):
    for _ in range(300):
        cuda.nanosleep(1_000_000)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        x[i] = value

def fill(a, value):
    late[64, 256, p](a, value)

def take(told):
    found = cuda.from_cuda_array_interface(told, s).copy_to_host(stream=q)
    q.synchronize()
    return found
""",
    "cupy": """
import cupy
p, q = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
late = cupy.RawKernel('extern "C" __global__ void late(int *x, int n, int value) {'
                      '    for (long long from = clock64(); clock64() - from < 600000000;) {}'
                      '    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)'
                      '        x[i] = value; }', "late")

class Described:
    def __init__(self, told):
        self.__cuda_array_interface__ = told

def fill(a, value):
    with p:
        late((64,), (256,), (cupy.asarray(a), np.int32(a.size), np.int32(value)))

def take(told):
    with q:
        found = cupy.asarray(Described(told)).copy()
        q.synchronize()
    return found.get()
""",
}
OF_PENDING = """
import os
from caid.storage._interface import data_interface

class DataArray:
    __gt_data_interface__ = property(data_interface)
    def __init__(self, data):
        self.data, self.dims = data, "I"

def write(value):
    with cs.fields(write=[s], device="gpu", stream=p) as (a,):
        fill(a, value)

def told(side="gpu"):
    return s.__gt_data_interface__[side]

def acquired():
    mine = told()
    mine["acquire"]()
    return take({key: mine[key] for key in ("shape", "typestr", "strides", "data", "version")})

def acquired_on_the_host():
    told(None)["acquire"]()
    return np.array(s._host)

def fields(device):
    with cs.fields(read=[DataArray(s)], device=device) as (a,):
        return np.array(a) if device is None else a.copy_to_host()

def put():
    t = cs.zeros(s.shape, s.dtype)
    t[...] = DataArray(s)
    return t.to_numpy()

looks = [
    lambda: take(told()), acquired, lambda: fields("gpu"), lambda: fields(None), put,
    lambda: cs.storage(DataArray(s), device=None).to_numpy(),
]
s = cs.zeros(1 << 16, "i4", {options})
if s._host is not None:
    looks.append(acquired_on_the_host)
write(0)  # all is compiled before it has to be quick
assert (take(told()) == 0).all()
for value, look in enumerate(looks, 1):
    write(value)
    os.environ["CAID_CAI_SYNC"] = "0"
    assert (take(told()) == value - 1).all(), "it was to be late"
    del os.environ["CAID_CAI_SYNC"]
    found = look()
    assert (found == value).all(), (value, found)
print("right")
"""


@pytest.mark.parametrize("library", LATE)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "CPUStorage"])
def test_work_on_a_stream_is_waited_for(daemon, library, kind):
    needs(library)
    script = PREAMBLE + LATE[library] + OF_PENDING.replace("{options}", KINDS[kind])
    assert run(daemon.env, script) == "right\n"


# Each of two processes adds one, on both sides.
OF_TWO = PREAMBLE + """
import subprocess, sys
import caid
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
from numba import cuda

@cuda.jit
def add(a):
    i = cuda.grid(1)
    if i < a.shape[0]:
        a[i] += 1

def add_on_both(s):
    stream = cuda.stream()
    for where in stream, None:
        with s.write(where) as a:
            if isinstance(a, np.ndarray):
                a += 1
            else:
                add[(8, 1), (128, 1), stream](a)
                None if where else stream.synchronize()

if len(sys.argv) == 1:
    s = cs.zeros(1000, name="of two", {options})
    add_on_both(s)
    subprocess.run([sys.executable, "-c", CODE, "other"], check=True)
    reader = cs.open("of two")
    assert (contents(s) == 4).all() and (contents(reader) == 4).all()
    state = getattr(s, "sync_state", None)
    if state:
        s[...] = 5
        stream = cuda.stream()
        s.host_to_device(stream=stream)
        stream.synchronize()
        assert reader.sync_state.state == state.SYNC_CLEAN
    caid.default_client().unlink("of two")
    print("right")
else:
    s = cs.open("of two", "rw")
    assert type(s).__name__ == "{kind}"
    with s.read() as a:
        assert ((a if isinstance(a, np.ndarray) else a.copy_to_host()) == 2).all()
    add_on_both(s)
"""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "CUDAManagedGPUStorage"])
def test_two_processes(daemon, kind):
    needs("numba")
    code = OF_TWO.replace("{kind}", kind).replace("{options}", KINDS[kind])
    assert run(daemon.env, f"CODE = {code!r}\nexec(CODE)") == "right\n"


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_of_numba(daemon, kind):
    needs("numba")
    assert run(daemon.env, OF_NUMBA.replace("{kind}", kind).replace("{options}", KINDS[kind])) == "right\n"


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_cupy(daemon, kind):
    needs("cupy")
    assert run(daemon.env, OF_CUPY.replace("{options}", KINDS[kind])) == "right\n"


@pytest.mark.parametrize("name, told", [("halo_exchange", "on the GPU"), ("storage_processes", "two processes")])
def test_the_examples(daemon, name, told):
    needs("cupy")
    example = pathlib.Path(__file__).parents[2] / "examples" / f"{name}.py"
    code = f"import subprocess, sys; subprocess.run([sys.executable, {str(example)!r}], check=True)"
    assert told in run(daemon.env, code)
