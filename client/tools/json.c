/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <inttypes.h>
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
        } else {
            putc(c, out);
        }
    }
    putc('"', out);
}

static void
new_line(struct json *json)
{
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

static void
open_with(struct json *json, const char *key, char bracket)
{
    begin(json, key);
    putc(bracket, json->out);
    json->depth++;
    json->filled = false;
}

static void
close_with(struct json *json, char bracket)
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
json_object(struct json *json, const char *key)
{
    open_with(json, key, '{');
}

void
json_object_end(struct json *json)
{
    close_with(json, '}');
}

void
json_list(struct json *json, const char *key)
{
    open_with(json, key, '[');
}

void
json_list_end(struct json *json)
{
    close_with(json, ']');
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

void
json_u64(struct json *json, const char *key, uint64_t value)
{
    begin(json, key);
    fprintf(json->out, "%" PRIu64, value);
}

void
json_i64(struct json *json, const char *key, int64_t value)
{
    begin(json, key);
    fprintf(json->out, "%" PRId64, value);
}

void
json_ratio(struct json *json, const char *key, double value)
{
    begin(json, key);
    fprintf(json->out, "%.4f", value);
}

void
json_bool(struct json *json, const char *key, bool value)
{
    begin(json, key);
    fputs(value ? "true" : "false", json->out);
}

void
json_null(struct json *json, const char *key)
{
    begin(json, key);
    fputs("null", json->out);
}
