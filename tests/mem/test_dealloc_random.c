/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of the queue (docs/DEALLOCATION.md) with several owners against a plain list of
 * all entries: what comes next is found by looking at each of them.
 */
#include "caid_test.h"
#include "mem_check.h"
#include "random.h"

#define N_OWNERS  5
#define N_ENTRIES 64

struct model {
    struct dealloc q;
    struct dealloc_owner owners[N_OWNERS];
    uint64_t held[N_OWNERS];
    struct dealloc_entry entries[N_ENTRIES];
    uint64_t order[N_ENTRIES]; /* 0: not in the queue */
    uint64_t next_order;
    bool flushing, gave; /* this flush has given an entry */
    uint64_t freed, quarantined, bytes_quarantined, flushes;
    uint64_t state;
};

enum which {
    READY,
    OVERRIDING,
    OF_OWNER
};

static bool
may_go(const struct dealloc_entry *e, enum which which, const struct dealloc_owner *owner)
{
    if (which == OVERRIDING)
        return !(e->owner == owner && owner->deferred);
    return !e->owner->deferred && (which == READY || e->owner == owner);
}

/* The index of the entry that is due; -1: none. */
static int
due(const struct model *m, enum which which, const struct dealloc_owner *owner)
{
    int best = -1;

    for (int i = 0; i < N_ENTRIES; i++)
        if (m->order[i] && may_go(&m->entries[i], which, owner) &&
            (best < 0 || m->order[i] < m->order[best]))
            best = i;
    return best;
}

static void
count(const struct model *m, bool held, uint64_t *ret_n, uint64_t *ret_bytes)
{
    *ret_n = *ret_bytes = 0;
    for (int i = 0; i < N_ENTRIES; i++) {
        if (!m->order[i] || (m->entries[i].owner->deferred > 0) != held)
            continue;
        (*ret_n)++;
        *ret_bytes += m->entries[i].bytes;
    }
}

static void
check(const struct model *m)
{
    uint64_t n, bytes, n_deferred, bytes_deferred;
    int oldest = due(m, READY, NULL);

    count(m, false, &n, &bytes);
    count(m, true, &n_deferred, &bytes_deferred);
    cr_assert(m->q.n == n + n_deferred && m->q.bytes == bytes + bytes_deferred);
    cr_assert(m->q.n_deferred == n_deferred && m->q.bytes_deferred == bytes_deferred);
    cr_assert(m->q.n_freed == m->freed && m->q.n_quarantined == m->quarantined);
    cr_assert_eq(m->q.bytes_quarantined, m->bytes_quarantined);
    cr_assert_eq(m->q.n_flushes, m->flushes, "a flush that found nothing is none");
    cr_assert_eq(m->q.flushing, m->flushing);
    for (int i = 0; i < N_OWNERS; i++)
        cr_assert_eq(m->owners[i].deferred, m->held[i]);
    cr_assert_eq(dealloc_deadline_ns(&m->q),
                 oldest < 0 ? UINT64_MAX : m->entries[oldest].at_ns + m->q.limits.max_age_ns);
    dealloc_check(&m->q);
}

static void
step_add(struct model *m)
{
    uint64_t n, bytes;
    uint32_t i = random_below(&m->state, N_ENTRIES);

    if (m->order[i])
        return;
    m->order[i] = ++m->next_order;
    struct dealloc_owner *owner = &m->owners[random_below(&m->state, N_OWNERS)];
    uint64_t added = random_below(&m->state, 4) ? random_below(&m->state, 100) : 0;
    bool would = dealloc_would_flush(&m->q, owner, added);
    bool wanted = dealloc_add(&m->q, owner, &m->entries[i], added, m->next_order);
    cr_assert_eq(wanted, would, "foretold");
    count(m, false, &n, &bytes);
    bool over = n > m->q.limits.max_count || bytes > m->q.limits.max_bytes;
    cr_assert_eq(wanted, over && !m->flushing);
}

static void
step_next(struct model *m)
{
    enum which which = random_below(&m->state, 3);
    struct dealloc_owner *owner = &m->owners[random_below(&m->state, N_OWNERS)];
    int expected = due(m, which, owner);
    struct dealloc_entry *e = which == READY        ? dealloc_next(&m->q)
                              : which == OVERRIDING ? dealloc_next_overriding(&m->q, owner)
                                                    : dealloc_next_of(&m->q, owner);

    if (!m->flushing || expected < 0) {
        cr_assert_null(e);
        m->flushing = false;
        return;
    }
    cr_assert_eq(e, &m->entries[expected]);
    m->order[expected] = 0;
    m->flushes += !m->gave;
    m->gave = true;
    check(m);
    int error = random_below(&m->state, 8) ? 0 : -5;
    dealloc_done(&m->q, e->bytes, error);
    m->freed += !error;
    m->quarantined += error != 0;
    m->bytes_quarantined += error ? e->bytes : 0;
    m->flushing = m->flushing && !error;
}

static void
step_other(struct model *m)
{
    uint32_t o = random_below(&m->state, N_OWNERS), i = random_below(&m->state, N_ENTRIES);

    switch (random_below(&m->state, 5)) {
    case 0:
        dealloc_hold(&m->q, &m->owners[o]);
        m->held[o]++;
        break;
    case 1:
    case 2:
        if (m->held[o]) {
            dealloc_unhold(&m->q, &m->owners[o]);
            m->held[o]--;
        }
        break;
    case 3:
        if (m->order[i])
            dealloc_remove(&m->q, &m->entries[i]);
        m->order[i] = 0;
        break;
    default: m->q.limits.max_count = random_below(&m->state, 20);
    }
}

CAID_TEST(dealloc_random, agrees_with_a_list_of_all_entries)
{
    static struct model m;

    for (uint64_t seed = 1; seed <= 60; seed++) {
        m = (struct model){.state = seed * UINT64_C(0x9e3779b97f4a7c15)};
        dealloc_init(&m.q, &(struct dealloc_limits){10, 500, 1000});
        for (int i = 0; i < N_OWNERS; i++)
            dealloc_owner_init(&m.owners[i]);
        for (int i = 0; i < 3000; i++) {
            uint32_t what = random_below(&m.state, 100);
            if (what < 35) {
                step_add(&m);
            } else if (what < 60) {
                step_next(&m);
            } else if (what < 75) {
                dealloc_begin(&m.q); /* one that is under way goes on */
                m.gave = m.gave && m.flushing;
                m.flushing = true;
            } else {
                step_other(&m);
            }
            check(&m);
        }
    }
}

CAID_TEST(dealloc_random, r3_bytes_of_a_ratio)
{
    cr_assert_eq(dealloc_ratio_bytes(1000, 0.2), 200);
    cr_assert_eq(dealloc_ratio_bytes(999, 0.5), 499);
    cr_assert_eq(dealloc_ratio_bytes(1000, 0), 0);
    cr_assert_eq(dealloc_ratio_bytes(1000, 1), 1000);
    cr_assert_eq(dealloc_ratio_bytes(1000, -1), 0);
    cr_assert_eq(dealloc_ratio_bytes(1000, __builtin_nan("")), 0);
    cr_assert_eq(dealloc_ratio_bytes(UINT64_MAX, 1), UINT64_MAX);
    cr_assert_eq(dealloc_ratio_bytes(UINT64_C(150754820096), 0.2), UINT64_C(30150964019));
}
