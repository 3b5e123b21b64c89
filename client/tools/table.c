/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format.h"

void
table_init(struct table *table, const struct column *columns, size_t n_columns)
{
    *table = (struct table){.n_columns = n_columns};
    memcpy(table->columns, columns, n_columns * sizeof(*columns));
}

void
table_deinit(struct table *table)
{
    for (size_t i = 0; i < table->n_cells; i++)
        free(table->cells[i]);
    free(table->cells);
    free(table->keys);
}

static void
add_text(struct table *table, const char *text)
{
    if (table->n_cells == table->capacity) {
        table->capacity = table->capacity ? 2 * table->capacity : 32;
        table->cells = reallocarray(table->cells, table->capacity, sizeof(table->cells[0]));
        if (!table->cells)
            out_of_memory();
    }
    table->cells[table->n_cells++] = format_plain(text);
}

static void PRINTF(2, 0) add(struct table *table, const char *fmt, va_list args)
{
    _cleanup_free_ char *text = format_args(fmt, args);
    add_text(table, text);
}

void
table_add(struct table *table, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    add(table, fmt, args);
    va_end(args);
}

void
table_init_facts(struct table *table)
{
    static const struct column columns[] = {{"", false}, {"", false}};

    table_init(table, columns, ARRAY_SIZE(columns));
}

void
table_fact(struct table *table, const char *name, const char *fmt, ...)
{
    va_list args;

    add_text(table, name);
    va_start(args, fmt);
    add(table, fmt, args);
    va_end(args);
}

static size_t
column_width(const struct table *table, size_t column, bool heads)
{
    size_t widest = heads ? format_width(table->columns[column].head) : 0;

    for (size_t i = column; i < table->n_cells; i += table->n_columns) {
        size_t w = format_width(table->cells[i]);
        if (w > widest)
            widest = w;
    }
    return widest;
}

/* The last column is not padded: no line ends in spaces. */
static void
write_cell(const struct table *table, size_t column, const char *text, size_t column_width_,
           FILE *out)
{
    int blank = (int)(column_width_ - format_width(text));
    bool right = table->columns[column].right, last = column + 1 == table->n_columns;

    fprintf(out, "%*s%s%*s%s", right ? blank : 0, "", text, right || last ? 0 : blank, "",
            last ? "\n" : "  ");
}

void
table_key(struct table *table, uint64_t key)
{
    table->keys = reallocarray(table->keys, table->n_keys + 1, sizeof(table->keys[0]));
    if (!table->keys)
        out_of_memory();
    table->keys[table->n_keys++] = key;
}

static int
by_key(const void *a, const void *b, void *keys_)
{
    const uint64_t *keys = keys_;
    size_t x = *(const size_t *)a, y = *(const size_t *)b;

    return keys[x] != keys[y] ? (keys[x] < keys[y] ? 1 : -1) : (x > y) - (x < y);
}

/* The numbers of the rows in the order in which they are written. */
static size_t *
rows_in_order(const struct table *table)
{
    size_t n = table->n_cells / table->n_columns, *rows = calloc(n + 1, sizeof(*rows));

    if (!rows)
        out_of_memory();
    for (size_t i = 0; i < n; i++)
        rows[i] = i;
    if (n > 0 && table->n_keys == n)
        qsort_r(rows, n, sizeof(*rows), by_key, table->keys);
    return rows;
}

void
table_write(const struct table *table, bool heads, FILE *out)
{
    size_t n = table->n_columns;
    _cleanup_free_ size_t *widths = calloc(n, sizeof(*widths));
    _cleanup_free_ size_t *rows = rows_in_order(table);

    if (!widths)
        out_of_memory();
    for (size_t c = 0; c < n; c++)
        widths[c] = column_width(table, c, heads);
    for (size_t c = 0; heads && c < n; c++)
        write_cell(table, c, table->columns[c].head, widths[c], out);
    for (size_t i = 0; i < table->n_cells; i++)
        write_cell(table, i % n, table->cells[rows[i / n] * n + i % n], widths[i % n], out);
}

void
table_print(const struct table *table, bool heads)
{
    table_write(table, heads, stdout);
}
