/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vacating in the model: when the memory of a set of parts may be written again. Who is told so
 * writes there at once, in the books: nobody else may have a lease there, or use it.
 */
#include "base/clock.h"
#include "books.h"
#include "caid_test.h"
#include "model.h"

#define ERR_LIMITS (ERR(LIMIT) | ERR(QUOTA))

enum vacancy {
    VACANT,
    HELD,
    BUSY,  /* with GPU work: the core finds out now and then that it has ended */
    UNSURE /* the core may know less, or find out later */
};

/* Whether an array lies in the memory of the whole. */
static bool
is_near(const struct model *m, int array, int whole)
{
    return array == whole || (m->arrays[array].whole == whole && whole != M_NONE);
}

static bool
has_lease(const struct m_slot *slot, const struct m_lease *lease)
{
    for (int i = 0; i < slot->n_leases; i++)
        if (slot->leases[i].lease == lease->lease && slot->leases[i].array == lease->array)
            return true;
    return false;
}

/* By leases, but those that are the waiting client's own. */
static bool
is_leased(const struct model *m, const struct m_request *r, const struct m_lease *set,
          int whole)
{
    const struct m_slot *slot = &m->slots[r->slot];
    int n = -1;

    for (int i = 0; i < m->n_arrays; i++)
        if (i == set->array || is_near(m, i, whole))
            n += m->arrays[i].n_leases + m->arrays[i].n_departed;
    for (int i = 0; i < r->n_own; i++)
        n -= is_near(m, r->own[i].array, whole) && has_lease(slot, &r->own[i]);
    return n > 0;
}

/* By a name, or as a member of another set. */
static bool
is_public(const struct model *m, const struct m_array *set, int whole)
{
    const struct m_array *w = &m->arrays[whole];
    int n = 0;

    for (int k = 0; k < M_KEYS; k++)
        n -= set->members[k] != M_NONE;
    for (int i = 0; i < m->n_arrays; i++) {
        if (m->arrays[i].whole != whole)
            continue;
        if (m->arrays[i].name != M_NONE)
            return true;
        n += m->arrays[i].n_sets;
    }
    return n || w->name != M_NONE || w->keeper != M_NONE || w->n_sets;
}

/* Where what has had fences has been let go, sets and parts may linger that the model does not know
 * of; and who has hung up or was left behind by a restart may use memory until he exits. */
static bool
is_unsure(struct model *m, int whole)
{
    bool lingers = false, uses = false;

    for (int i = 0; i < m->n_fences; i++)
        uses |= model_fence_is_going(m, &m->fences[i]) ||
                model_fence_state(m, &m->fences[i]) == FENCE_PENDING;
    for (int i = 0; i < m->n_arrays; i++)
        lingers |= is_near(m, i, whole) && (m->arrays[i].fenced || m->arrays[i].was_kept);
    return m->returning || model_is_held_before(m, &m->arrays[whole]) ||
           (lingers && (uses || !m->has_rested));
}

static enum vacancy
vacancy_of(struct model *m, const struct m_request *r, const struct m_lease *set)
{
    int whole = model_whole_of(m, &m->arrays[set->array]);

    if (is_leased(m, r, set, whole) || is_public(m, &m->arrays[set->array], whole))
        return HELD;
    for (int i = 0; i < m->n_fences; i++)
        if (is_near(m, m->fences[i].array, whole) && !model_fence_is_going(m, &m->fences[i]) &&
            model_fence_state(m, &m->fences[i]) == FENCE_PENDING)
            return BUSY;
    return is_unsure(m, whole) ? UNSURE : VACANT;
}

/* Whether the wait for it has a sense. */
static bool
is_displaced(const struct model *m, const struct m_request *r, const struct m_lease *set)
{
    return has_lease(&m->slots[r->slot], set) && m->arrays[set->array].name == M_NONE;
}

/* ---- the request ---- */

static bool
is_waited_for(const struct model *m, const struct m_request *r, uint64_t lease)
{
    for (int i = 0; i < m->n_requests; i++)
        for (int k = 0; k < m->requests[i].n_vacates && m->requests[i].slot == r->slot; k++)
            if (m->requests[i].vacates[k].lease == lease)
                return true;
    return false;
}

static void
add_set(struct model *m, struct m_request *r, const struct m_lease *lease)
{
    const struct m_array *set = &m->arrays[lease->array];

    model_refuse(r, !model_may(m, &m->slots[r->slot], set->pool, 2), ERR(PERMISSION));
    model_refuse(r,
                 lease->readonly || set->name != M_NONE || model_whole_of(m, set) == M_NONE ||
                     is_waited_for(m, r, lease->lease),
                 ERR(INVALID));
    r->vacates[r->n_vacates++] = *lease;
}

/* Mostly all that the client has in that memory; now and then another one, too. */
static void
add_own(struct model *m, struct m_request *r)
{
    const struct m_slot *slot = &m->slots[r->slot];

    for (int i = 0; i < slot->n_leases && r->n_own < M_OWN; i++) {
        bool is_own = false;
        for (int k = 0; k < r->n_vacates; k++)
            is_own |= is_near(m, slot->leases[i].array,
                              model_whole_of(m, &m->arrays[r->vacates[k].array]));
        is_own &= !m->arrays[slot->leases[i].array].is_set; /* which may have parts, too */
        if (model_random(m, is_own ? 10 : 100) == 0 ? is_own : !is_own)
            continue;
        model_refuse(r, !is_own, ERR(INVALID));
        r->own[r->n_own++] = slot->leases[i];
    }
}

static void
expect_vacate(struct model *m, struct m_request *r, bool nowait)
{
    bool vacant = false, held = true;

    r->may_fail |= ERR_LIMITS;
    for (int i = 0; i < r->n_vacates && !r->must_fail; i++) {
        enum vacancy v = vacancy_of(m, r, &r->vacates[i]);
        vacant |= v == VACANT;
        held &= v == HELD || v == BUSY;
    }
    if (!nowait || r->must_fail)
        return;
    r->may_fail |= vacant ? 0 : ERR(TIMEOUT);
    r->must_fail = held;
}

static void
step_cancel(struct model *m, int s)
{
    for (int i = 0; i < m->n_requests; i++) {
        struct m_request *r = &m->requests[i];
        if (r->slot != s || r->method != MSG_VACATE)
            continue;
        model_note(m, "slot %d: cancel vacate %u", s, r->id);
        r->may_fail = ERR(CANCELLED);
        r->must_fail = true;
        int before = m->n_requests;
        h_cancel(&m->h, m->slots[s].conn, r->id);
        EXPECT(m, m->n_requests == before - 1, "a cancelled vacate is not answered");
        return;
    }
}

void
model_step_vacate(struct model *m, int s)
{
    static const uint64_t timeouts[] = {0, 0, H_AGE_NS / 2, H_AGE_NS * 3};
    const struct m_slot *slot = &m->slots[s];
    uint64_t timeout_ns = timeouts[model_random(m, ARRAY_SIZE(timeouts))];
    uint64_t sets[M_VACATES] = {0}, own[M_OWN];
    bool nowait = model_random(m, 4) == 0;
    uint32_t n = 1 + model_random(m, M_VACATES);

    if (!slot->n_leases || model_random(m, 10) == 0) {
        step_cancel(m, s);
        return;
    }
    struct m_request *r = model_ask(m, s, MSG_VACATE);
    for (uint32_t i = 0; i < n; i++) {
        const struct m_lease *set = model_random(m, 20) ? model_some_version(m, s) : NULL;
        if (!set)
            set = &slot->leases[model_random(m, (uint32_t)slot->n_leases)];
        if (i > 0 && set->lease == sets[0] && model_random(m, 10)) {
            n = 1;
            break;
        }
        add_set(m, r, set);
        sets[i] = set->lease;
    }
    add_own(m, r);
    for (int i = 0; i < r->n_own; i++)
        own[i] = r->own[i].lease;
    r->expires_ns = timeout_ns ? m->h.now_ns + timeout_ns : UINT64_MAX;
    expect_vacate(m, r, nowait);
    model_note(m, "slot %d: vacate lease %llu, of %u, %d own%s", s, (unsigned long long)sets[0],
               n, r->n_own, nowait ? ", no wait" : "");
    h_request(&m->h, slot->conn, MSG_VACATE,
              &(struct msg_vacate_params){.leases = {sets, n},
                                          .own = {own, (uint32_t)r->n_own},
                                          .timeout_ns = timeout_ns,
                                          .nowait = nowait});
}

/* ---- the answer ---- */

/* Nobody finds by its generation what is being written. */
static void
withdraw(struct m_array *array)
{
    if (array->name == M_NONE)
        array->generation = 0;
}

/* The client writes it. */
static void
write_whole(struct model *m, const struct m_request *r, int whole)
{
    const struct m_array *w = &m->arrays[whole];
    uint64_t own[M_OWN], stamp;

    for (int i = 0; i < r->n_own; i++)
        own[i] = r->own[i].lease;
    stamp = books_written(&m->h, m->slots[r->slot].conn,
                          (struct msg_u64s){own, (uint32_t)r->n_own}, w->block, w->offset,
                          w->span);
    for (int i = 0; i < m->n_arrays; i++)
        if (is_near(m, i, whole) && m->arrays[i].span)
            m->arrays[i].stamp = stamp;
}

void
model_vacated(struct model *m, const struct m_request *r, uint64_t lease)
{
    const struct m_lease *set = NULL;

    for (int i = 0; i < r->n_vacates; i++)
        if (r->vacates[i].lease == lease)
            set = &r->vacates[i];
    cr_assert(set, "a set that nobody waited for");
    int whole = model_whole_of(m, &m->arrays[set->array]);
    EXPECT(m, is_displaced(m, r, set), "the current version is vacant, or one that was closed");
    enum vacancy v = vacancy_of(m, r, set);
    EXPECT(m, v != HELD && v != BUSY, "a set is vacant that others have");
    withdraw(&m->arrays[set->array]);
    for (int i = 0; i < r->n_own; i++)
        if (is_near(m, r->own[i].array, whole) && has_lease(&m->slots[r->slot], &r->own[i]))
            withdraw(&m->arrays[r->own[i].array]);
    if (m->arrays[whole].span)
        write_whole(m, r, whole);
}

/* ---- what comes meanwhile ---- */

void
model_vacates_pass(struct model *m, uint64_t ns)
{
    m->has_rested = ns >= NSEC_PER_SEC;
    for (int i = 0; i < m->n_requests; i++)
        if (m->requests[i].method == MSG_VACATE &&
            m->requests[i].expires_ns <= m->h.now_ns + ns)
            m->requests[i].may_fail |= ERR(TIMEOUT);
}

/* It has been closed, or has a name. */
void
model_vacates_end(struct model *m, int array)
{
    for (int i = 0; i < m->n_requests; i++)
        for (int k = 0; k < m->requests[i].n_vacates; k++)
            if (m->requests[i].vacates[k].array == array &&
                !is_displaced(m, &m->requests[i], &m->requests[i].vacates[k]))
                m->requests[i].may_fail |= ERR(INVALID);
}

/* What was busy, or unsure, is looked at now and then. */
static void
check_wait(struct model *m, struct m_request *r, const struct m_lease *set)
{
    enum vacancy v = vacancy_of(m, r, set);

    EXPECT(m, is_displaced(m, r, set),
           "slot %d waits for what is the current version, or closed", r->slot);
    EXPECT(m, v != VACANT || (r->was_unsure && !m->has_rested),
           "slot %d waits for a set that is vacant", r->slot);
    r->was_unsure |= v == BUSY || v == UNSURE;
}

void
model_check_vacates(struct model *m)
{
    for (int i = 0; i < m->n_requests; i++) {
        struct m_request *r = &m->requests[i];
        /* one is refused at a time */
        bool is_late = r->method == MSG_VACATE && r->expires_ns <= m->h.now_ns;
        EXPECT(m, !is_late || core_deadline_ns(m->h.core) <= m->h.now_ns,
               "slot %d waits for a set for too long", r->slot);
        for (int k = 0; k < r->n_vacates && !core_is_behind(m->h.core); k++)
            check_wait(m, r, &r->vacates[k]);
    }
}
