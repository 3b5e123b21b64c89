# SPDX-License-Identifier: Apache-2.0
"""caid.mpi with four ranks on two daemons that stand for two machines. What the ranks do is in ranks.py."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import pytest
from conftest import PATIENCE_S, wait_until
from engines import N_KILLS, interpreter, two_machines, wait_until_nothing_is_left

HERE = pathlib.Path(__file__).resolve().parent
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "plm", "isolated", "--mca", "btl", "self,tcp"]
N_RANKS = 4


@pytest.fixture(scope="session")
def mpirun():
    python = interpreter("mpi4py.MPI", "caid.mpi")
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun: Debian's openmpi-bin has one")
    return [*MPIRUN, "-n", str(N_RANKS), python, "-m", "mpi4py", HERE / "ranks.py"]


@pytest.fixture(scope="module")
def machines():
    with two_machines() as daemons:
        yield daemons


def test_ranks(mpirun, machines):
    command = [*mpirun, "layouts,shared,errors,halos,weights", *(daemon.address for daemon in machines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    wait_until_nothing_is_left(machines)


@pytest.mark.parametrize("modules", ["test_p2p_buf", "test_cco_buf", "test_cco_vec"])
def test_own_tests(mpirun, machines, modules):
    """Those of mpi4py, whose wheels have none: CAID_MPI4PY_TESTS is the folder `test` of its sources."""
    folder = os.environ.get("CAID_MPI4PY_TESTS")
    if folder is None:
        pytest.skip("no CAID_MPI4PY_TESTS")
    command = [*mpirun[:-1], HERE / "mpi_own.py", folder, modules]
    env = {**os.environ, **machines[0].env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=4 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    wait_until_nothing_is_left(machines)


def test_kills_leave_nothing(mpirun, machines, tmp_path):
    """mpirun ends the others; what they had goes back."""
    chance = random.Random(22)
    for n in range(N_KILLS):
        folder = tmp_path / str(n)  # mpirun may mix what ranks print
        folder.mkdir()
        command = [*mpirun, "forever", *(daemon.address for daemon in machines)]
        env = {**os.environ, "RANKS_FOLDER": str(folder)}
        job = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: len(os.listdir(folder)) == N_RANKS)
            time.sleep(chance.random() * 0.3)
            os.kill(int(chance.choice(os.listdir(folder))), signal.SIGKILL)
            assert job.wait(PATIENCE_S) != 0
        finally:
            job.terminate()
            job.wait(PATIENCE_S)
        wait_until_nothing_is_left(machines)
