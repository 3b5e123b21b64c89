# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for who runs other projects' tests: writes what became of each test, one JSON line at
a time. run() is for those who want it all at the end, and worse() for two runs beside each other.

A line is {"module", "test", "outcome", "text"}; the last one is {"exit"}, so that who reads knows
of a process that died. With --package the files that are collected are imported as that package's
modules, as the package itself would, whatever folder they lie in: --rootdir is the package's own.
"""
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

import pytest

HERE = pathlib.Path(__file__).resolve().parent
WORST = {"passed": 0, "skipped": 1, "failed": 2}


class Result(NamedTuple):
    """What a run came to."""

    outcomes: dict  # "module::Class::test": "passed", "failed" or "skipped"
    texts: dict  # why not
    trouble: str  # what the process has said, where it did not come to its end


def run(files, *options, python=sys.executable, env=None, path=(), seconds=None):
    """Runs the tests of these files in a process of their own. `env` is beside this one's, and `path`
    are folders for PYTHONPATH."""
    with tempfile.TemporaryDirectory() as at:
        outcomes = pathlib.Path(at, "outcomes")
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "outcomes"]
        command += [f"--outcomes={outcomes}", *options, *map(str, files)]
        env = {**os.environ, **(env or {})}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [*map(str, (HERE, *path)), env.get("PYTHONPATH")]))
        status, output = ended(command, at, env, seconds)
        lines = outcomes.read_text("utf-8").splitlines() if outcomes.exists() else []
    lines = [json.loads(line) for line in lines]
    tests = {f"{line['module']}::{line['test']}": line for line in lines if "exit" not in line}
    came_to_its_end = len(lines) > len(tests)
    return Result(
        {name: line["outcome"] for name, line in tests.items()},
        {name: line["text"] for name, line in tests.items()},
        "" if came_to_its_end else f"ended with {status}, after {len(tests)} tests: {output[-3000:]}",
    )


def ended(command, at, env, seconds):
    """(exit status, what it has said); no status where it took too long."""
    try:
        done = subprocess.run(command, cwd=at, env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
        return done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as e:
        return None, (e.stdout or b"").decode(errors="replace")


def worse(own, other):
    """The tests that pass in one run and not in the other: {name: (outcome there, text)}."""
    return {
        name: (other.outcomes.get(name, "not run"), other.texts.get(name, ""))
        for name, outcome in own.outcomes.items()
        if outcome == "passed" and other.outcomes.get(name) != "passed"
    }


class NamedModule(pytest.Module):
    """A test module that belongs to an installed package."""

    def _getobj(self):
        return importlib.import_module(f"{self.config.getoption('--package')}.{module_name(self.path, self.config)}")


def module_name(path, config):
    """Of a file, relative to the package of the root folder."""
    return ".".join(path.relative_to(config.rootpath).with_suffix("").parts)


class Outcomes:
    """A test has up to three reports (setup, call, teardown); the worst of them is its outcome."""

    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8")
        self.test = None

    def write(self, line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def pytest_collectreport(self, report):
        if not report.passed:
            module = report.nodeid.partition("::")[0]
            self.write({"module": module, "test": "collection", "outcome": report.outcome, "text": text_of(report)})

    def pytest_runtest_logreport(self, report):
        if report.when == "setup":
            module, _, name = report.nodeid.partition("::")
            module = module.removesuffix(".py").replace("/", ".")
            self.test = {"module": module, "test": name, "outcome": "passed", "text": ""}
        if WORST[report.outcome] > WORST[self.test["outcome"]]:
            self.test.update(outcome=report.outcome, text=text_of(report))
        if report.when == "teardown":
            self.write(self.test)

    def pytest_sessionfinish(self, exitstatus):
        self.write({"exit": int(exitstatus)})
        self.file.close()


def text_of(report):
    """Why it was skipped, or how it failed."""
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    return getattr(report, "wasxfail", "") or report.longreprtext


def pytest_addoption(parser):
    parser.addoption("--outcomes", required=True)
    parser.addoption("--package")


def pytest_configure(config):
    config.pluginmanager.register(Outcomes(config.getoption("--outcomes")))


def pytest_collection_modifyitems(items):
    """A child that imports a Numba takes longer beside other tests than Numba's own give it."""
    for module in {item.module for item in items}:
        if hasattr(module, "FUTURE_TIMEOUT"):
            module.FUTURE_TIMEOUT = 120


def pytest_pycollect_makemodule(module_path, parent):
    if parent.config.getoption("--package"):
        return NamedModule.from_parent(parent, path=module_path)
    return None


@pytest.fixture
def initialize_from_pytest_config():
    """What numba-cuda's test classes ask for and its wheel does not hold: their own options."""
