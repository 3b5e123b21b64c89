# SPDX-License-Identifier: Apache-2.0
"""cuda.core's own tests of devices, streams, events and memory. They are not in its wheel: where
CAID_CUDA_CORE_TESTS names the folder cuda_core/tests of NVIDIA/cuda-python, at the version that is
installed, they are run, and what fails must fail for want of a piece."""
from . import Suite

SUITE = Suite(
    requires=("cuda-core",),
    folder="$CAID_CUDA_CORE_TESTS",
    modules="test_event test_memory",
    unlisted=True,
    missing={
        "NVRTC": r"DynamicLibNotFoundError: .*libnvrtc",
        "CUDA runtime": r"cudaErrorCallRequiresNewerDriver",
        "module loading": r"cuLibraryLoadData",
        "graphs": r"cuStreamBeginCapture|cuGraph",
    },
)
