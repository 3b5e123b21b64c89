/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory: allocated, freed and asked about. */
#include "caid_test.h"

#include <signal.h>
#include <sys/wait.h>

#include "soft_test.h"

static CUdeviceptr
managed(size_t size)
{
    CUdeviceptr at;
    MUST(cuMemAllocManaged(&at, size, CU_MEM_ATTACH_GLOBAL));
    return at;
}

SOFT_TEST(soft_managed, bad_arguments_are_refused)
{
    CUdeviceptr at;
    REFUSED(INVALID_VALUE, cuMemAllocManaged(NULL, PAGE, 1));
    REFUSED(INVALID_VALUE, cuMemAllocManaged(&at, 0, 1));
    REFUSED(INVALID_VALUE, cuMemAllocManaged(&at, PAGE, 0));
    REFUSED(INVALID_VALUE, cuMemAllocManaged(&at, PAGE, CU_MEM_ATTACH_SINGLE));
    REFUSED(OUT_OF_MEMORY, cuMemAllocManaged(&at, SIZE_MAX, 1));
    REFUSED(OUT_OF_MEMORY, cuMemAllocManaged(&at, (size_t)1 << 60, 1));
    REFUSED(INVALID_VALUE, cuMemAllocManaged(&at, PAGE, 3));
    MUST(cuMemAllocManaged(&at, PAGE, CU_MEM_ATTACH_HOST));
    REFUSED(INVALID_VALUE, cuMemFreeHost((void *)(uintptr_t)at));
    MUST(cuMemFree_v2(at));
    MUST(cuCtxSetCurrent(NULL));
    REFUSED(INVALID_CONTEXT, cuMemAllocManaged(&at, PAGE, 1));
}

/* Pages come into being when they are touched: a device is no limit. */
SOFT_TEST_LATE(soft_managed, it_may_be_larger_than_the_device)
{
    size_t free_before, free_after, total;
    setenv("CAID_SOFTCUDA_MEMORY", "64M", 1);
    soft_start_context();
    MUST(cuMemGetInfo_v2(&free_before, &total));
    CUdeviceptr at = managed(1024 * MIB);
    MUST(cuMemsetD8_v2(at + 1000 * MIB, 3, MIB));
    MUST(cuCtxSynchronize());
    cr_assert_eq(*(unsigned char *)(uintptr_t)(at + 1000 * MIB), 3);
    MUST(cuMemGetInfo_v2(&free_after, &total));
    cr_assert_eq(free_after, free_before);
    USED_IS(0);
}

SOFT_TEST_LATE(soft_managed, pointers_tell_that_they_are_managed)
{
    CUcontext context = soft_start_context();
    CUdeviceptr at = managed(2 * PAGE), start;
    size_t size;
    ATTRIBUTE_IS(MEMORY_TYPE, at, CU_MEMORYTYPE_DEVICE);
    ATTRIBUTE_IS(IS_MANAGED, at + PAGE, 1);
    ATTRIBUTE_IS(HOST_POINTER, at + 1, at + 1);
    ATTRIBUTE_IS(DEVICE_POINTER, at + 1, at + 1);
    ATTRIBUTE_IS(CONTEXT, at, context);
    ATTRIBUTE_IS(DEVICE_ORDINAL, at, 0);
    ATTRIBUTE_IS(MAPPED, at, 1);
    ATTRIBUTE_IS(ALLOWED_HANDLE_TYPES, at, 0);
    ATTRIBUTE_IS(IS_LEGACY_CUDA_IPC_CAPABLE, at, 0);
    MUST(cuMemGetAddressRange_v2(&start, &size, at + PAGE + 1));
    cr_assert_eq(start, at);
    cr_assert_eq(size, 2 * PAGE);
}

SOFT_TEST(soft_managed, it_has_the_size_that_was_asked_for)
{
    CUdeviceptr base;
    unsigned int flags;
    size_t size;
    CUdeviceptr at = managed(100), device;
    MUST(cuMemGetAddressRange_v2(&base, &size, at + 99));
    cr_assert_eq(size, 100);
    REFUSED(NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, at + 100));
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(at + 90, 1, 11));
    ATTRIBUTE_IS(RANGE_SIZE, at, 100);
    ATTRIBUTE_IS(SYNC_MEMOPS, at, 1);
    MUST(cuMemHostGetFlags(&flags, (void *)(uintptr_t)at));
    REFUSED(INVALID_VALUE, cuMemHostGetDevicePointer_v2(&device, (void *)(uintptr_t)at, 0));
    REFUSED(INVALID_VALUE, cuMemFree_v2(at + 1));
    REFUSED(INVALID_VALUE, cuMemFreeAsync(at, NULL));
}

static CUresult
copy_from_host(void *arg)
{
    CUdeviceptr *pair = arg;
    return cu.cuMemcpyHtoDAsync_v2(pair[0], (void *)(uintptr_t)pair[1], PAGE,
                                   (CUstream)(uintptr_t)pair[2]);
}

/* As what is called memory of the host it is waited for; as the device's it is not. */
SOFT_TEST(soft_managed, a_source_in_the_host_is_waited_for)
{
    struct gate gate;
    struct blocked call;
    CUdeviceptr at = managed(PAGE);
    CUdeviceptr device = soft_memory(PAGE);
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr pair[] = {device, at, (CUdeviceptr)(uintptr_t)stream};
    gate_close(&gate, stream);
    MUST(cuMemsetD8Async(at, 1, PAGE, stream));
    MUST(cuMemcpyDtoDAsync_v2(device, at, PAGE, stream));
    blocked_start(&call, copy_from_host, pair);
    cr_assert(blocked_waits(&call));
    gate_open(&gate);
    cr_assert_eq(blocked_join(&call), CUDA_SUCCESS);
}

CAID_TEST(soft_managed, a_reset_frees_it)
{
    CUcontext context = soft_start_context();
    CUdeviceptr at = managed(PAGE);
    MUST(cuDevicePrimaryCtxReset_v2(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    REFUSED(INVALID_VALUE, cuMemFree_v2(at));
}

/* A forked child has no device memory: a stray access ends it. */
SOFT_TEST(soft_managed, a_forked_child_has_none_of_it)
{
    int status;
    CUdeviceptr at = managed(PAGE);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile unsigned char *)(uintptr_t)at);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
}
