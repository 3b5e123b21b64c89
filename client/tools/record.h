/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs of the library's as they are printed: the fields, once, for an object of JSON and for a
 * row of a table. A list of fields ends with one of kind FIELD_END.
 */
#pragma once

#include <stddef.h>

#include "ctl.h"
#include "table.h"

enum field_kind {
    FIELD_END,
    FIELD_STR,   /* const char *; NULL: null, "-" */
    FIELD_NAMED, /* the same; "" is as NULL */
    FIELD_CHARS, /* an array of char; "" is as NULL */
    FIELD_USER,  /* uint32_t, in tables a name */
    FIELD_GROUP,
    FIELD_MODE, /* uint32_t, in tables "rw-r-----" */
    FIELD_BOOL, /* in tables "yes" or "no" */
    FIELD_U64,  /* this and the rest: to the right in tables */
    FIELD_BYTES,
    FIELD_QUOTA, /* bytes; 0: "-" in tables */
    FIELD_NS,    /* in tables seconds */
    FIELD_INDEX, /* int32_t; negative: null in JSON */
    FIELD_RATIO, /* double, in tables in per cent */
};

struct field {
    enum field_kind kind;
    size_t at;
    const char *key;  /* NULL: not in JSON */
    const char *head; /* NULL: not in tables */
    unsigned forms;   /* bits of the forms of the table that have it; 0: all */
};

/* FIELD(kind, struct, member, key, head, forms) */
#define FIELD(kind_, of, member, ...)                                         \
    {                                                                         \
        .kind = FIELD_##kind_, .at = offsetof(struct of, member), __VA_ARGS__ \
    }

/* One form of the table. */
void record_columns(const struct field *fields, unsigned form, struct table *ret);
void record_row(const struct ctl *ctl, const struct field *fields, unsigned form,
                const void *from, struct table *table);

/* Members of the object that is open. */
void record_members(struct json *out, const struct field *fields, const void *from);

/* A list of the library's on its way to JSON or to a table. Its callbacks get it as userdata. */
struct listing {
    struct ctl *ctl;
    const struct field *fields; /* NULL: the table has been set up */
    unsigned form;
    struct table *table;
};

/* Sets up the table and opens the list. */
void listing_begin(const struct listing *listing, const char *key);
/* An element of the list, or a row. Returns 0, as callbacks do. */
int listing_add(const struct listing *listing, const void *from);
/* NAME_row(), which is that for a callback that gives struct caid_NAME. */
#define LISTING_ROW(name)                                                \
    static int name##_row(const struct caid_##name *from, void *listing) \
    {                                                                    \
        return listing_add(listing, from);                               \
    }
/* Closes the list, unless the call for it has failed (r < 0). Returns the exit status. */
int listing_end(const struct listing *listing, int r, const char *what);
