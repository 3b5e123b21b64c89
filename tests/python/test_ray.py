# SPDX-License-Identifier: Apache-2.0
"""caid.ray: actors_suite.py, run by a Python that has Ray."""

import pathlib
import subprocess

from conftest import PATIENCE_S
from engines import N_KILLS, interpreter

SUITE = pathlib.Path(__file__).with_name("actors_suite.py")


def test_actors():
    python = interpreter("ray.cluster_utils", "caid.ray", "pytest")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", SUITE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=(3 + N_KILLS // 10) * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
