/* SPDX-License-Identifier: Apache-2.0 */
/* Structs to JSON, by the descriptors of record.h: for `caidctl monitor`. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "record.h"
#include "utf8.h"

#define TEXT_MAX 256 /* bytes of a string that are shown */
#define LIST_MAX 8   /* elements of a list */
#define CUT      "\xe2\x80\xa6"

/* The output. Text that does not fit is dropped, and n is more than max then. */
struct printer {
    char *out;
    size_t n, max;
};

static void
put(struct printer *p, const char *text, size_t n)
{
    if (p->n <= p->max && n <= p->max - p->n)
        memcpy(p->out + p->n, text, n);
    p->n += n;
}

static void PRINTF(2, 3) put_format(struct printer *p, const char *fmt, ...)
{
    char text[32];
    va_list ap;

    va_start(ap, fmt);
    put(p, text, (size_t)vsnprintf(text, sizeof(text), fmt, ap));
    va_end(ap);
}

/* Prints the well-formed characters at the start of s. Control characters, U+0080 to U+009F among
 * them, are printed as \uNNNN, since a terminal may obey them. */
static void
put_text(struct printer *p, const struct msg_str *s)
{
    size_t n = s->n ? utf8_prefix(s->p, min_u64(s->n, TEXT_MAX)) : 0;

    put(p, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s->p[i];
        bool is_c1 = c == 0xc2 && (unsigned char)s->p[i + 1] < 0xa0;
        if (c < 0x20 || c == 0x7f || is_c1)
            put_format(p, "\\u%04x", (unsigned char)s->p[i += is_c1]);
        else if (c == '"' || c == '\\')
            put_format(p, "\\%c", c);
        else
            put(p, &s->p[i], 1);
    }
    if (n < s->n)
        put(p, CUT, strlen(CUT));
    put(p, "\"", 1);
}

static void put_record(struct printer *p, const struct record *record, const void *value);

static void
put_value(struct printer *p, const struct field *f, enum field_type type, const void *value)
{
    switch (type) {
    case FIELD_BOOL: put_format(p, "%s", *(const bool *)value ? "true" : "false"); break;
    case FIELD_U64: put_format(p, "%" PRIu64, *(const uint64_t *)value); break;
    case FIELD_I64: put_format(p, "%" PRId64, *(const int64_t *)value); break;
    case FIELD_RECORD: put_record(p, f->of, value); break;
    default: put_text(p, value); break;
    }
}

static void
put_list(struct printer *p, const struct field *f, const void *record)
{
    size_t size = field_element_size(f);
    uint32_t n;
    const char *element = field_list(f, record, &n);

    put(p, "[", 1);
    for (uint32_t i = 0; i < n && i < LIST_MAX; i++) {
        put(p, ", ", i ? 2 : 0);
        put_value(p, f, field_element(f), element + i * size);
    }
    if (n > LIST_MAX)
        put_format(p, ", \"%u more\"", n - LIST_MAX);
    put(p, "]", 1);
}

static void
put_record(struct printer *p, const struct record *record, const void *value)
{
    bool first = true;

    put(p, "{", 1);
    for (const struct field *f = record->fields; f < record->fields + record->n_fields; f++) {
        if (!field_is_written(f, value))
            continue;
        put_format(p, "%s\"", first ? "" : ", ");
        put(p, f->key, f->n_key);
        put(p, "\": ", 3);
        first = false;
        if (f->secret)
            put_format(p, "\"(secret)\"");
        else if (field_is_list(f))
            put_list(p, f, value);
        else
            put_value(p, f, f->type, (const char *)value + f->offset);
    }
    put(p, "}", 1);
}

static const struct record *
record_of(enum msg_type type, enum msg_method method)
{
    if (method == MSG_UNKNOWN)
        return &proto_records[RECORD_ID_error];
    return type == MSG_RESPONSE ? proto_methods[method].result : proto_methods[method].params;
}

size_t
msg_print(char *out, size_t max, enum msg_type type, enum msg_method method, const void *value)
{
    struct printer p = {.out = out, .max = max};

    put_record(&p, record_of(type, method), value);
    if (p.n > max)
        return (size_t)snprintf(out, max, "\"too long\"");
    return p.n;
}

const void *
msg_param(enum msg_method method, const void *params, const char *key)
{
    const struct record *record = proto_methods[method].params;

    for (uint32_t i = 0; i < record->n_fields; i++)
        if (strcmp(record->fields[i].key, key) == 0)
            return (const char *)params + record->fields[i].offset;
    return NULL;
}
