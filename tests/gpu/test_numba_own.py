# SPDX-License-Identifier: Apache-2.0
"""The own tests of numba-cuda and of numba_cuda_mlir: each passes with caid.numba if it passes without.

Needs an NVIDIA GPU, and numba-cuda, whose tests both are.
"""

import numba_own
import pytest


@pytest.mark.parametrize("library", ["numba", "numba_cuda_mlir"])
def test_its_own_tests(daemon, library):
    report = numba_own.run_all(daemon.env, name=library)
    if report is None:
        pytest.skip(f"{library}, or numba-cuda with the tests, is not installed")
    report.show()
    assert not report.wrong
    assert report.counts(numba_own.OWN)["passed"] > 100
    for module in "cudadrv.test_deallocations", "cudapy.test_cuda_array_interface", "cudapy.test_ipc":
        assert "passed" in report.runs[module, numba_own.OWN].result.outcomes.values(), module
