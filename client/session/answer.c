/* SPDX-License-Identifier: Apache-2.0 */
#include "answer.h"

#include <errno.h>
#include <stdio.h>

#include "client.h"
#include "text.h"

#define UNIT_CHARS(n)   UNIT_TEXT_IN, .size = (n)
#define UNIT_WORDS(n)   UNIT_WORDS, .size = (n)
#define OPTIONAL_REQ    false
#define OPTIONAL_OPT    true
#define OPTIONAL_ALL    true
#define ANSWER(r, text) static const struct answer_field r##_fields[] = {
#define FIELD(r, type, field, presence, unit_, text) \
    {.unit = UNIT_##unit_,                           \
     .optional = OPTIONAL_##presence,                \
     .from = offsetof(struct msg_##r, field),        \
     .at = offsetof(struct caid_##r, field),         \
     .name = #field},
#define LOCAL(r, unit_, field, text)         \
    {.unit = UNIT_##unit_,                   \
     .from = NOT_OF_WIRE,                    \
     .at = offsetof(struct caid_##r, field), \
     .name = #field},
#define NESTED(r, of_, field, text)           \
    {.unit = UNIT_RECORDS,                    \
     .from = offsetof(struct msg_##r, field), \
     .at = offsetof(struct caid_##r, field),  \
     .name = #field,                          \
     .of = &answer_##of_},
#define ONE(r, of_, field, alone, text)       \
    {.unit = UNIT_RECORD,                     \
     .from = offsetof(struct msg_##r, field), \
     .at = offsetof(struct caid_##r, alone),  \
     .name = #alone,                          \
     .of = &answer_##of_},
#define END_ANSWER(r)                                                                  \
    {                                                                                  \
        0                                                                              \
    }                                                                                  \
    }                                                                                  \
    ;                                                                                  \
    const struct answer answer_##r = {sizeof(struct msg_##r), sizeof(struct caid_##r), \
                                      r##_fields};
#include "answers.def"

struct maker {
    const struct caid_client *client;
    msgpack_zone *zone;
};

static int
make_text(const struct maker *maker, struct msg_str from, const char **ret)
{
    char *text = NULL;

    if (!text_is_plain(from))
        return -EPROTO;
    if (from.p) {
        text = msgpack_zone_malloc_no_align(maker->zone, (size_t)from.n + 1);
        if (!text)
            return -ENOMEM;
        text_copy(text, (size_t)from.n + 1, from);
    }
    *ret = text;
    return 0;
}

static void
make_words(struct msg_strs from, char *ret, size_t size)
{
    size_t n = 0;

    ret[0] = 0;
    for (uint32_t i = 0; i < from.n && n < size; i++)
        n += (size_t)snprintf(ret + n, size - n, "%s%.*s", i > 0 ? " " : "", (int)from.v[i].n,
                              from.v[i].p);
    text_trim(ret);
}

static int
make_u32(uint64_t from, uint32_t *ret)
{
    *ret = (uint32_t)from;
    return from <= UINT32_MAX ? 0 : -EPROTO;
}

static void
put_list(void *ret, const void *list, uint32_t n)
{
    memcpy(ret, &list, sizeof(list));
    memcpy((char *)ret + sizeof(list), &n, sizeof(n));
}

static int
make_dims(const struct msg_i64s *from, void *ret)
{
    put_list(ret, from->v, from->n);
    return from->n <= PROTO_NDIM_MAX ? 0 : -EPROTO;
}

static int answer_make(const struct maker *maker, const struct answer *answer, const void *from,
                       void *ret);

static int
make_records(const struct maker *maker, const struct answer *of, const void *from, void *ret)
{
    uint32_t n;
    const char *records = answer_list(from, &n);
    const void **list = msgpack_zone_malloc(maker->zone, n * (sizeof(*list) + of->size) + 1);
    int r = 0;

    if (!list)
        return -ENOMEM;
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        char *record = (char *)(list + n) + i * of->size;
        list[i] = record;
        r = answer_make(maker, of, records + i * of->from_size, record);
    }
    put_list(ret, list, n);
    return r;
}

static int
make_record(const struct maker *maker, const struct answer *of, const void *from, void *ret)
{
    uint32_t n;
    const void *record = answer_list(from, &n), **at = ret;

    *at = n == 1 ? msgpack_zone_malloc(maker->zone, of->size) : NULL;
    if (!*at)
        return n == 1 ? -ENOMEM : -EPROTO;
    return answer_make(maker, of, record, *(void **)ret);
}

static int
make_field(const struct maker *maker, const struct answer_field *f, const void *from, void *ret)
{
    switch (f->unit) {
    case UNIT_TEXT:
    case UNIT_JSON:
    case UNIT_NAME: return make_text(maker, *(const struct msg_str *)from, ret);
    case UNIT_TEXT_IN: text_copy(ret, f->size, *(const struct msg_str *)from); return 0;
    case UNIT_WORDS: make_words(*(const struct msg_strs *)from, ret, f->size); return 0;
    case UNIT_UID:
    case UNIT_GID:
    case UNIT_MODE: return make_u32(*(const uint64_t *)from, ret);
    case UNIT_FLAG: *(bool *)ret = *(const bool *)from; return 0;
    case UNIT_DIMS: return make_dims(from, ret);
    case UNIT_RECORD: return make_record(maker, f->of, from, ret);
    case UNIT_RECORDS: return make_records(maker, f->of, from, ret);
    case UNIT_DEVICE:
        *(int32_t *)ret = client_find_device(maker->client, *(const struct msg_str *)from);
        return 0;
    default: *(uint64_t *)ret = *(const uint64_t *)from; return 0;
    }
}

static int
answer_make(const struct maker *maker, const struct answer *answer, const void *from, void *ret)
{
    int r = 0;

    for (const struct answer_field *f = answer->fields; r == 0 && f->unit != UNIT_END; f++)
        if (f->from != NOT_OF_WIRE)
            r = make_field(maker, f, (const char *)from + f->from, (char *)ret + f->at);
    return r;
}

int
answer_fill(const struct answer *answer, const struct caid_client *client,
            const struct reply *reply, const void *from, void *ret)
{
    return answer_make(&(struct maker){client, reply->msg.zone}, answer, from, ret);
}
