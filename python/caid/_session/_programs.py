# SPDX-License-Identifier: Apache-2.0
"""The wheel's console scripts, which execute the programs inside the package."""

import os
import pathlib
import sys


def _become(program):
    path = pathlib.Path(__file__).parents[1] / "bin" / program
    os.execv(path, [program, *sys.argv[1:]])


def daemon():
    """Become ``caid``, the daemon."""
    _become("caid")


def keeper():
    """Become ``caid-keeper``, which holds what the daemon has while that is started anew."""
    _become("caid-keeper")


def control():
    """Become ``caidctl``, two of whose verbs are this Python's."""
    os.environ.setdefault("CAID_PYTHON", sys.executable)
    _become("caidctl")
