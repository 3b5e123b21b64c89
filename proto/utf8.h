/* SPDX-License-Identifier: Apache-2.0 */
/* Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
#pragma once

#include <stddef.h>

/* The bytes of the longest well-formed prefix, which ends with a whole character; n: all of it. */
size_t utf8_prefix(const void *text, size_t n);

/* Bytes before the first control character (U+0000 to U+001F, U+007F to U+009F) of text that is
 * well-formed; n: it has none. */
size_t utf8_before_control(const void *text, size_t n);
