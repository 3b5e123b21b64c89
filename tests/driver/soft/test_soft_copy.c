/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills: what they move, and what they refuse. */
#include "caid_test.h"

#include <string.h>

#include "soft_test.h"

static unsigned char *
bytes_of(CUdeviceptr at)
{
    return (unsigned char *)(uintptr_t)at;
}

SOFT_TEST(soft_copy, bytes_go_where_they_should)
{
    unsigned char from[256], to[256] = {0};
    CUdeviceptr a = soft_memory(256);
    CUdeviceptr b = soft_memory(256);
    for (int i = 0; i < 256; i++)
        from[i] = (unsigned char)i;
    MUST(cuMemcpyHtoD_v2(a, from, 256));
    MUST(cuMemcpyDtoD_v2(b + 16, a, 240));
    MUST(cuMemcpyDtoH_v2(to, b, 256));
    cr_assert_eq(to[15], 0);
    cr_assert_arr_eq(to + 16, from, 240);
    memset(to, 0, 256);
    MUST(cuMemcpyAsync((uintptr_t)to, a, 100, NULL));
    MUST(cuMemcpyAsync(b, (uintptr_t)(from + 100), 100, NULL));
    MUST(cuMemcpyDtoH_v2(to + 100, b, 100));
    cr_assert_arr_eq(to, from, 200);
}

SOFT_TEST(soft_copy, fills_have_three_widths)
{
    CUdeviceptr at = soft_memory(64);
    MUST(cuMemsetD8_v2(at, 0x11, 64));
    MUST(cuMemsetD16_v2(at + 2, 0x2233, 2));
    MUST(cuMemsetD32_v2(at + 8, 0x44556677, 2));
    MUST(cuCtxSynchronize());
    cr_assert_arr_eq(bytes_of(at),
                     "\x11\x11\x33\x22\x33\x22\x11\x11\x77\x66\x55\x44\x77\x66\x55\x44\x11",
                     17);
    REFUSED(INVALID_VALUE, cuMemsetD16_v2(at + 1, 0, 1));
    REFUSED(INVALID_VALUE, cuMemsetD32_v2(at + 2, 0, 1));
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(at, 0, (size_t)-1));
    REFUSED(INVALID_VALUE, cuMemsetD32_v2(at, 0, (size_t)1 << 62));
}

SOFT_TEST(soft_copy, rectangles_leave_the_rest_alone)
{
    unsigned char host[6 * 4], seen[8 * 16];
    CUdeviceptr at = soft_memory(sizeof(seen));
    MUST(cuMemsetD8_v2(at, 0xee, sizeof(seen)));
    for (int i = 0; i < 24; i++)
        host[i] = (unsigned char)i;
    CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_HOST,
        .srcHost = host,
        .srcPitch = 6,
        .srcXInBytes = 1,
        .srcY = 1,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = at,
        .dstPitch = 16,
        .dstXInBytes = 8,
        .dstY = 4,
        .WidthInBytes = 5,
        .Height = 3,
    };
    MUST(cuMemcpy2DUnaligned_v2(&copy));
    MUST(cuMemcpyDtoH_v2(seen, at, sizeof(seen)));
    for (int y = 0; y < 8; y++) {
        for (int x = 0; x < 16; x++) {
            int want = 0xee;
            if (y >= 4 && y < 7 && x >= 8 && x < 13)
                want = 6 * (1 + y - 4) + 1 + x - 8;
            cr_assert_eq(seen[y * 16 + x], want, "%d %d", y, x);
        }
    }
}

SOFT_TEST(soft_copy, bad_rectangles_are_refused)
{
    unsigned char host[64];
    CUdeviceptr at = soft_memory(4096);
    CUDA_MEMCPY2D good = {
        .srcMemoryType = CU_MEMORYTYPE_HOST,
        .srcHost = host,
        .srcPitch = 8,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = at,
        .dstPitch = 8,
        .WidthInBytes = 8,
        .Height = 4,
    };
    CUDA_MEMCPY2D copy = good;
    MUST(cuMemcpy2DUnaligned_v2(&copy));
    copy.dstPitch = 0;
    REFUSED(INVALID_VALUE, cuMemcpy2DUnaligned_v2(&copy));
    copy.dstPitch = 7;
    REFUSED(INVALID_VALUE, cuMemcpy2DUnaligned_v2(&copy));
    copy = good;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    REFUSED(NOT_SUPPORTED, cuMemcpy2DUnaligned_v2(&copy));
    copy = good;
    copy.dstY = 4096;
    REFUSED(INVALID_VALUE, cuMemcpy2DUnaligned_v2(&copy));
    copy = good;
    copy.Height = copy.dstPitch = copy.srcPitch = (size_t)1 << 40;
    cr_assert_eq(cu.cuMemcpy2DUnaligned_v2(&copy), CUDA_ERROR_INVALID_VALUE, "overflows");
    REFUSED(INVALID_VALUE, cuMemcpy2DUnaligned_v2(NULL));
}

SOFT_TEST(soft_copy, nothing_is_written_through_a_read_only_mapping)
{
    int here = 0;
    struct soft_mapping ro = soft_map(GRAN, CU_MEM_ACCESS_FLAGS_PROT_READ);
    struct soft_mapping rw = soft_map(GRAN, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(ro.at, 1, 16));
    REFUSED(INVALID_VALUE, cuMemsetD8Async(ro.at, 1, 16, NULL));
    REFUSED(INVALID_VALUE, cuMemcpyHtoD_v2(ro.at, &here, 4));
    REFUSED(INVALID_VALUE, cuMemcpyDtoD_v2(ro.at, rw.at, 16));
    MUST(cuMemcpyDtoD_v2(rw.at, ro.at, 16));
    MUST(cuMemcpyDtoH_v2(&here, ro.at, 4));
    MUST(cuCtxSynchronize());
}

SOFT_TEST(soft_copy, memory_without_access_is_not_touched)
{
    int here = 0;
    CUdeviceptr reserved;
    struct soft_mapping mapping = soft_map(GRAN, 0);
    MUST(cuMemAddressReserve(&reserved, GRAN, 0, 0, 0));
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(mapping.at, 1, 16));
    REFUSED(INVALID_VALUE, cuMemcpyDtoH_v2(&here, mapping.at, 4));
    REFUSED(INVALID_VALUE, cuMemcpyDtoH_v2(&here, reserved, 4));
    soft_set_access(&mapping, 3);
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(mapping.at + GRAN - 8, 1, 16));
    REFUSED(INVALID_VALUE, cuMemsetD8_v2((uintptr_t)&here, 1, 4));
    REFUSED(INVALID_VALUE, cuMemcpyHtoD_v2((uintptr_t)&here, &here, 4));
    REFUSED(INVALID_VALUE, cuMemcpyDtoD_v2(mapping.at, (uintptr_t)&here, 4));
    MUST(cuMemcpyHtoD_v2(0, NULL, 0)); /* nothing is nowhere */
    MUST(cuMemAddressFree(reserved, GRAN));
}

/* Allocations mapped side by side are one stretch of memory. */
SOFT_TEST(soft_copy, copies_cross_from_mapping_to_mapping)
{
    CUmemGenericAllocationHandle handles[2];
    CUmemAllocationProp prop = soft_prop(0);
    CUdeviceptr at;
    unsigned char seen[16];
    MUST(cuMemAddressReserve(&at, 2 * GRAN, 0, 0, 0));
    for (size_t i = 0; i < 2; i++) {
        MUST(cuMemCreate(&handles[i], GRAN, &prop, 0));
        MUST(cuMemMap(at + i * GRAN, GRAN, 0, handles[i], 0));
    }
    soft_set_access(&(struct soft_mapping){.at = at, .size = 2 * GRAN}, 3);
    MUST(cuMemsetD8_v2(at + GRAN - 8, 0x77, 16));
    MUST(cuMemcpyDtoH_v2(seen, at + GRAN - 8, 16));
    for (size_t i = 0; i < 16; i++)
        cr_assert_eq(seen[i], 0x77);
    soft_set_access(&(struct soft_mapping){.at = at + GRAN, .size = GRAN}, 1);
    REFUSED(INVALID_VALUE, cuMemsetD8_v2(at + GRAN - 8, 1, 16));
    MUST(cuMemUnmap(at, 2 * GRAN));
    MUST(cuMemAddressFree(at, 2 * GRAN));
    for (size_t i = 0; i < 2; i++)
        MUST(cuMemRelease(handles[i]));
}

/* Ordinary memory may be reused as soon as an asynchronous copy has returned. */
SOFT_TEST(soft_copy, ordinary_memory_is_free_after_the_call)
{
    unsigned char from[64], to[64];
    struct gate gate;
    CUdeviceptr at = soft_memory(sizeof(from));
    CUstream stream = soft_stream(0);
    memset(from, 5, sizeof(from));
    gate_close(&gate, stream);
    MUST(cuMemcpyHtoDAsync_v2(at, from, sizeof(from), stream)); /* staged */
    memset(from, 6, sizeof(from));
    cr_assert_eq(bytes_of(at)[0], 0, "not copied yet");
    gate_open(&gate);
    MUST(cuMemcpyDtoHAsync_v2(to, at, sizeof(to), stream)); /* waits */
    cr_assert_eq(to[0], 5);
    cr_assert_eq(to[63], 5);
}
