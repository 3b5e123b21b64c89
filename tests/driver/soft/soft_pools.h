/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of memory pools have in common. */
#pragma once

#include "caid_test.h"
#include "soft_test.h"

UNUSED static CUmemoryPool
pool_new(size_t max)
{
    return soft_pool(CU_MEM_HANDLE_TYPE_NONE, CU_MEM_LOCATION_TYPE_DEVICE, max);
}

UNUSED static CUdeviceptr
take(CUmemoryPool pool, size_t size, CUstream stream)
{
    CUdeviceptr at;
    MUST(cuMemAllocFromPoolAsync(&at, size, pool, stream));
    return at;
}

UNUSED static uint64_t
figure(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    uint64_t value;
    MUST(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

UNUSED static void
assert_figures(CUmemoryPool pool, uint64_t used, uint64_t reserved)
{
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), used);
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), reserved);
}

UNUSED static void
keep(CUmemoryPool pool, uint64_t bytes)
{
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

UNUSED static void
set_switch(CUmemoryPool pool, CUmemPool_attribute attribute, int on)
{
    MUST(cuMemPoolSetAttribute(pool, attribute, &on));
}
