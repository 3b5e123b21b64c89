/* SPDX-License-Identifier: Apache-2.0 */
/* Strings on their way between C and packets, which hold UTF-8 without a terminator. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"
#include "msg.h"

bool text_is_utf8(const char *s);

/* As vsnprintf(3) and strtod(3) in the C locale: a program's own, which Qt and GTK set by
 * themselves, may have a decimal comma. Text that does not fit is cut at a character's end. */
void text_format(char *ret, size_t size, const char *fmt, va_list args) PRINTF(3, 0);
double text_number(const char *text, char **ret_end);

/* Takes a character that was cut in two off the end of s. */
void text_trim(char *s);

/* Whether s can become a C string: no NUL in it. */
bool text_is_plain(struct msg_str s);

/* Copies s, cut at a character's end to fit. */
void text_copy(char *ret, size_t size, struct msg_str s);

/* Writes s and its terminator to *cursor, which moves on; NULL for an absent s. */
const char *text_put(char **cursor, struct msg_str s);
