/* SPDX-License-Identifier: Apache-2.0 */
/* The deallocation queue, rule by rule: docs/DEALLOCATION.md. */
#include <errno.h>

#include "caid_test.h"
#include "mem_check.h"

#define CAPACITY 1000
#define N        32

static struct dealloc q;
static struct dealloc_owner alice, bob;
static struct dealloc_entry entries[N];
static int n_added;

static void
start(uint64_t max_count, double ratio)
{
    dealloc_init(&q, &(struct dealloc_limits){.max_count = max_count,
                                              .max_bytes = dealloc_ratio_bytes(CAPACITY, ratio),
                                              .max_age_ns = UINT64_MAX});
    dealloc_owner_init(&alice);
    dealloc_owner_init(&bob);
    n_added = 0;
}

/* Whether it asks for a flush. Entries are entries[0], entries[1] and so on; so are the times. */
static bool
add(struct dealloc_owner *owner, uint64_t bytes)
{
    bool would = dealloc_would_flush(&q, owner, bytes);
    bool wanted = dealloc_add(&q, owner, &entries[n_added], bytes, (uint64_t)n_added);

    cr_assert_eq(wanted, would, "foretold");
    n_added++;
    dealloc_check(&q);
    return wanted;
}

/* The next entry's number, freed; -1: the flush is over. */
static int
next(void)
{
    struct dealloc_entry *e = dealloc_next(&q);

    if (!e)
        return -1;
    dealloc_done(&q, e->bytes, 0);
    dealloc_check(&q);
    return (int)(e - entries);
}

static int
next_overriding(const struct dealloc_owner *own)
{
    struct dealloc_entry *e = dealloc_next_overriding(&q, own);

    if (!e)
        return -1;
    dealloc_done(&q, e->bytes, 0);
    dealloc_check(&q);
    return (int)(e - entries);
}

static void
expect_empty(void)
{
    dealloc_check(&q);
    cr_assert(q.n == 0 && q.bytes == 0 && q.n_held == 0 && q.bytes_held == 0);
    cr_assert_not(q.flushing);
}

CAID_TEST(dealloc, r1_r2_r6_the_eleventh_flushes_all_in_order)
{
    start(10, 1);
    for (int i = 0; i < 10; i++)
        cr_assert_not(add(i % 3 ? &alice : &bob, 1));
    cr_assert(add(&alice, 1));
    cr_assert(q.n == 11 && q.bytes == 11);
    dealloc_begin(&q);
    for (int i = 0; i < 11; i++)
        cr_assert_eq(next(), i);
    cr_assert_eq(next(), -1);
    cr_assert(q.n_flushes == 1 && q.n_freed == 11);
    expect_empty();
}

CAID_TEST(dealloc, r3_bytes_of_a_ratio)
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

CAID_TEST(dealloc, r4_limits_are_read_at_every_add)
{
    start(10, 1);
    cr_assert_not(add(&alice, 1));
    cr_assert_not(add(&alice, 1));
    q.limits.max_count = 2;
    cr_assert(add(&alice, 1));
    q.limits.max_count = 10;
    cr_assert_not(add(&alice, 1));
    q.limits.max_bytes = 4;
    cr_assert(add(&alice, 1));
}

CAID_TEST(dealloc, r5_unknown_sizes_count_as_entries)
{
    start(2, 0);
    cr_assert_not(add(&alice, 0));
    cr_assert_not(add(&alice, 0));
    cr_assert(add(&alice, 0));
    start(2, 0);
    cr_assert(add(&alice, 1));
}

CAID_TEST(dealloc, r7_a_failure_ends_the_flush_and_every_count_stays_exact)
{
    start(10, 1);
    for (int i = 0; i < 11; i++)
        add(&alice, 1);
    dealloc_begin(&q);
    for (int i = 0; i < 3; i++)
        next();
    cr_assert_eq(dealloc_next(&q), &entries[3]);
    dealloc_done(&q, 1, -EIO);
    cr_assert_null(dealloc_next(&q));
    cr_assert_not(q.flushing);
    cr_assert(q.n == 7 && q.bytes == 7);
    cr_assert(q.n_freed == 3 && q.n_quarantined == 1 && q.bytes_quarantined == 1);
    dealloc_begin(&q);
    for (int i = 4; i < 11; i++)
        cr_assert_eq(next(), i);
    cr_assert_eq(next(), -1);
    cr_assert_eq(q.n_flushes, 2);
    expect_empty();
}

CAID_TEST(dealloc, r8_r9_holding_back_nests_and_its_end_flushes_nothing)
{
    start(2, 1);
    dealloc_hold(&q, &alice);
    dealloc_hold(&q, &alice);
    for (int i = 0; i < 5; i++)
        cr_assert_not(add(&alice, 1));
    dealloc_unhold(&q, &alice);
    cr_assert_not(add(&alice, 1));
    dealloc_begin(&q);
    cr_assert_eq(next(), -1);
    cr_assert(q.n == 6 && q.n_held == 6 && q.bytes_held == 6);
    dealloc_unhold(&q, &alice);
    cr_assert(q.n == 6 && q.n_held == 0 && !q.flushing);
    cr_assert_eq(q.n_flushes, 0, "a flush that found nothing is none");
    cr_assert(add(&alice, 1));
    dealloc_begin(&q);
    for (int i = 0; i < 7; i++)
        cr_assert_eq(next(), i);
    cr_assert_eq(next(), -1);
    expect_empty();
}

CAID_TEST(dealloc, r12_memory_wanted_overrides_what_others_hold_back)
{
    start(10, 1);
    dealloc_hold(&q, &alice);
    dealloc_hold(&q, &bob);
    add(&alice, 1);
    add(&bob, 1);
    add(&alice, 1);
    dealloc_begin(&q);
    cr_assert_eq(next_overriding(&bob), 0);
    cr_assert_eq(next_overriding(&bob), 2);
    cr_assert_eq(next_overriding(&bob), -1, "the caller's own is respected");
    cr_assert(q.n == 1 && bob.n == 1);
    dealloc_begin(&q);
    cr_assert_eq(next_overriding(NULL), 1);
    cr_assert_eq(next_overriding(NULL), -1);
    expect_empty();
}

CAID_TEST(dealloc, overriding_goes_by_age_over_all_owners)
{
    start(10, 1);
    dealloc_hold(&q, &alice);
    for (int i = 0; i < 6; i++)
        add(i % 2 ? &alice : &bob, 1);
    dealloc_begin(&q);
    for (int i = 0; i < 6; i++)
        cr_assert_eq(next_overriding(&bob), i, "bob holds nothing back");
    cr_assert_eq(next_overriding(&bob), -1);
    expect_empty();
}

CAID_TEST(dealloc, r16_what_is_added_during_a_flush_belongs_to_it)
{
    start(1, 1);
    add(&alice, 1);
    add(&alice, 1);
    dealloc_begin(&q);
    struct dealloc_entry *e = dealloc_next(&q);
    cr_assert_not(add(&bob, 1), "a flush is under way");
    cr_assert_not(add(&alice, 1));
    dealloc_begin(&q); /* goes on */
    dealloc_done(&q, e->bytes, 0);
    for (int i = 1; i < 4; i++)
        cr_assert_eq(next(), i);
    cr_assert_eq(next(), -1);
    cr_assert(q.n_flushes == 1 && q.n_freed == 4);
    expect_empty();
}

CAID_TEST(dealloc, the_deadline_is_the_oldest_ones_that_may_go)
{
    start(10, 1);
    q.limits.max_age_ns = 100;
    cr_assert_eq(dealloc_deadline_ns(&q), UINT64_MAX);
    add(&alice, 1);
    add(&bob, 1);
    add(&alice, 1);
    cr_assert_eq(dealloc_deadline_ns(&q), 100);
    dealloc_hold(&q, &alice);
    cr_assert_eq(dealloc_deadline_ns(&q), 101);
    dealloc_remove(&q, &entries[1]);
    cr_assert_eq(dealloc_deadline_ns(&q), UINT64_MAX);
    dealloc_unhold(&q, &alice);
    dealloc_remove(&q, &entries[0]);
    cr_assert_eq(dealloc_deadline_ns(&q), 102);
    q.limits.max_age_ns = UINT64_MAX;
    cr_assert_eq(dealloc_deadline_ns(&q), UINT64_MAX);
}
