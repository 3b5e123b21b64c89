/* SPDX-License-Identifier: Apache-2.0 */
/* Which pools there are, what is asked of them, and what is refused. */
#include <string.h>
#include <sys/wait.h>

#include "soft_pools.h"

/* A host pool's memory is pinned memory of the host. */
SOFT_TEST(soft_pool_calls, the_host_has_pools_too)
{
    CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
    CUmemAllocationType pinned = CU_MEM_ALLOCATION_TYPE_PINNED;
    CUmemoryPool standard, of_device, again;
    CUmemAccess_flags access;
    void *back;
    MUST(cuMemGetMemPool(&standard, &host, pinned));
    REFUSED(INVALID_VALUE, cuMemPoolDestroy(standard));
    MUST(cuMemPoolGetAccess(&access, standard, &host));
    cr_assert_eq(access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUdeviceptr at = take(standard, 4096, NULL);
    ATTRIBUTE_IS(MEMORY_TYPE, at, CU_MEMORYTYPE_HOST);
    MUST(cuPointerGetAttribute(&back, CU_POINTER_ATTRIBUTE_HOST_POINTER, at));
    cr_assert_eq((uintptr_t)back, at);
    USED_IS(0);
    MUST(cuMemsetD8_v2(at, 3, 4096));
    cr_assert_eq(((unsigned char *)back)[4095], 3, "a plain fill of pinned memory waits");
    MUST(cuMemFreeAsync(at, NULL));
    MUST(cuCtxSynchronize());
    assert_figures(standard, 0, 0);

    MUST(cuDeviceGetMemPool(&of_device, 0));
    cr_assert_neq(of_device, standard);
    MUST(cuMemGetMemPool(&again, &(CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 0}, pinned));
    cr_assert_eq(again, of_device);
    REFUSED(INVALID_DEVICE, cuDeviceGetMemPool(&again, 1));
    REFUSED(INVALID_VALUE, cuDeviceGetMemPool(NULL, 0));
}

SOFT_TEST(soft_pool_calls, managed_memory_has_pools_too)
{
    CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool;
    MUST(cuMemGetMemPool(&pool, &device, CU_MEM_ALLOCATION_TYPE_MANAGED));
    CUdeviceptr at = take(pool, 5000, NULL), beside = take(pool, 5000, NULL);
    ATTRIBUTE_IS(IS_MANAGED, at, 1);
    USED_IS(0);
    ((unsigned char *)(uintptr_t)at)[4999] = 7;
    MUST(cuMemsetD8Async(at, 1, 5000, NULL));
    MUST(cuMemFreeAsync(at, NULL));
    MUST(cuMemFree_v2(beside));
    MUST(cuCtxSynchronize());
    assert_figures(pool, 0, 0);
    REFUSED(NOT_SUPPORTED,
            cuMemGetMemPool(&pool, &(CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0},
                            CU_MEM_ALLOCATION_TYPE_MANAGED));
}

#define DEVICE  CU_MEM_LOCATION_TYPE_DEVICE
#define PINNED  CU_MEM_ALLOCATION_TYPE_PINNED
#define NODE    CU_MEM_LOCATION_TYPE_HOST_NUMA
#define FD      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define REFUSAL CUDA_ERROR_INVALID_VALUE
#define PROPS(want, type, handles, where, id, ...)                                      \
    {                                                                                   \
        want,                                                                           \
        {                                                                               \
            .allocType = (type), .handleTypes = (handles), .location = {(where), (id)}, \
            ##__VA_ARGS__                                                               \
        }                                                                               \
    }

CAID_TEST(soft_pool_calls, properties_are_checked)
{
    static const struct {
        CUresult want;
        CUmemPoolProps props;
    } cases[] = {
        PROPS(CUDA_SUCCESS, PINNED, 0, DEVICE, 0),
        PROPS(REFUSAL, CU_MEM_ALLOCATION_TYPE_INVALID, 0, DEVICE, 0),
        PROPS(CUDA_SUCCESS, PINNED, FD, DEVICE, 0),
        PROPS(REFUSAL, PINNED, FD, CU_MEM_LOCATION_TYPE_HOST, 0), /* not shared */
        PROPS(CUDA_SUCCESS, PINNED, FD, NODE, 0),
        PROPS(REFUSAL, PINNED, FD, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0),
        PROPS(REFUSAL, PINNED, 0, NODE, 4711),
        PROPS(REFUSAL, PINNED, 0, DEVICE, 1),
        PROPS(REFUSAL, PINNED, 0, CU_MEM_LOCATION_TYPE_INVALID, 0),
        PROPS(CUDA_SUCCESS, CU_MEM_ALLOCATION_TYPE_MANAGED, 0, CU_MEM_LOCATION_TYPE_INVALID, 0),
        PROPS(REFUSAL, PINNED, 0, DEVICE, 0, .reserved[53] = 1),
        PROPS(CUDA_SUCCESS, PINNED, 0, DEVICE, 0, .usage = 0xffff),
        PROPS(CUDA_ERROR_NOT_SUPPORTED, PINNED, CU_MEM_HANDLE_TYPE_FABRIC, DEVICE, 0),
        PROPS(REFUSAL, PINNED, CU_MEM_HANDLE_TYPE_WIN32, DEVICE, 0),
    };

    CUmemoryPool pool;
    soft_start();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CUresult result = cu.cuMemPoolCreate(&pool, &cases[i].props);
        cr_assert_eq(result, cases[i].want, "case %zu: %d", i, result);
        if (result == CUDA_SUCCESS)
            MUST(cuMemPoolDestroy(pool));
    }
    REFUSED(INVALID_VALUE, cuMemPoolCreate(NULL, &cases[0].props));
    REFUSED(INVALID_VALUE, cuMemPoolCreate(&pool, NULL));
}

SOFT_TEST_LATE(soft_pool_calls, attributes_are_checked)
{
    uint64_t value = 7;
    int on = -1;
    soft_start();
    CUmemoryPool pool = pool_new(0);
    for (int i = 1; i <= 3; i++) {
        CUmemPool_attribute attribute = (CUmemPool_attribute)i;
        MUST(cuMemPoolGetAttribute(pool, attribute, &on));
        cr_assert_eq(on, 1);
        set_switch(pool, attribute, 0);
        MUST(cuMemPoolGetAttribute(pool, attribute, &on));
        cr_assert_eq(on, 0);
    }
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    keep(pool, 7);
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 7);
    REFUSED(INVALID_VALUE,
            cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    REFUSED(INVALID_VALUE, cuMemPoolGetAttribute(pool, (CUmemPool_attribute)9, &value));
    REFUSED(INVALID_VALUE, cuMemPoolGetAttribute(pool, (CUmemPool_attribute)4, NULL));
    REFUSED(INVALID_VALUE, cuMemPoolGetAttribute(NULL, (CUmemPool_attribute)4, &value));
}

SOFT_TEST_LATE(soft_pool_calls, access_is_kept_and_a_device_keeps_its_own)
{
    CUmemLocation own = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, peer = {own.type, 1};
    CUmemAccess_flags access;
    setenv("CAID_SOFTCUDA_DEVICES", "2", 1);
    soft_start();
    CUmemoryPool pool = pool_new(0);
    MUST(cuMemPoolGetAccess(&access, pool, &own));
    cr_assert_eq(access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    MUST(cuMemPoolGetAccess(&access, pool, &peer));
    cr_assert_eq(access, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CUmemAccessDesc desc = {peer, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(cuMemPoolSetAccess(pool, &desc, 1));
    MUST(cuMemPoolGetAccess(&access, pool, &peer));
    cr_assert_eq(access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    REFUSED(NOT_SUPPORTED, cuMemPoolSetAccess(pool, &desc, 1));
    desc.flags = (CUmemAccess_flags)2;
    REFUSED(INVALID_VALUE, cuMemPoolSetAccess(pool, &desc, 1));
    desc = (CUmemAccessDesc){own, CU_MEM_ACCESS_FLAGS_PROT_NONE};
    REFUSED(INVALID_DEVICE, cuMemPoolSetAccess(pool, &desc, 1));
    desc = (CUmemAccessDesc){{own.type, 2}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    REFUSED(INVALID_DEVICE, cuMemPoolSetAccess(pool, &desc, 1));
    desc.location.type = CU_MEM_LOCATION_TYPE_HOST;
    REFUSED(NOT_SUPPORTED, cuMemPoolSetAccess(pool, &desc, 1));
    MUST(cuMemPoolSetAccess(pool, &desc, 0));
    REFUSED(INVALID_VALUE, cuMemPoolSetAccess(pool, NULL, 0));
    MUST(cuMemPoolGetAccess(&access, pool, &desc.location));
    cr_assert_eq(access, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    REFUSED(INVALID_VALUE, cuMemPoolGetAccess(&access, pool, &(CUmemLocation){own.type, 2}));
}

SOFT_TEST(soft_pool_calls, pointers_know_where_they_are_from)
{
    unsigned long long id, other;
    CUmemoryPool of;
    CUdeviceptr base;
    size_t size;
    CUmemoryPool pool =
        soft_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUdeviceptr at = take(pool, 1000, NULL), beside = take(pool, 1000, NULL);
    ATTRIBUTE_IS(MEMPOOL_HANDLE, at + 999, pool);
    ATTRIBUTE_IS(ALLOWED_HANDLE_TYPES, at, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ATTRIBUTE_IS(CONTEXT, at, 0);
    ATTRIBUTE_IS(DEVICE_ORDINAL, at, 0);
    ATTRIBUTE_IS(IS_LEGACY_CUDA_IPC_CAPABLE, at, 0);
    MUST(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    MUST(cuPointerGetAttribute(&other, CU_POINTER_ATTRIBUTE_BUFFER_ID, beside));
    cr_assert_neq(id, other);
    MUST(cuMemGetAddressRange_v2(&base, &size, at + 10));
    cr_assert_eq(base, at);
    cr_assert_eq(size, 1000);
    MUST(cuMemFreeAsync(at, NULL));
    REFUSED(INVALID_VALUE, cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
    MUST(cuMemFreeAsync(beside, NULL));
}

SOFT_TEST(soft_pool_calls, a_reset_leaves_pool_memory_alone)
{
    CUcontext context;
    CUdeviceptr at;
    unsigned char seen;
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    MUST(cuMemAllocAsync(&at, MIB, stream));
    MUST(cuMemsetD8Async(at, 5, MIB, stream));
    MUST(cuDevicePrimaryCtxReset_v2(0));
    USED_IS(MIB);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemcpyDtoH_v2(&seen, at + MIB - 1, 1));
    cr_assert_eq(seen, 5);
    MUST(cuMemFreeAsync(at, NULL));
    MUST(cuStreamSynchronize(NULL));
    USED_IS(0);
}

SOFT_TEST_LATE(soft_pool_calls, calls_are_checked)
{
    CUdeviceptr at;
    soft_start();
    CUmemoryPool pool = pool_new(0);
    REFUSED(INVALID_CONTEXT, cuMemAllocAsync(&at, 512, NULL));
    REFUSED(INVALID_CONTEXT, cuMemFreeAsync(0, NULL));
    soft_start_context();
    at = 1;
    MUST(cuMemAllocAsync(&at, 0, NULL));
    cr_assert_eq(at, 0);
    MUST(cuMemFreeAsync(0, NULL));
    REFUSED(INVALID_VALUE, cuMemAllocAsync(NULL, 512, NULL));
    REFUSED(INVALID_VALUE, cuMemAllocFromPoolAsync(&at, 512, NULL, NULL));
    REFUSED(INVALID_HANDLE, cuMemAllocFromPoolAsync(&at, 512, pool, (CUstream)0x1234));
    MUST(cuMemAllocAsync(&at, 512, NULL));
    REFUSED(INVALID_VALUE, cuMemFreeAsync(at + 1, NULL));
    REFUSED(INVALID_VALUE, cuMemFreeHost((void *)(uintptr_t)at));
    MUST(cuMemFreeAsync(at, NULL));
}

SOFT_TEST(soft_pool_calls, a_forked_child_holds_none_of_it)
{
    int to_child[2];
    char byte = 0;
    CUmemoryPool pool = pool_new(0);
    CUdeviceptr at = take(pool, MIB, NULL);
    MUST(cuCtxSynchronize());
    cr_assert_eq(pipe(to_child), 0);
    pid_t child = fork();
    if (child == 0) {
        close(to_child[1]);
        _exit(read(to_child[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(to_child[0]);
    MUST(cuMemFreeAsync(at, NULL));
    MUST(cuCtxSynchronize());
    USED_IS(0);
    at = take(pool, MIB, NULL);
    MUST(cuCtxSynchronize());
    USED_IS(MIB);
    MUST(cuMemFreeAsync(at, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuMemPoolDestroy(pool));
    USED_IS(0);
    close(to_child[1]);
    cr_assert_eq(waitpid(child, NULL, 0), child);
}
