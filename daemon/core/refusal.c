/* SPDX-License-Identifier: Apache-2.0 */
#include "refusal.h"

#include <stdarg.h>
#include <stdio.h>

void
refusal_fill(struct refusal *r, enum proto_error code, const char *fmt, ...)
{
    va_list ap;

    r->code = code;
    r->cuda = 0;
    r->left = 0;
    r->pool[0] = '\0';
    r->limit = 0;
    va_start(ap, fmt);
    vsnprintf(r->text, sizeof(r->text), fmt, ap);
    va_end(ap);
}

const char *
size_text(char buf[static SIZE_TEXT_MAX], uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < ARRAY_SIZE(units)) {
        value /= 1024;
        unit++;
    }
    snprintf(buf, SIZE_TEXT_MAX, "%.*f %s", unit && value < 100 && value != (double)(int)value,
             value, units[unit]);
    return buf;
}
