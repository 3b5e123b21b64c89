# SPDX-License-Identifier: Apache-2.0
"""numba-cuda's own tests with caid as its memory manager, on the software driver, where ./dev has
fetched that package."""

import pytest

pytest.register_assert_rewrite("numba_suite")

from numba_suite import OF_MEMORY, PYTHON, Numba, fetched_tests  # noqa: E402
from numba_suite import *  # noqa: E402, F401, F403 (the tests)


@pytest.fixture(scope="module")
def numba():
    missing = "libnvvm|nvvm/libdevice|libnvrtc"
    return Numba(PYTHON, fetched_tests(), "LD_LIBRARY_PATH", OF_MEMORY, 100, missing)
