/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints structs of the library. One list of fields serves JSON objects and rows of tables. A list
 * of fields ends with UNIT_END.
 */
#pragma once

#include <stddef.h>

#include "session/answer.h"

#include "ctl.h"
#include "table.h"

/* Units of fields that are in no answer. */
enum own_unit {
    UNIT_CELL = N_UNITS, /* const char *, in tables alone */
    UNIT_RATIO,          /* double, in tables in per cent */
    UNIT_RATE,           /* double, a second; below 0: not known, null in JSON */
};

struct field {
    unsigned unit; /* enum unit, enum own_unit */
    size_t at;
    const char *key;  /* NULL: not in JSON */
    const char *head; /* a word; NULL, "": not in tables */
    const struct answer *of;
};

/* FIELD(unit, struct, member, key, head) */
#define FIELD(unit_, of, member, ...)                                        \
    {                                                                        \
        .unit = UNIT_##unit_, .at = offsetof(struct of, member), __VA_ARGS__ \
    }

/*
 * All fields of an answer, and `more` fields (or NULL) of a struct that begins with it. The words
 * of `headings` say which fields are in tables, in this order: "key", "key=HEAD", and "*" for all
 * that no word names, which come last. "key=": the field is in no table.
 */
struct fields {
    struct field v[TABLE_COLUMNS_MAX + 1];
};
struct fields record_fields(const struct answer *answer, const struct field *more,
                            const char *headings);

void record_columns(const struct field *fields, struct table *ret);
void record_row(const struct ctl *ctl, const struct field *fields, const void *from,
                struct table *table);

/* Writes the members of the open object. The members of a record in it are written among them. */
void record_answer(struct json *out, const struct answer *answer, const void *from);
void record_members(struct json *out, const struct field *fields, const void *from);

/* A list that is written to JSON or to a table. It is the userdata of its callbacks. */
struct listing {
    struct ctl *ctl;
    const struct field *fields; /* NULL: the table has been set up */
    struct table *table;
};

/* Sets up the table and opens the list. */
void listing_begin(const struct listing *listing, const char *key);
/* An element of the list, or a row: a callback. */
int listing_add(const void *from, void *listing);
/* Closes the list, unless the call for it has failed (r < 0). Returns the exit status. */
int listing_end(const struct listing *listing, int r, const char *what);
