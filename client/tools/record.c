/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "format.h"

static struct field *
find_field(struct fields *fields, const char *key, size_t n)
{
    for (struct field *f = fields->v; f->unit != UNIT_END; f++)
        if (f->key && strlen(f->key) == n && memcmp(f->key, key, n) == 0)
            return f;
    return NULL;
}

static struct field
field_of(const struct answer_field *f)
{
    return (struct field){.unit = f->unit, .at = f->at, .key = f->name, .of = f->of};
}

static struct fields
join_fields(const struct answer *answer, const struct field *more)
{
    struct fields all = {0};
    size_t n = 0;

    for (const struct answer_field *f = answer->fields; f->unit != UNIT_END; f++)
        all.v[n++] = field_of(f);
    for (; more && more->unit != UNIT_END; more++)
        all.v[n++] = *more;
    assert(n <= TABLE_COLUMNS_MAX);
    return all;
}

struct fields
record_fields(const struct answer *answer, const struct field *more, const char *headings)
{
    struct fields all = join_fields(answer, more), ret = {0};
    size_t n = 0;

    for (const char *word = headings; *word; word += strcspn(word, " "), word += *word == ' ') {
        size_t n_key = strcspn(word, "= ");
        struct field *f = find_field(&all, word, n_key);
        if (!f)
            continue;
        ret.v[n] = *f;
        ret.v[n++].head = word[n_key] == '=' ? word + n_key + 1 : f->key;
        f->key = NULL; /* the field has been placed */
    }
    for (struct field *f = all.v; f->unit != UNIT_END; f++) {
        if (!f->key)
            continue;
        ret.v[n] = *f;
        ret.v[n++].head = strchr(headings, '*') ? f->key : NULL;
    }
    return ret;
}

static bool
has_column(const struct field *field)
{
    return field->head && strcspn(field->head, " ") > 0;
}

/* The head is in capitals, with spaces for underscores. */
static struct column
column_of(const struct field *field)
{
    struct column column = {.right = (field->unit >= UNIT_DEVICE && field->unit < N_UNITS) ||
                                     field->unit == UNIT_RATIO || field->unit == UNIT_RATE};
    size_t n = min_u64(strcspn(field->head, " "), sizeof(column.head) - 1);

    for (size_t i = 0; i < n; i++)
        column.head[i] = (char)(field->head[i] == '_' ? ' ' : toupper(field->head[i]));
    return column;
}

void
record_columns(const struct field *fields, struct table *ret)
{
    struct column columns[TABLE_COLUMNS_MAX];
    size_t n = 0;

    for (; fields->unit != UNIT_END; fields++)
        if (has_column(fields))
            columns[n++] = column_of(fields);
    table_init(ret, columns, n);
}

/* The text of a field; NULL: it is absent. */
static const char *
text_of(unsigned unit, const void *at)
{
    const char *text = unit == UNIT_TEXT_IN || unit == UNIT_WORDS ? at
                                                                  : *(const char *const *)at;

    return text && (text[0] || unit == UNIT_TEXT || unit == UNIT_JSON) ? text : NULL;
}

static char *
dims_text(const void *at)
{
    uint32_t n;
    const int64_t *dims = answer_list(at, &n);

    return format_shape(dims, n);
}

static void
add_cell(const struct ctl *ctl, unsigned unit, const void *at, struct table *table)
{
    _cleanup_free_ char *made = NULL;
    const char *text;
    char mode[10];

    switch (unit) {
    case UNIT_TEXT:
    case UNIT_JSON:
    case UNIT_NAME:
    case UNIT_CELL:
    case UNIT_TEXT_IN:
    case UNIT_WORDS:
        text = text_of(unit, at);
        table_add(table, "%s", text ? text : "-");
        return;
    case UNIT_UID: made = format_user(*(const uint32_t *)at); break;
    case UNIT_GID: made = format_group(*(const uint32_t *)at); break;
    case UNIT_MODE:
        format_mode(*(const uint32_t *)at, mode);
        table_add(table, "%s", mode);
        return;
    case UNIT_FLAG: table_add(table, "%s", *(const bool *)at ? "yes" : "no"); return;
    case UNIT_DIMS: made = dims_text(at); break;
    case UNIT_COUNT:
    case UNIT_NUMBER: table_add(table, "%" PRIu64, *(const uint64_t *)at); return;
    case UNIT_QUOTA:
        if (*(const uint64_t *)at == 0) {
            table_add(table, "-");
            return;
        } /* fall through */
    case UNIT_BYTES: made = format_bytes(*(const uint64_t *)at, ctl->bytes); break;
    case UNIT_NS: table_add(table, "%.3f s", (double)*(const uint64_t *)at / 1e9); return;
    case UNIT_DEVICE: table_add(table, "%" PRId32, *(const int32_t *)at); return;
    case UNIT_RATIO: table_add(table, "%.0f %%", 100.0 * *(const double *)at); return;
    case UNIT_RATE:
        table_add(table, *(const double *)at < 0 ? "-" : "%.1f/s", *(const double *)at);
        return;
    default: abort(); /* a record has no place in a table */
    }
    table_add(table, "%s", made);
}

void
record_row(const struct ctl *ctl, const struct field *fields, const void *from,
           struct table *table)
{
    for (; fields->unit != UNIT_END; fields++)
        if (has_column(fields))
            add_cell(ctl, fields->unit, (const char *)from + fields->at, table);
}

static void
add_dims(struct json *out, const char *key, const void *at)
{
    uint32_t n;
    const int64_t *dims = answer_list(at, &n);

    if (!dims) {
        json_null(out, key);
        return;
    }
    json_list(out, key);
    for (uint32_t i = 0; i < n; i++)
        json_i64(out, NULL, dims[i]);
    json_list_end(out);
}

static void
add_records(struct json *out, const struct field *field, const void *at)
{
    uint32_t n;
    const void *const *records = answer_list(at, &n);

    json_list(out, field->key);
    for (uint32_t i = 0; i < n; i++) {
        json_object(out, NULL);
        record_answer(out, field->of, records[i]);
        json_object_end(out);
    }
    json_list_end(out);
}

static void
add_member(struct json *out, const struct field *field, const void *at)
{
    switch (field->unit) {
    case UNIT_CELL: break;
    case UNIT_TEXT:
    case UNIT_JSON:
    case UNIT_NAME:
    case UNIT_TEXT_IN:
    case UNIT_WORDS: json_str(out, field->key, text_of(field->unit, at)); break;
    case UNIT_UID:
    case UNIT_GID:
    case UNIT_MODE: json_u64(out, field->key, *(const uint32_t *)at); break;
    case UNIT_FLAG: json_bool(out, field->key, *(const bool *)at); break;
    case UNIT_COUNT:
    case UNIT_NUMBER:
    case UNIT_BYTES:
    case UNIT_QUOTA:
    case UNIT_NS: json_u64(out, field->key, *(const uint64_t *)at); break;
    case UNIT_DEVICE:
        if (*(const int32_t *)at < 0)
            json_null(out, field->key);
        else
            json_i64(out, field->key, *(const int32_t *)at);
        break;
    case UNIT_DIMS: add_dims(out, field->key, at); break;
    case UNIT_RECORD: record_answer(out, field->of, *(const void *const *)at); break;
    case UNIT_RECORDS: add_records(out, field, at); break;
    case UNIT_RATIO: json_ratio(out, field->key, *(const double *)at); break;
    case UNIT_RATE: json_rate(out, field->key, *(const double *)at); break;
    }
}

void
record_answer(struct json *out, const struct answer *answer, const void *from)
{
    for (const struct answer_field *f = answer->fields; f->unit != UNIT_END; f++) {
        const struct field field = field_of(f);
        add_member(out, &field, (const char *)from + f->at);
    }
}

void
record_members(struct json *out, const struct field *fields, const void *from)
{
    for (; fields->unit != UNIT_END; fields++)
        if (fields->key)
            add_member(out, fields, (const char *)from + fields->at);
}

void
listing_begin(const struct listing *listing, const char *key)
{
    if (listing->fields)
        record_columns(listing->fields, listing->table);
    json_list(&listing->ctl->out, key);
}

int
listing_add(const void *from, void *userdata)
{
    const struct listing *listing = userdata;
    struct json *out = &listing->ctl->out;

    if (!listing->ctl->json) {
        record_row(listing->ctl, listing->fields, from, listing->table);
        return 0;
    }
    json_object(out, NULL);
    record_members(out, listing->fields, from);
    json_object_end(out);
    return 0;
}

int
listing_end(const struct listing *listing, int r, const char *what)
{
    if (r < 0)
        return ctl_failed(listing->ctl, what);
    json_list_end(&listing->ctl->out);
    return CTL_OK;
}
