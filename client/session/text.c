/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

/* Gives this thread the C locale. Returns the one before, for uselocale(). The C library has the C
 * locale ready, so nothing has to be freed. */
static locale_t
use_c_locale(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

void
text_format(char *ret, size_t size, const char *fmt, va_list args)
{
    locale_t before = use_c_locale();

    if (vsnprintf(ret, size, fmt, args) < 0)
        ret[0] = 0;
    uselocale(before);
    text_trim(ret);
}

double
text_number(const char *text, char **ret_end)
{
    locale_t before = use_c_locale();
    double number = strtod(text, ret_end);

    uselocale(before);
    return number;
}

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
