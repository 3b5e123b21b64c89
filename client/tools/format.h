/* SPDX-License-Identifier: Apache-2.0 */
/* Values in a form for people. A returned string is a new one, which the caller frees. Out of
 * memory ends the program. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"

/* Prints "out of memory", and exits with 1. */
_Noreturn void out_of_memory(void);

/* As printf(3). */
char *format_text(const char *fmt, ...) PRINTF(1, 2);
char *format_args(const char *fmt, va_list args) PRINTF(1, 0);

/* s with \xNN for bytes that are not UTF-8 and for control characters: C0, DEL, C1, those that end
 * lines or change the direction of text. If there are any, \ becomes \\. */
char *format_plain(const char *s);

/* The columns that s takes in a terminal, by the locale; s cut to columns, with an ellipsis. */
size_t format_width(const char *s);
char *format_cut(const char *s, size_t columns);

/* "1.5 GiB"; exact: the number of bytes. */
char *format_bytes(uint64_t bytes, bool exact);

/* "3d 04h", "2h 05m", "7m 09s", "12s" */
char *format_duration(uint64_t ns);

/* "1024x768", "scalar" */
char *format_shape(const int64_t *shape, uint32_t ndim);

/* "(3072, 4)" */
char *format_strides(const int64_t *strides, uint32_t ndim);

/* The name of a user or group, or its number where it has none. */
char *format_user(uint32_t uid);
char *format_group(uint32_t gid);

/* "rw-r-----" */
void format_mode(uint32_t mode, char ret[10]);
