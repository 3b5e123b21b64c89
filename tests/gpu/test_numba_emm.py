# SPDX-License-Identifier: Apache-2.0
"""caid.numba on hardware: kernels on its memory, publishing it, and what cuda.close() leaves.

Needs an NVIDIA GPU, and numba-cuda or numba_cuda_mlir.
"""

import pytest
from conftest import needs
from conftest import run as run_script

LIBRARIES = ["numba", "numba_cuda_mlir"]
SHIM = """
import numpy
if not hasattr(numpy, "row_stack"):  # numba-cuda 0.30 wants it; NumPy 2.5 has dropped it
    numpy.row_stack = numpy.vstack
from numba import cuda, types
float32, int32 = types.float32, types.int32
import caid.numba
"""


def run(env, script, library="numba"):
    needs(library)
    return run_script(env, script.replace("from numba", f"from {library}"))


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


# Two views of it, next to each other; how much there is of it is said at the launch.
DYNAMIC = SHIM + """
@cuda.jit
def kernel(x, out):
    n, t, i = cuda.blockDim.x, cuda.threadIdx.x, cuda.grid(1)
    values, indices = cuda.shared.array(0, float32), cuda.shared.array(0, int32)[n:]
    values[t] = x[i]
    indices[t] = n - 1 - t
    cuda.syncthreads()
    out[i] = values[indices[t]] + indices[(t + 1) % n]

N = 1 << 12
host = numpy.arange(N, dtype="f4")
with caid.connect() as c, c.empty(N, "<f4") as x, c.empty(N, "<f4") as out:
    x.copy_from_host(host)
    pairs = [(cuda.as_cuda_array(x), cuda.as_cuda_array(out)), (cuda.to_device(host), cuda.device_array(N, "f4"))]
    for block in (32, 256, 1024):
        indices = numpy.arange(block)[::-1]
        expected = (host.reshape(-1, block)[:, ::-1] + numpy.roll(indices, -1)).reshape(-1)
        for x_, out_ in pairs:
            kernel[N // block, block, 0, 8 * block](x_, out_)
            assert (out_.copy_to_host() == expected).all(), block
    del pairs, x_, out_
print("right")
"""

# cuda.core does not outlive what cuda.close() does: with caid it is as without.
AFTERWARDS = SHIM + """
cuda.to_device(numpy.arange(10))
{end}
try:
    print(cuda.to_device(numpy.arange(10)).copy_to_host().sum())
except Exception as e:
    print(type(e).__name__, e)
"""


def on(daemon, manager="caid.numba", **env):
    return {**daemon.env, "NUMBA_CUDA_MEMORY_MANAGER": manager, **env}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("memory", ["legacy", "device"])
def test_a_kernel_on_memory_of_the_plugin(daemon, memory, library):
    assert run(on(daemon, CAID_NUMBA_MEMORY=memory), ON_ITS_MEMORY, library) == "right\n"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("manager", ["default", "caid.numba"])
def test_a_kernel_on_arrays(daemon, manager, library):
    assert run(on(daemon, manager), ON_ARRAYS, library) == "right\n"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_kernel_with_dynamic_shared_memory(daemon, library):
    assert run(on(daemon), DYNAMIC, library) == "right\n"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("end", ["cuda.close()", "cuda.current_context().reset()"])
def test_what_works_after_the_end_works_with_caid(daemon, library, end):
    own, with_caid = (
        run(on(daemon, manager), AFTERWARDS.replace("{end}", end), library)
        for manager in ("default", "caid.numba")
    )
    print(library, end, own)
    assert own == "45\n" or end == "cuda.close()"
    assert with_caid == own


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


@pytest.mark.parametrize("memory", ["legacy", "device"])
def test_two_processes_by_a_handle_of_numbas(daemon, memory):
    """The handle is that of the daemon's block, with an offset, or a ticket; a process whose manager is
    Numba's own opens it."""
    env = {**daemon.env, "NUMBA_CUDA_MEMORY_MANAGER": "caid.numba", "CAID_NUMBA_MEMORY": memory}
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
