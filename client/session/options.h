/* SPDX-License-Identifier: Apache-2.0 */
/* What callers hand in and are given: structs of another version of the library, and strings. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "caid/caid.h"

/* Option structs of the API: copies what the caller's version of the struct has and zeroes the
 * rest. options NULL gives zeroes. */
int options_read(void *ret, size_t size, const void *options, struct caid_error *error);
/* Result structs: copies what the caller's version has room for, all but struct_size. */
int result_write(void *ret, const void *result, size_t size, struct caid_error *error);

/* Checks of strings before they go into a packet, of which the daemon takes no other: UTF-8,
 * and name and pool of a length that it could accept. s may be NULL where `needed` is false. */
int check_text(const char *what, const char *s, bool needed, struct caid_error *error);
int check_name(const char *name, struct caid_error *error);
int check_pool(const char *pool, struct caid_error *error);
int check_metadata(const char *metadata, struct caid_error *error);
/* What an array is said to be. */
int check_type(const char *typestr, const char *descr, const char *metadata,
               struct caid_error *error);
int check_shape(uint32_t ndim, const int64_t *shape, struct caid_error *error);

/* A deadline from a timeout of the API: CAID_FOREVER gives UINT64_MAX. */
uint64_t deadline_of(uint64_t timeout_ns);
