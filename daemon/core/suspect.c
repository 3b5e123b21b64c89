/* SPDX-License-Identifier: Apache-2.0 */
#include "suspect.h"

#include "conn.h"
#include "journal.h"
#include "refusal.h"
#include "state.h"

#define IN_HAND      (UINT64_C(1) << 63)
#define METHOD_SHIFT 32

static struct suspect *
suspect_find(struct suspects *suspects, uint64_t token, uint32_t request, uint16_t method)
{
    for (uint32_t i = 0; suspects->n > 0 && i < SUSPECTS_MAX; i++) {
        struct suspect *s = &suspects->v[i];
        if (s->deaths && s->request == request && s->method == method &&
            (s->tokens[0] == token || s->tokens[1] == token))
            return s;
    }
    return NULL;
}

static uint16_t
method_of(const uint64_t in_hand[static 2])
{
    return (uint16_t)(in_hand[1] >> METHOD_SHIFT);
}

const char *
suspect_name(const uint64_t in_hand[static 2])
{
    const char *name = msg_method_name((enum msg_method)method_of(in_hand));

    return name ? name : "of another version";
}

void
suspects_add(struct suspects *suspects, const uint64_t in_hand[static 2])
{
    uint32_t request = (uint32_t)in_hand[1];
    uint16_t method = method_of(in_hand);
    struct suspect *s = suspect_find(suspects, in_hand[0], request, method);

    if (!s) {
        s = &suspects->v[suspects->next++ % SUSPECTS_MAX];
        suspects->n += s->deaths == 0;
        *s = (struct suspect){{in_hand[0], in_hand[0]}, request, method, 0};
    }
    s->deaths++;
}

void
suspects_follow(struct core *core, struct msg_u64s token, uint64_t next)
{
    struct suspects *suspects = &core->suspects;

    for (uint32_t i = 0; suspects->n > 0 && token.n == 2 && i < SUSPECTS_MAX; i++) {
        struct suspect *s = &suspects->v[i];
        if (!s->deaths || (s->tokens[0] != token.v[0] && s->tokens[1] != token.v[0]))
            continue;
        s->tokens[0] = token.v[0];
        s->tokens[1] = next;
        persist_suspect(core, i);
    }
}

int
suspect_take(struct core *core, const struct conn *conn, const struct msg *m, struct refusal *r)
{
    const struct suspect *s =
        suspect_find(&core->suspects, conn->token[0], m->id, (uint16_t)m->method);

    if (s && s->deaths >= SUSPECT_DEATHS_MAX)
        return refuse(
            r, PROTO_ERR_INTERNAL,
            "%s: the daemon has died of this request %u times, and does not try again",
            msg_method_name(m->method), s->deaths);
    persist_take(core, conn->token[0], IN_HAND | (uint64_t)m->method << METHOD_SHIFT | m->id);
    return 0;
}

void
suspect_put(struct core *core, uint64_t token, const struct msg *m)
{
    struct suspect *s = suspect_find(&core->suspects, token, m->id, (uint16_t)m->method);

    persist_put(core);
    if (!s)
        return;
    *s = (struct suspect){0};
    core->suspects.n--;
    persist_suspect(core, (uint32_t)(s - core->suspects.v));
}
