/* SPDX-License-Identifier: Apache-2.0 */
#include "shape.h"

#define ITEMSIZE_MAX UINT32_C(0x7fffffff)
#define UCS4_SIZE    4

uint64_t
shape_itemsize(struct msg_str typestr)
{
    uint64_t size = 0;

    if (typestr.n < 3)
        return 0;
    for (uint32_t i = 2; i < typestr.n && typestr.p[i] >= '0' && typestr.p[i] <= '9'; i++) {
        size = size * 10 + (uint64_t)(typestr.p[i] - '0');
        if (size > ITEMSIZE_MAX)
            return 0;
    }
    return typestr.p[1] == 'U' ? size * UCS4_SIZE : size;
}

bool
shape_c_strides(uint32_t ndim, const int64_t *shape, uint64_t itemsize, int64_t *ret_strides,
                uint64_t *ret_nbytes)
{
    uint64_t step = itemsize;
    bool empty = itemsize == 0;

    for (uint32_t i = ndim; i-- > 0;) {
        if (shape[i] < 0)
            return false;
        ret_strides[i] = (int64_t)step;
        empty |= shape[i] == 0;
        if (__builtin_mul_overflow(step, shape[i] ? (uint64_t)shape[i] : 1, &step) ||
            step > INT64_MAX)
            return false;
    }
    *ret_nbytes = empty ? 0 : step;
    return true;
}

bool
shape_span(uint32_t ndim, const int64_t *shape, const int64_t *strides, uint64_t itemsize,
           uint64_t *ret)
{
    uint64_t span = itemsize, reach;

    for (uint32_t i = 0; i < ndim; i++) {
        if (shape[i] <= 1)
            continue; /* never stepped along */
        if (strides[i] < 0 ||
            __builtin_mul_overflow((uint64_t)shape[i] - 1, (uint64_t)strides[i], &reach) ||
            __builtin_add_overflow(span, reach, &span) || span > INT64_MAX)
            return false;
    }
    *ret = span;
    return true;
}
