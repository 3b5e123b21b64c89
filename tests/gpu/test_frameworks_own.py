# SPDX-License-Identifier: Apache-2.0
"""NumPy's, CuPy's and PyTorch's own tests of DLPack and graphs: what passes with theirs passes with caid's.

Needs an NVIDIA GPU, and the sources of CuPy and PyTorch: CAID_TEST_SOURCES names folders that have
cupy_tests/ (tests/ of CuPy), and torch/ (test/ of PyTorch).
"""

import os
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import frameworks_own  # noqa: E402


@pytest.mark.parametrize("name", frameworks_own.SUITES)
def test_its_own_tests(daemon, name):
    suite = frameworks_own.SUITES[name]
    file = frameworks_own.find(suite, os.environ.get("CAID_TEST_SOURCES", "").split(os.pathsep))
    if file is None:
        pytest.skip(f"no {suite.file}, or not its library")
    assert list(frameworks_own.wrong(suite, *frameworks_own.run(suite, file, daemon.env))) == []
