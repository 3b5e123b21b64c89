/* SPDX-License-Identifier: Apache-2.0 */
/* What contexts, streams and threads keep without doing anything with it. */
#include "caid_test.h"

#include <dirent.h>
#include <string.h>

#include "soft_test.h"

static size_t
limit(CUlimit which)
{
    size_t value;
    MUST(cuCtxGetLimit(&value, which));
    return value;
}

CAID_TEST(soft_limits, limits_are_kept_within_bounds)
{
    size_t value;
    soft_start_context();
    cr_assert_eq(limit(CU_LIMIT_STACK_SIZE), 1024);
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2000));
    cr_assert_eq(limit(CU_LIMIT_STACK_SIZE), 2000);
    cr_assert_eq(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, MIB), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(limit(CU_LIMIT_STACK_SIZE), 2000);
    MUST(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 1));
    cr_assert_eq(limit(CU_LIMIT_MALLOC_HEAP_SIZE), 4 * MIB, "the least that there is");
    cr_assert_eq(cu.cuCtxSetLimit(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 1000),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuCtxGetLimit(&value, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH),
                 CUDA_ERROR_UNSUPPORTED_LIMIT);
    cr_assert_eq(cu.cuCtxSetLimit(CU_LIMIT_SHMEM_SIZE, 1), CUDA_ERROR_UNSUPPORTED_LIMIT);
    cr_assert_eq(cu.cuCtxGetLimit(&value, (CUlimit)99), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuCtxGetLimit(NULL, CU_LIMIT_STACK_SIZE), CUDA_ERROR_INVALID_VALUE);
    MUST(cuCtxResetPersistingL2Cache());
    MUST(cuCtxSetCurrent(NULL));
    cr_assert_eq(cu.cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE), CUDA_ERROR_INVALID_CONTEXT);
}

CAID_TEST(soft_limits, a_reset_sets_them_back)
{
    CUcontext context;
    CUfunc_cache cache;
    soft_start_context();
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    MUST(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
    cr_assert_eq(cu.cuCtxSetCacheConfig((CUfunc_cache)9), CUDA_ERROR_INVALID_VALUE);
    MUST(cuCtxGetCacheConfig(&cache));
    cr_assert_eq(cache, CU_FUNC_CACHE_PREFER_L1);
    MUST(cuDevicePrimaryCtxReset_v2(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    cr_assert_eq(limit(CU_LIMIT_STACK_SIZE), 1024);
    MUST(cuCtxGetCacheConfig(&cache));
    cr_assert_eq(cache, CU_FUNC_CACHE_PREFER_NONE);
}

CAID_TEST(soft_limits, flags_are_replaced)
{
    unsigned int flags;
    soft_start_context();
    MUST(cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_SYNC_MEMOPS));
    MUST(cuCtxGetFlags(&flags));
    cr_assert_eq(flags, 0x8c);
    MUST(cuCtxSetFlags(0));
    MUST(cuCtxGetFlags(&flags));
    cr_assert_eq(flags, CU_CTX_MAP_HOST);
    cr_assert_eq(cu.cuCtxSetFlags(0x100), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuCtxSetFlags(3), CUDA_ERROR_INVALID_VALUE, "two ways to wait");
}

static CUresult
set_policy(CUstream stream, int policy)
{
    CUstreamAttrValue value = {.syncPolicy = (CUsynchronizationPolicy)policy};
    return cu.cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
}

CAID_TEST(soft_limits, streams_keep_attributes)
{
    CUstreamAttrValue value;
    CUstream stream, other;
    CUdevice device = -1;
    soft_start_context();
    MUST(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -2));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    memset(&value, 0xee, sizeof(value));
    MUST(cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    cr_assert_eq((int)value.syncPolicy, -1, "it was never set");
    cr_assert_eq((unsigned char)value.pad[4], 0xee, "the rest is the caller's");
    cr_assert_eq(set_policy(stream, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(set_policy(stream, 99), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(set_policy(stream, CU_SYNC_POLICY_YIELD), CUDA_SUCCESS);
    MUST(cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    cr_assert_eq(value.priority, -2);
    MUST(cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
    cr_assert_eq(value.memSyncDomainMap.remote, 1);
    value.accessPolicyWindow = (CUaccessPolicyWindow){.num_bytes = 42, .hitRatio = 0.5f};
    MUST(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
    MUST(cuStreamCopyAttributes(other, stream));
    MUST(cuStreamGetAttribute(other, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
    cr_assert_eq(value.accessPolicyWindow.num_bytes, 42);
    MUST(cuStreamGetAttribute(other, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    cr_assert_eq(value.syncPolicy, CU_SYNC_POLICY_YIELD);
    MUST(cuStreamGetAttribute(other, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    cr_assert_eq(value.priority, -2);
    cr_assert_eq(cu.cuStreamGetAttribute(stream, (CUstreamAttrID)2, &value),
                 CUDA_ERROR_INVALID_VALUE);
    MUST(cuStreamGetDevice(stream, &device));
    cr_assert_eq(device, 0);
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuStreamDestroy_v2(other));
}

CAID_TEST(soft_limits, nothing_is_captured)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuuint64_t id = 7;
    CUgraph graph;
    const CUgraphNode *nodes;
    const CUgraphEdgeData *edges;
    size_t n;
    soft_start_context();
    MUST(cuStreamGetCaptureInfo(NULL, &status, &id));
    cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    cr_assert_eq(id, 7, "not written");
    MUST(cuStreamGetCaptureInfo_v2(NULL, &status, NULL, &graph, &nodes, &n));
    MUST(cuStreamGetCaptureInfo_v3(NULL, &status, NULL, &graph, &nodes, &edges, &n));
    cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    cr_assert_eq(cu.cuStreamGetCaptureInfo_v3(NULL, &status, NULL, NULL, NULL, &edges, NULL),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamGetCaptureInfo(NULL, NULL, &id), CUDA_ERROR_INVALID_VALUE);
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    cr_assert_eq(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    cr_assert_eq(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
}

/* Non-blocking streams take part, too: the event stands for all of the context. */
CAID_TEST(soft_limits, an_event_records_a_whole_context)
{
    CUcontext context = soft_start_context();
    struct gate gate, other_gate;
    CUstream stream, other;
    CUevent event;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    gate_close(&gate, stream);
    MUST(cuCtxRecordEvent(context, event));
    gate_close(&other_gate, other);
    cr_assert_eq(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    MUST(cuEventSynchronize(event)); /* what came later does not count */
    gate_open(&other_gate);
    cr_assert_eq(cu.cuCtxRecordEvent(context, NULL), CUDA_ERROR_INVALID_HANDLE);
    cr_assert_eq(cu.cuCtxRecordEvent(NULL, event), CUDA_ERROR_INVALID_CONTEXT);
    MUST(cuCtxSynchronize());
    MUST(cuEventDestroy_v2(event));
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuStreamDestroy_v2(other));
}

static size_t
count_threads(void)
{
    size_t n = 0;
    DIR *folder = opendir("/proc/self/task");
    cr_assert_not_null(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

/* One stream makes them all. */
CAID_TEST(soft_limits, records_of_a_context_cost_no_thread_each)
{
    CUcontext context = soft_start_context();
    CUevent events[64];
    size_t before = count_threads();
    for (size_t i = 0; i < ARRAY_SIZE(events); i++) {
        MUST(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
        MUST(cuCtxRecordEvent(context, events[i]));
        cr_assert_leq(count_threads(), before + 1);
    }
    for (size_t i = 0; i < ARRAY_SIZE(events); i++) {
        MUST(cuEventSynchronize(events[i]));
        MUST(cuEventDestroy_v2(events[i]));
    }
}

CAID_TEST(soft_limits, a_whole_context_waits_for_an_event)
{
    CUcontext context = soft_start_context();
    struct gate gate;
    CUstream stream, other, later;
    CUevent event;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    gate_close(&gate, stream);
    MUST(cuEventRecord(event, stream));
    MUST(cuCtxWaitEvent(context, event));
    MUST(cuStreamCreate(&later, CU_STREAM_NON_BLOCKING));
    CUdeviceptr at;
    MUST(cuMemAllocAsync(&at, 512, other));
    MUST(cuMemsetD8Async(at, 1, 512, later));
    cr_assert_eq(cu.cuStreamQuery(other), CUDA_ERROR_NOT_READY);
    cr_assert_eq(cu.cuStreamQuery(later), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    MUST(cuStreamSynchronize(later));
    MUST(cuMemFree_v2(at));
    MUST(cuCtxSynchronize());
    MUST(cuEventDestroy_v2(event));
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuStreamDestroy_v2(other));
    MUST(cuStreamDestroy_v2(later));
}

CAID_TEST(soft_limits, there_is_no_dma_buf)
{
    CUdeviceptr at;
    int fd;
    soft_start_context();
    MUST(cuMemAlloc_v2(&at, 4096));
    cr_assert_eq(cu.cuMemGetHandleForAddressRange(&fd, at, 4096,
                                                  CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
                 CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(cu.cuMemGetHandleForAddressRange(&fd, at, 4096, (CUmemRangeHandleType)9, 0),
                 CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemFree_v2(at));
}
