/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON (RFC 8259) to a stream as it is told: commas, indentation and escapes are its own.
 * Keys are ASCII; strings are UTF-8, and a byte that is none becomes U+FFFD. Put on the stack,
 * nothing to free. key NULL: an element of a list, or the whole document.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *out;
    unsigned depth;
    bool filled; /* the innermost list or object has an element */
};

void json_init(struct json *json, FILE *out);

void json_object(struct json *json, const char *key);
void json_object_end(struct json *json);
void json_list(struct json *json, const char *key);
void json_list_end(struct json *json);

void json_str(struct json *json, const char *key, const char *value); /* NULL: null */
void json_u64(struct json *json, const char *key, uint64_t value);
void json_i64(struct json *json, const char *key, int64_t value);
/* 0 to 1, to four decimals. */
void json_ratio(struct json *json, const char *key, double value);
void json_bool(struct json *json, const char *key, bool value);
void json_null(struct json *json, const char *key);
