/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management and the other allocations, within one process. */
#include "caid_test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "soft_test.h"

CAID_TEST(soft_memory, sizes_and_properties_are_checked)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = soft_prop(0), bad = prop;
    size_t granularity;
    soft_start();
    MUST(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    cr_assert_eq(granularity, GRAN);
    cr_assert_eq(cu.cuMemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemCreate(&handle, GRAN + 4096, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemCreate(&handle, GRAN, &prop, 1), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemCreate(&handle, GRAN, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemCreate(NULL, GRAN, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    bad.location.id = 9;
    cr_assert_eq(cu.cuMemCreate(&handle, GRAN, &bad, 0), CUDA_ERROR_INVALID_DEVICE);
    bad = prop;
    bad.requestedHandleTypes = CU_MEM_HANDLE_TYPE_WIN32;
    cr_assert_eq(cu.cuMemCreate(&handle, GRAN, &bad, 0), CUDA_ERROR_INVALID_VALUE);
    bad = prop;
    bad.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    cr_assert_eq(cu.cuMemCreate(&handle, GRAN, &bad, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(soft_used(), 0);
}

CAID_TEST(soft_memory, handles_end_once)
{
    CUmemGenericAllocationHandle handle, next;
    CUmemAllocationProp prop = soft_prop(0);
    int fd;
    soft_start();
    MUST(cuMemCreate(&handle, GRAN, &prop, 0));
    MUST(cuMemRelease(handle));
    cr_assert_eq(cu.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemRelease(0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemRelease(0x1234), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemRelease(~0ULL), CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemCreate(&next, GRAN, &prop, 0));
    cr_assert_neq(next, handle, "an ended handle is never given again");
    cr_assert_eq(cu.cuMemExportToShareableHandle(&fd, handle, 1, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle),
                 CUDA_ERROR_INVALID_VALUE);
    /* A handle of another kind is no memory, and no stream. */
    cr_assert_eq(cu.cuStreamDestroy_v2((CUstream)(uintptr_t)next), CUDA_ERROR_INVALID_HANDLE);
    cr_assert_eq(cu.cuEventDestroy_v2((CUevent)(uintptr_t)next), CUDA_ERROR_INVALID_HANDLE);
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
    cr_assert_eq(cu.cuMemRelease(again), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemRetainAllocationHandle(&again, &again), CUDA_ERROR_INVALID_VALUE);
}

static void
assert_not_imported(int fd)
{
    CUmemGenericAllocationHandle handle;
    cr_assert_eq(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, 1),
                 CUDA_ERROR_UNKNOWN);
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
    cr_assert_eq(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)plain, 2),
                 CUDA_ERROR_NOT_SUPPORTED);
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
    cr_assert_eq(cu.cuMemMap(at, GRAN, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(cu.cuMemMap(at, 3 * GRAN, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(cu.cuMemMap(at, 2 * GRAN, GRAN, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(cu.cuMemMap(at + 4096, 2 * GRAN, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemMap(at + 3 * GRAN, 2 * GRAN, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemMap(GRAN, 2 * GRAN, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemMap(at + GRAN, 2 * GRAN, 0, handle, 0));
    cr_assert_eq(cu.cuMemMap(at, 2 * GRAN, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemMap(at + 2 * GRAN, 2 * GRAN, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemAddressFree(at, 4 * GRAN), CUDA_ERROR_INVALID_VALUE, "still mapped");
    cr_assert_eq(cu.cuMemUnmap(at + GRAN, GRAN), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemUnmap(at + 2 * GRAN, GRAN), CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemUnmap(at, 4 * GRAN)); /* whole mappings and what is free around them */
    cr_assert_eq(cu.cuMemAddressFree(at, 2 * GRAN), CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemAddressFree(at, 4 * GRAN));
    cr_assert_eq(cu.cuMemAddressFree(at, 4 * GRAN), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemUnmap(at, GRAN), CUDA_ERROR_INVALID_VALUE);
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
    cr_assert_eq(cu.cuMemAddressReserve(&at, GRAN / 2, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemAddressReserve(&at, GRAN, 3 * GRAN, 0, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemAddressReserve(&at, (size_t)1 << 60, 0, 0, 0),
                 CUDA_ERROR_OUT_OF_MEMORY);
}

CAID_TEST(soft_memory, access_is_kept_and_checked)
{
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccessDesc desc = {location, CU_MEM_ACCESS_FLAGS_PROT_READ};
    unsigned long long access;
    soft_start();
    struct soft_mapping mapping = soft_map(2 * GRAN, 0);
    MUST(cuMemGetAccess(&access, &location, mapping.at));
    cr_assert_eq(access, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    cr_assert_eq(cu.cuMemSetAccess(mapping.at, GRAN, &desc, 1), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemSetAccess(mapping.at, 2 * GRAN, &desc, 0), CUDA_ERROR_INVALID_VALUE);
    desc.flags = (CUmemAccess_flags)2;
    cr_assert_eq(cu.cuMemSetAccess(mapping.at, 2 * GRAN, &desc, 1), CUDA_ERROR_INVALID_VALUE);
    desc = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, 7}, 3};
    cr_assert_eq(cu.cuMemSetAccess(mapping.at, 2 * GRAN, &desc, 1), CUDA_ERROR_INVALID_VALUE);
    desc = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_HOST, 0}, 3};
    cr_assert_eq(cu.cuMemSetAccess(mapping.at, 2 * GRAN, &desc, 1), CUDA_ERROR_NOT_SUPPORTED);
    soft_set_access(&mapping, CU_MEM_ACCESS_FLAGS_PROT_READ);
    MUST(cuMemGetAccess(&access, &location, mapping.at + GRAN));
    cr_assert_eq(access, CU_MEM_ACCESS_FLAGS_PROT_READ);
    soft_set_access(&mapping, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    *(int *)(uintptr_t)mapping.at = 1;
    soft_unmap(&mapping);
    cr_assert_eq(cu.cuMemGetAccess(&access, &location, mapping.at), CUDA_ERROR_INVALID_VALUE);
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
    cr_assert_eq(cu.cuMemCreate(&more, 10 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    for (int i = 0; i < 4; i++)
        MUST(cuMemCreate(&handles[i], GRAN, &prop, 0));
    cr_assert_eq(cu.cuMemCreate(&more, GRAN, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(cu.cuMemAlloc_v2(&at, 1), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(soft_used(), 8 * MIB, "a refused allocation leaves nothing");
    MUST(cuMemRelease(handles[3]));
    MUST(cuMemAlloc_v2(&at, GRAN));
    cr_assert_eq(cu.cuMemCreate(&more, GRAN, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemFree_v2(at));
    MUST(cuMemCreate(&handles[3], GRAN, &prop, 0));
    for (int i = 0; i < 4; i++)
        MUST(cuMemRelease(handles[i]));
    cr_assert_eq(cu.cuMemAlloc_v2(&at, ~(size_t)0), CUDA_ERROR_OUT_OF_MEMORY);
}

CAID_TEST(soft_memory, allocations_are_freed_by_their_own_call_only)
{
    CUdeviceptr at;
    void *host;
    int here;
    soft_start_context();
    struct soft_mapping mapping = soft_map(GRAN, 3);
    MUST(cuMemAlloc_v2(&at, 1000));
    MUST(cuMemAllocHost_v2(&host, 1000));
    cr_assert_eq(cu.cuMemFree_v2(at + 256), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemFree_v2(mapping.at), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemFree_v2((uintptr_t)host), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemFree_v2((uintptr_t)&here), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuMemFreeHost((void *)(uintptr_t)at), CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemFree_v2(0));
    MUST(cuCtxSetCurrent(NULL)); /* finalizers have no context */
    MUST(cuMemFree_v2(at));
    MUST(cuMemFreeHost(host));
    cr_assert_eq(cu.cuMemFree_v2(at), CUDA_ERROR_INVALID_VALUE);
    soft_unmap(&mapping);
    cr_assert_eq(soft_used(), 0);
}

#define ATTRIBUTE(type, attribute, address)                       \
    ({                                                            \
        type _value;                                              \
        MUST(cuPointerGetAttribute(&_value, attribute, address)); \
        _value;                                                   \
    })

CAID_TEST(soft_memory, pointers_know_what_they_point_to)
{
    CUdeviceptr at, base;
    size_t size;
    int here;
    void *host;
    CUcontext context = soft_start_context();
    struct soft_mapping map = soft_map(GRAN, CU_MEM_ACCESS_FLAGS_PROT_READ);
    MUST(cuMemAlloc_v2(&at, 10000));
    MUST(cuMemAllocHost_v2(&host, 10000));

    cr_assert_eq(ATTRIBUTE(CUcontext, CU_POINTER_ATTRIBUTE_CONTEXT, at + 5), context);
    cr_assert_eq(ATTRIBUTE(CUcontext, CU_POINTER_ATTRIBUTE_CONTEXT, map.at), NULL);
    cr_assert_eq(ATTRIBUTE(int, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, map.at),
                 CU_MEMORYTYPE_DEVICE);
    cr_assert_eq(ATTRIBUTE(int, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host),
                 CU_MEMORYTYPE_HOST);
    cr_assert_eq(ATTRIBUTE(int, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, map.at), 0);
    cr_assert_eq(ATTRIBUTE(CUdeviceptr, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at + 5), at + 5);
    cr_assert_eq(ATTRIBUTE(CUdeviceptr, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, map.at + 9),
                 map.at);
    cr_assert_eq(ATTRIBUTE(int, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, map.at), 1);
    cr_assert_neq(ATTRIBUTE(uint64_t, CU_POINTER_ATTRIBUTE_BUFFER_ID, map.at),
                  ATTRIBUTE(uint64_t, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    cr_assert_eq(cu.cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_HOST_POINTER, at),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                          (uintptr_t)&here),
                 CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemGetAddressRange_v2(&base, &size, at + 77));
    cr_assert_eq(base, at);
    cr_assert_geq(size, 10000);
    cr_assert_eq(cu.cuMemGetAddressRange_v2(&base, &size, (uintptr_t)&here),
                 CUDA_ERROR_NOT_FOUND);
    MUST(cuMemFree_v2(at));
    MUST(cuMemFreeHost(host));
    soft_unmap(&map);
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
    cr_assert_eq(cu.cuPointerGetAttributes(3, attributes, values, 0), CUDA_ERROR_INVALID_VALUE);
}
