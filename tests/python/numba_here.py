# SPDX-License-Identifier: Apache-2.0
"""What the tests of caid.numba share: a Numba on the software driver, in this process, with two
devices. It is imported before Numba. The library is what $CAID_TEST_NUMBA names, which has to find
the driver by itself where it is not classic Numba."""

import ctypes
import importlib.util
import os
import signal
import warnings

import pytest

import caid

NAME = os.environ.get("CAID_TEST_NUMBA", "numba")
if importlib.util.find_spec(NAME) is None:
    pytest.skip(f"{NAME} is not installed", allow_module_level=True)
if os.environ["CAID_CUDA_DRIVER"] != "soft":
    pytest.skip("on the software driver only", allow_module_level=True)

os.environ["NUMBA_CUDA_DRIVER"] = caid.softcuda_path()
os.environ["CAID_SOFTCUDA_DEVICES"] = "2"  # of this process and of the daemon
for name in ("MEMORY", "POOL", "BLOCK_SIZE"):
    os.environ.pop(f"CAID_NUMBA_{name}", None)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import numpy as np

    import caid.numba

    cuda = importlib.import_module(f"{NAME}.cuda")
    driver = cuda.cudadrv.driver
    config = driver.config

MIB = 1 << 20
NVIDIAS = getattr(driver, "USE_NV_BINDING", True)  # it is built on cuda.core


def program(code):
    """Code that is written for Numba, for this one."""
    return code.replace("from numba import", f"from {NAME} import")


def close():
    """cuda.close(); with cuda.core all of it but the end of the contexts, which that does not outlive."""
    if not NVIDIAS:
        return cuda.close()
    while driver.driver.pop_active_context() is not None:
        pass
    for device in driver.driver.list_devices():
        context, device.primary_context = device.primary_context, None
        if context is not None:
            context.reset()


def memory_of_cudas(nbytes):
    if NVIDIAS:
        return driver.driver.cuMemAlloc(nbytes)
    pointer = driver.drvapi.cu_device_ptr()
    driver.driver.cuMemAlloc(ctypes.byref(pointer), nbytes)
    return pointer


@pytest.fixture
def use(monkeypatch, client):
    """use(manager class, daemon): a fresh context with that manager."""

    def start(manager, daemon):
        monkeypatch.setenv("CAID_SOCKET", daemon.address)
        close()
        cuda.set_memory_manager(manager)
        return cuda.current_context().memory_manager

    yield start
    close()
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
        close()


def kill(daemon):
    os.kill(daemon.pid, signal.SIGKILL)
    daemon._process.wait()


def array_of(n, start=0):
    return np.arange(start, start + n, dtype=np.int64)


def equal(device_array, expected):
    np.testing.assert_array_equal(device_array.copy_to_host(), expected)
