# SPDX-License-Identifier: Apache-2.0
"""caid.numba on hardware: kernels on its memory, publishing it, and numba-cuda's own tests, each of which
passes with it if it passes without.

Needs an NVIDIA GPU and numba-cuda.
"""

import numba_own
import pytest
from conftest import needs, run

SHIM = """
import numpy
if not hasattr(numpy, "row_stack"):  # numba-cuda 0.30 wants it; NumPy 2.5 has dropped it
    numpy.row_stack = numpy.vstack
from numba import cuda, float32
import caid.numba
"""

# Shared, local and constant memory, each read at places that are known at run time only.
KERNELS = SHIM + """
TABLE = numpy.arange(1, 33, dtype="f4")
N, BLOCK = 1 << 16, 256

@cuda.jit
def kernel(x, out):
    shared = cuda.shared.array(256, float32)
    local = cuda.local.array(8, float32)
    table = cuda.const.array_like(TABLE)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t] = x[i]
    cuda.syncthreads()
    for k in range(8):
        local[k] = shared[(t + k) % 256] * table[(t + k) % 32]
    total = float32(0)
    for k in range(8):
        total += local[(k * 3 + t) % 8]
    out[i] = total

def expected(x):
    rows = x.reshape(-1, BLOCK)
    t = numpy.arange(BLOCK)
    return sum(rows[:, (t + k) % BLOCK] * TABLE[(t + k) % 32] for k in range(8)).reshape(-1)

host = (numpy.arange(N) % 7).astype("f4")
"""

ON_ITS_MEMORY = KERNELS + """
manager = cuda.current_context().memory_manager
assert isinstance(manager, caid.numba.MemoryManager), manager
for _ in range(3):
    x, out = cuda.to_device(host), cuda.device_array(N, "f4")
    kernel[N // BLOCK, BLOCK](x, out)
    assert (out.copy_to_host() == expected(host)).all()
caid.numba.publish("out", out)
del x, out
# As many as wait in a queue, twice.
for _ in range(20):
    cuda.device_array(N, "f4")
with caid.connect() as c:
    with c.open("out") as a:
        assert (a.copy_to_host() == expected(host)).all()
    c.unlink("out")
print("right")
"""

ON_ARRAYS = KERNELS + """
with caid.connect() as c, c.empty(N, "<f4") as x, c.create("out", N, "<f4") as out:
    x.copy_from_host(host)
    kernel[N // BLOCK, BLOCK](cuda.as_cuda_array(x), cuda.as_cuda_array(out))
    cuda.synchronize()
    assert (out.copy_to_host() == expected(host)).all()
    with c.open("out") as a, c.empty(N, "<f4") as twice:
        kernel[N // BLOCK, BLOCK](a, twice)  # as they are
        cuda.synchronize()
        assert (twice.copy_to_host() == expected(expected(host))).all()
    c.unlink("out")
print("right")
"""


@pytest.mark.parametrize("memory", ["legacy", "device"])
def test_a_kernel_on_memory_of_the_plugin(daemon, memory):
    needs("numba")
    env = {**daemon.env, "NUMBA_CUDA_MEMORY_MANAGER": "caid.numba", "CAID_NUMBA_MEMORY": memory}
    assert run(env, ON_ITS_MEMORY) == "right\n"


@pytest.mark.parametrize("manager", ["default", "caid.numba"])
def test_a_kernel_on_arrays(daemon, manager):
    needs("numba")
    assert run({**daemon.env, "NUMBA_CUDA_MEMORY_MANAGER": manager}, ON_ARRAYS) == "right\n"


# Numba knows of no graphs: by the driver, on a stream of Numba's. cudaStreamCaptureModeGlobal.
CAPTURES = KERNELS + """
import ctypes
libcuda = ctypes.CDLL("libcuda.so.1")

def call(name, *args):
    assert getattr(libcuda, name)(*args) == 0, name

x, out = cuda.to_device(host), cuda.device_array(N, "f4")
stream, graph, launchable = cuda.stream(), ctypes.c_void_p(), ctypes.c_void_p()
handle = ctypes.c_void_p(int(getattr(stream.handle, "value", stream.handle)))
kernel[N // BLOCK, BLOCK, stream](x, out)  # is compiled
cuda.synchronize()
pending = cuda.current_context().memory_manager.deallocations
call("cuStreamBeginCapture_v2", handle, 0)
for _ in range(30):  # more than wait in a queue
    cuda.device_array(1 << 20, "u1")
cuda.device_array(40 << 20, "u1")
kernel[N // BLOCK, BLOCK, stream](x, out)
pending.clear()
assert len(pending) >= 31, len(pending)
call("cuStreamEndCapture", handle, ctypes.byref(graph))
pending.clear()
assert len(pending) == 0, len(pending)
call("cuGraphInstantiateWithFlags", ctypes.byref(launchable), graph, ctypes.c_ulonglong(0))
for factor in 2, 3:
    x.copy_to_device(host * factor)
    cuda.synchronize()
    call("cuGraphLaunch", launchable, handle)
    cuda.synchronize()
    assert (out.copy_to_host() == expected(host * factor)).all()
print("right")
"""


def test_a_graph_is_captured_on_a_stream_of_numbas(daemon):
    needs("numba")
    env = {**daemon.env, "NUMBA_CUDA_MEMORY_MANAGER": "caid.numba"}
    assert run(env, CAPTURES) == "right\n"


def test_two_processes_by_a_handle_of_numbas(daemon):
    """The handle is that of the daemon's block, with an offset; a process that knows nothing of caid
    opens it."""
    needs("numba")
    env = {**daemon.env, "NUMBA_CUDA_MEMORY_MANAGER": "caid.numba", "CAID_NUMBA_MEMORY": "legacy"}
    assert run(env, SHIM + """
import pickle, subprocess, sys
first, second = cuda.to_device(numpy.arange(1000, dtype="i4")), cuda.to_device(numpy.arange(1000, 2000, dtype="i4"))
cuda.synchronize()
handles = [x.get_ipc_handle() for x in (first, second)]
READ = '''
import os, pickle, sys
os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "default"
import numpy
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack
from numba import cuda
for handle in pickle.loads(bytes.fromhex(sys.argv[1])):
    with handle as x:
        print(int(x.copy_to_host().sum()))
'''
out = subprocess.run([sys.executable, "-c", READ, pickle.dumps(handles).hex()], capture_output=True, text=True)
assert out.returncode == 0, out.stderr
print(*out.stdout.split())
""") == f"{sum(range(1000))} {sum(range(1000, 2000))}\n"


def test_numbas_own_tests(daemon):
    report = numba_own.run_all(daemon.env)
    if report is None:
        pytest.skip("numba-cuda is not installed")
    report.show()
    assert not report.wrong
    assert report.counts(numba_own.OWN)["passed"] > 100
    for module in "cudadrv.test_deallocations", "cudapy.test_cuda_array_interface", "cudapy.test_ipc":
        assert "passed" in report.runs[module, numba_own.OWN].outcomes.values(), module
