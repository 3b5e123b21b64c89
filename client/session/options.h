/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments and results of the API: structs, also those of other versions of the library, and
 * strings. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "caid/caid.h"

/* For option structs: copies the fields of the caller's version of the struct, and zeroes the rest.
 * options NULL: all zero. */
int options_read(void *ret, size_t size, const void *options, struct caid_error *error);
/* For result structs: copies the fields of the caller's version, all but struct_size. */
int result_write(void *ret, const void *result, size_t size, struct caid_error *error);

/* Checks of strings before they go into a packet: UTF-8, and a length of name or pool that the
 * daemon accepts. The daemon refuses packets with others. s may be NULL if `needed` is false. */
int check_text(const char *what, const char *s, bool needed, struct caid_error *error);
int check_name(const char *name, struct caid_error *error);
int check_pool(const char *pool, struct caid_error *error);
int check_metadata(const char *metadata, struct caid_error *error);
/* The description of an array. */
int check_type(const char *typestr, const char *descr, const char *metadata,
               struct caid_error *error);
int check_shape(uint32_t ndim, const int64_t *shape, struct caid_error *error);

/* The deadline for a timeout of the API; UINT64_MAX for CAID_FOREVER. */
uint64_t deadline_of(uint64_t timeout_ns);
