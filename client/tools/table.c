/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

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
width(const char *s)
{
    mbstate_t state = {0};
    size_t n = strlen(s), columns = 0;
    wchar_t c;

    while (n > 0) {
        size_t used = mbrtowc(&c, s, n, &state);
        if (used == 0 || used > n)
            return columns + n; /* not in this locale's encoding: a byte, a column */
        int w = wcwidth(c);
        columns += w > 0 ? (size_t)w : 0;
        s += used;
        n -= used;
    }
    return columns;
}

static size_t
column_width(const struct table *table, size_t column, bool heads)
{
    size_t widest = heads ? width(table->columns[column].head) : 0;

    for (size_t i = column; i < table->n_cells; i += table->n_columns) {
        size_t w = width(table->cells[i]);
        if (w > widest)
            widest = w;
    }
    return widest;
}

static void
pad(size_t n)
{
    while (n-- > 0)
        putchar(' ');
}

/* The last column is not padded: no line ends in spaces. */
static void
print_cell(const struct table *table, size_t column, const char *text, size_t column_width_)
{
    size_t blank = column_width_ - width(text);
    bool right = table->columns[column].right, last = column + 1 == table->n_columns;

    if (right)
        pad(blank);
    fputs(text, stdout);
    if (!right && !last)
        pad(blank);
    fputs(last ? "\n" : "  ", stdout);
}

void
table_print(const struct table *table, bool heads)
{
    size_t n = table->n_columns;
    _cleanup_free_ size_t *widths = calloc(n, sizeof(*widths));

    if (!widths)
        out_of_memory();
    for (size_t c = 0; c < n; c++)
        widths[c] = column_width(table, c, heads);
    for (size_t c = 0; heads && c < n; c++)
        print_cell(table, c, table->columns[c].head, widths[c]);
    for (size_t i = 0; i < table->n_cells; i++)
        print_cell(table, i % n, table->cells[i], widths[i % n]);
}
