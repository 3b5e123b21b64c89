# SPDX-License-Identifier: Apache-2.0
"""Tests for numba_cuda_mlir, whose wheel holds none: those of numba-cuda, which its own come from, by
other names. write() makes a package of them."""
import pathlib
import re

PACKAGE = "mlir_tests_of_numba_cuda"
NAMES = (
    (r"\bnumba\.cuda\b", "numba_cuda_mlir.numba_cuda"),
    (r"\bfrom numba import\b", "from numba_cuda_mlir import"),
)
# What it lacks: it has no simulator.
FIRST = """
from numba_cuda_mlir.numba_cuda import testing
from numba_cuda_mlir.numba_cuda.core import config
config.ENABLE_CUDASIM = False
testing.skip_on_cudasim = lambda reason: lambda test: test
"""


def write(tests, at):
    """The folder of the package, in `at`; `tests` is that of numba-cuda's."""
    made = pathlib.Path(at, PACKAGE)
    for folder in ("cudadrv", "cudapy"):
        (made / folder).mkdir(parents=True)
        for path in pathlib.Path(tests, folder).glob("[!_]*.py"):
            text = path.read_text("utf-8")
            for pattern, name in NAMES:
                text = re.sub(pattern, name, text)
            (made / folder / path.name).write_text(text, "utf-8")
    (made / "__init__.py").write_text(FIRST, "utf-8")
    return made
