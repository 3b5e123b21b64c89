# SPDX-License-Identifier: Apache-2.0
"""Small, plausible defects of the product, each with the smallest selection of tests that finds it.

usage: run.py [--check [BUILD]] [NAME...]

All is done in a copy of the tree with a build of its own, build/mutations; the tree is only read. Ends with
1 where a mutation was not found, or where an entry is wrong. --check only sees that each old text is there,
once, and that each selection has a test in BUILD.

The tables are the *.txt beside this file. An entry is

    name: what it is called
    what: what is broken, in a sentence
    where: the folder below which a file has the lines, whichever
    tests: a regular expression, as for ctest -R
     a line that stays
    -a line as it is
    +a line as it becomes
"""
import argparse
import filecmp
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TREE, BUILD = ROOT / "build/mutations/tree", ROOT / "build/mutations/build"
TIMEOUT_S = 150  # of a test, which then has found something: waits that never end are a defect, too


class Wrong(Exception):
    """An entry that is none, or a tree that cannot be built or tested as it is."""


Mutation = namedtuple("Mutation", "name what where tests old new")


def parse(text):
    fields = [re.search(rf"^{key}: (.+)$", text, re.M) for key in Mutation._fields[:4]]
    if not all(fields):
        raise Wrong(f"not an entry: {text!r}")
    lines = [line for line in text.split("\n") if line[:1] in ("-", "+", " ")]
    old = "".join(line[1:] + "\n" for line in lines if line[0] != "+")
    new = "".join(line[1:] + "\n" for line in lines if line[0] != "-")
    return Mutation(*(field[1] for field in fields), old, new)


def load(names):
    text = "".join(path.read_text("utf-8") + "\n" for path in sorted(HERE.glob("*.txt")))
    mutations = [parse(entry) for entry in re.split("^(?=name: )", text, flags=re.M)[1:]]
    known = {m.name for m in mutations}
    if len(known) < len(mutations):
        raise Wrong("a name is there twice")
    if unknown := set(names) - known:
        raise Wrong(f"not known: {', '.join(sorted(unknown))}")
    return [m for m in mutations if not names or m.name in names]


@functools.lru_cache(maxsize=None)
def sources(folder):
    paths = [p for p in (ROOT / folder).rglob("*") if p.suffix in (".c", ".h", ".def", ".py")]
    return [(path.relative_to(ROOT), "\n" + path.read_text("utf-8")) for path in paths]


def find(mutation):
    """(path, its text, that with the defect) of the one file of the tree, or None."""
    old, new = "\n" + mutation.old, "\n" + mutation.new
    found = [(path, text) for path, text in sources(mutation.where) if old in text]
    if len(found) != 1 or found[0][1].count(old) > 1 or old in ("\n", new):
        return None
    path, text = found[0]
    return path, text[1:], text.replace(old, new)[1:]


def check(mutations, build):
    """All that is wrong with the entries."""
    wrong = [f"{m.name}: not there, once, below {m.where}/" for m in mutations if not find(m)]
    if build:
        tests = selections(mutations, build)
        wrong += [f"{m.name}: no test is {m.tests}" for m in mutations if not tests[m.name]]
    if wrong:
        raise Wrong("\n".join(wrong))


def selections(mutations, build):
    """The tests of a build that each one selects, by its name. They are listed from another folder: where ctest runs, it
    begins its log anew, which is that of the tests of which this may be one."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "CTestTestfile.cmake").write_text(f'subdirs("{pathlib.Path(build).resolve()}")\n')
        listed = must("listing tests", "ctest", "--test-dir", folder, "--show-only=json-v1")
    tests = [test["name"] for test in json.loads(listed)["tests"]]
    return {m.name: set(filter(re.compile(m.tests).search, tests)) for m in mutations}


# --- the copy, and what is made of it -------------------------------------------------------


def run(*command):
    env = {**os.environ, "PYTEST_ADDOPTS": f"-x {os.environ.get('PYTEST_ADDOPTS', '')}"}
    into = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, **into, env=env, text=True, errors="replace")


def must(what, *command):
    done = run(*command)
    if done.returncode:
        raise Wrong(f"{what} failed:\n{done.stdout[-4000:]}")
    return done.stdout


def copy_tree():
    """As it is now, committed or not. What is the same stays as old as it is: it is not built anew."""
    listed = must("git", "git", "-C", ROOT, "ls-files", "-coz", "--exclude-standard")
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for name in names:
        copy = TREE / name
        if not copy.is_file() or not filecmp.cmp(ROOT / name, copy, shallow=False):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
    for path in TREE.rglob("*"):
        if path.is_file() and path.relative_to(TREE).as_posix() not in names:
            path.unlink()
    consumers = TREE / "build/consumers"  # the foreign programs that ./dev test fetches
    consumers.parent.mkdir(exist_ok=True)
    if not consumers.is_symlink():
        consumers.symlink_to(ROOT / "build/consumers")


def test(selection):
    """Which of these tests fail; of the first, which body of it."""
    done = run(
        *("ctest", "--test-dir", BUILD, "--parallel", "2", "--output-on-failure"),
        *("--no-tests=error", "-R", selection),
    )
    if not done.returncode:
        return ""
    failed = re.findall(r"^\s*\d+ - (\S+) \((?!Not Run|BAD)", done.stdout, re.M)
    if not failed:
        raise Wrong(f"testing {selection} failed:\n{done.stdout[-4000:]}")
    body = re.search(r"(?:\[FAIL\] |\] Unexpected .* - |FAILED .*::)([\w:]*\w)", done.stdout)
    return ", ".join(failed) + (f" ({body[1]})" if body else "")


def prepare(mutations):
    """Makes the copy, in which the tests have to pass as it is."""
    copy_tree()
    must(
        *("configuring", "cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCAID_TESTS=ON"),
        *("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCAID_MAN=OFF", f"-DCAID_TEST_TIMEOUT={TIMEOUT_S}"),
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    must("building", "cmake", "--build", BUILD)
    tests = set().union(*selections(mutations, BUILD).values())
    if failed := test(f"^({'|'.join(tests)})$"):
        raise Wrong(f"without any mutation these fail: {failed}")


def try_one(mutation):
    path, before, after = find(mutation)
    try:
        (TREE / path).write_text(after, "utf-8")
        must("building", "cmake", "--build", BUILD)
        return test(mutation.tests)
    finally:
        (TREE / path).write_text(before, "utf-8")


def try_all(mutations):
    """How many were not found."""
    n_left, began = len(mutations), time.monotonic()
    for mutation in mutations:
        since = time.monotonic()
        print(mutation.name, end=": ", flush=True)
        by = try_one(mutation)
        n_left -= by != ""
        print(f"{by or 'NOT FOUND'}, {time.monotonic() - since:.0f} s", flush=True)
    print(f"{len(mutations) - n_left} found, {n_left} not, {time.monotonic() - began:.0f} s")
    return n_left


def main():
    parser = argparse.ArgumentParser(usage="run.py [--check [BUILD]] [NAME...]")
    parser.add_argument("--check", nargs="?", const="", metavar="BUILD")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    mutations = load(args.names)
    check(mutations, args.check)
    if args.check is not None:
        return 0
    prepare(mutations)
    return 1 if try_all(mutations) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as error:
        sys.exit(f"mutations: {error}")
