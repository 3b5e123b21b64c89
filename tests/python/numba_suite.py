# SPDX-License-Identifier: Apache-2.0
"""The tests of test_numba_own.py, test_numba_cuda_own.py and test_numba_mlir_own.py, which have a fixture
`numba`: a Numba whose own tests are run with caid as its memory manager, on the software driver.
What fails, fails for want of what that driver has not, as with Numba's own manager (tests/driver/soft/consumers)."""

import concurrent.futures
import os
import pathlib
import subprocess
import tempfile
import uuid
from typing import NamedTuple, Union

import numba_own
import pytest
from outcomes import worse

import caid


class Numba(NamedTuple):
    python: Union[str, pathlib.Path]
    folder: str  # of its tests
    driver_by: str  # what leads it to the driver
    modules: str
    at_least: int  # tests that pass
    missing: str  # what those lack that fail
    library: str = "numba"
    package: str = "numba.cuda.tests"  # of its tests
    path: str = ""  # where that is, if it is not installed


OF_MEMORY = """
cudapy.test_ipc
cudadrv.test_array_attr
cudadrv.test_context_stack
cudadrv.test_cuda_memory
cudadrv.test_cuda_ndarray
cudadrv.test_deallocations
cudadrv.test_host_alloc
cudadrv.test_managed_alloc
cudadrv.test_pinned
cudadrv.test_reset_device
cudapy.test_cuda_array_interface
cudadrv.test_emm_plugins
"""
MORE = """
cudadrv.test_cuda_array_slicing
cudadrv.test_cuda_auto_context
cudadrv.test_cuda_devicerecord
cudadrv.test_events
cudadrv.test_select_device
cudadrv.test_streams
cudapy.test_multigpu
"""
# What an external manager is not asked for: Numba's tests of its own queue. They see one only where
# the environment names it.
OF_ITS_QUEUE = {"cudadrv.test_deallocations": 5, "cudapy.test_cuda_array_interface": 1}


# What ./dev has fetched is for this one.
PYTHON = pathlib.Path(__file__).resolve().parents[2] / "build" / "consumers" / "bin" / "python"
# Finds a file; fails where caid is not for that Python.
LOCATE = """
import caid, sys
from importlib.metadata import distribution
print(distribution(sys.argv[1]).locate_file(sys.argv[2]))
"""


def fetched(distribution, file):
    """Where a file of that distribution lies; skips the test where ./dev has not fetched it."""
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("not under a sanitizer")
    if not PYTHON.exists():
        pytest.skip(f"./dev test has not fetched {distribution}")
    command = [PYTHON, "-c", LOCATE, distribution, file]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if found.returncode != 0:
        pytest.skip(f"{PYTHON} has not {distribution}, or cannot import caid")
    return found.stdout.strip()


def fetched_tests():
    return fetched("numba-cuda", "numba_cuda/numba/cuda/tests")


def find_driver(by, at):
    """What leads a program to the software driver: the path, or a folder where that is libcuda.so.1."""
    if by != "LD_LIBRARY_PATH":
        return {by: caid.softcuda_path()}
    folder = pathlib.Path(at, str(uuid.uuid4()))
    folder.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).symlink_to(caid.softcuda_path())
    path = filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])
    return {"LD_LIBRARY_PATH": os.pathsep.join(path)}


def modules_of(numba, way):
    """The processes that test_ipc starts, which take most of the time, know of a manager by the environment alone."""
    modules = numba.modules.split()
    return modules if way == "environment" else [module for module in modules if module != "cudapy.test_ipc"]


def run(numba, way, at):
    """With a daemon, and devices, of its own: tests fill half of the memory."""
    env = {"CAID_SOFTCUDA_UUID": str(uuid.uuid4()), **find_driver(numba.driver_by, at)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [numba.path, os.environ.get("PYTHONPATH")]))
    with caid.LocalDaemon(driver="soft", devices=2, memory="512M", env=env) as daemon:
        env.update(daemon.env)
        modules = modules_of(numba, way)
        what = {"library": numba.library, "package": numba.package, "python": numba.python}
        result = numba_own.run(way, modules, numba.folder, **what, env=env, at=at)
        with daemon.connect() as client:
            status = client.status()
            assert (status.connections, status.names, status.release_errors) == (1, 0, 0)
    return result


@pytest.fixture(scope="module")
def results(numba):
    """What the tests came to, by the way in which the manager was set."""
    with tempfile.TemporaryDirectory(prefix="caid-numba-") as at:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            ran = pool.map(lambda way: run(numba, way, at), numba_own.WAYS)
            return dict(zip(numba_own.WAYS, ran))


@pytest.mark.parametrize("way", numba_own.WAYS)
def test_what_fails_wants_another_piece(numba, results, way):
    own, _ = results[way]
    assert list(own.outcomes.values()).count("passed") >= numba.at_least
    assert {name.partition("::")[0] for name in own.outcomes} == set(modules_of(numba, way))
    for name, outcome in own.outcomes.items():
        if outcome == "failed":
            assert any(what in own.texts[name] for what in numba.missing.split("|")), f"{name}: {own.texts[name]}"


@pytest.mark.parametrize("way", numba_own.WAYS)
def test_the_memory_was_caids(results, way):
    _, figures = results[way]
    assert figures["allocated"] == 0 and figures["copied"] > 50  # both by Numba, from the driver
    assert figures["allocations"] > 100
    assert figures["arenas"] > 5


def test_the_environment_is_as_good(results):
    (injected, _), (other, _) = results["injected"], results["environment"]
    different = worse(injected, other)
    skipped = [name for name, (outcome, _text) in different.items() if outcome == "skipped"]
    others = {name: why for name, why in different.items() if name not in skipped}
    assert others == {}
    modules = [name.partition("::")[0] for name in skipped]
    assert {module: modules.count(module) for module in modules} == OF_ITS_QUEUE
