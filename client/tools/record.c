/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <inttypes.h>
#include <stdlib.h>

#include "format.h"

static bool
has_column(const struct field *field, unsigned form)
{
    return field->head && (field->forms == 0 || field->forms & form);
}

void
record_columns(const struct field *fields, unsigned form, struct table *ret)
{
    struct column columns[TABLE_COLUMNS_MAX];
    size_t n = 0;

    for (; fields->kind != FIELD_END; fields++)
        if (has_column(fields, form))
            columns[n++] = (struct column){fields->head, fields->kind >= FIELD_U64};
    table_init(ret, columns, n);
}

/* NULL where there is none. */
static const char *
text_of(enum field_kind kind, const void *at)
{
    const char *text = kind == FIELD_CHARS ? at : *(const char *const *)at;

    return text && (text[0] || kind == FIELD_STR) ? text : NULL;
}

static void
add_cell(const struct ctl *ctl, enum field_kind kind, const void *at, struct table *table)
{
    _cleanup_free_ char *made = NULL;
    const char *text;
    char mode[10];

    switch (kind) {
    case FIELD_END: return;
    case FIELD_STR:
    case FIELD_NAMED:
    case FIELD_CHARS:
        text = text_of(kind, at);
        table_add(table, "%s", text ? text : "-");
        return;
    case FIELD_USER: made = format_user(*(const uint32_t *)at); break;
    case FIELD_GROUP: made = format_group(*(const uint32_t *)at); break;
    case FIELD_MODE:
        format_mode(*(const uint32_t *)at, mode);
        table_add(table, "%s", mode);
        return;
    case FIELD_BOOL: table_add(table, "%s", *(const bool *)at ? "yes" : "no"); return;
    case FIELD_U64: table_add(table, "%" PRIu64, *(const uint64_t *)at); return;
    case FIELD_QUOTA:
        if (*(const uint64_t *)at == 0) {
            table_add(table, "-");
            return;
        } /* fall through */
    case FIELD_BYTES: made = format_bytes(*(const uint64_t *)at, ctl->bytes); break;
    case FIELD_NS: table_add(table, "%.3f s", (double)*(const uint64_t *)at / 1e9); return;
    case FIELD_INDEX: table_add(table, "%" PRId32, *(const int32_t *)at); return;
    case FIELD_RATIO: table_add(table, "%.0f %%", 100.0 * *(const double *)at); return;
    }
    table_add(table, "%s", made);
}

void
record_row(const struct ctl *ctl, const struct field *fields, unsigned form, const void *from,
           struct table *table)
{
    for (; fields->kind != FIELD_END; fields++)
        if (has_column(fields, form))
            add_cell(ctl, fields->kind, (const char *)from + fields->at, table);
}

static void
add_member(struct json *out, const struct field *field, const void *at)
{
    switch (field->kind) {
    case FIELD_END: break;
    case FIELD_STR:
    case FIELD_NAMED:
    case FIELD_CHARS: json_str(out, field->key, text_of(field->kind, at)); break;
    case FIELD_USER:
    case FIELD_GROUP:
    case FIELD_MODE: json_u64(out, field->key, *(const uint32_t *)at); break;
    case FIELD_BOOL: json_bool(out, field->key, *(const bool *)at); break;
    case FIELD_U64:
    case FIELD_BYTES:
    case FIELD_QUOTA:
    case FIELD_NS: json_u64(out, field->key, *(const uint64_t *)at); break;
    case FIELD_INDEX:
        if (*(const int32_t *)at < 0)
            json_null(out, field->key);
        else
            json_i64(out, field->key, *(const int32_t *)at);
        break;
    case FIELD_RATIO: json_ratio(out, field->key, *(const double *)at); break;
    }
}

void
record_members(struct json *out, const struct field *fields, const void *from)
{
    for (; fields->kind != FIELD_END; fields++)
        if (fields->key)
            add_member(out, fields, (const char *)from + fields->at);
}

void
listing_begin(const struct listing *listing, const char *key)
{
    if (listing->fields)
        record_columns(listing->fields, listing->form, listing->table);
    json_list(&listing->ctl->out, key);
}

int
listing_add(const struct listing *listing, const void *from)
{
    struct json *out = &listing->ctl->out;

    if (!listing->ctl->json) {
        record_row(listing->ctl, listing->fields, listing->form, from, listing->table);
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
