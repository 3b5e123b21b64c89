/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <string.h>

#include "utf8.h"

bool
text_is_utf8(const char *s)
{
    size_t n = strlen(s);
    return utf8_prefix(s, n) == n;
}

void
text_trim(char *s)
{
    size_t n = strlen(s), start = n;

    while (start > 0 && ((unsigned char)s[start - 1] & 0xc0) == 0x80)
        start--; /* over continuation bytes */
    if (start > 0)
        start--;
    s[start + utf8_prefix(s + start, n - start)] = 0;
}

bool
text_is_plain(struct msg_str s)
{
    return s.n == 0 || !memchr(s.p, 0, s.n);
}

void
text_copy(char *ret, size_t size, struct msg_str s)
{
    size_t n = s.n < size ? s.n : size - 1;

    if (n > 0)
        memcpy(ret, s.p, n);
    ret[n] = 0;
    if (n < s.n)
        text_trim(ret);
}

const char *
text_put(char **cursor, struct msg_str s)
{
    char *at = *cursor;

    if (!s.p)
        return NULL;
    memcpy(at, s.p, s.n);
    at[s.n] = 0;
    *cursor += s.n + 1;
    return at;
}
