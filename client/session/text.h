/* SPDX-License-Identifier: Apache-2.0 */
/* Strings between C and packets; those in packets are UTF-8 without a terminator. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"
#include "msg.h"

bool text_is_utf8(const char *s);

/* As vsnprintf(3) and strtod(3) in the C locale: the program's locale, which Qt and GTK set without
 * being asked, may have a decimal comma. A text that does not fit is cut at a character's end. */
void text_format(char *ret, size_t size, const char *fmt, va_list args) PRINTF(3, 0);
double text_number(const char *text, char **ret_end);

/* Removes a character that was cut in two from the end of s. */
void text_trim(char *s);

/* Whether s can become a C string: no NUL in it. */
bool text_is_plain(struct msg_str s);

/* Copies s, cut at a character's end to fit. */
void text_copy(char *ret, size_t size, struct msg_str s);

/* Writes s and its terminator to *cursor, and moves that. Returns the copy; NULL if s is absent. */
const char *text_put(char **cursor, struct msg_str s);
