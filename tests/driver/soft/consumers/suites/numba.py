# SPDX-License-Identifier: Apache-2.0
"""Classic Numba, as Debian 12 has it: python3-numba."""

from . import Suite

# numba-cuda has these, too.
MODULES = """
cudapy.test_cuda_array_interface
cudapy.test_ipc
cudapy.test_multigpu
cudapy.test_multiprocessing
cudadrv.test_array_attr
cudadrv.test_context_stack
cudadrv.test_cuda_array_slicing
cudadrv.test_cuda_auto_context
cudadrv.test_cuda_devicerecord
cudadrv.test_cuda_memory
cudadrv.test_cuda_ndarray
cudadrv.test_deallocations
cudadrv.test_detect
cudadrv.test_emm_plugins
cudadrv.test_events
cudadrv.test_host_alloc
cudadrv.test_init
cudadrv.test_managed_alloc
cudadrv.test_pinned
cudadrv.test_profiler
cudadrv.test_reset_device
cudadrv.test_runtime
cudadrv.test_select_device
cudadrv.test_streams
"""

WITHOUT_NVVM = """
cudadrv.test_context_stack
    Test3rdPartyContext::test_cudajit_in_attached_primary_context
cudadrv.test_cuda_array_slicing
    CudaArraySetting::test_array_assign_all
    CudaArraySetting::test_array_assign_column
    CudaArraySetting::test_array_assign_deep_subarray
    CudaArraySetting::test_array_assign_row
    CudaArraySetting::test_array_assign_subarray
    CudaArraySetting::test_broadcast
    CudaArraySetting::test_no_sync_default_stream
    CudaArraySetting::test_no_sync_supplied_stream
    CudaArraySetting::test_rank
    CudaArraySetting::test_scalar
    CudaArraySetting::test_strides
    CudaArraySetting::test_sync
cudadrv.test_cuda_devicerecord
    TestRecordDtypeWithStructArrays::test_structured_array2
    TestRecordDtypeWithStructArrays::test_structured_array3
    TestRecordDtypeWithStructArrays::test_structured_array4
cudadrv.test_cuda_ndarray
    TestCoreContiguous::test_device_array_like_2d_f_transpose
    TestCoreContiguous::test_device_array_like_2d_transpose
    TestCudaNDArray::test_devicearray_transpose_T
    TestCudaNDArray::test_devicearray_transpose_ok
    TestRecarray::test_recarray
cudadrv.test_managed_alloc
    TestManagedAlloc::test_managed_array_attach_global
    TestManagedAlloc::test_managed_array_attach_host
cudapy.test_cuda_array_interface
    TestCudaArrayInterface::test_array_views
    TestCudaArrayInterface::test_gufunc_arg
    TestCudaArrayInterface::test_kernel_arg
    TestCudaArrayInterface::test_launch_no_sync
    TestCudaArrayInterface::test_launch_sync
    TestCudaArrayInterface::test_launch_sync_disabled
    TestCudaArrayInterface::test_launch_sync_two_streams
    TestCudaArrayInterface::test_ufunc_arg
    TestCudaArrayInterface::test_zero_size_array
cudapy.test_multigpu
    TestMultiGPUContext::test_multigpu_context
    TestMultiGPUContext::test_with_context
"""

SUITE = Suite(
    requires=("numba==0.56.4", "pytest"),
    package="numba.cuda.tests",
    folder="numba/cuda/tests",
    finds_driver_by="NUMBA_CUDA_DRIVER",
    # No toolkit, whatever this machine has. A test of managed memory fills half of the device.
    environment={"CUDA_HOME": "/nonexistent", "CAID_SOFTCUDA_MEMORY": "512M", "CAID_SOFTCUDA_DEVICES": "2"},
    # test_ipc takes most of the time: numba-cuda's is tried, and this one's with caid as the manager.
    modules=MODULES.replace("cudapy.test_ipc", "cudadrv.test_cuda_driver"),
    at_least=183,
    missing={
        "libNVVM": r"NvvmSupportError: libNVVM cannot be found",
        "module loading": r"Driver missing function: cuModuleLoadDataEx",
    },
    fails={
        "libNVVM": WITHOUT_NVVM,
        "module loading": """
cudadrv.test_cuda_driver
    TestCudaDriver::test_cuda_driver_basic
    TestCudaDriver::test_cuda_driver_occupancy
    TestCudaDriver::test_cuda_driver_stream_operations
""",
    },
)
