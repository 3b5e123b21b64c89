# SPDX-License-Identifier: Apache-2.0
"""Runs a foreign package's own tests on the software driver and holds them against a list.

usage: own_tests.py --driver=LIBRARY --python=PYTHON SUITE

SUITE is a module of suites/: which tests, and which of them must fail, by the name of the piece
that the driver does not have. Anything else that fails, and any of these that passes, or fails in
another way than for want of that piece, is an error. Ends with 77 and the reason where the
package cannot be had. Each test module has a process and a software device of its own.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
MODULE_SECONDS = 120
SKIP = 77
OUTCOMES = ("passed", "failed", "skipped")

# The folder that holds a file of a distribution, said by the Python that has it.
LOCATE = """
import sys
from importlib.metadata import distribution
print(distribution(sys.argv[1]).locate_file(sys.argv[2]))
"""
# What is wrong with each argument, NAME or NAME==VERSION, that is not installed as said.
COMPARE = """
import sys
from importlib.metadata import PackageNotFoundError, version
for wanted in sys.argv[1:]:
    name, _, number = wanted.partition("==")
    try:
        found = version(name)
    except PackageNotFoundError:
        found = ""
    if not found or number not in ("", found):
        print(f"{wanted} is wanted, and it is", found or "not installed")
"""


class Skipped(Exception):
    """The suite cannot be run here, and why."""


def output_of(python, code, *args):
    done = subprocess.run([python, "-c", code, *args], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def check_requirements(suite, python):
    if not pathlib.Path(python).is_file():
        raise Skipped(f"no Python with {', '.join(suite.requires)} ({python})")
    if wrong := output_of(python, COMPARE, *suite.requires):
        raise Skipped(wrong.replace("\n", "; "))


def tests_folder(suite, python):
    """Where the modules lie: in the installed distribution, or where the suite says."""
    if suite.package is not None:
        return pathlib.Path(output_of(python, LOCATE, suite.requires[0].partition("==")[0], suite.folder))
    folder = pathlib.Path(os.path.expandvars(suite.folder))
    if not folder.is_absolute():
        raise Skipped(f"{suite.folder} is to name the tests of {suite.requires[0]}, which its wheel lacks")
    return folder


def driver_environment(variable, driver, folder):
    """What makes a program find the software driver: its path, or a folder with libcuda.so.1."""
    if variable != "LD_LIBRARY_PATH":
        return {variable: driver}
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).symlink_to(driver)
    return {variable: os.pathsep.join(filter(None, [str(folder), os.environ.get(variable)]))}


class ModuleRun:
    """One test module: its process, and afterwards what became of each of its tests."""

    def __init__(self, suite, module, python, tests_folder, environment, folder):
        self.module = module
        self.folder = folder
        self.environment = {**environment, "CAID_SOFTCUDA_UUID": f"GPU-{uuid.uuid4()}"}
        self.outcomes_path = folder / f"{module}.outcomes"
        self.output_path = folder / f"{module}.output"
        self.command = [
            python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "outcomes",
            f"--outcomes={self.outcomes_path}", f"--rootdir={tests_folder}",
        ]
        if suite.package is not None:
            self.command += ["--import-mode=importlib", f"--package={suite.package}"]
        self.command.append(str(tests_folder / (module.replace(".", "/") + ".py")))
        self.tests = []
        self.trouble = None
        self.seconds = 0.0

    def run(self):
        start = time.monotonic()
        with open(self.output_path, "w") as output:
            process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )
            status = wait(process)
        self.seconds = time.monotonic() - start
        self.read_outcomes(status)
        return self

    def read_outcomes(self, status):
        ended = False
        with contextlib.suppress(FileNotFoundError):
            for line in self.outcomes_path.read_text("utf-8").splitlines():
                outcome = json.loads(line)
                if "exit" in outcome:
                    ended = True
                else:
                    self.tests.append(dict(outcome, test=f"{self.module}::{outcome['test']}"))
        if status is None:
            self.trouble = f"not done after {MODULE_SECONDS} s"
        elif not ended or status < 0:
            self.trouble = f"its process ended with {status}"
        elif not self.tests:
            self.trouble = "no tests"

    def counts(self):
        counts = collections.Counter(test["outcome"] for test in self.tests)
        return ", ".join(f"{counts[what]} {what}" for what in OUTCOMES if counts[what])


def wait(process):
    """The exit status; None where it took too long. What it started and left is ended with it."""
    try:
        return process.wait(MODULE_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def judge(suite, test, expected):
    """What is wrong with a test's outcome, if anything; `expected` is the piece it is to fail for."""
    failed, shown = test["outcome"] == "failed", suite.shown_by(test["text"])
    if suite.unlisted:
        return "failed" if failed and not shown else None
    if expected is None:
        return "failed" if failed else None
    if not failed:
        return None if expected in suite.optional else f"{test['outcome']}, but is to fail for want of {expected}"
    return None if expected in shown else f"failed, but not for want of {expected}"


def find_wrong(suite, runs, tests):
    """What is not as the suite has it, as (test, what, text)."""
    pieces = suite.piece_of()
    for run in runs:
        if run.trouble:
            yield run.module, run.trouble, run.output_path.read_text("utf-8", "replace")
    for name in sorted(pieces.keys() - {test["test"] for test in tests}):
        yield name, f"is to fail for want of {pieces[name]}, but was not run", ""
    for test in tests:
        if what := judge(suite, test, pieces.get(test["test"])):
            yield test["test"], what, test["text"]


def print_summary(suite, runs, tests):
    for run in runs:
        print(f"{run.module:32} {run.counts():40} {run.seconds:5.1f} s")
    texts = {outcome: [test["text"] for test in tests if test["outcome"] == outcome] for outcome in OUTCOMES}
    missed = collections.Counter(" or ".join(suite.shown_by(text)) for text in texts["failed"])
    for piece, n in missed.most_common():
        print(f"{n:4} failed for want of {piece or '?'}")
    for reason, n in collections.Counter(texts["skipped"]).most_common():
        print(f"{n:4} {reason.replace('Skipped', 'skipped', 1)}")


def report(name, suite, runs):
    """Prints all there is to say; true when all is as the suite has it."""
    tests = [test for run in runs for test in run.tests]
    n_passed = sum(test["outcome"] == "passed" for test in tests)
    wrong = list(find_wrong(suite, runs, tests))
    if n_passed < suite.at_least:
        wrong.append((name, f"{n_passed} passed, at least {suite.at_least} must", ""))
    print_summary(suite, runs, tests)
    for test, what, text in wrong:
        print(f"\n{test}: {what}\n{text}")
    print(f"{name}: {n_passed} passed, {len(wrong)} not as expected")
    return not wrong


def run_suite(name, python, driver):
    suite = importlib.import_module(f"suites.{name}").SUITE
    check_requirements(suite, python)
    tests = tests_folder(suite, python)
    with tempfile.TemporaryDirectory(prefix="caid-consumers-") as folder:
        folder = pathlib.Path(folder)
        environment = {**os.environ, "PYTHONPATH": str(HERE), **suite.environment}
        environment.update(driver_environment(suite.finds_driver_by, driver, folder))
        runs = [ModuleRun(suite, module, python, tests, environment, folder) for module in suite.modules.split()]
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            return report(name, suite, list(pool.map(ModuleRun.run, runs)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--driver", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("suite")
    args = parser.parse_args()
    try:
        return 0 if run_suite(args.suite, args.python, args.driver) else 1
    except Skipped as reason:
        print(f"skipped: {reason}")
        return SKIP


if __name__ == "__main__":
    sys.exit(main())
