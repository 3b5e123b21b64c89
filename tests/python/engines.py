# SPDX-License-Identifier: Apache-2.0
"""What the tests of caid.mpi and caid.ray share: a Python that has the engine, and daemons for machines."""

import contextlib
import os
import subprocess
import sys

import caid
import pytest
from conftest import softcuda, wait_until
from numba_suite import PYTHON

N_KILLS = int(os.environ.get("CAID_STRESS_KILLS", "3"))


def interpreter(*modules):
    """This one, or that for which ./dev has fetched foreign programs: the first that imports these."""
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("not under a sanitizer")
    for python in sys.executable, PYTHON:
        command = [python, "-c", f"import {', '.join(modules)}"]
        with contextlib.suppress(OSError):
            if subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0:
                return str(python)
    pytest.skip(f"./dev test has not fetched what imports {', '.join(modules)}")


@contextlib.contextmanager
def two_machines():
    with contextlib.ExitStack() as stack:
        envs = [{"CAID_MACHINE_ID": digit * 32} for digit in "12"]
        yield [stack.enter_context(caid.LocalDaemon(env=env)) for env in envs]


def driver_calls(*beginnings):
    """How many calls of this process's software driver have had these names: all, without any."""
    calls = (line.split() for line in softcuda("calls").splitlines())
    return sum(int(n) for name, n in calls if name.startswith(beginnings or ""))


def n_copies():
    """And allocations."""
    return driver_calls("cuMemcpy", "cuMemCreate")


def left(machines):
    """Arrays and leases of all."""
    found = []
    for daemon in machines:
        with daemon.connect() as client:
            client.withdraw(gone=True)
            client.flush()
            status = client.status()
            found += [status.arrays, status.leases]
    return found


def wait_until_nothing_is_left(machines):
    wait_until(lambda: not any(left(machines)), facts=lambda: left(machines))
