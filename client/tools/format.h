/* SPDX-License-Identifier: Apache-2.0 */
/* Values as people read them. Functions that return a string return a new one, to be freed; out
 * of memory ends the program. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"

/* Says so and exits 1. */
_Noreturn void out_of_memory(void);

/* As printf(3). */
char *format_text(const char *fmt, ...) PRINTF(1, 2);
char *format_args(const char *fmt, va_list args) PRINTF(1, 0);

/* s with control characters (C0, DEL, C1, those of lines and of the direction of text) and what is
 * not UTF-8 as \xNN, and \ as \\ where any of them is. */
char *format_plain(const char *s);

/* Columns of a terminal that it takes, by the locale; and s cut to so many, with an ellipsis. */
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
