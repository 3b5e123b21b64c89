/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <stdarg.h>
#include <string.h>

#include "utf8.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

void
json_init(struct json *json, FILE *out)
{
    *json = (struct json){.out = out};
}

static void
write_string(FILE *out, const char *s)
{
    size_t n = strlen(s), good = utf8_prefix(s, n);

    putc('"', out);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (i == good) {
            fputs(REPLACEMENT, out);
            good = i + 1 + utf8_prefix(s + i + 1, n - i - 1);
        } else if (c == '"' || c == '\\') {
            fprintf(out, "\\%c", c);
        } else if (c < 0x20 || c == 0x7f) {
            fprintf(out, "\\u%04x", c);
        } else if (c == 0xc2 && i + 1 < good && (unsigned char)s[i + 1] < 0xa0) {
            fprintf(out, "\\u%04x", (unsigned char)s[++i]); /* a terminal may obey these, too */
        } else {
            putc(c, out);
        }
    }
    putc('"', out);
}

static void
new_line(struct json *json)
{
    if (json->flat)
        return;
    putc('\n', json->out);
    for (unsigned i = 0; i < json->depth; i++)
        fputs("  ", json->out);
}

static void
begin(struct json *json, const char *key)
{
    if (json->filled)
        putc(',', json->out);
    if (json->depth > 0)
        new_line(json);
    json->filled = true;
    if (key) {
        write_string(json->out, key);
        fputs(": ", json->out);
    }
}

void
json_open(struct json *json, const char *key, char bracket)
{
    begin(json, key);
    putc(bracket, json->out);
    json->depth++;
    json->filled = false;
}

void
json_close(struct json *json, char bracket)
{
    json->depth--;
    if (json->filled)
        new_line(json);
    putc(bracket, json->out);
    json->filled = true;
    if (json->depth == 0)
        putc('\n', json->out);
}

void
json_value(struct json *json, const char *key, const char *fmt, ...)
{
    va_list args;

    begin(json, key);
    va_start(args, fmt);
    vfprintf(json->out, fmt, args);
    va_end(args);
}

void
json_str(struct json *json, const char *key, const char *value)
{
    if (!value) {
        json_null(json, key);
        return;
    }
    begin(json, key);
    write_string(json->out, value);
}
