# SPDX-License-Identifier: Apache-2.0
"""Small programs for the CUDA packages of PyPI, in this folder."""
import pathlib

from . import Suite

SUITE = Suite(
    requires=("cuda-bindings==13.3.1", "cuda-core==1.2.2"),
    folder=str(pathlib.Path(__file__).resolve().parent.parent),
    modules="test_cuda_bindings test_cuda_core",
    at_least=16,
)
