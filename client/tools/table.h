/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table for people: columns as wide as their widest cell, two spaces between them. Cells are
 * copied, with what could command a terminal written as \xNN. Widths are in columns of the
 * terminal, by the locale.
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
};

/* n_columns: at most TABLE_COLUMNS_MAX. */
void table_init(struct table *table, const struct column *columns, size_t n_columns);
void table_deinit(struct table *table);

/* A table of facts: rows of a name and what it is. */
void table_init_facts(struct table *table);
void table_fact(struct table *table, const char *name, const char *fmt, ...) PRINTF(3, 4);

/* Adds the next cell of the row, then of the next row. Ends the program when out of memory. */
void table_add(struct table *table, const char *fmt, ...) PRINTF(2, 3);

/* With or without the line of heads. */
void table_write(const struct table *table, bool heads, FILE *out);
void table_print(const struct table *table, bool heads);

#define _cleanup_table_ _cleanup_(table_deinit)
