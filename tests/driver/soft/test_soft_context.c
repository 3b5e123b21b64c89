/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: primary and created ones, the stack of each thread, and how a device faults. */
#include "caid_test.h"

#include <pthread.h>

#include "soft_test.h"

CAID_TEST(soft_context, the_stack_is_a_stack)
{
    CUcontext primary = soft_start_context(), created, top;
    CUdevice device;
    MUST(cuCtxCreate_v4(&created, NULL, CU_CTX_SCHED_YIELD, 0));
    MUST(cuCtxGetCurrent(&top));
    cr_assert_eq(top, created, "creation pushes");
    MUST(cuCtxPushCurrent_v2(primary));
    MUST(cuCtxPopCurrent_v2(&top));
    cr_assert_eq(top, primary);
    MUST(cuCtxGetDevice(&device));
    cr_assert_eq(device, 0);
    MUST(cuCtxDestroy_v2(created));
    MUST(cuCtxGetCurrent(&top));
    cr_assert_eq(top, primary, "destruction pops");
    REFUSED(INVALID_CONTEXT, cuCtxDestroy_v2(created));
    REFUSED(INVALID_CONTEXT, cuCtxDestroy_v2(primary));
    REFUSED(INVALID_CONTEXT, cuCtxPushCurrent_v2(created));
}

CAID_TEST(soft_context, one_destroyed_below_the_top_is_told_of)
{
    CUcontext primary = soft_start_context(), created, top;
    MUST(cuCtxCreate_v2(&created, 0, 0));
    CUdeviceptr at = soft_memory(GRAN);
    MUST(cuCtxPushCurrent_v2(primary));
    MUST(cuCtxDestroy_v2(created));
    USED_IS(0, "its memory went with it");
    MUST(cuCtxPopCurrent_v2(&top));
    REFUSED(CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&at, 16));
    REFUSED(CONTEXT_IS_DESTROYED, cuCtxSynchronize());
    MUST(cuCtxPopCurrent_v2(&top));
    cr_assert_eq(top, created);
}

SOFT_TEST_LATE(soft_context, the_primary_one_is_counted)
{
    CUcontext context, again;
    unsigned int flags;
    int active;
    soft_start();
    REFUSED(INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
    MUST(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_BLOCKING_SYNC));
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    cr_assert_eq(flags, CU_CTX_SCHED_BLOCKING_SYNC);
    cr_assert_eq(active, 0);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuDevicePrimaryCtxRetain(&again, 0));
    cr_assert_eq(context, again);
    MUST(cuCtxSetCurrent(context));
    CUdeviceptr at = soft_memory(GRAN);
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    cr_assert_eq(active, 1);
    USED_IS(GRAN);
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    USED_IS(0);
    REFUSED(CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&at, 16));
    MUST(cuDevicePrimaryCtxRetain(&again, 0));
    cr_assert_eq(context, again, "one handle for ever");
    MUST(cuMemAlloc_v2(&at, 16)); /* still current */
}

SOFT_TEST_LATE(soft_context, a_reset_ends_what_is_in_it)
{
    CUcontext context = soft_start_context();
    CUdeviceptr at = soft_memory(GRAN);
    CUstream stream = soft_stream(0);
    CUevent event = soft_event(0);
    MUST(cuMemsetD8Async(at, 1, GRAN, stream));
    MUST(cuEventRecord(event, stream));
    struct soft_mapping mapping = soft_map(GRAN, 3);
    MUST(cuDevicePrimaryCtxReset_v2(0));
    USED_IS(GRAN, "only mapped memory is left");
    REFUSED(INVALID_HANDLE, cuStreamDestroy_v2(stream));
    REFUSED(CONTEXT_IS_DESTROYED, cuEventQuery(event));
    REFUSED(CONTEXT_IS_DESTROYED, cuMemFree_v2(at));
    REFUSED(CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&at, 16));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    cr_assert_eq(cu.cuEventQuery(event), CUDA_ERROR_CONTEXT_IS_DESTROYED, "an older life's");
    REFUSED(CONTEXT_IS_DESTROYED, cuEventDestroy_v2(event));
    REFUSED(INVALID_HANDLE, cuEventDestroy_v2(event));
    MUST(cuMemsetD8_v2(mapping.at, 1, GRAN));
    MUST(cuCtxSynchronize());
}

static void *
other_thread(void *arg)
{
    CUcontext *seen = arg, context;
    MUST(cuCtxGetCurrent(&seen[0]));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxPushCurrent_v2(context));
    MUST(cuCtxGetCurrent(&seen[1]));
    return NULL; /* with a context on its stack */
}

CAID_TEST(soft_context, each_thread_has_its_own_current_one)
{
    CUcontext context = soft_start_context(), seen[2];
    pthread_t thread;
    pthread_create(&thread, NULL, other_thread, seen);
    pthread_join(thread, NULL);
    cr_assert_eq(seen[0], NULL);
    cr_assert_eq(seen[1], context);
}

/* Memory that is unmapped before the work on it has run: the work faults, as on hardware, and
 * takes the device with it for the rest of the process. */
SOFT_TEST(soft_context, work_on_unmapped_memory_faults_the_device)
{
    CUcontext context;
    struct gate gate;
    int n;
    struct soft_mapping mapping = soft_map(GRAN, 3);
    CUdeviceptr at = soft_memory(GRAN);
    CUstream stream = soft_stream(0);
    CUevent event = soft_event(0);
    gate_close(&gate, stream);
    MUST(cuMemsetD8Async(mapping.at, 1, GRAN, stream));
    MUST(cuMemsetD8Async(at, 1, GRAN, stream));
    MUST(cuEventRecord(event, stream));
    soft_unmap(&mapping);
    gate_open(&gate);
    REFUSED(LAUNCH_FAILED, cuStreamSynchronize(stream));
    cr_assert_eq(*(unsigned char *)(uintptr_t)at, 0, "what came after did not run");
    REFUSED(LAUNCH_FAILED, cuEventQuery(event));
    REFUSED(LAUNCH_FAILED, cuStreamQuery(stream));
    REFUSED(LAUNCH_FAILED, cuMemsetD8_v2(at, 1, 1));
    REFUSED(LAUNCH_FAILED, cuCtxCreate_v2(&context, 0, 0));
    REFUSED(LAUNCH_FAILED, cuMemFree_v2(at));
    REFUSED(LAUNCH_FAILED, cuEventDestroy_v2(event));
    REFUSED(LAUNCH_FAILED, cuStreamDestroy_v2(stream));
    USED_IS(0, "memory was given back all the same");
    MUST(cuDeviceGetCount(&n));
    mapping = soft_map(GRAN, 3); /* memory management needs no context */
    soft_unmap(&mapping);
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    REFUSED(LAUNCH_FAILED, cuDevicePrimaryCtxRetain(&context, 0));
}

SOFT_TEST(soft_context, work_that_lost_its_access_faults_too)
{
    struct gate gate;
    struct soft_mapping from = soft_map(GRAN, 3), to = soft_map(GRAN, 3);
    CUstream stream = soft_stream(0);
    gate_close(&gate, stream);
    MUST(cuMemcpyDtoDAsync_v2(to.at, from.at, GRAN, stream));
    soft_set_access(&to, CU_MEM_ACCESS_FLAGS_PROT_READ);
    gate_open(&gate);
    REFUSED(ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
}
