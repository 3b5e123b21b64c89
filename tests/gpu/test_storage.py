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
print("right")
"""


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
