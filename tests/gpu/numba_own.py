# SPDX-License-Identifier: Apache-2.0
"""numba-cuda's own tests, or numba_cuda_mlir's, three times: with its own memory manager, with caid's by
the environment, and with caid's by set_memory_manager(); and what became of each test.

usage: numba_own.py [--mlir] [MODULE...], as cudadrv.test_deallocations; without one, all of MODULES

Each module has a process of its own each time. What fails with caid's manager only is run again by
itself, both ways, and counts if it does so again.
"""
import collections
import concurrent.futures
import importlib.util
import os
import pathlib
import sys
import tempfile
from typing import NamedTuple


import caid

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "driver" / "soft" / "consumers"))
import mlir_tests  # noqa: E402
import outcomes  # noqa: E402

SECONDS = 300
AT_A_TIME = max(2, min(8, len(os.sched_getaffinity(0)) // 2))

OWN, ENVIRONMENT, INJECTED = "its own", "by the environment", "by a call"
WAYS = {
    OWN: {},
    ENVIRONMENT: {"NUMBA_CUDA_MEMORY_MANAGER": "caid.numba"},
    INJECTED: {"CAID_TEST_INJECT": "1"},
}
# What Numba leaves out where the variable is set; by a call, it does not know.
LEFT_OUT = {
    "test_max_pending_count", "test_max_pending_bytes", "test_defer_cleanup", "test_nested_defer_cleanup",
    "test_exception", "test_ownership",
}


class Library(NamedTuple):
    """Which one, and its tests: where they lie, as what they are imported, and found."""

    name: str
    folder: pathlib.Path
    package: str
    path: str = ""


def find_library(name, at):
    """"numba", which is numba-cuda, or "numba_cuda_mlir", whose tests are made in the folder `at`; None
    where it, or the tests, are not installed."""
    spec = importlib.util.find_spec("numba_cuda")
    for place in spec.submodule_search_locations if spec and importlib.util.find_spec(name) else ():
        folder = pathlib.Path(place) / "numba" / "cuda" / "tests"
        if folder.is_dir() and name == "numba":
            return Library(name, folder, "numba.cuda.tests")
        if folder.is_dir():
            return Library(name, mlir_tests.write(folder, at), mlir_tests.PACKAGE, str(at))
    return None


def all_modules(folder):
    driver = sorted(path.stem for path in (folder / "cudadrv").glob("test_*.py"))
    return [f"cudadrv.{name}" for name in driver] + ["cudapy.test_ipc", "cudapy.test_cuda_array_interface"]


class Run:
    """One module, one way: what became of its tests."""

    def __init__(self, library, module, way, daemon_env, only=None):
        self.library, self.module, self.way = library, module, way
        self.env = {"NUMBA_CUDA_MEMORY_MANAGER": "default", **daemon_env}
        self.env.update(CAID_TEST_NUMBA=library.name, **WAYS[way])
        self.options = ["-p", "numba_plugin", f"--rootdir={library.folder}", "--import-mode=importlib"]
        self.options += [f"--package={library.package}", *(["-k", only] if only else [])]
        self.result = None

    def run(self):
        file = self.library.folder / (self.module.replace(".", "/") + ".py")
        path = [HERE / "numba_site", HERE, self.library.path]
        self.result = outcomes.run([file], *self.options, env=self.env, path=path, seconds=SECONDS)
        return self


def worse(own, other):
    """The tests that pass with Numba's own manager and do not with caid's: (name, outcome, text)."""
    for name, (outcome, text) in outcomes.worse(own.result, other.result).items():
        left_out = name.rpartition("::")[2] in LEFT_OUT
        if not (other.way == ENVIRONMENT and outcome == "skipped" and left_out):
            yield name, outcome, text


def is_worse_again(own, other, name, daemon_env):
    """Whether it is so again, alone."""
    only = name.rpartition("::")[2].partition("[")[0]
    again = [Run(own.library, own.module, way, daemon_env, only).run() for way in (own.way, other.way)]
    print(f"{name} ({other.way}), again: " + ", ".join(
        f"{run.way} {run.result.outcomes.get(name, 'not run')}" for run in again))
    return name in [again_name for again_name, *_ in worse(*again)]


class Report:
    """All runs, and what is wrong: (module::test, way, what, text)."""

    def __init__(self, runs, daemon_env):
        self.runs = {(run.module, run.way): run for run in runs}
        self.wrong = []
        for (module, way), run in self.runs.items():
            own = self.runs[module, OWN]
            if run.result.trouble and not own.result.trouble:
                self.wrong.append((module, way, "its process", run.result.trouble))
            for name, outcome, text in worse(own, run) if way != OWN else ():
                if is_worse_again(own, run, name, daemon_env):
                    self.wrong.append((name, way, outcome, text))

    def counts(self, way):
        return collections.Counter(
            what for run in self.runs.values() if run.way == way for what in run.result.outcomes.values())

    def show(self):
        for module in sorted({module for module, _ in self.runs}):
            of = [collections.Counter(self.runs[module, way].result.outcomes.values()) for way in WAYS]
            print(f"{module:36}", *(f"{c['passed']:4} / {c['failed']} / {c['skipped']:<4}" for c in of))
        for way in WAYS:
            counts = self.counts(way)
            print(f"{way}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        for run in self.runs.values():
            for name, outcome in run.result.outcomes.items() if run.way == OWN else ():
                if outcome == "failed":
                    print(f"fails without caid: {name}: {last_line(run.result.texts[name])}")
            if run.result.trouble:
                print(f"{run.module} ({run.way}): {run.result.trouble}")
        for test, way, what, text in self.wrong:
            print(f"\nWRONG {test} ({way}): {what}\n{text}")
        print(f"{len(self.wrong)} tests are worse with caid", flush=True)


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]


def run_all(daemon_env, modules=(), name="numba"):
    """The Report of all three ways; None where there is no such library, or no numba-cuda with its tests."""
    with tempfile.TemporaryDirectory() as at:
        library = find_library(name, at)
        if library is None:
            return None
        modules = modules or all_modules(library.folder)
        runs = [Run(library, module, way, daemon_env) for module in modules for way in WAYS]
        with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
            return Report(list(pool.map(Run.run, runs)), daemon_env)


def main(*modules):
    name = "numba_cuda_mlir" if "--mlir" in modules else "numba"
    with caid.LocalDaemon() as daemon:
        report = run_all(daemon.env, [module for module in modules if module != "--mlir"], name)
    if report is None:
        sys.exit("numba-cuda, or numba_cuda_mlir, is not installed")
    report.show()
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
