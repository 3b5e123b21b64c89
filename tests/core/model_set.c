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
expect_set(struct model *m, struct m_request *r, const struct m_slot *slot,
           const struct m_lease *set)
{
    const struct m_array *s = &m->arrays[set->array];

    model_refuse(r, !model_may(m, slot, s->pool, 2) || s->uid != slot->uid, ERR(PERMISSION));
    model_refuse(r,
                 set->readonly || s->span || s->last_name != M_NONE || s->keeper != M_NONE ||
                     s->n_sets || s->n_parts || s->whole != M_NONE,
                 ERR(INVALID));
    r->may_fail |= s->fenced || s->was_kept ? ERR(INVALID) : 0; /* a part may linger */
}

static void
expect_stage(struct model *m, struct m_request *r, const struct m_slot *slot,
             const struct m_lease *set, const struct m_lease *member)
{
    const struct m_array *s = &m->arrays[set->array], *a = &m->arrays[member->array];

    expect_set(m, r, slot, set);
    model_refuse(r, s->pool != a->pool || a->is_set || s == a, ERR(INVALID));
    model_refuse(r, model_is_abandoned(m, member->array), ERR(ABANDONED));
    model_refuse(r, s->members[r->label] != M_NONE, ERR(EXISTS));
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
    m->arrays[r->set].layout = 0;
    m->arrays[r->set].members[r->label] = (int)r->seen;
    m->arrays[r->seen].n_sets++;
}

/* ---- parts as members ---- */

/* Some of the whole's quarters, now and then none, and now and then more than there are: the same
 * come again. */
static struct m_place
choose_place(struct model *m, const struct m_array *whole, struct m_request *r)
{
    uint64_t quarter = whole->span / 4;
    uint32_t from = model_random(m, 5), n = model_random(m, 5 - from);
    bool is_outside = model_random(m, 12) == 0;

    model_refuse(r, is_outside, ERR(INVALID));
    return (struct m_place){from * quarter, is_outside ? whole->span + 1 : n * quarter};
}

static const struct m_lease *
some_whole(struct model *m, const struct m_slot *slot)
{
    const struct m_lease *lease = NULL;

    for (int tries = 0; tries < 4 && (!lease || !m->arrays[lease->array].span); tries++)
        lease = &slot->leases[model_random(m, (uint32_t)slot->n_leases)];
    return lease;
}

void
model_stage_parts(struct model *m, int s, const struct m_lease *set,
                  const struct m_lease *whole)
{
    struct m_slot *slot = &m->slots[s];
    struct msg_member parts[M_KEYS];
    struct m_request *r = model_ask(m, s, MSG_STAGE_PARTS);

    r->set = set->array;
    r->seen = (uint64_t)whole->array;
    r->label = model_random(m, M_KEYS);
    r->n_parts = 1 + (int)model_random(m, M_KEYS - (uint32_t)r->label);
    r->owns = model_random(m, 4) == 0;
    r->may_fail = ERR_LIMITS;
    expect_set(m, r, slot, set);
    model_expect_whole(m, r, slot, whole);
    model_refuse(r,
                 set->array == whole->array ||
                     m->arrays[r->set].pool != m->arrays[r->seen].pool,
                 ERR(INVALID));
    for (int i = 0; i < r->n_parts; i++) {
        int key = (int)r->label + i;
        model_refuse(r, m->arrays[r->set].members[key] != M_NONE, ERR(EXISTS));
        r->places[i] = choose_place(m, &m->arrays[r->seen], r);
        parts[i] = (struct msg_member){.key = MSG_STR(keys[key]),
                                       .offset = r->places[i].at,
                                       .typestr = MSG_STR("|u1"),
                                       .shape = {(int64_t *)&r->places[i].nbytes, 1}};
    }
    model_note(m, "slot %d: lease %llu takes %d parts of %llu, from %s on", s,
               (unsigned long long)set->lease, r->n_parts, (unsigned long long)whole->lease,
               keys[r->label]);
    h_stage_parts(&m->h, slot->conn, set->lease, whole->lease, parts, (uint32_t)r->n_parts,
                  r->owns);
}

static void
step_stage_parts(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];

    if (slot->n_leases && m->n_arrays + 8 <= M_ARRAYS)
        model_stage_parts(m, s, some_lease(m, slot, true), some_whole(m, slot));
}

void
model_parts_staged(struct model *m, const struct m_request *r, const struct h_reply *reply)
{
    struct m_array *set = &m->arrays[r->set];

    set->is_set = true;
    for (int i = 0; i < r->n_parts; i++) {
        int part = model_part_add(m, (int)r->seen,
                                  (struct m_array){.id = reply->array + (uint64_t)i,
                                                   .at = r->places[i].at,
                                                   .span = r->places[i].nbytes,
                                                   .nbytes = r->places[i].nbytes,
                                                   .publisher = r->owns ? r->slot : M_NONE,
                                                   .n_sets = 1});
        set->members[r->label + (uint64_t)i] = part;
    }
    set->layout = 0;
    model_check_layout(m, r->set, reply->layout);
}

int
model_whole_of(const struct model *m, const struct m_array *set)
{
    int whole = M_NONE;

    for (int k = 0; k < M_KEYS && set->is_set; k++) {
        int member = set->members[k];
        if (member == M_NONE)
            continue;
        if (m->arrays[member].whole == M_NONE ||
            (whole != M_NONE && m->arrays[member].whole != whole))
            return M_NONE;
        whole = m->arrays[member].whole;
    }
    return whole;
}

const struct m_lease *
model_some_version(struct model *m, int s)
{
    const struct m_slot *slot = &m->slots[s];
    const struct m_lease *found = NULL;
    bool asks = slot->conn && !slot->gone && !slot->offended && !slot->away;
    uint32_t n = asks ? (uint32_t)slot->n_leases : 0, first = n ? model_random(m, n) : 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct m_lease *lease = &slot->leases[(first + i) % n];
        const struct m_array *set = &m->arrays[lease->array];
        if (!lease->readonly && model_whole_of(m, set) != M_NONE &&
            (!found || set->name == M_NONE))
            found = lease;
    }
    return found;
}

static bool
is_alike(const struct model *m, const struct m_array *a, const struct m_array *b)
{
    for (int k = 0; k < M_KEYS; k++) {
        int i = a->members[k], j = b->members[k];
        if ((i == M_NONE) != (j == M_NONE))
            return false;
        if (i != M_NONE &&
            (m->arrays[i].at != m->arrays[j].at || m->arrays[i].span != m->arrays[j].span ||
             m->arrays[i].nbytes != m->arrays[j].nbytes))
            return false;
    }
    return true;
}

void
model_check_layout(struct model *m, int array, uint64_t layout)
{
    struct m_array *set = &m->arrays[array];

    EXPECT(m, (layout != 0) == (model_whole_of(m, set) != M_NONE),
           "a layout of array %d, or none", array);
    EXPECT(m, !set->layout || set->layout == layout, "another layout than before");
    set->layout = layout;
    for (int i = 0; i < m->n_arrays && layout; i++)
        EXPECT(m,
               !m->arrays[i].layout ||
                   (m->arrays[i].layout == layout) == is_alike(m, set, &m->arrays[i]),
               "the layouts of arrays %d and %d", array, i);
}

static const struct m_lease *
some_set(struct model *m, const struct m_slot *slot)
{
    const struct m_lease *lease = NULL;

    for (int tries = 0; tries < 4 && (!lease || !m->arrays[lease->array].is_set); tries++)
        lease = &slot->leases[model_random(m, (uint32_t)slot->n_leases)];
    return lease;
}

void
model_step_open_of(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];

    if (!slot->n_leases || slot->n_leases + 8 > M_LEASES)
        return;
    const struct m_lease *lease = some_set(m, slot);
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
    static void (*const steps[])(struct model *, int) = {step_stage, step_stage_parts,
                                                         model_step_open_of};

    steps[model_random(m, ARRAY_SIZE(steps))](m, s);
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
