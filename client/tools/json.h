/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON (RFC 8259) to a stream as it is told: commas, indentation and escapes are its own.
 * Keys are ASCII; strings are UTF-8, and a byte that is none becomes U+FFFD. Put on the stack,
 * nothing to free. key NULL: an element of a list, or the whole document.
 */
#pragma once

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/macros.h"

struct json {
    FILE *out;
    unsigned depth;
    bool filled; /* the innermost list or object has an element */
    bool flat;   /* a document is one line */
};

void json_init(struct json *json, FILE *out);

/* An object or a list, by its brackets. */
void json_open(struct json *json, const char *key, char bracket);
void json_close(struct json *json, char bracket);
#define json_object(json, key) json_open(json, key, '{')
#define json_object_end(json)  json_close(json, '}')
#define json_list(json, key)   json_open(json, key, '[')
#define json_list_end(json)    json_close(json, ']')

/* What JSON writes as it is printed. */
void json_value(struct json *json, const char *key, const char *fmt, ...) PRINTF(3, 4);
#define json_u64(json, key, value)  json_value(json, key, "%" PRIu64, (uint64_t)(value))
#define json_i64(json, key, value)  json_value(json, key, "%" PRId64, (int64_t)(value))
#define json_bool(json, key, value) json_value(json, key, (value) ? "true" : "false")
#define json_null(json, key)        json_value(json, key, "null")
/* 0 to 1, to four decimals. */
#define json_ratio(json, key, value) json_value(json, key, "%.4f", value)

void json_str(struct json *json, const char *key, const char *value); /* NULL: null */
