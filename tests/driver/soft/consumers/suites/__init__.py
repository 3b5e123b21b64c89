# SPDX-License-Identifier: Apache-2.0
"""What own_tests.py runs: a module here has a SUITE."""
import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Suite:
    """The tests of a package, and those of them that must fail because the driver lacks a piece.

    requires   distributions the Python must have, as NAME or NAME==VERSION
    modules    the test modules, separated by white space, relative to
    folder     a path, or with `package`, a path inside the first distribution of `requires`
    package    the name that the modules' names begin with when they import each other
    finds_driver_by  the environment variable that leads the package to a driver
    at_least   so many tests must pass
    missing    what the failure for want of a piece says: a regular expression for each piece
    fails      for each piece, the tests that fail for want of it: a line MODULE, and under it,
               indented, lines CLASS::TEST
    optional   pieces that some machines have: these tests may pass
    unlisted   the tests are of no fixed version: any of them may fail, but only for want of a piece
    """

    requires: tuple
    modules: str
    folder: str
    package: str = None
    finds_driver_by: str = "LD_LIBRARY_PATH"
    environment: dict = dataclasses.field(default_factory=dict)
    at_least: int = 1
    missing: dict = dataclasses.field(default_factory=dict)
    fails: dict = dataclasses.field(default_factory=dict)
    optional: frozenset = frozenset()
    unlisted: bool = False

    def piece_of(self):
        """The piece that each test in `fails` lacks, by the test's full name."""
        return {test: piece for piece, tests in self.fails.items() for test in split_tests(tests)}

    def shown_by(self, text):
        """The pieces whose lack this failure tells of."""
        return [piece for piece, pattern in self.missing.items() if re.search(pattern, text)]


def split_tests(text):
    module = None
    for line in filter(str.strip, text.splitlines()):
        if line[0].isspace():
            yield f"{module}::{line.strip()}"
        else:
            module = line.strip()
