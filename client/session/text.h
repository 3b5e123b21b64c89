/* SPDX-License-Identifier: Apache-2.0 */
/* Strings on their way between C and packets, which hold UTF-8 without a terminator. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "msg.h"

bool text_is_utf8(const char *s);

/* Takes a character that was cut in two off the end of s. */
void text_trim(char *s);

/* Whether s can become a C string: no NUL in it. */
bool text_is_plain(struct msg_str s);

/* Copies s, cut at a character's end to fit. */
void text_copy(char *ret, size_t size, struct msg_str s);

/* Writes s and its terminator to *cursor, which moves on; NULL for an absent s. */
const char *text_put(char **cursor, struct msg_str s);
