# SPDX-License-Identifier: Apache-2.0
"""A Numba's own tests under a memory manager: run() runs them in a process of their own, which has this
file as a pytest plugin.

The manager is set by NUMBA_CUDA_MEMORY_MANAGER ("environment") or by cuda.set_memory_manager()
("injected": Numba's tests do not know of it). The daemon is the caller's, who
names it, and the driver, in `env`.
"""

import ctypes
import importlib
import json
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "driver" / "soft" / "consumers"))
import outcomes  # noqa: E402

WAYS = ("environment", "injected")


def run(way, modules, folder, *, library="numba", package="numba.cuda.tests", python=sys.executable, env, at):
    """Runs the modules ("cudadrv.test_pinned", ...) that lie in `folder`, in this order: what became of
    them, and the figures of a Spy. `at` is a directory for files. Fails, with what the process said,
    where it did not come to its end."""
    figures = pathlib.Path(at, f"{way}.figures")
    options = ["-p", "numba_own", f"--way={way}", f"--library={library}", f"--figures={figures}"]
    options += [f"--package={package}", f"--rootdir={folder}", "--import-mode=importlib"]
    files = [os.path.join(folder, *module.split(".")) + ".py" for module in modules]
    manager = "caid.numba" if way == "environment" else "default"
    env = {"CUDA_HOME": "/nonexistent", "NUMBA_CUDA_MEMORY_MANAGER": manager, **env}
    result = outcomes.run(files, *options, python=python, env=env, path=[HERE])
    assert not result.trouble, result.trouble
    return result, json.loads(figures.read_text("utf-8"))


# --- the plugin -------------------------------------------------------------------------------


def pytest_addoption(parser):
    parser.addoption("--way", choices=WAYS)
    parser.addoption("--figures")
    parser.addoption("--library")


def pytest_configure(config):
    if config.getoption("--way"):
        options = map(config.getoption, ("--way", "--figures", "--library"))
        config.pluginmanager.register(Spy(*options))


class Spy:
    """Sets the manager, and counts: `allocations` of caid's arenas, `arenas`, and what this process
    has `allocated` from the software driver and `copied` from it, in calls."""

    def __init__(self, way, path, library):
        self.path = path
        self.cuda = importlib.import_module(f"{library}.cuda")
        if library == "numba_cuda_mlir":  # it calls what the software driver has not got, and dies of it
            importlib.import_module("numba_cuda_mlir.descriptor").LaunchConfiguration = no_kernels
        self.n_allocations = self.n_arenas = 0
        from caid import numba

        self.watch(numba)
        self.manager = numba.MemoryManager if way == "injected" else None

    def watch(self, numba):
        """Figures of an arena end with it."""
        close = numba._Source.close

        def count_and_close(source):
            self.n_arenas += 1
            self.n_allocations += source.arena.info.n_allocs
            close(source)

        numba._Source.close = count_and_close

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self):
        """Before each test: some set a manager of their own, and leave none behind."""
        if self.manager and self.cuda.cudadrv.driver._memory_manager is not self.manager:
            self.cuda.close()
            self.cuda.set_memory_manager(self.manager)

    def pytest_sessionfinish(self):
        self.cuda.close()  # and with it all arenas
        figures = {"allocations": self.n_allocations, "arenas": self.n_arenas}
        figures.update(allocated=n_calls("cuMemAlloc_v2"), copied=n_calls("cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2"))
        pathlib.Path(self.path).write_text(json.dumps(figures), "utf-8")


def no_kernels(*_):
    raise RuntimeError("no kernels on the software driver")


def n_calls(*names):
    import caid

    driver = ctypes.CDLL(os.environ.get("NUMBA_CUDA_DRIVER") or caid.softcuda_path())
    reply = ctypes.create_string_buffer(64)
    n = 0
    for name in names:
        assert driver.caid_softcuda_control(f"calls {name}".encode(), reply, len(reply)) >= 0
        n += int(reply.value.split()[-1])
    return n
