/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts in the model: arrays that lie in the memory of others, which they keep, and who is told
 * that they are gone.
 */
#include <stdio.h>

#include "books.h"
#include "caid_test.h"
#include "model.h"

#define ERR_LIMITS (ERR(LIMIT) | ERR(QUOTA))

/* ---- publishing ---- */

/* Where it lies in the whole; now and then not within it. */
static void
choose_place(struct model *m, const struct m_array *whole, struct m_request *r)
{
    uint32_t span = (uint32_t)whole->span;

    if (!span || model_random(m, 10) == 0) {
        r->offset = model_random(m, 2) ? span : UINT64_MAX - model_random(m, 3);
        r->span = model_random(m, 3);
        model_refuse(r, true, ERR(INVALID));
        return;
    }
    r->offset = model_random(m, span);
    if (model_random(m, 4) == 0)
        r->offset = 0;
    r->span = span - r->offset;
    if (model_random(m, 2))
        r->span = 1 + model_random(m, (uint32_t)r->span);
}

void
model_expect_whole(struct model *m, struct m_request *r, const struct m_slot *slot,
                   const struct m_lease *lease)
{
    const struct m_array *whole = &m->arrays[lease->array];

    model_refuse(r, !model_may(m, slot, whole->pool, 2) || whole->uid != slot->uid,
                 ERR(PERMISSION));
    model_refuse(r, lease->readonly || whole->whole != M_NONE, ERR(INVALID));
    model_refuse(r, model_is_abandoned(m, lease->array), ERR(ABANDONED));
}

static void
expect_part(struct model *m, const struct m_slot *slot, const struct m_lease *lease,
            struct m_request *r)
{
    const struct m_array *whole = &m->arrays[lease->array];
    int creating = r->name == M_NONE ? M_NONE : m->names[r->pool][r->name].creating;

    model_expect_whole(m, r, slot, lease);
    r->must_fail |= creating >= 0;
    if (creating != M_NONE)
        r->may_fail |= ERR(EXISTS);
    if (r->name != M_NONE)
        model_expect_sets(m, r, NULL);
    choose_place(m, whole, r);
    r->may_fail |= ERR_LIMITS;
}

/* Of bytes, each or every other one. */
static void
send_part(struct model *m, const struct m_lease *lease, struct m_request *r)
{
    static const int64_t two = 2;
    bool strided = r->span > 1 && r->span % 2 && model_random(m, 4) == 0;
    int64_t extent = strided ? ((int64_t)r->span + 1) / 2 : (int64_t)r->span;
    char label[24];
    const uint64_t ticket[] = {r->label, 1};
    struct msg_publish_part_params params = {
        .lease = lease->lease,
        .offset = r->offset,
        .name = msg_str_opt(r->name == M_NONE ? NULL : model_name(r->name)),
        .ticket = {ticket, r->name == M_NONE ? 2 : 0},
        .typestr = MSG_STR("|u1"),
        .shape = {&extent, 1},
        .strides = {&two, 1},
        .own = r->owns,
    };

    if (!strided)
        params.strides = (struct msg_i64s){0};
    r->nbytes = (uint64_t)extent;
    snprintf(label, sizeof(label), "%llu", (unsigned long long)r->label);
    params.metadata = MSG_STR(label);
    h_request(&m->h, m->slots[r->slot].conn, MSG_PUBLISH_PART, &params);
}

void
model_publish_part(struct model *m, int s, const struct m_lease *lease, int name)
{
    struct m_slot *slot = &m->slots[s];
    struct m_request *r = model_ask(m, s, MSG_PUBLISH_PART);

    r->pool = m->arrays[lease->array].pool;
    r->name = name;
    r->seen = (uint64_t)lease->array;
    r->label = m->h.next_id + 1;
    r->owns = name == M_NONE && model_random(m, 2);
    expect_part(m, slot, lease, r);
    model_note(m, "slot %d: publish %llu bytes at %llu of lease %llu as %s in %s", s,
               (unsigned long long)r->span, (unsigned long long)r->offset,
               (unsigned long long)lease->lease,
               r->name == M_NONE ? "a ticket" : model_name(r->name), model_pool_name(r->pool));
    send_part(m, lease, r);
}

static void
step_publish_part(struct model *m, int s)
{
    const struct m_slot *slot = &m->slots[s];

    if (!slot->n_leases || m->n_arrays + 8 > M_ARRAYS)
        return;
    bool sends = m->n_tickets < M_TICKETS && model_random(m, 3) == 0;
    model_publish_part(m, s, &slot->leases[model_random(m, (uint32_t)slot->n_leases)],
                       sends ? M_NONE : (int)model_random(m, M_NAMES));
}

int
model_part_add(struct model *m, int index, struct m_array part)
{
    struct m_array *whole = &m->arrays[index];

    cr_assert_lt(m->n_arrays, M_ARRAYS);
    part.alive = true;
    part.pool = whole->pool;
    part.name = part.last_name = part.companion = part.keeper = M_NONE;
    part.stamp = part.span ? whole->stamp : 0;
    part.block = part.span ? whole->block : 0;
    part.offset = part.span ? whole->offset + part.at : 0;
    part.uid = whole->uid;
    part.whole = index;
    for (int k = 0; k < M_KEYS; k++)
        part.members[k] = M_NONE;
    whole->n_parts++;
    m->arrays[m->n_arrays] = part;
    return m->n_arrays++;
}

void
model_part_published(struct model *m, const struct m_request *r, const struct h_reply *reply)
{
    bool named = r->name != M_NONE;
    struct m_array *old = named ? model_find(m, r->pool, r->name) : NULL;
    int array = model_part_add(m, (int)r->seen,
                               (struct m_array){.id = reply->array,
                                                .at = r->offset,
                                                .span = r->span,
                                                .nbytes = r->nbytes,
                                                .label = r->label,
                                                .publisher = r->slot});

    if (old)
        EXPECT(m, reply->generation == old->generation + 1, "not the next generation");
    if (!named) {
        EXPECT(m, reply->generation == 0, "a generation of no name");
        model_ticket_add(m, r, array, false);
        return;
    }
    model_name_gone(m, r->pool, r->name);
    model_name_taken(m, array, r->name, reply->generation);
}

/* ---- being told ---- */

/* Whether a stream may still use it. */
static bool
is_used(struct model *m, int array)
{
    for (int i = 0; i < m->n_fences; i++)
        if (m->fences[i].array == array && !model_fence_is_going(m, &m->fences[i]) &&
            model_fence_state(m, &m->fences[i]) == FENCE_PENDING)
            return true;
    return false;
}

static int
find_part(const struct model *m, uint64_t part)
{
    for (int i = 0; i < m->n_arrays; i++)
        if (m->arrays[i].whole != M_NONE && m->arrays[i].id == part)
            return i;
    return M_NONE;
}

void
model_parts_told(struct model *m, const struct m_request *r, const struct h_reply *reply)
{
    EXPECT(m, reply->n_parts > 0, "no news");
    for (uint32_t i = 0; i < reply->n_parts; i++) {
        int array = find_part(m, reply->parts[i]);
        EXPECT(m, array != M_NONE, "a part that nobody made");
        if (array == M_NONE) /* blind: its publisher was not told of it */
            continue;
        EXPECT(m, m->arrays[array].publisher == r->slot, "another's part, or told twice");
        EXPECT(m, !is_used(m, array), "streams use a part that is said to be gone (I2)");
        for (size_t j = 0; j < m->h.n_ranges; j++)
            EXPECT(m, m->h.ranges[j].array != reply->parts[i],
                   "connection %llu may use a part that is said to be gone (I2)",
                   (unsigned long long)m->h.ranges[j].conn);
        m->arrays[array].publisher = M_NONE;
        m->arrays[array].told = true;
    }
}

void
model_parts_hangup(struct model *m, int slot)
{
    for (int i = 0; i < m->n_arrays; i++)
        if (m->arrays[i].publisher == slot)
            m->arrays[i].publisher = M_NONE;
}

static void
step_parts(struct model *m, int s)
{
    bool stands = false;

    for (int i = 0; i < m->n_requests; i++)
        stands |= m->requests[i].slot == s && m->requests[i].method == MSG_PARTS;
    struct m_request *r = model_ask(m, s, MSG_PARTS);
    r->must_fail = stands;
    r->may_fail = stands ? ERR(INVALID) : 0;
    model_note(m, "slot %d: parts", s);
    h_parts(&m->h, m->slots[s].conn);
}

static void
step_cancel_parts(struct model *m, int s)
{
    for (int i = 0; i < m->n_requests; i++) {
        struct m_request *r = &m->requests[i];
        if (r->slot != s || r->method != MSG_PARTS)
            continue;
        model_note(m, "slot %d: cancel parts %u", s, r->id);
        r->may_fail = ERR(CANCELLED);
        r->must_fail = true;
        h_cancel(&m->h, m->slots[s].conn, r->id);
        return;
    }
}

/* ---- ending ---- */

/* One that is alive: where there is, one that streams have used. */
static int
some_part(const struct model *m)
{
    int found = M_NONE;

    for (int i = 0; i < m->n_arrays; i++)
        if (m->arrays[i].whole != M_NONE && m->arrays[i].alive &&
            (found == M_NONE || m->arrays[i].fenced))
            found = i;
    return found;
}

static void
close_all(struct model *m, int s, int array)
{
    struct m_slot *slot = &m->slots[s];

    for (int i = slot->n_leases; i-- > 0;) {
        uint64_t lease = slot->leases[i].lease;
        if (slot->leases[i].array != array)
            continue;
        model_lease_gone(m, slot, i);
        h_close(&m->h, slot->conn, lease);
    }
}

/* All who are there close it, or it and its whole, and its name goes: it may linger then. */
static void
step_retire(struct model *m, int s)
{
    int array = some_part(m);
    bool both = model_random(m, 2);

    if (array == M_NONE || !model_may(m, &m->slots[s], m->arrays[array].pool, 2))
        return;
    model_note(m, "slot %d: all close array %d%s", s, array, both ? ", and its whole" : "");
    for (int i = 0; i < M_SLOTS; i++) {
        if (!m->slots[i].conn || m->slots[i].gone || m->slots[i].offended || m->slots[i].away)
            continue;
        close_all(m, i, array);
        if (both)
            close_all(m, i, m->arrays[array].whole);
    }
    if (m->arrays[array].name == M_NONE)
        return;
    struct m_request *r = model_ask(m, s, MSG_UNLINK);
    r->pool = m->arrays[array].pool;
    r->name = m->arrays[array].name;
    h_unlink(&m->h, m->slots[s].conn, model_name(r->name), model_pool_name(r->pool));
}

void
model_step_part(struct model *m, int s)
{
    static void (*const steps[])(struct model *, int) = {
        step_publish_part, step_publish_part, step_publish_part, step_publish_part, step_parts,
        step_parts,        step_cancel_parts, step_retire,       step_retire,
    };

    steps[model_random(m, ARRAY_SIZE(steps))](m, s);
}

/* ---- after each step ---- */

static void
check_told(struct model *m, const struct m_array *a)
{
    EXPECT(m, !a->told || !a->alive, "part %llu is there, and said to be gone",
           (unsigned long long)a->id);
    for (int i = 0; i < m->n_requests; i++)
        EXPECT(m,
               m->requests[i].method != MSG_PARTS || m->requests[i].slot != a->publisher ||
                   a->alive || a->fenced || m->returning, /* it may linger */
               "slot %d is not told of part %llu", a->publisher, (unsigned long long)a->id);
}

void
model_check_parts(struct model *m)
{
    for (int i = 0; i < m->n_arrays; i++)
        if (m->arrays[i].whole != M_NONE)
            check_told(m, &m->arrays[i]);
}

void
model_check_part_count(const struct model *m, int array, const struct msg_entry *entry)
{
    uint64_t lingering = 0;

    for (int i = 0; i < m->n_arrays; i++)
        lingering += m->arrays[i].whole == array && !m->arrays[i].alive && m->arrays[i].fenced;
    cr_assert_geq(entry->parts, (uint64_t)m->arrays[array].n_parts);
    cr_assert_leq(entry->parts, (uint64_t)m->arrays[array].n_parts + lingering);
}
