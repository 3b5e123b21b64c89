/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape, strides and element type of an array: what they say about bytes, with every product
 * checked. Typestrings are those of NumPy's array interface protocol, version 3.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "msg.h"
#include "proto_limits.h"

struct geometry {
    uint32_t ndim;
    const int64_t *shape;
    const int64_t *strides; /* bytes, none negative; NULL: C order */
    uint64_t itemsize;
    uint64_t nbytes; /* elements times itemsize */
    uint64_t span;   /* bytes from the first element's start to the last one's end */
};

/* Bytes of one element of a typestr, or 0 where it is none that an array can have. */
uint64_t typestr_itemsize(struct msg_str typestr);

#define GEOMETRY_WHY_MAX 128

/* ret borrows shape and strides. strides.v NULL: C order; strides that are C order anyway are
 * dropped. On -EINVAL ret_why says what is wrong with what. */
int geometry_init(struct geometry *ret, struct msg_str typestr, struct msg_i64s shape,
                  struct msg_i64s strides, char ret_why[static GEOMETRY_WHY_MAX]);
