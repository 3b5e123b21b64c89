# SPDX-License-Identifier: Apache-2.0
"""caid.mpi with four ranks on two daemons that stand for two machines. What the ranks do is in ranks.py."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys

import caid
import pytest
from conftest import PATIENCE_S, wait_until
from numba_suite import PYTHON

HERE = pathlib.Path(__file__).resolve().parent
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "plm", "isolated", "--mca", "btl", "self,tcp"]
N_RANKS = 4


def interpreter():
    """One that has mpi4py and caid."""
    for python in sys.executable, PYTHON:
        command = [python, "-c", "import caid._caid; from mpi4py import MPI"]
        with contextlib.suppress(OSError):
            if subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0:
                return str(python)
    return None


@pytest.fixture(scope="session")
def mpirun():
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("not under a sanitizer")
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun: Debian's openmpi-bin has one")
    python = interpreter()
    if python is None:
        pytest.skip("./dev test has not fetched mpi4py")
    return [*MPIRUN, "-n", str(N_RANKS), python, "-m", "mpi4py"]


@pytest.fixture(scope="module")
def machines():
    """Two daemons; when the ranks have gone nothing is left at either."""
    with contextlib.ExitStack() as stack:
        envs = [{"CAID_MACHINE_ID": digit * 32} for digit in "12"]
        yield [stack.enter_context(caid.LocalDaemon(env=env)) for env in envs]


def assert_nothing_left(machines):
    for daemon in machines:
        with daemon.connect() as client:
            wait_until(lambda: client.status().connections == 1, facts=client.status)
            status = client.status()
            assert (status.arrays, status.leases, status.names) == (0, 0, 0)


@pytest.mark.parametrize("what", ["layouts", "shared", "errors", "halos"])
def test_ranks(mpirun, machines, what):
    command = [*mpirun, HERE / "ranks.py", what, *(daemon.address for daemon in machines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert_nothing_left(machines)
