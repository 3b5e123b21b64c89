/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets in histories: what is put into them, what they keep, and which names they own. The name "a"
 * as a set's owns "ab".
 */
#include "caid_test.h"
#include "model.h"

#define ERR_LIMITS (ERR(LIMIT) | ERR(QUOTA))

static const char *const keys[M_KEYS] = {"x", "y"};

/* Of the slot's leases; mostly one on what may become a set. */
static const struct m_lease *
some_lease(struct model *m, const struct m_slot *slot, bool empty)
{
    const struct m_lease *lease = NULL;

    for (int tries = 0; tries < 4; tries++) {
        lease = &slot->leases[model_random(m, (uint32_t)slot->n_leases)];
        const struct m_array *a = &m->arrays[lease->array];
        if (!empty || (!a->span && a->last_name == M_NONE))
            break;
    }
    return lease;
}

static void
expect_stage(struct model *m, struct m_request *r, const struct m_slot *slot,
             const struct m_lease *set, const struct m_lease *member)
{
    const struct m_array *s = &m->arrays[set->array], *a = &m->arrays[member->array];

    if (!model_may(m, slot, s->pool, 2) || s->uid != slot->uid)
        model_refuse(r, true, ERR(PERMISSION));
    if (set->readonly || s->span || s->last_name != M_NONE || s->keeper != M_NONE ||
        s->n_sets || s->pool != a->pool || a->is_set || s == a)
        model_refuse(r, true, ERR(INVALID));
    if (model_is_abandoned(m, member->array))
        model_refuse(r, true, ERR(ABANDONED));
    if (s->members[r->label] != M_NONE)
        model_refuse(r, true, ERR(EXISTS));
}

static void
step_stage(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];

    if (!slot->n_leases)
        return;
    const struct m_lease *set = some_lease(m, slot, true), *member = some_lease(m, slot, false);
    struct m_request *r = model_ask(m, s, MSG_STAGE);
    r->set = set->array;
    r->seen = (uint64_t)member->array;
    r->label = model_random(m, M_KEYS);
    r->may_fail = ERR_LIMITS;
    expect_stage(m, r, slot, set, member);
    const struct msg_str key[] = {MSG_STR(keys[r->label]), MSG_STR("")};
    const uint64_t leases[] = {member->lease, member->lease};
    uint32_t n = 1 + (model_random(m, 4) == 0);
    if (n > 1) /* the second one has no key: neither is added */
        model_refuse(r, true, ERR(INVALID_NAME));
    model_note(m, "slot %d: lease %llu takes %llu as %s%s", s, (unsigned long long)set->lease,
               (unsigned long long)member->lease, keys[r->label],
               n > 1 ? ", and one more" : "");
    h_request(&m->h, slot->conn, MSG_STAGE,
              &(struct msg_stage_params){.lease = set->lease,
                                         .keys = {key, n},
                                         .leases = {leases, n}});
}

void
model_staged(struct model *m, const struct m_request *r)
{
    m->arrays[r->set].is_set = true;
    m->arrays[r->set].members[r->label] = (int)r->seen;
    m->arrays[r->seen].n_sets++;
}

static void
step_open_of(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];

    if (!slot->n_leases || slot->n_leases + 8 > M_LEASES)
        return;
    const struct m_lease *lease = some_lease(m, slot, true);
    const struct m_array *set = &m->arrays[lease->array];
    uint32_t key = model_random(m, M_KEYS);
    struct m_request *r = model_ask(m, s, MSG_OPEN);
    r->set = lease->array;
    r->pool = set->pool;
    r->readonly = model_random(m, 2);
    r->may_fail = ERR_LIMITS;
    if (!set->is_set)
        model_refuse(r, true, ERR(INVALID));
    if (!r->readonly && (lease->readonly || !model_may(m, slot, set->pool, 2)))
        model_refuse(r, true, ERR(PERMISSION));
    if (set->members[key] == M_NONE)
        model_refuse(r, true, ERR(NOT_FOUND));
    const struct msg_str name = MSG_STR(keys[key]);
    model_note(m, "slot %d: open %s of lease %llu", s, keys[key],
               (unsigned long long)lease->lease);
    h_request(&m->h, slot->conn, MSG_OPEN,
              &(struct msg_open_params){.names = {&name, 1},
                                        .of = lease->lease,
                                        .mode = MSG_STR(r->readonly ? "r" : "rw")});
}

void
model_step_set(struct model *m, int s)
{
    (model_random(m, 3) ? step_stage : step_open_of)(m, s);
}

void
model_expect_sets(struct model *m, struct m_request *r, const struct m_array *array)
{
    const struct m_array *a = model_find(m, r->pool, 0), *ab = model_find(m, r->pool, 1);

    if (r->name == 1 && a && a->is_set && a != array)
        model_refuse(r, true, ERR(INVALID));
    if (r->name == 0 && array && array->is_set && ab && ab != array)
        model_refuse(r, true, ERR(EXISTS));
    if (r->name == 0 && array && array->is_set && m->names[r->pool][1].creating != M_NONE) {
        r->must_fail |= m->names[r->pool][1].creating >= 0;
        r->may_fail |= ERR(EXISTS);
    }
}

uint32_t
model_check_members(struct model *m, const struct m_array *set, const struct h_reply *reply,
                    uint32_t n)
{
    char name[8];
    uint32_t found = 0;

    for (int k = 0; k < M_KEYS && set->is_set; k++) {
        if (set->members[k] == M_NONE)
            continue;
        snprintf(name, sizeof(name), "%s%s", model_name(set->name), keys[k]);
        cr_assert_str_eq(reply->names[n + found], name);
        cr_assert_eq(reply->entries[n + found].generation, set->generation);
        cr_assert_eq(reply->entries[n + found++].sets, m->arrays[set->members[k]].n_sets);
    }
    cr_assert_eq(reply->entries[n - 1].members, found);
    return found;
}
