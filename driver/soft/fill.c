/* SPDX-License-Identifier: Apache-2.0 */
/* Fills: cuMemset in all its forms. */
#include "copy.h"

#include <string.h>

#include "peer.h"
#include "stream.h"

struct fill_op {
    struct op op;
    struct fill fill;
    size_t extent; /* bytes from the first to the last */
};

static void
fill_row(unsigned char *row, const struct fill *fill)
{
    uint16_t value16 = (uint16_t)fill->value;
    if (fill->element == 1)
        memset(row, (int)fill->value, fill->width);
    else if (fill->element == 2)
        for (size_t i = 0; i < fill->width; i++)
            memcpy(row + 2 * i, &value16, 2);
    else
        for (size_t i = 0; i < fill->width; i++)
            memcpy(row + 4 * i, &fill->value, 4);
}

static CUresult
fill_run(struct op *op, CUresult status)
{
    struct fill_op *fill_op = container_of(op, struct fill_op, op);
    const struct fill *fill = &fill_op->fill;
    if (status != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (range_enter(fill->at, fill_op->extent, true) != CUDA_SUCCESS)
        return CUDA_ERROR_LAUNCH_FAILED;
    for (size_t row = 0; row < fill->height; row++)
        fill_row((unsigned char *)fill->at + row * fill->pitch, fill);
    range_leave(fill->at, fill_op->extent);
    return CUDA_SUCCESS;
}

static void
fill_free(struct op *op)
{
    free(container_of(op, struct fill_op, op));
}

/* Checks everything but the stream; a fill of nothing has an extent of 0. */
static CUresult
fill_check(const struct fill *fill, size_t *ret_extent, enum range_kind *ret_kind)
{
    size_t row, rows, extent;
    if (fill->at % fill->element != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *ret_extent = 0;
    if (fill->width == 0 || fill->height == 0)
        return CUDA_SUCCESS;
    if (__builtin_mul_overflow(fill->width, fill->element, &row) ||
        __builtin_mul_overflow(fill->height - 1, fill->pitch, &rows) ||
        __builtin_add_overflow(rows, row, &extent))
        return CUDA_ERROR_INVALID_VALUE;
    if (fill->height > 1 && (fill->pitch < row || fill->pitch % fill->element != 0))
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(range_check(fill->at, extent, true, ret_kind));
    if (*ret_kind == RANGE_PAGEABLE)
        return CUDA_ERROR_INVALID_VALUE;
    *ret_extent = extent;
    return CUDA_SUCCESS;
}

CUresult
fill_rect(const struct fill *fill, bool async, CUstream handle)
{
    _cleanup_(stream_unrefp) struct stream *stream = NULL;
    enum range_kind kind;
    size_t extent;
    uint64_t number;
    RETURN_IF(stream_get(handle, &stream));
    RETURN_IF(fill_check(fill, &extent, &kind));
    if (extent == 0)
        return CUDA_SUCCESS;
    RETURN_IF(peer_check(stream->context, fill->at, extent));
    struct fill_op *fill_op = malloc(sizeof(*fill_op));
    if (!fill_op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op_init(&fill_op->op, fill_run, fill_free);
    peer_use(stream->context, fill->at);
    fill_op->fill = *fill;
    fill_op->extent = extent;
    RETURN_IF(stream_submit(stream, &fill_op->op, &number));
    if (async || !range_kind_has(kind, TRAIT_HOST))
        return CUDA_SUCCESS;
    return stream_finish(stream, number);
}

/* Entry points: for each element size a plain and a 2D form, each on the default stream and on
 * one that the caller names. */

#define FORM(symbol, params, bits, pitch, width, height, async, stream)                        \
    CUresult soft_##symbol params                                                              \
    {                                                                                          \
        return fill_rect(&(struct fill){(uintptr_t)at, (pitch), (width), (height), (bits) / 8, \
                                        value},                                                \
                         (async), (stream));                                                   \
    }

/* clang-format off */
#define ROW(type)        (CUdeviceptr at, type value, size_t n)
#define ROW_ASYNC(type)  (CUdeviceptr at, type value, size_t n, CUstream on)
#define RECT(type)       (CUdeviceptr at, size_t pitch, type value, size_t w, size_t h)
#define RECT_ASYNC(type) (CUdeviceptr at, size_t pitch, type value, size_t w, size_t h, CUstream on)

#define FORMS(bits, type)                                                           \
    FORM(cuMemsetD##bits##_v2, ROW(type), bits, 0, n, 1, false, NULL)               \
    FORM(cuMemsetD##bits##Async, ROW_ASYNC(type), bits, 0, n, 1, true, on)          \
    FORM(cuMemsetD2D##bits##_v2, RECT(type), bits, pitch, w, h, false, NULL)        \
    FORM(cuMemsetD2D##bits##Async, RECT_ASYNC(type), bits, pitch, w, h, true, on)

FORMS(8, unsigned char)
FORMS(16, unsigned short)
FORMS(32, unsigned int)
/* clang-format on */
