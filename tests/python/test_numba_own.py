# SPDX-License-Identifier: Apache-2.0
"""Classic Numba's own tests with caid as its memory manager, on the software driver."""

import importlib.util
import os
import sys

import pytest

pytest.register_assert_rewrite("numba_suite")

from numba_suite import MORE, OF_MEMORY, Numba  # noqa: E402
from numba_suite import *  # noqa: E402, F401, F403 (the tests)


@pytest.fixture(scope="module")
def numba():
    spec = importlib.util.find_spec("numba")
    if spec is None:
        pytest.skip("Numba is not installed")
    folder = os.path.join(os.path.dirname(spec.origin), "cuda", "tests")
    if not os.path.isdir(folder):
        pytest.skip("this Numba has no CUDA tests: a classic one is wanted")
    return Numba(sys.executable, folder, "NUMBA_CUDA_DRIVER", OF_MEMORY + MORE, 150, "libNVVM")
