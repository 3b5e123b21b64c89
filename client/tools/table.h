/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table for people: columns as wide as their widest cell, two spaces between them. Cells are
 * copied, with what could command a terminal written as \xNN. Widths are in columns of the
 * terminal, by the locale.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"

struct column {
    const char *head;
    bool right; /* numbers */
};

struct table {
    const struct column *columns;
    size_t n_columns;
    char **cells; /* row by row */
    size_t n_cells, capacity;
};

/* columns must outlive the table. */
void table_init(struct table *table, const struct column *columns, size_t n_columns);
void table_deinit(struct table *table);

/* Adds the next cell of the row, then of the next row. Ends the program when out of memory. */
void table_add(struct table *table, const char *fmt, ...) PRINTF(2, 3);

/* With or without the line of heads. */
void table_print(const struct table *table, bool heads);

#define _cleanup_table_ _cleanup_(table_deinit)
