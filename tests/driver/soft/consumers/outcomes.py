# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for own_tests.py: writes what became of each test, one JSON line at a time.

A line is {"module", "test", "outcome", "text"}; the last one is {"exit"}, so that who reads knows
of a process that died. With --package the files that are collected are imported as that package's
modules, as the package itself would, whatever folder they lie in: --rootdir is the package's own.
"""
import importlib
import json

import pytest

WORST = {"passed": 0, "skipped": 1, "failed": 2}


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


def pytest_pycollect_makemodule(module_path, parent):
    if parent.config.getoption("--package"):
        return NamedModule.from_parent(parent, path=module_path)
    return None


@pytest.fixture
def initialize_from_pytest_config():
    """What numba-cuda's test classes ask for and its wheel does not hold: their own options."""
