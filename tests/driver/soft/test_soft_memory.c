/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management and the other allocations, within one process. */
#include "caid_test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "soft_test.h"

CAID_TEST(soft_memory, sizes_and_properties_are_checked)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = soft_prop(0), bad = prop;
    size_t granularity;
    soft_start();
    MUST(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    cr_assert_eq(granularity, GRAN);
    REFUSED(INVALID_VALUE, cuMemCreate(&handle, 0, &prop, 0));
    REFUSED(INVALID_VALUE, cuMemCreate(&handle, GRAN + 4096, &prop, 0));
    REFUSED(INVALID_VALUE, cuMemCreate(&handle, GRAN, &prop, 1));
    REFUSED(INVALID_VALUE, cuMemCreate(&handle, GRAN, NULL, 0));
    REFUSED(INVALID_VALUE, cuMemCreate(NULL, GRAN, &prop, 0));
    bad.location.id = 9;
    REFUSED(INVALID_DEVICE, cuMemCreate(&handle, GRAN, &bad, 0));
    bad = prop;
    bad.requestedHandleTypes = CU_MEM_HANDLE_TYPE_WIN32;
    REFUSED(INVALID_VALUE, cuMemCreate(&handle, GRAN, &bad, 0));
    bad = prop;
    bad.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    REFUSED(INVALID_VALUE, cuMemCreate(&handle, GRAN, &bad, 0));
    USED_IS(0);
}

CAID_TEST(soft_memory, handles_end_once)
{
    CUmemGenericAllocationHandle handle, next;
    CUmemAllocationProp prop = soft_prop(0);
    int fd;
    soft_start();
    MUST(cuMemCreate(&handle, GRAN, &prop, 0));
    MUST(cuMemRelease(handle));
    REFUSED(INVALID_VALUE, cuMemRelease(handle));
    REFUSED(INVALID_VALUE, cuMemRelease(0));
    REFUSED(INVALID_VALUE, cuMemRelease(0x1234));
    REFUSED(INVALID_VALUE, cuMemRelease(~0ULL));
    MUST(cuMemCreate(&next, GRAN, &prop, 0));
    cr_assert_neq(next, handle, "an ended handle is never given again");
    REFUSED(INVALID_VALUE, cuMemExportToShareableHandle(&fd, handle, 1, 0));
    REFUSED(INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    /* A handle of another kind is no memory, and no stream. */
    REFUSED(INVALID_HANDLE, cuStreamDestroy_v2((CUstream)(uintptr_t)next));
    REFUSED(INVALID_HANDLE, cuEventDestroy_v2((CUevent)(uintptr_t)next));
    MUST(cuMemRelease(next));
}

CAID_TEST(soft_memory, retained_handles_are_counted)
{
    CUmemGenericAllocationHandle again;
    soft_start();
    struct soft_mapping mapping = soft_map(GRAN, 0);
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)mapping.at));
    cr_assert_eq(again, mapping.handle);
    MUST(cuMemRelease(again));
    soft_unmap(&mapping);
    REFUSED(INVALID_VALUE, cuMemRelease(again));
    REFUSED(INVALID_VALUE, cuMemRetainAllocationHandle(&again, &again));
}

static void
assert_not_imported(int fd)
{
    CUmemGenericAllocationHandle handle;
    REFUSED(UNKNOWN, cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, 1));
}

CAID_TEST(soft_memory, foreign_fds_are_not_imported)
{
    CUmemGenericAllocationHandle handle;
    char name[80];
    CUuuid uuid;
    soft_start();
    MUST(cuDeviceGetUuid_v2(&uuid, 0));
    _cleanup_fd_ int plain = memfd_create("plain", MFD_CLOEXEC);
    _cleanup_fd_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_not_imported(plain);
    assert_not_imported(null);
    assert_not_imported(-1);
    assert_not_imported(100000);
    /* The right name is not enough: this one could shrink under a reader. */
    snprintf(name, sizeof(name), "caid-softcuda:%s", getenv("CAID_SOFTCUDA_UUID"));
    _cleanup_fd_ int forged = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(forged, GRAN), 0);
    assert_not_imported(forged);
    REFUSED(NOT_SUPPORTED, cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)plain, 2));
}

CAID_TEST(soft_memory, maps_are_whole_and_do_not_overlap)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = soft_prop(0);
    CUdeviceptr at;
    soft_start();
    MUST(cuMemCreate(&handle, 2 * GRAN, &prop, 0));
    MUST(cuMemAddressReserve(&at, 4 * GRAN, 0, 0, 0));
    cr_assert_eq(at % GRAN, 0);
    REFUSED(NOT_SUPPORTED, cuMemMap(at, GRAN, 0, handle, 0));
    REFUSED(NOT_SUPPORTED, cuMemMap(at, 3 * GRAN, 0, handle, 0));
    REFUSED(NOT_SUPPORTED, cuMemMap(at, 2 * GRAN, GRAN, handle, 0));
    REFUSED(INVALID_VALUE, cuMemMap(at + 4096, 2 * GRAN, 0, handle, 0));
    REFUSED(INVALID_VALUE, cuMemMap(at + 3 * GRAN, 2 * GRAN, 0, handle, 0));
    REFUSED(INVALID_VALUE, cuMemMap(GRAN, 2 * GRAN, 0, handle, 0));
    MUST(cuMemMap(at + GRAN, 2 * GRAN, 0, handle, 0));
    REFUSED(INVALID_VALUE, cuMemMap(at, 2 * GRAN, 0, handle, 0));
    REFUSED(INVALID_VALUE, cuMemMap(at + 2 * GRAN, 2 * GRAN, 0, handle, 0));
    cr_assert_eq(cu.cuMemAddressFree(at, 4 * GRAN), CUDA_ERROR_INVALID_VALUE, "still mapped");
    REFUSED(INVALID_VALUE, cuMemUnmap(at + GRAN, GRAN));
    REFUSED(INVALID_VALUE, cuMemUnmap(at + 2 * GRAN, GRAN));
    MUST(cuMemUnmap(at, 4 * GRAN)); /* whole mappings and what is free around them */
    REFUSED(INVALID_VALUE, cuMemAddressFree(at, 2 * GRAN));
    MUST(cuMemAddressFree(at, 4 * GRAN));
    REFUSED(INVALID_VALUE, cuMemAddressFree(at, 4 * GRAN));
    REFUSED(INVALID_VALUE, cuMemUnmap(at, GRAN));
    MUST(cuMemRelease(handle));
}

CAID_TEST(soft_memory, a_free_hint_is_honoured)
{
    CUdeviceptr at, again, other;
    soft_start();
    MUST(cuMemAddressReserve(&at, GRAN, 0, 0, 0));
    MUST(cuMemAddressFree(at, GRAN));
    MUST(cuMemAddressReserve(&again, GRAN, 0, at, 0));
    cr_assert_eq(again, at);
    MUST(cuMemAddressReserve(&other, GRAN, 0, at, 0));
    cr_assert_neq(other, at, "taken: anywhere else");
    MUST(cuMemAddressFree(again, GRAN));
    MUST(cuMemAddressFree(other, GRAN));
    MUST(cuMemAddressReserve(&at, GRAN, 64 * GRAN, 0, 0));
    cr_assert_eq(at % (64 * GRAN), 0);
    MUST(cuMemAddressFree(at, GRAN));
    REFUSED(INVALID_VALUE, cuMemAddressReserve(&at, GRAN / 2, 0, 0, 0));
    REFUSED(INVALID_VALUE, cuMemAddressReserve(&at, GRAN, 3 * GRAN, 0, 0));
    REFUSED(OUT_OF_MEMORY, cuMemAddressReserve(&at, (size_t)1 << 60, 0, 0, 0));
}

CAID_TEST(soft_memory, access_is_kept_and_checked)
{
    CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    soft_start();
    struct soft_mapping mapping = soft_map(2 * GRAN, 0);
    ATTRIBUTE_IS(ACCESS_FLAGS, mapping.at, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    REFUSED(INVALID_VALUE, cuMemSetAccess(mapping.at, GRAN, &desc, 1));
    REFUSED(INVALID_VALUE, cuMemSetAccess(mapping.at, 2 * GRAN, &desc, 0));
    desc.flags = (CUmemAccess_flags)2;
    REFUSED(INVALID_VALUE, cuMemSetAccess(mapping.at, 2 * GRAN, &desc, 1));
    desc = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, 7}, 3};
    REFUSED(INVALID_VALUE, cuMemSetAccess(mapping.at, 2 * GRAN, &desc, 1));
    desc = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_HOST, 0}, 3};
    REFUSED(NOT_SUPPORTED, cuMemSetAccess(mapping.at, 2 * GRAN, &desc, 1));
    soft_set_access(&mapping, CU_MEM_ACCESS_FLAGS_PROT_READ);
    ATTRIBUTE_IS(ACCESS_FLAGS, mapping.at + GRAN, CU_MEM_ACCESS_FLAGS_PROT_READ);
    soft_set_access(&mapping, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    *(int *)(uintptr_t)mapping.at = 1;
    soft_unmap(&mapping);
}

CAID_TEST_WITH(soft_memory, a_store_through_a_read_only_mapping_ends_the_process, .timeout = 60,
               .signal = SIGSEGV)
{
    soft_start();
    struct soft_mapping mapping = soft_map(GRAN, CU_MEM_ACCESS_FLAGS_PROT_READ);
    signal(SIGSEGV, SIG_DFL);
    cr_assert_eq(*(volatile int *)(uintptr_t)mapping.at, 0);
    *(volatile int *)(uintptr_t)mapping.at = 1;
}

CAID_TEST(soft_memory, the_limit_is_the_devices_memory)
{
    CUmemGenericAllocationHandle handles[4], more;
    CUmemAllocationProp prop = soft_prop(0);
    CUdeviceptr at;
    setenv("CAID_SOFTCUDA_MEMORY", "8M", 1);
    soft_start_context();
    REFUSED(OUT_OF_MEMORY, cuMemCreate(&more, 10 * MIB, &prop, 0));
    for (int i = 0; i < 4; i++)
        MUST(cuMemCreate(&handles[i], GRAN, &prop, 0));
    REFUSED(OUT_OF_MEMORY, cuMemCreate(&more, GRAN, &prop, 0));
    REFUSED(OUT_OF_MEMORY, cuMemAlloc_v2(&at, 1));
    USED_IS(8 * MIB, "a refused allocation leaves nothing");
    MUST(cuMemRelease(handles[3]));
    MUST(cuMemAlloc_v2(&at, GRAN));
    REFUSED(OUT_OF_MEMORY, cuMemCreate(&more, GRAN, &prop, 0));
    MUST(cuMemFree_v2(at));
    MUST(cuMemCreate(&handles[3], GRAN, &prop, 0));
    for (int i = 0; i < 4; i++)
        MUST(cuMemRelease(handles[i]));
    REFUSED(OUT_OF_MEMORY, cuMemAlloc_v2(&at, ~(size_t)0));
}

SOFT_TEST(soft_memory, allocations_are_freed_by_their_own_call_only)
{
    void *host;
    int here;
    struct soft_mapping mapping = soft_map(GRAN, 3);
    CUdeviceptr at = soft_memory(1000);
    MUST(cuMemAllocHost_v2(&host, 1000));
    REFUSED(INVALID_VALUE, cuMemFree_v2(at + 256));
    REFUSED(INVALID_VALUE, cuMemFree_v2(mapping.at));
    REFUSED(INVALID_VALUE, cuMemFree_v2((uintptr_t)host));
    REFUSED(INVALID_VALUE, cuMemFree_v2((uintptr_t)&here));
    REFUSED(INVALID_VALUE, cuMemFreeHost((void *)(uintptr_t)at));
    MUST(cuMemFree_v2(0));
    MUST(cuCtxSetCurrent(NULL)); /* finalizers have no context */
    MUST(cuMemFree_v2(at));
    MUST(cuMemFreeHost(host));
    REFUSED(INVALID_VALUE, cuMemFree_v2(at));
    soft_unmap(&mapping);
    USED_IS(0);
}

SOFT_TEST_LATE(soft_memory, pointers_know_what_they_point_to)
{
    CUdeviceptr at, base;
    uint64_t ids[2];
    size_t size;
    int here;
    void *host;
    CUcontext context = soft_start_context();
    struct soft_mapping map = soft_map(GRAN, CU_MEM_ACCESS_FLAGS_PROT_READ);
    MUST(cuMemAlloc_v2(&at, 10000));
    MUST(cuMemAllocHost_v2(&host, 10000));

    ATTRIBUTE_IS(CONTEXT, at + 5, context);
    ATTRIBUTE_IS(CONTEXT, map.at, NULL);
    ATTRIBUTE_IS(MEMORY_TYPE, map.at, CU_MEMORYTYPE_DEVICE);
    ATTRIBUTE_IS(MEMORY_TYPE, (uintptr_t)host, CU_MEMORYTYPE_HOST);
    ATTRIBUTE_IS(DEVICE_ORDINAL, map.at, 0);
    ATTRIBUTE_IS(DEVICE_POINTER, at + 5, at + 5);
    ATTRIBUTE_IS(MAPPING_BASE_ADDR, map.at + 9, map.at);
    ATTRIBUTE_IS(ACCESS_FLAGS, map.at, 1);
    MUST(cuPointerGetAttribute(&ids[0], CU_POINTER_ATTRIBUTE_BUFFER_ID, map.at));
    MUST(cuPointerGetAttribute(&ids[1], CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    cr_assert_neq(ids[0], ids[1]);
    REFUSED(INVALID_VALUE, cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_HOST_POINTER, at));
    REFUSED(INVALID_VALUE,
            cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)&here));
    MUST(cuMemGetAddressRange_v2(&base, &size, at + 77));
    cr_assert_eq(base, at);
    cr_assert_geq(size, 10000);
    REFUSED(NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, (uintptr_t)&here));
}

CAID_TEST(soft_memory, a_limit_of_files_ends_no_process)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = soft_prop(0);
    struct rlimit limit = {.rlim_cur = GRAN - 1, .rlim_max = RLIM_INFINITY};
    soft_start();
    signal(SIGXFSZ, SIG_DFL);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    REFUSED(OPERATING_SYSTEM, cuMemCreate(&handle, GRAN, &prop, 0));
    limit.rlim_cur = GRAN;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    MUST(cuMemCreate(&handle, GRAN, &prop, 0));
    MUST(cuMemRelease(handle));
}

CAID_TEST(soft_memory, many_attributes_at_once_take_any_pointer)
{
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_CONTEXT};
    int type = 7, ordinal = 7;
    CUcontext owner = (CUcontext)&type;
    void *values[] = {&type, &ordinal, &owner};
    soft_start();
    MUST(cuPointerGetAttributes(3, attributes, values, (uintptr_t)&type));
    cr_assert_eq(type, 0);
    cr_assert_eq(ordinal, CU_DEVICE_INVALID);
    cr_assert_eq(owner, NULL);
    attributes[1] = (CUpointer_attribute)99;
    REFUSED(INVALID_VALUE, cuPointerGetAttributes(3, attributes, values, 0));
}
