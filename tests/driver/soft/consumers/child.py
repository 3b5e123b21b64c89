# SPDX-License-Identifier: Apache-2.0
"""A second process for the programs here: runs a function of the calling test module."""
import pathlib
import subprocess
import sys

SECONDS = 60


def run_child(module, function, *args, fds=()):
    """Runs MODULE.FUNCTION(*args) in a process of its own, which inherits `fds`; it must succeed."""
    code = f"import sys, {module}; {module}.{function.__name__}(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], cwd=pathlib.Path(__file__).parent, pass_fds=fds,
        timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    assert done.returncode == 0, done.stdout
