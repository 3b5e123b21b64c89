/* SPDX-License-Identifier: Apache-2.0 */
/* Fills: cuMemset, of one row. */
#include <string.h>

#include "peer.h"
#include "stream.h"

struct fill {
    uintptr_t at;
    size_t n;             /* elements */
    unsigned int element; /* bytes: 1, 2, 4 */
    uint32_t value;
};

struct fill_op {
    struct op op;
    struct fill fill;
    size_t size; /* in bytes */
};

static void
fill_memory(unsigned char *at, const struct fill *fill)
{
    uint16_t value16 = (uint16_t)fill->value;
    if (fill->element == 1)
        memset(at, (int)fill->value, fill->n);
    else if (fill->element == 2)
        for (size_t i = 0; i < fill->n; i++)
            memcpy(at + 2 * i, &value16, 2);
    else
        for (size_t i = 0; i < fill->n; i++)
            memcpy(at + 4 * i, &fill->value, 4);
}

static CUresult
fill_run(struct op *op, CUresult status)
{
    struct fill_op *fill_op = container_of(op, struct fill_op, op);
    const struct fill *fill = &fill_op->fill;
    if (status != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (range_enter(fill->at, fill_op->size, true) != CUDA_SUCCESS)
        return CUDA_ERROR_LAUNCH_FAILED;
    fill_memory((unsigned char *)fill->at, fill);
    range_leave(fill->at, fill_op->size);
    return CUDA_SUCCESS;
}

/* Checks everything but the stream; a fill of nothing has a size of 0. */
static CUresult
fill_check(const struct fill *fill, size_t *ret_size, enum range_kind *ret_kind)
{
    if (fill->at % fill->element != 0 ||
        __builtin_mul_overflow(fill->n, fill->element, ret_size))
        return CUDA_ERROR_INVALID_VALUE;
    if (*ret_size == 0)
        return CUDA_SUCCESS;
    RETURN_IF(range_check(fill->at, *ret_size, true, ret_kind));
    return *ret_kind == RANGE_PAGEABLE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult
fill_submit(const struct fill *fill, bool async, CUstream handle)
{
    enum range_kind kind;
    size_t size;
    uint64_t number;
    HOLD(stream, stream, handle);
    RETURN_IF(fill_check(fill, &size, &kind));
    if (size == 0)
        return CUDA_SUCCESS;
    RETURN_IF(peer_check(stream->context, fill->at, size));
    struct fill_op *fill_op = malloc(sizeof(*fill_op));
    if (!fill_op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op_init(&fill_op->op, fill_run, NULL);
    peer_use(stream->context, fill->at);
    fill_op->fill = *fill;
    fill_op->size = size;
    RETURN_IF(stream_submit(stream, &fill_op->op, &number));
    if (async || !range_kind_has(kind, TRAIT_HOST))
        return CUDA_SUCCESS;
    return stream_finish(stream, number);
}

/* Entry points: for each element size one on the default stream and one on a stream that the caller
 * names. */

#define FILL(bits, type)                                                                      \
    CUresult soft_cuMemsetD##bits##_v2(CUdeviceptr at, type value, size_t n)                  \
    {                                                                                         \
        return fill_submit(&(struct fill){(uintptr_t)at, n, (bits) / 8, value}, false, NULL); \
    }                                                                                         \
    CUresult soft_cuMemsetD##bits##Async(CUdeviceptr at, type value, size_t n, CUstream on)   \
    {                                                                                         \
        return fill_submit(&(struct fill){(uintptr_t)at, n, (bits) / 8, value}, true, on);    \
    }

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
