/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#define LIST_MAX 5

void
sampler_init(struct sampler *s, uint64_t seed, enum sample_mode mode)
{
    *s = (struct sampler){.random = seed, .mode = mode};
    SLIST_INIT(&s->chunks);
}

void
sampler_deinit(struct sampler *s)
{
    while (!SLIST_EMPTY(&s->chunks)) {
        struct sample_chunk *chunk = SLIST_FIRST(&s->chunks);
        SLIST_REMOVE_HEAD(&s->chunks, link);
        free(chunk);
    }
}

static void *
sampler_alloc(struct sampler *s, size_t n)
{
    struct sample_chunk *chunk = calloc(1, sizeof(*chunk) + n);
    if (!chunk)
        abort();
    SLIST_INSERT_HEAD(&s->chunks, chunk, link);
    return chunk->data;
}

/* Any width, so that every MessagePack form of an integer comes up; never 0. */
static uint64_t
sample_u64(struct sampler *s)
{
    uint64_t value = random_next(&s->random);
    value >>= random_below(&s->random, 64);
    return value ? value : 1;
}

static int64_t
sample_i64(struct sampler *s)
{
    int64_t value = (int64_t)(sample_u64(s) >> 1);
    return random_next(&s->random) & 1 ? -value - 1 : value + 1 > 0 ? value + 1 : value;
}

static struct msg_str
sample_str(struct sampler *s)
{
    static const char *const pieces[] = {"a", "Z9/", "\xc3\xa9", "\xe2\x82\xac",
                                         "\xf0\x9f\x90\xa7"};
    static const uint32_t lengths[] = {0,  1,   5,  31,
                                       32, 255, 256}; /* around each form's limit */
    uint32_t n = lengths[random_below(&s->random, ARRAY_SIZE(lengths))];
    char *text = sampler_alloc(s, n + 5);
    uint32_t at = 0;

    while (at < n) {
        const char *piece = pieces[random_below(&s->random, ARRAY_SIZE(pieces))];
        memcpy(text + at, piece, strlen(piece));
        at += (uint32_t)strlen(piece);
    }
    return (struct msg_str){text, at};
}

static void sample_into(struct sampler *s, const struct record *record, void *ret);

static void
sample_value(struct sampler *s, const struct field *f, enum field_type type, void *ret)
{
    switch (type) {
    case FIELD_BOOL: *(bool *)ret = true; break;
    case FIELD_U64: *(uint64_t *)ret = sample_u64(s); break;
    case FIELD_I64: *(int64_t *)ret = sample_i64(s); break;
    case FIELD_RECORD: sample_into(s, f->of, ret); break;
    default: *(struct msg_str *)ret = sample_str(s); break;
    }
}

static uint32_t
sample_length(struct sampler *s)
{
    switch (s->mode) {
    case SAMPLE_MINIMAL: return 0;
    case SAMPLE_FULL: return 2;
    default: return random_below(&s->random, LIST_MAX);
    }
}

static void
sample_list(struct sampler *s, const struct field *f, void *record)
{
    uint32_t n = sample_length(s);
    size_t size = field_element_size(f);
    char *list = sampler_alloc(s, n * size + 1);

    for (uint32_t i = 0; i < n; i++)
        sample_value(s, f, field_element(f), list + i * size);
    field_set_list(f, record, list, n);
}

static void
sample_field(struct sampler *s, const struct field *f, void *record)
{
    if (field_is_list(f))
        sample_list(s, f, record);
    else
        sample_value(s, f, f->type, (char *)record + f->offset);
}

static bool
sample_is_present(struct sampler *s, const struct field *f)
{
    if (f->required || s->mode == SAMPLE_FULL)
        return true;
    return s->mode == SAMPLE_RANDOM && random_below(&s->random, 2);
}

static void
sample_into(struct sampler *s, const struct record *record, void *ret)
{
    memset(ret, 0, record->size);
    for (uint32_t i = 0; i < record->n_fields; i++) {
        if (sample_is_present(s, &record->fields[i]))
            sample_field(s, &record->fields[i], ret);
    }
}

void *
sample_record(struct sampler *s, const struct record *record)
{
    void *value = sampler_alloc(s, record->size);
    sample_into(s, record, value);
    return value;
}

static bool
str_equal(const struct msg_str *a, const struct msg_str *b)
{
    return !a->p == !b->p && a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

static bool
value_equal(const struct field *f, enum field_type type, const void *a, const void *b)
{
    switch (type) {
    case FIELD_BOOL: return *(const bool *)a == *(const bool *)b;
    case FIELD_RECORD: return sample_equal(f->of, a, b);
    case FIELD_STR: return str_equal(a, b);
    default: return *(const uint64_t *)a == *(const uint64_t *)b;
    }
}

static bool
list_equal(const struct field *f, const void *record_a, const void *record_b)
{
    uint32_t n_a, n_b;
    size_t size = field_element_size(f);
    const char *a = field_list(f, record_a, &n_a);
    const char *b = field_list(f, record_b, &n_b);

    if (!a != !b || n_a != n_b)
        return false;
    for (uint32_t i = 0; i < n_a; i++) {
        if (!value_equal(f, field_element(f), a + i * size, b + i * size))
            return false;
    }
    return true;
}

static bool
field_equal(const struct field *f, const void *a, const void *b)
{
    if (field_is_list(f))
        return list_equal(f, a, b);
    return value_equal(f, f->type, (const char *)a + f->offset, (const char *)b + f->offset);
}

bool
sample_equal(const struct record *record, const void *a, const void *b)
{
    for (uint32_t i = 0; i < record->n_fields; i++) {
        if (!field_equal(&record->fields[i], a, b))
            return false;
    }
    return true;
}
