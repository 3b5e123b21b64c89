/* SPDX-License-Identifier: Apache-2.0 */
/* Copies by the batch. */
#include "caid_test.h"

#include <string.h>

#include "soft_test.h"

#define SIZE ((size_t)4096)

static CUstream stream;
static CUdeviceptr device[2];
static unsigned char *host;
static unsigned char plain[SIZE];

static void
set_up(void)
{
    soft_start_context();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc_v2(&device[0], SIZE));
    MUST(cuMemAlloc_v2(&device[1], SIZE));
    MUST(cuMemHostAlloc((void **)&host, SIZE, 0));
    memset(host, 0x11, SIZE);
    memset(plain, 0x22, SIZE);
}

static void
tear_down(void)
{
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuMemFree_v2(device[0]));
    MUST(cuMemFree_v2(device[1]));
    MUST(cuMemFreeHost(host));
}

static CUmemcpyAttributes
order(int access)
{
    return (CUmemcpyAttributes){.srcAccessOrder = (CUmemcpySrcAccessOrder)access};
}

static unsigned char
first_byte(CUdeviceptr at)
{
    unsigned char byte;
    MUST(cuMemcpyDtoH_v2(&byte, at, 1));
    return byte;
}

CAID_TEST(soft_batch, each_copy_is_made_in_stream_order)
{
    struct gate gate;
    set_up();
    CUdeviceptr to[] = {device[0], device[1]}, from[] = {(uintptr_t)host, (uintptr_t)plain};
    size_t sizes[] = {SIZE, SIZE}, firsts[] = {0}, wrong = 9;
    CUmemcpyAttributes attributes[] = {order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)};
    gate_close(&gate, stream);
    MUST(cuMemcpyBatchAsync_v2(to, from, sizes, 2, attributes, firsts, 1, stream));
    host[0] = 0x33;
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(first_byte(device[0]), 0x33, "pinned memory is read in its turn");
    cr_assert_eq(first_byte(device[1]), 0x22);
    MUST(cuMemcpyBatchAsync(to, from, sizes, 2, attributes, firsts, 1, &wrong, stream));
    MUST(cuStreamSynchronize(stream));
    tear_down();
}

/* One of the two is read at once, though the stream is held up. */
CAID_TEST(soft_batch, a_source_may_be_read_during_the_call)
{
    struct gate gate;
    set_up();
    CUdeviceptr to[] = {device[0], device[1]}, from[] = {(uintptr_t)host, (uintptr_t)host};
    size_t sizes[] = {SIZE, SIZE}, firsts[] = {0, 1};
    CUmemcpyAttributes attributes[] = {order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
                                       order(CU_MEMCPY_SRC_ACCESS_ORDER_ANY)};
    gate_close(&gate, stream);
    MUST(cuMemcpyBatchAsync_v2(to, from, sizes, 2, attributes, firsts, 2, stream));
    host[0] = 0x44;
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(first_byte(device[0]), 0x11);
    cr_assert_eq(first_byte(device[1]), 0x44);
    tear_down();
}

/* A wrong copy is named, and nothing of the batch is done. */
CAID_TEST(soft_batch, all_or_nothing)
{
    set_up();
    MUST(cuMemsetD8_v2(device[0], 0, SIZE));
    CUdeviceptr to[] = {device[0], device[1]}, from[] = {(uintptr_t)host, (uintptr_t)host};
    size_t sizes[] = {SIZE, SIZE + 1}, firsts[] = {0, 0}, wrong = 9;
    CUmemcpyAttributes attributes[] = {order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM), order(0)};
    REFUSED(INVALID_VALUE,
            cuMemcpyBatchAsync(to, from, sizes, 2, attributes, firsts, 1, &wrong, stream));
    cr_assert_eq(wrong, 1);
    sizes[1] = SIZE;
    cr_assert_eq(cu.cuMemcpyBatchAsync(to, from, sizes, 2, attributes, firsts, 2, &wrong,
                                       stream),
                 CUDA_ERROR_INVALID_VALUE, "firsts must rise");
    cr_assert_eq(wrong, SIZE_MAX);
    attributes[0] = order(0);
    REFUSED(INVALID_VALUE,
            cuMemcpyBatchAsync_v2(to, from, sizes, 2, attributes, firsts, 1, stream));
    attributes[0] = order(1);
    REFUSED(INVALID_VALUE,
            cuMemcpyBatchAsync_v2(to, from, sizes, 0, attributes, firsts, 1, stream));
    cr_assert_eq(cu.cuMemcpyBatchAsync_v2(to, from, sizes, 2, attributes, firsts, 1, NULL),
                 CUDA_ERROR_INVALID_VALUE, "not on the legacy stream");
    MUST(cuMemcpyBatchAsync_v2_ptsz(to, from, sizes, 2, attributes, firsts, 1, NULL));
    MUST(cuStreamSynchronize_ptsz(NULL));
    cr_assert_eq(first_byte(device[0]), 0x11);
    tear_down();
}
