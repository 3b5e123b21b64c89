/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape, strides and element type of an array, and the bytes that follow from them; every product
 * is checked for overflow. Typestrings are those of NumPy's array interface protocol, version 3. By
 * this the daemon checks the requests of its clients, and libcaid the replies of the daemon.
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
    uint64_t alignment; /* of each element's address */
    uint64_t nbytes;    /* elements times itemsize */
    uint64_t span;      /* bytes from the first element's start to the last one's end */
};

/* The bytes of one element of a typestr; 0: an array cannot have that typestr. */
uint64_t typestr_itemsize(struct msg_str typestr);

#define GEOMETRY_WHY_MAX 128

/* The steps of C order, and the number of elements times itemsize. An empty array has the steps
 * that follow from its other extents, as in NumPy. Errors as in geometry_init(): an extent is
 * negative, or there are 2^63 bytes or more. */
int geometry_c_order(uint32_t ndim, const int64_t *shape, uint64_t itemsize,
                     int64_t *ret_strides, uint64_t *ret_nbytes,
                     char ret_why[static GEOMETRY_WHY_MAX]);

/* ret borrows shape and strides. strides.v NULL: C order; strides that are C order anyway are
 * dropped. -EINVAL: ret_why names the mistake. */
int geometry_init(struct geometry *ret, struct msg_str typestr, struct msg_i64s shape,
                  struct msg_i64s strides, char ret_why[static GEOMETRY_WHY_MAX]);

/* The strides in bytes, ndim of them, also where they are C order. */
void geometry_strides(const struct geometry *geometry, int64_t *ret);
