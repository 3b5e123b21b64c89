/* SPDX-License-Identifier: Apache-2.0 */
#include "answer.h"

#include <errno.h>

#include "text.h"

#define ANSWER(r, text) static const struct answer_field r##_fields[] = {
#define FIELD(r, type, field, presence, unit_, text) \
    {.unit = UNIT_##unit_,                           \
     .from = offsetof(struct msg_##r, field),        \
     .at = offsetof(struct caid_##r, field),         \
     .name = #field},
#define END_ANSWER(r) \
    {                 \
        0             \
    }                 \
    }                 \
    ;                 \
    const struct answer answer_##r = {sizeof(struct msg_##r), r##_fields};
#include "answers.def"

static int
fill_text(const struct reply *reply, struct msg_str from, const char **ret)
{
    char *text = NULL;

    if (!text_is_plain(from))
        return -EPROTO;
    if (from.p) {
        text = msgpack_zone_malloc_no_align(reply->msg.zone, (size_t)from.n + 1);
        if (!text)
            return -ENOMEM;
        text_copy(text, (size_t)from.n + 1, from);
    }
    *ret = text;
    return 0;
}

static int
fill_u32(uint64_t from, uint32_t *ret)
{
    *ret = (uint32_t)from;
    return from <= UINT32_MAX ? 0 : -EPROTO;
}

static int
fill_field(enum unit unit, const struct reply *reply, const void *from, void *ret)
{
    switch (unit) {
    case UNIT_TEXT:
    case UNIT_NAME: return fill_text(reply, *(const struct msg_str *)from, ret);
    case UNIT_UID:
    case UNIT_GID:
    case UNIT_MODE: return fill_u32(*(const uint64_t *)from, ret);
    case UNIT_FLAG: *(bool *)ret = *(const bool *)from; return 0;
    default: *(uint64_t *)ret = *(const uint64_t *)from; return 0;
    }
}

int
answer_fill(const struct answer *answer, const struct reply *reply, const void *from, void *ret)
{
    int r = 0;

    for (const struct answer_field *f = answer->fields; r == 0 && f->unit != UNIT_END; f++)
        r = fill_field(f->unit, reply, (const char *)from + f->from, (char *)ret + f->at);
    return r;
}
