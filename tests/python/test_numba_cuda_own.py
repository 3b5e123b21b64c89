# SPDX-License-Identifier: Apache-2.0
"""numba-cuda's own tests with caid as its memory manager, on the software driver, where ./dev has
fetched that package."""

import os
import pathlib
import subprocess

import pytest

pytest.register_assert_rewrite("numba_suite")

from numba_suite import OF_MEMORY, Numba  # noqa: E402
from numba_suite import *  # noqa: E402, F401, F403 (the tests)

PYTHON = pathlib.Path(__file__).resolve().parents[2] / "build" / "consumers" / "bin" / "python"
# Finds the tests; fails where caid is not for that Python.
LOCATE = """
import caid
from importlib.metadata import distribution
print(distribution("numba-cuda").locate_file("numba_cuda/numba/cuda/tests"))
"""


@pytest.fixture(scope="module")
def numba():
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("not under a sanitizer")
    if not PYTHON.exists():
        pytest.skip("./dev test has not fetched numba-cuda")
    found = subprocess.run([PYTHON, "-c", LOCATE], stdout=subprocess.PIPE, text=True)
    if found.returncode != 0:
        pytest.skip(f"{PYTHON} has not numba-cuda, or cannot import caid")
    missing = "libnvvm|nvvm/libdevice|libnvrtc"
    return Numba(PYTHON, found.stdout.strip(), "LD_LIBRARY_PATH", OF_MEMORY, 100, missing)
