# SPDX-License-Identifier: Apache-2.0
"""caid.numba in the libraries that are NVIDIA's, numba-cuda and numba_cuda_mlir, where ./dev has fetched
them: our own tests of it in the second, both in one program, and what cuda.close() leaves."""

import os
import pathlib
import subprocess

import pytest
from numba_suite import PYTHON, fetched, find_driver

LIBRARIES = ["numba", "numba_cuda_mlir"]  # numba-cuda goes by the name of Numba


@pytest.fixture
def run(tmp_path):
    """run(arguments, **environment): what a Python with these libraries has printed."""
    fetched("numba-cuda-mlir", "numba_cuda_mlir")
    there = {**os.environ, **find_driver("LD_LIBRARY_PATH", tmp_path), "PYTHONWARNINGS": "ignore"}

    def start(*args, **env):
        env = {**there, **env}
        out = subprocess.run([PYTHON, *args], env=env, capture_output=True, text=True)
        assert out.returncode == 0, out.stdout + out.stderr
        return out.stdout

    return start


def test_our_own_tests(run):
    files = [pathlib.Path(__file__).with_name(f"test_numba_{name}.py") for name in ("emm", "share")]
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore:__int__ returned non-int:DeprecationWarning"]
    assert " passed" in run("-m", "pytest", *options, *files, CAID_TEST_NUMBA="numba_cuda_mlir")


# Each has its own classes, errors and limits, whichever was imported or set first.
SIDE_BY_SIDE = """
import importlib, sys
import numpy as np
names = sys.argv[1].split()
if "numba" not in names:
    sys.modules["numba"] = None  # as if it were not installed
import caid.numba
cudas, arrays = [importlib.import_module(f"{name}.cuda") for name in names], []
for i, cuda in enumerate(cudas):
    driver = cuda.cudadrv.driver
    if len(sys.argv) > 2:
        cuda.set_memory_manager(caid.numba.MemoryManager)
    arrays.append(cuda.to_device(np.arange(10) + i))
    manager = cuda.current_context().memory_manager
    assert isinstance(manager, caid.numba.MemoryManager)
    assert isinstance(manager, driver.HostOnlyCUDAMemoryManager)
    try:
        cuda.device_array(1 << 50, np.int8)
        assert False
    except driver.CudaAPIError as e:
        assert e.code == driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    driver.config.CUDA_DEALLOCS_COUNT = 3 + i
    waiting = [len(manager.deallocations) for _ in range(5 + i) if cuda.device_array(1) is not None]
    assert waiting == [*range(1, 4 + i), 0, 1], waiting
    for stream in (0, cuda.default_stream(), cuda.stream()):
        caid.numba.publish(names[i], arrays[i], stream=stream)
with caid.connect() as c:
    for i, (name, array) in enumerate(zip(names, arrays)):
        with c.open(name) as a:
            assert (a.copy_to_host() == array.copy_to_host()).all() and a.copy_to_host()[0] == i
        c.unlink(name)
print("right")
"""


@pytest.mark.parametrize("names, by_a_call", [
    ("numba_cuda_mlir", False),
    ("numba_cuda_mlir", True),
    ("numba numba_cuda_mlir", False),
    ("numba_cuda_mlir numba", True),
])
def test_alone_and_side_by_side(run, daemon, names, by_a_call):
    env = {} if by_a_call else {"NUMBA_CUDA_MEMORY_MANAGER": "caid.numba"}
    assert run("-c", SIDE_BY_SIDE, names, *["x"] * by_a_call, **daemon.env, **env) == "right\n"


AFTERWARDS = """
import importlib, sys
import numpy as np
cuda = importlib.import_module(f"{sys.argv[1]}.cuda")
a = cuda.to_device(np.arange(10))
exec(sys.argv[2])
try:
    print(cuda.to_device(np.arange(10)).copy_to_host().sum())
except cuda.cudadrv.driver.CudaAPIError as e:
    print(int(e.code), e.msg)
"""


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("end", ["cuda.close()", "cuda.current_context().reset()"])
def test_what_works_after_the_end_works_with_caid(run, daemon, library, end):
    def left(manager):
        env = {**daemon.env, "NUMBA_CUDA_MEMORY_MANAGER": manager}
        return run("-c", AFTERWARDS, library, end, **env)

    own = left("default")
    assert own == "45\n" or end == "cuda.close()"
    assert left("caid.numba") == own
