# SPDX-License-Identifier: Apache-2.0
"""A Numba's own tests under a memory manager: run() runs them in a process of their own, and
differences() holds a run against one with Numba's own manager. That process has this file as a
pytest plugin, beside that of tests/driver/soft/consumers which writes what became of each test.

The manager is set by NUMBA_CUDA_MEMORY_MANAGER ("environment") or by cuda.set_memory_manager()
("injected": Numba's tests do not know of it); "default" sets none. The daemon is the caller's, who
names it, and the driver, in `env`.
"""

import contextlib
import ctypes
import importlib
import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import pytest

HERE = pathlib.Path(__file__).resolve().parent
OUTCOMES = HERE.parent / "driver" / "soft" / "consumers"  # has outcomes.py
WAYS = ("default", "environment", "injected")


class Result(NamedTuple):
    """What a run came to."""

    outcomes: dict  # "module::Class::test": "passed", "failed" or "skipped"
    texts: dict  # why not
    figures: dict  # see Spy


def run(way, modules, folder, *, library="numba", package="numba.cuda.tests", python=sys.executable, env=None, at):
    """Runs the modules ("cudadrv.test_pinned", ...) that lie in `folder`, in this order. `at` is a
    directory for files. Fails, with what the process said, where it did not come to its end."""
    outcomes, figures = pathlib.Path(at, f"{way}.outcomes"), pathlib.Path(at, f"{way}.figures")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "outcomes"]
    command += ["-p", "numba_own", f"--outcomes={outcomes}", f"--package={package}", f"--way={way}"]
    command += [f"--library={library}"]
    command += [f"--figures={figures}", f"--rootdir={folder}", "--import-mode=importlib"]
    command += [os.path.join(folder, *module.split(".")) + ".py" for module in modules]
    done = subprocess.run(
        command,
        env=environment(way, env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = outcomes.read_text("utf-8").splitlines() if outcomes.exists() else []
    lines = [json.loads(line) for line in lines]
    assert lines and lines[-1] in ({"exit": 0}, {"exit": 1}), f"{done.returncode}\n{done.stdout}"
    tests = {f"{line['module']}::{line['test']}": line for line in lines[:-1]}
    return Result(
        {name: line["outcome"] for name, line in tests.items()},
        {name: line["text"] for name, line in tests.items()},
        json.loads(figures.read_text("utf-8")),
    )


def environment(way, more):
    env = {**os.environ, "CUDA_HOME": "/nonexistent", **more}
    path = [str(HERE), str(OUTCOMES), *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(path)
    env.pop("NUMBA_CUDA_MEMORY_MANAGER", None)
    if way == "environment":
        env["NUMBA_CUDA_MEMORY_MANAGER"] = "caid.numba"
    return env


def differences(own, other):
    """Tests that pass with Numba's own manager and not with the other: {name: (outcome, text)}."""
    return {
        name: (other.outcomes.get(name, "not run"), other.texts.get(name, ""))
        for name, outcome in own.outcomes.items()
        if outcome == "passed" and other.outcomes.get(name) != "passed"
    }


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
    """Sets the manager, and counts: `allocations` of caid's arenas, `arenas`, and `calls` of the
    software driver's cuMemAlloc by this process (None where the driver is another)."""

    def __init__(self, way, path, library):
        self.path = path
        self.cuda = importlib.import_module(f"{library}.cuda")
        if library == "numba_cuda_mlir":  # it calls what the software driver has not got, and dies of it
            importlib.import_module("numba_cuda_mlir.descriptor").LaunchConfiguration = no_kernels
        self.n_allocations = self.n_arenas = 0
        self.manager = None
        if way != "default":
            from caid import numba

            self.watch(numba)
            if way == "injected":
                self.manager = numba.MemoryManager

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
        figures = {"allocations": self.n_allocations, "arenas": self.n_arenas, "calls": n_calls()}
        pathlib.Path(self.path).write_text(json.dumps(figures), "utf-8")


def no_kernels(*_):
    raise RuntimeError("no kernels on the software driver")


def n_calls():
    import caid

    reply = ctypes.create_string_buffer(64)
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL(os.environ.get("NUMBA_CUDA_DRIVER") or caid.softcuda_path())
        if driver.caid_softcuda_control(b"calls cuMemAlloc_v2", reply, len(reply)) >= 0:
            return int(reply.value.split()[-1])
    return None
