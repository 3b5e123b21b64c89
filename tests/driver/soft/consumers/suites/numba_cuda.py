# SPDX-License-Identifier: Apache-2.0
"""numba-cuda, NVIDIA's continuation of Numba's CUDA target: its wheel holds its tests."""

from . import Suite
from .numba import MODULES, WITHOUT_NVVM

SUITE = Suite(
    requires=("numba-cuda==0.30.4", "filecheck==1.0.6",),
    package="numba.cuda.tests",
    folder="numba_cuda/numba/cuda/tests",
    finds_driver_by="LD_LIBRARY_PATH",
    environment={"CUDA_HOME": "/nonexistent", "CAID_SOFTCUDA_MEMORY": "512M", "CAID_SOFTCUDA_DEVICES": "2"},
    modules=MODULES,
    at_least=186,
    missing={
        "libNVVM": r"DynamicLibNotFoundError: .*libnvvm|No such file.*nvvm/libdevice",
        "NVRTC": r"DynamicLibNotFoundError: .*libnvrtc",
    },
    optional=frozenset({"NVRTC"}),
    fails={
        "libNVVM": WITHOUT_NVVM + """
cudapy.test_cuda_array_interface
    TestCudaArrayInterface::test_from_dtype_caching_distiguish_custom_dtypes
""",
        "NVRTC": """
cudadrv.test_detect
    TestSupportedVersion::test_is_supported_version
""",
    },
)
