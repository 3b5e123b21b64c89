# SPDX-License-Identifier: Apache-2.0
"""Runs a foreign package's own tests on the software driver and holds them against a list.

usage: own_tests.py --driver=LIBRARY --python=PYTHON SUITE

SUITE is a module of suites/: which tests, and which of them must fail, by the name of the piece
that the driver does not have. Anything else that fails, and any of these that passes, or fails in
another way than for want of that piece, is an error. Ends with 77 and the reason where the
package cannot be had. All of a suite runs in one process, on a software device of its own.
"""
import argparse
import collections
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import uuid

import outcomes

SECONDS = 300
SKIP = 77

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


def judge(suite, outcome, text, expected):
    """What is wrong with a test's outcome, if anything; `expected` is the piece it is to fail for."""
    failed, shown = outcome == "failed", suite.shown_by(text)
    if suite.unlisted:
        return "failed" if failed and not shown else None
    if expected is None:
        return "failed" if failed else None
    if not failed:
        return None if expected in suite.optional else f"{outcome}, but is to fail for want of {expected}"
    return None if expected in shown else f"failed, but not for want of {expected}"


def find_wrong(name, suite, result):
    """What is not as the suite has it, as (test, what, text)."""
    pieces = suite.piece_of()
    if result.trouble:
        yield name, "its process ended too early", result.trouble
    for module in set(suite.modules.split()) - {test.partition("::")[0] for test in result.outcomes}:
        yield module, "no tests", ""
    for test in sorted(pieces.keys() - result.outcomes.keys()):
        yield test, f"is to fail for want of {pieces[test]}, but was not run", ""
    for test, outcome in result.outcomes.items():
        if what := judge(suite, outcome, result.texts[test], pieces.get(test)):
            yield test, what, result.texts[test]
    n_passed = n_of(result, "passed")
    if n_passed < suite.at_least:
        yield name, f"{n_passed} passed, at least {suite.at_least} must", ""


def n_of(result, outcome):
    return list(result.outcomes.values()).count(outcome)


def print_summary(suite, result):
    def texts(outcome):
        return [result.texts[test] for test, what in result.outcomes.items() if what == outcome]

    missed = collections.Counter(" or ".join(suite.shown_by(text)) for text in texts("failed"))
    for piece, n in missed.most_common():
        print(f"{n:4} failed for want of {piece or '?'}")
    for reason, n in collections.Counter(texts("skipped")).most_common():
        print(f"{n:4} {reason.replace('Skipped', 'skipped', 1)}")


def run_suite(name, python, driver):
    """Prints all there is to say; true when all is as the suite has it."""
    suite = importlib.import_module(f"suites.{name}").SUITE
    check_requirements(suite, python)
    tests = tests_folder(suite, python)
    options = [f"--rootdir={tests}"]
    if suite.package is not None:
        options += ["--import-mode=importlib", f"--package={suite.package}"]
    files = [tests / (module.replace(".", "/") + ".py") for module in suite.modules.split()]
    with tempfile.TemporaryDirectory(prefix="caid-consumers-") as folder:
        env = {**suite.environment, "CAID_SOFTCUDA_UUID": f"GPU-{uuid.uuid4()}"}
        env.update(driver_environment(suite.finds_driver_by, driver, pathlib.Path(folder)))
        result = outcomes.run(files, *options, python=python, env=env, seconds=SECONDS)
    wrong = list(find_wrong(name, suite, result))
    print_summary(suite, result)
    for test, what, text in wrong:
        print(f"\n{test}: {what}\n{text}")
    print(f"{name}: {n_of(result, 'passed')} passed, {len(wrong)} not as expected")
    return not wrong


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
