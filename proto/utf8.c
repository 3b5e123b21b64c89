/* SPDX-License-Identifier: Apache-2.0 */
#include "utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The length of the character that starts with byte; 0: none does. */
static size_t
sequence_length(uint8_t byte)
{
    if (byte < 0x80)
        return 1;
    if (byte < 0xc2) /* continuation bytes, and the overlong two-byte forms */
        return 0;
    if (byte < 0xe0)
        return 2;
    if (byte < 0xf0)
        return 3;
    return byte < 0xf5 ? 4 : 0;
}

/* The second byte alone decides on overlong forms, surrogates and the end of Unicode. */
static bool
second_byte_fits(uint8_t first, uint8_t second)
{
    switch (first) {
    case 0xe0: return second >= 0xa0 && second <= 0xbf;
    case 0xed: return second >= 0x80 && second <= 0x9f;
    case 0xf0: return second >= 0x90 && second <= 0xbf;
    case 0xf4: return second >= 0x80 && second <= 0x8f;
    default: return second >= 0x80 && second <= 0xbf;
    }
}

/* Length of the well-formed character at s, or 0. */
static size_t
character_length(const uint8_t *s, size_t n)
{
    size_t length = sequence_length(s[0]);
    if (length > n)
        return 0;
    if (length > 1 && !second_byte_fits(s[0], s[1]))
        return 0;
    for (size_t i = 2; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    return length;
}

static bool
eight_are_ascii(const uint8_t *s)
{
    uint64_t word;
    memcpy(&word, s, sizeof(word));
    return (word & UINT64_C(0x8080808080808080)) == 0;
}

size_t
utf8_prefix(const void *text, size_t n)
{
    const uint8_t *s = text;
    size_t at = 0;

    while (at < n) {
        if (n - at >= 8 && eight_are_ascii(s + at)) {
            at += 8;
            continue;
        }
        size_t length = character_length(s + at, n - at);
        if (length == 0)
            break;
        at += length;
    }
    return at;
}

size_t
utf8_before_control(const void *text, size_t n)
{
    const uint8_t *s = text;

    for (size_t i = 0; i < n; i++) {
        bool c1 = s[i] == 0xc2 && i + 1 < n && s[i + 1] < 0xa0;
        if (s[i] < 0x20 || s[i] == 0x7f || c1)
            return i;
    }
    return n;
}
