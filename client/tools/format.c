/* SPDX-License-Identifier: Apache-2.0 */
#include "format.h"

#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "base/clock.h"
#include "base/macros.h"
#include "utf8.h"

void
out_of_memory(void)
{
    fputs("caidctl: out of memory\n", stderr);
    exit(1);
}

char *
format_args(const char *fmt, va_list args)
{
    char *text;

    if (vasprintf(&text, fmt, args) < 0)
        out_of_memory();
    return text;
}

char *
format_text(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    char *text = format_args(fmt, args);
    va_end(args);
    return text;
}

/* Characters that change the direction of text, end a line, or are no characters. */
#define DISRUPTIVE                                                       \
    "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066" \
    "\u2067\u2068\u2069\ufffe\uffff"

/* The bytes of the character at s, if it may be written to a terminal; else 0. U+0080 to U+009F are
 * control characters, too. */
static size_t
printable(const char *s, size_t n)
{
    unsigned char first = (unsigned char)s[0];

    if (first < 0x20 || first == 0x7f)
        return 0;
    if (first < 0x80)
        return 1;
    for (size_t len = 2; len <= 4 && len <= n; len++)
        if (utf8_prefix(s, len) == len) {
            bool is_c1 = first == 0xc2 && (unsigned char)s[1] < 0xa0;
            return is_c1 || memmem(DISRUPTIVE, sizeof(DISRUPTIVE), s, len) ? 0 : len;
        }
    return 0;
}

static bool
is_plain(const char *s)
{
    size_t n = strlen(s), at = 0, len;

    while (at < n && (len = printable(s + at, n - at)) > 0)
        at += len;
    return at == n;
}

char *
format_plain(const char *s)
{
    if (is_plain(s))
        return format_text("%s", s);

    size_t n = strlen(s), len;
    char *text = malloc(4 * n + 1), *end = text;
    if (!text)
        out_of_memory();
    for (size_t at = 0; at < n; at += len ? len : 1) {
        len = printable(s + at, n - at);
        if (len == 0)
            end += sprintf(end, "\\x%02x", (unsigned char)s[at]);
        else if (s[at] == '\\')
            end = stpcpy(end, "\\\\");
        else
            end = mempcpy(end, s + at, len);
    }
    *end = 0;
    return text;
}

/* The bytes of s that fit into so many columns; *ret_width: the columns that they take. */
static size_t
fit(const char *s, size_t columns, size_t *ret_width)
{
    size_t n = strlen(s), at = 0, used;
    mbstate_t state = {0};
    wchar_t c;

    for (*ret_width = 0; at < n; at += used) {
        used = mbrtowc(&c, s + at, n - at, &state);
        if (used == 0 ||
            used > n - at) /* not in this locale's encoding: one byte, one column */
            used = 1, c = L'?', state = (mbstate_t){0};
        size_t w = wcwidth(c) > 0 ? (size_t)wcwidth(c) : 0;
        if (w > columns - *ret_width)
            break;
        *ret_width += w;
    }
    return at;
}

size_t
format_width(const char *s)
{
    size_t width;

    fit(s, SIZE_MAX, &width);
    return width;
}

char *
format_cut(const char *s, size_t columns)
{
    size_t width, n = fit(s, columns, &width);

    if (!s[n])
        return format_text("%s", s);
    n = columns ? fit(s, columns - 1, &width) : 0;
    return format_text("%.*s%s", (int)n, s, columns ? "…" : "");
}

char *
format_bytes(uint64_t bytes, bool exact)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;

    if (exact)
        return format_text("%" PRIu64, bytes);
    if (bytes < 1024)
        return format_text("%" PRIu64 " B", bytes);
    /* Goes on as long as it would be printed as 1024.0 of a unit. */
    for (value /= 1024; value >= 1023.95 && unit + 1 < ARRAY_SIZE(units); unit++)
        value /= 1024;
    return format_text("%.1f %s", value, units[unit]);
}

char *
format_duration(uint64_t ns)
{
    uint64_t s = ns / NSEC_PER_SEC, m = s / 60, h = m / 60, d = h / 24;

    if (d > 0)
        return format_text("%" PRIu64 "d %02" PRIu64 "h", d, h % 24);
    if (h > 0)
        return format_text("%" PRIu64 "h %02" PRIu64 "m", h, m % 60);
    if (m > 0)
        return format_text("%" PRIu64 "m %02" PRIu64 "s", m, s % 60);
    return format_text("%" PRIu64 "s", s);
}

static char *
join(const int64_t *values, uint32_t n, const char *between, const char *before,
     const char *after)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        out_of_memory();
    fputs(before, out);
    for (uint32_t i = 0; i < n; i++)
        fprintf(out, "%s%" PRId64, i > 0 ? between : "", values[i]);
    fputs(after, out);
    if (fclose(out) != 0)
        out_of_memory();
    return text;
}

char *
format_shape(const int64_t *shape, uint32_t ndim)
{
    return ndim > 0 ? join(shape, ndim, "x", "", "") : format_text("scalar");
}

char *
format_strides(const int64_t *strides, uint32_t ndim)
{
    return join(strides, ndim, ", ", "(", ndim == 1 ? ",)" : ")");
}

char *
format_user(uint32_t uid)
{
    const struct passwd *user = getpwuid(uid);
    return user ? format_text("%s", user->pw_name) : format_text("%" PRIu32, uid);
}

char *
format_group(uint32_t gid)
{
    const struct group *group = getgrgid(gid);
    return group ? format_text("%s", group->gr_name) : format_text("%" PRIu32, gid);
}

void
format_mode(uint32_t mode, char ret[10])
{
    static const char all[] = "rwxrwxrwx";

    for (unsigned i = 0; i < 9; i++)
        ret[i] = mode >> (8 - i) & 1 ? all[i] : '-';
    ret[9] = 0;
}
