/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON (RFC 8259) to a stream, one value at a call; it adds commas, indentation and escapes.
 * Keys are ASCII. Strings are UTF-8; a byte that is not becomes U+FFFD. The struct may lie on the
 * stack, and needs no destructor. key NULL: an element of a list, or the whole document.
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

/* A value that JSON writes as it is formatted: numbers and words. */
void json_value(struct json *json, const char *key, const char *fmt, ...) PRINTF(3, 4);
#define json_u64(json, key, value)  json_value(json, key, "%" PRIu64, (uint64_t)(value))
#define json_i64(json, key, value)  json_value(json, key, "%" PRId64, (int64_t)(value))
#define json_bool(json, key, value) json_value(json, key, (value) ? "true" : "false")
#define json_null(json, key)        json_value(json, key, "null")
/* 0 to 1, to four decimals. */
#define json_ratio(json, key, value) json_value(json, key, "%.4f", value)
/* To a tenth; below 0: null. */
#define json_rate(json, key, value) json_value(json, key, (value) < 0 ? "null" : "%.1f", value)

void json_str(struct json *json, const char *key, const char *value); /* NULL: null */
