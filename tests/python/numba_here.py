# SPDX-License-Identifier: Apache-2.0
"""What the tests of caid.numba share: a Numba on the software driver, in this process, with two
devices. It is imported before Numba."""

import importlib.util
import os
import signal
import warnings

import pytest

import caid

if importlib.util.find_spec("numba") is None:
    pytest.skip("Numba is not installed", allow_module_level=True)
if os.environ["CAID_CUDA_DRIVER"] != "soft":
    pytest.skip("on the software driver only", allow_module_level=True)

os.environ["NUMBA_CUDA_DRIVER"] = caid.softcuda_path()
os.environ["CAID_SOFTCUDA_DEVICES"] = "2"  # of this process and of the daemon
for name in ("MEMORY", "POOL", "BLOCK_SIZE"):
    os.environ.pop(f"CAID_NUMBA_{name}", None)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import numpy as np
    from numba import cuda
    from numba.core import config  # noqa: F401 (for those who import this)
    from numba.cuda.cudadrv import driver

    import caid.numba

MIB = 1 << 20


@pytest.fixture
def use(monkeypatch, client):
    """use(manager class, daemon): a fresh context with that manager."""

    def start(manager, daemon):
        monkeypatch.setenv("CAID_SOCKET", daemon.address)
        cuda.close()
        cuda.set_memory_manager(manager)
        return cuda.current_context().memory_manager

    yield start
    cuda.close()
    driver._memory_manager = None


@pytest.fixture
def manager(use, daemon):
    """The plugin, set as a program sets it."""
    return use(caid.numba.MemoryManager, daemon)


@pytest.fixture
def mortal(manager, use):
    """(manager, daemon) with a daemon that the test may kill."""
    with caid.LocalDaemon() as d:
        yield use(caid.numba.MemoryManager, d), d
        cuda.close()


def kill(daemon):
    os.kill(daemon.pid, signal.SIGKILL)
    daemon._process.wait()


def array_of(n, start=0):
    return np.arange(start, start + n, dtype=np.int64)


def equal(device_array, expected):
    np.testing.assert_array_equal(device_array.copy_to_host(), expected)
