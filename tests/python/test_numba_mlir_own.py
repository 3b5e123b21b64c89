# SPDX-License-Identifier: Apache-2.0
"""numba_cuda_mlir's own tests, which its wheel lacks and numba-cuda's has by other names, with caid as
its memory manager, on the software driver, where ./dev has fetched both."""

import pytest

pytest.register_assert_rewrite("numba_suite")

from numba_suite import OF_MEMORY, PYTHON, Numba, fetched, fetched_tests  # noqa: E402
from numba_suite import *  # noqa: E402, F401, F403 (the tests)
import mlir_tests  # noqa: E402


@pytest.fixture(scope="module")
def numba(tmp_path_factory):
    fetched("numba-cuda-mlir", "numba_cuda_mlir")
    at = tmp_path_factory.mktemp("tests")
    folder = str(mlir_tests.write(fetched_tests(), at))
    missing = "no kernels|nvvm/libdevice|_library_class"  # the last is of ufuncs, which it has not
    missing += '|Failure finding "libnvrtc'  # which compiles kernels
    modules = OF_MEMORY.replace("cudapy.test_ipc", "")  # not of its own
    made = Numba(PYTHON, folder, "LD_LIBRARY_PATH", modules, 130, missing)
    return made._replace(library="numba_cuda_mlir", package=mlir_tests.PACKAGE, path=str(at))
