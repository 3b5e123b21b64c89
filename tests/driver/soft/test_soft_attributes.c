/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices that lack something, by CAID_SOFTCUDA_ATTRIBUTES: they say so, and the calls that the
 * attribute stands for refuse.
 */
#include "caid_test.h"

#include <stdlib.h>

#include "soft_test.h"

static void
start_with(const char *attributes)
{
    setenv("CAID_SOFTCUDA_ATTRIBUTES", attributes, 1);
    soft_start_context();
}

static int
attribute(CUdevice_attribute which)
{
    int value;
    MUST(cuDeviceGetAttribute(&value, which, 0));
    return value;
}

CAID_TEST(soft_attributes, are_told_as_set)
{
    start_with("122=0,20=3,133=1,131=-5,122=7");
    cr_assert_eq(attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS), 7,
                 "the last one");
    cr_assert_eq(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE), CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
    cr_assert_eq(attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED), 1);
    cr_assert_eq(attribute(CU_DEVICE_ATTRIBUTE_NUMA_ID), -5);
    cr_assert_eq(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING), 1, "as usual");
}

SOFT_TEST_LATE(soft_attributes, without_wide_stream_memory_operations)
{
    start_with("122=0");
    uint64_t *word = soft_pinned();
    CUdeviceptr at = (uintptr_t)word;
    CUstream stream = soft_stream(0);
    REFUSED(NOT_SUPPORTED, cuStreamWaitValue64_v2(stream, at, 1, 0));
    REFUSED(NOT_SUPPORTED, cuStreamWriteValue64_v2(stream, at, 1, 0));
    CUstreamBatchMemOpParams batch[] = {
        {.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, at, {.value = 1}, 0, 0}},
        {.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_64, at, {.value64 = 1}, 0, 0}},
    };
    REFUSED(NOT_SUPPORTED, cuStreamBatchMemOp_v2(stream, 2, batch, 0));
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(*word, 0);
    MUST(cuStreamWriteValue32_v2(stream, at, 5, 0));
    MUST(cuStreamWaitValue32_v2(stream, at, 5, 0));
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(*word, 5);
}

/* No memory management, no registration. */
SOFT_TEST_LATE(soft_attributes, without_much)
{
    CUmemGenericAllocationHandle handle;
    int word;
    start_with("99=0,102=0");
    CUmemAllocationProp prop = soft_prop(0);
    REFUSED(NOT_SUPPORTED, cuMemHostRegister_v2(&word, sizeof(word), 0));
    REFUSED(NOT_SUPPORTED, cuMemCreate(&handle, GRAN, &prop, 0));
    soft_memory(GRAN);
}

/* No fds of memory, no legacy handles, no read-only registration. */
SOFT_TEST_LATE(soft_attributes, without_sharing)
{
    CUmemGenericAllocationHandle handle;
    CUipcMemHandle memory = {0};
    CUipcEventHandle shared = {0};
    CUdeviceptr at, opened;
    CUevent event, other;
    int word;
    start_with("103=0,113=0,125=0");
    CUmemAllocationProp prop = soft_prop(0);
    REFUSED(NOT_SUPPORTED, cuMemCreate(&handle, GRAN, &prop, 0));
    REFUSED(NOT_SUPPORTED, cuMemImportFromShareableHandle(&handle, (void *)0, 1));
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    MUST(cuMemCreate(&handle, GRAN, &prop, 0));
    MUST(cuMemRelease(handle));
    MUST(cuMemAlloc_v2(&at, GRAN));
    MUST(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    REFUSED(NOT_SUPPORTED, cuIpcGetMemHandle(&memory, at));
    REFUSED(NOT_SUPPORTED, cuIpcOpenMemHandle_v2(&opened, memory, 1));
    REFUSED(NOT_SUPPORTED, cuIpcGetEventHandle(&shared, event));
    REFUSED(NOT_SUPPORTED, cuIpcOpenEventHandle(&other, shared));
    MUST(cuEventDestroy_v2(event));
    MUST(cuMemFree_v2(at));
    REFUSED(NOT_SUPPORTED, cuMemHostRegister_v2(&word, 4, CU_MEMHOSTREGISTER_READ_ONLY));
    MUST(cuMemHostRegister_v2(&word, 4, CU_MEMHOSTREGISTER_DEVICEMAP));
}

CAID_TEST(soft_attributes, persistence_mode_is_off)
{
    nvmlDevice_t device;
    nvmlEnableState_t mode;
    setenv("CAID_SOFTCUDA_PERSISTENCE", "0", 1);
    soft_start();
    cr_assert_eq(cu.nvmlInit_v2(), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    cr_assert_eq(cu.nvmlDeviceGetPersistenceMode(device, &mode), NVML_SUCCESS);
    cr_assert_eq(mode, NVML_FEATURE_DISABLED);
    cr_assert_eq(cu.nvmlDeviceGetPersistenceMode(device, NULL), NVML_ERROR_INVALID_ARGUMENT);
    cr_assert_eq(cu.nvmlShutdown(), NVML_SUCCESS);
}
