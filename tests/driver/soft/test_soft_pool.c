/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools within one process: allocating and freeing in stream order, and the figures. */
#include <sys/mman.h>

#include "soft_pools.h"

#define PAGE_BYTES 4096

SOFT_TEST(soft_pool, figures_tell_bytes_and_pages)
{
    uint64_t one = 1, zero = 0;
    CUmemoryPool pool = pool_new(0);
    CUdeviceptr kept = take(pool, 100, NULL), gone = take(pool, MIB + 1, NULL);
    assert_figures(pool, MIB + 101, MIB + 2 * PAGE_BYTES);
    USED_IS(MIB + 2 * PAGE_BYTES);
    MUST(cuMemFreeAsync(gone, NULL));
    assert_figures(pool, 100, PAGE_BYTES);
    USED_IS(PAGE_BYTES);
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), MIB + 101);
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), MIB + 2 * PAGE_BYTES);
    /* A mark that is reset starts again at what there is. */
    REFUSED(INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 100);
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), PAGE_BYTES);
    MUST(cuMemFreeAsync(kept, NULL));
    assert_figures(pool, 0, 0);
    USED_IS(0);
}

static bool
is_mapped(CUdeviceptr at)
{
    return msync((void *)(uintptr_t)at, PAGE_BYTES, MS_ASYNC) == 0;
}

/* The work before a free finds the memory, and nobody else does. */
SOFT_TEST(soft_pool, memory_stays_until_the_stream_has_come_by)
{
    struct gate gate;
    CUmemoryPool of;
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING),
             other = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(0);
    CUdeviceptr copy = soft_memory(MIB), at = take(pool, MIB, stream);
    gate_close(&gate, stream);
    MUST(cuMemsetD8Async(at, 1, MIB, stream));
    MUST(cuMemcpyDtoDAsync_v2(copy, at, MIB, stream));
    MUST(cuMemFreeAsync(at, stream));
    REFUSED(INVALID_VALUE, cuMemFreeAsync(at, stream));
    REFUSED(INVALID_VALUE, cuMemsetD8Async(at, 2, MIB, other));
    REFUSED(INVALID_VALUE, cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
    CUdeviceptr next = take(pool, MIB, stream);
    cr_assert_neq(next, at);
    cr_assert(is_mapped(at));
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    cr_assert(!is_mapped(at));
    cr_assert(soft_holds(copy, 1, MIB));
    MUST(cuMemFree_v2(next));
    cr_assert(!is_mapped(next), "an ordinary free is made at once");
    MUST(cuMemFree_v2(copy));
}

/* What is freed in the order of a stream is there for what comes later. */
SOFT_TEST_LATE(soft_pool, a_stream_that_frees_never_runs_out)
{
    struct gate gate;
    CUdeviceptr none;
    int fds = 0;
    setenv("CAID_SOFTCUDA_MEMORY", "40M", 1);
    soft_start_context();
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(0);
    gate_close(&gate, stream);
    for (int i = 0; i < 10; i++) {
        CUdeviceptr at = take(pool, 30 * MIB, stream);
        REFUSED(OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&none, 30 * MIB, pool, stream));
        REFUSED(OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&none, SIZE_MAX, pool, stream));
        assert_figures(pool, 30 * MIB, 30 * MIB);
        MUST(cuMemsetD8Async(at, 1, PAGE_BYTES, stream));
        MUST(cuMemFreeAsync(at, stream));
        fds = fds ? fds : test_count_fds();
    }
    cr_assert_eq(test_count_fds_later(fds), fds);
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    USED_IS(0);
}

SOFT_TEST(soft_pool, a_pool_has_no_more_than_it_may)
{
    CUdeviceptr none;
    CUmemoryPool pool = pool_new(MIB);
    CUdeviceptr at = take(pool, MIB, NULL);
    REFUSED(OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&none, 1, pool, NULL));
    MUST(cuMemFreeAsync(at, NULL));
    REFUSED(OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&none, MIB + 1, pool, NULL));
    MUST(cuMemFreeAsync(take(pool, MIB, NULL), NULL));
}

SOFT_TEST(soft_pool, a_pool_ends_with_its_last_allocation)
{
    struct gate gate;
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    CUmemoryPool pool = pool_new(0);
    CUdeviceptr at = take(pool, MIB, stream), last = take(pool, MIB, stream);
    MUST(cuMemPoolDestroy(pool));
    REFUSED(INVALID_VALUE, cuMemPoolDestroy(pool));
    REFUSED(INVALID_VALUE, cuMemAllocFromPoolAsync(&at, MIB, pool, stream));
    MUST(cuMemsetD8Async(at, 1, MIB, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemFree_v2(at));
    USED_IS(MIB);
    gate_close(&gate, stream);
    MUST(cuMemsetD8Async(last, 1, MIB, stream));
    MUST(cuMemFreeAsync(last, stream));
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    USED_IS(0);
}
