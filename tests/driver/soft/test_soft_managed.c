/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory: allocated, freed, asked about, advised, prefetched. */
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
    cr_assert_eq(soft_used(), 0);
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

/* What was advised, of [at, at + size). */
static int
range_attribute(CUmem_range_attribute attribute, CUdeviceptr at, size_t size)
{
    int value = 1234;
    MUST(cuMemRangeGetAttribute(&value, sizeof(value), attribute, at, size));
    return value;
}

#define READ_MOSTLY(at, size) range_attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, (at), (size))
#define PREFERRED(at, size) \
    range_attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, (at), (size))
#define PREFETCHED(at, size) \
    range_attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, (at), (size))

/* An attribute of a range is what all its pages agree on. */
SOFT_TEST(soft_managed, advice_is_kept_page_by_page)
{
    CUdeviceptr at = managed(4 * PAGE);
    cr_assert_eq(READ_MOSTLY(at, 4 * PAGE), 0);
    MUST(cuMemAdvise(at + PAGE + 10, PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, 99)); /* 2 pages */
    cr_assert_eq(READ_MOSTLY(at, 4 * PAGE), 0);
    cr_assert_eq(READ_MOSTLY(at + PAGE, 2 * PAGE), 1);
    cr_assert_eq(READ_MOSTLY(at + PAGE - 1, 2), 0, "touches the first page");
    cr_assert_eq(READ_MOSTLY(at + 3 * PAGE - 1, 1), 1);
    cr_assert_eq(READ_MOSTLY(at + 3 * PAGE - 1, 2), 0, "touches the last page");
    MUST(cuMemAdvise(at + PAGE, PAGE, CU_MEM_ADVISE_UNSET_READ_MOSTLY, 0));
    cr_assert_eq(READ_MOSTLY(at + PAGE, PAGE), 0);
    cr_assert_eq(READ_MOSTLY(at + 2 * PAGE, PAGE), 1);
    MUST(cuMemAdvise(at, 4 * PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    cr_assert_eq(READ_MOSTLY(at, 4 * PAGE), 1);
}

SOFT_TEST_LATE(soft_managed, locations_are_kept)
{
    CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 17},
                  node = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    setenv("CAID_SOFTCUDA_DEVICES", "2", 1);
    soft_start_context();
    CUdeviceptr at = managed(4 * PAGE);
    cr_assert_eq(PREFERRED(at, 4 * PAGE), CU_DEVICE_INVALID);
    MUST(cuMemAdvise_v2(at, 2 * PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
    MUST(cuMemAdvise_v2(at + 2 * PAGE, PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
    MUST(cuMemAdvise_v2(at + 3 * PAGE, PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, node));
    cr_assert_eq(PREFERRED(at, 2 * PAGE), 1);
    cr_assert_eq(PREFERRED(at + 2 * PAGE, PAGE), CU_DEVICE_CPU);
    cr_assert_eq(PREFERRED(at, 4 * PAGE), CU_DEVICE_INVALID);
    cr_assert_eq(range_attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, at, 2 * PAGE),
                 CU_MEM_LOCATION_TYPE_DEVICE);
    cr_assert_eq(range_attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, at, 2 * PAGE),
                 1);
    cr_assert_eq(range_attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, at + 2 * PAGE,
                                 PAGE),
                 CU_MEM_LOCATION_TYPE_HOST);
    cr_assert_eq(range_attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, at + 3 * PAGE,
                                 PAGE),
                 CU_MEM_LOCATION_TYPE_HOST_NUMA);
    cr_assert_eq(range_attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, at + 3 * PAGE,
                                 PAGE),
                 0);
    cr_assert_eq(range_attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, at, 3 * PAGE),
                 CU_MEM_LOCATION_TYPE_INVALID);
    MUST(cuMemAdvise(at, PAGE, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0));
    cr_assert_eq(PREFERRED(at, PAGE), CU_DEVICE_INVALID);
    cr_assert_eq(PREFERRED(at + PAGE, PAGE), 1);
}

SOFT_TEST_LATE(soft_managed, who_accesses_is_a_list)
{
    int devices[4];
    setenv("CAID_SOFTCUDA_DEVICES", "3", 1);
    soft_start_context();
    CUdeviceptr at = managed(2 * PAGE);
    MUST(cuMemAdvise(at, 2 * PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, 2));
    MUST(cuMemAdvise(at, 2 * PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
    MUST(cuMemAdvise(at, PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, 1)); /* not the whole of it */
    MUST(cuMemRangeGetAttribute(devices, sizeof(devices), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
                                at, 2 * PAGE));
    cr_assert_eq(devices[0], 2);
    cr_assert_eq(devices[1], CU_DEVICE_CPU);
    cr_assert_eq(devices[2], CU_DEVICE_INVALID);
    cr_assert_eq(devices[3], CU_DEVICE_INVALID);
    MUST(cuMemRangeGetAttribute(devices, 4, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, at, PAGE));
    cr_assert_eq(devices[0], 1);
    MUST(cuMemAdvise(at, 2 * PAGE, CU_MEM_ADVISE_UNSET_ACCESSED_BY, 2));
    MUST(cuMemRangeGetAttribute(devices, 8, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, at, 2 * PAGE));
    cr_assert_eq(devices[0], CU_DEVICE_CPU);
    cr_assert_eq(devices[1], CU_DEVICE_INVALID);
}

/* What was asked for last, whether it is done or not. */
SOFT_TEST(soft_managed, prefetches_have_their_place_in_the_stream)
{
    struct gate gate;
    CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
    CUdeviceptr at = managed(2 * PAGE);
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    cr_assert_eq(PREFETCHED(at, 2 * PAGE), CU_DEVICE_INVALID);
    gate_close(&gate, stream);
    MUST(cuMemPrefetchAsync(at, 2 * PAGE, 0, stream));
    REFUSED(NOT_READY, cuStreamQuery(stream));
    cr_assert_eq(PREFETCHED(at, 2 * PAGE), 0);
    MUST(cuMemPrefetchAsync_v2(at + PAGE, 1, host, 0, stream));
    cr_assert_eq(PREFETCHED(at, 2 * PAGE), CU_DEVICE_INVALID);
    cr_assert_eq(PREFETCHED(at + PAGE, PAGE), CU_DEVICE_CPU);
    MUST(cuMemPrefetchAsync_v2_ptsz(at, PAGE, here, 0, NULL));
    cr_assert_eq(range_attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, at, PAGE),
                 CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
    cr_assert_eq(range_attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID, at, PAGE),
                 0);
    cr_assert_eq(PREFETCHED(at, PAGE), CU_DEVICE_CPU);
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
}

SOFT_TEST(soft_managed, bad_advice_is_refused)
{
    CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    CUmemLocation node = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    CUmemLocation no_node = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 100000};
    CUmemLocation nothing = {CU_MEM_LOCATION_TYPE_INVALID, 0};
    int value;
    CUdeviceptr at = managed(2 * PAGE);
    CUdeviceptr plain = soft_memory(PAGE);
    REFUSED(INVALID_VALUE, cuMemAdvise(at, 0, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    REFUSED(INVALID_VALUE, cuMemAdvise(at, 2 * PAGE + 1, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    REFUSED(INVALID_VALUE, cuMemAdvise(plain, PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    REFUSED(INVALID_VALUE, cuMemAdvise(at, PAGE, (CUmem_advise)7, 0));
    REFUSED(INVALID_DEVICE, cuMemAdvise(at, PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1));
    REFUSED(INVALID_DEVICE,
            cuMemAdvise_v2(at, PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
    REFUSED(INVALID_VALUE,
            cuMemAdvise_v2(at, PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, nothing));
    REFUSED(INVALID_VALUE,
            cuMemAdvise_v2(at, PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, no_node));
    REFUSED(INVALID_VALUE, cuMemAdvise_v2(at, PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, node));
    REFUSED(INVALID_VALUE, cuMemPrefetchAsync(plain, PAGE, 0, NULL));
    REFUSED(INVALID_DEVICE, cuMemPrefetchAsync(at, PAGE, 1, NULL));
    REFUSED(INVALID_VALUE, cuMemPrefetchAsync_v2(at, PAGE, node, 1, NULL));
    REFUSED(INVALID_VALUE,
            cuMemRangeGetAttribute(&value, 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, 1));
    REFUSED(INVALID_VALUE,
            cuMemRangeGetAttribute(&value, 3, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, at, 1));
    REFUSED(INVALID_VALUE, cuMemRangeGetAttribute(&value, 4, (CUmem_range_attribute)0, at, 1));
    REFUSED(INVALID_VALUE,
            cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, 1));
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
