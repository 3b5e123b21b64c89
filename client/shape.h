/* SPDX-License-Identifier: Apache-2.0 */
/* What shape, strides and element type say about bytes. Every product is checked. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "msg.h"

/* Bytes of one element of a typestr of NumPy's array interface, or 0. */
uint64_t shape_itemsize(struct msg_str typestr);

/* C-order strides, and elements times itemsize. Zero extents count as one in the strides, as in
 * NumPy. False when an extent is negative or there are 2^63 bytes or more. */
bool shape_c_strides(uint32_t ndim, const int64_t *shape, uint64_t itemsize,
                     int64_t *ret_strides, uint64_t *ret_nbytes);

/* Bytes from the first element's start to the last one's end, of an array that is not empty.
 * False when a stride is negative or there are 2^63 bytes or more. */
bool shape_span(uint32_t ndim, const int64_t *shape, const int64_t *strides, uint64_t itemsize,
                uint64_t *ret);
