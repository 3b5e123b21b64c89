# SPDX-License-Identifier: Apache-2.0
"""pyflakes for `./dev lint`, without its messages on lines that are marked `# noqa`.

usage: check_python.py FILE...
"""
import linecache
import sys

from pyflakes import api, reporter


class Reporter(reporter.Reporter):
    """Counts and prints what is left."""

    def __init__(self):
        super().__init__(sys.stderr, sys.stderr)
        self.n_found = 0

    def flake(self, message):
        if "# noqa" not in linecache.getline(message.filename, message.lineno):
            self.n_found += 1
            super().flake(message)

    def syntaxError(self, *args):
        self.n_found += 1
        super().syntaxError(*args)

    def unexpectedError(self, *args):
        self.n_found += 1
        super().unexpectedError(*args)


def main():
    found = Reporter()
    for path in sys.argv[1:]:
        api.checkPath(path, found)
    return 1 if found.n_found else 0


if __name__ == "__main__":
    sys.exit(main())
