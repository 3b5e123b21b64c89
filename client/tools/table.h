/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table for people: columns as wide as their widest cell, two spaces between them. Cells are
 * copied, with \xNN for bytes that a terminal might obey. Widths are in columns of the terminal, by
 * the locale.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/macros.h"

struct column {
    char head[16];
    bool right; /* numbers */
};

#define TABLE_COLUMNS_MAX 48

struct table {
    struct column columns[TABLE_COLUMNS_MAX];
    size_t n_columns;
    char **cells; /* row by row */
    size_t n_cells, capacity;
    uint64_t *keys; /* of the first rows, or NULL */
    size_t n_keys;
};

/* n_columns: at most TABLE_COLUMNS_MAX. */
void table_init(struct table *table, const struct column *columns, size_t n_columns);
void table_deinit(struct table *table);

/* A table of facts: each row is a name and a value. */
void table_init_facts(struct table *table);
void table_fact(struct table *table, const char *name, const char *fmt, ...) PRINTF(3, 4);

/* Adds the next cell; after the last one of a row, the first of the next. Out of memory ends the
 * program. */
void table_add(struct table *table, const char *fmt, ...) PRINTF(2, 3);

/* Gives the last row a key: rows are written by falling keys, and those with equal ones in their
 * order. All rows have one, or none has. */
void table_key(struct table *table, uint64_t key);

/* With or without the line of heads. */
void table_write(const struct table *table, bool heads, FILE *out);
void table_print(const struct table *table, bool heads);

#define _cleanup_table_ _cleanup_(table_deinit)
