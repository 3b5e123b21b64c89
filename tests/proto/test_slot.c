/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of timelines: where things lie, which is protocol, and when a fence has passed. */
#include "caid_test.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "timeline.h"

#define HOSTILE UINT64_MAX /* no value, and -1 to a cyclic compare */

/* docs/PROTOCOL.md, "Pages and slots". */
CAID_TEST(slot, lies_as_the_protocol_says)
{
    cr_assert_eq(sizeof(struct timeline_slot), 256);
    cr_assert_eq(offsetof(struct timeline_slot, done), 0);
    cr_assert_eq(offsetof(struct timeline_slot, submitted), 64);
    cr_assert_eq(offsetof(struct timeline_slot, landed), 72);
    cr_assert_eq(offsetof(struct timeline_slot, has_event), 80);
    cr_assert_eq(offsetof(struct timeline_slot, event), 128);
}

static struct timeline_slot
slot(uint64_t done, uint64_t submitted)
{
    struct timeline_slot s = {0};

    atomic_store(&s.done, done);
    atomic_store(&s.submitted, submitted);
    return s;
}

CAID_TEST(slot, fence_passes_when_done_is_that_far)
{
    struct timeline_slot s = slot(41, 43);

    cr_assert_eq(timeline_state(&s, 41), FENCE_PASSED);
    cr_assert_eq(timeline_state(&s, 42), FENCE_PENDING);
    cr_assert_eq(timeline_submitted(&s), 43);
    atomic_store(&s.done, TIMELINE_VALUE_MAX);
    cr_assert_eq(timeline_state(&s, TIMELINE_VALUE_MAX), FENCE_PASSED);
    cr_assert(!timeline_is_dead(&s));
}

CAID_TEST(slot, killed_has_passed_what_has_landed)
{
    struct timeline_slot s = slot(41, 43);

    timeline_kill(&s);
    cr_assert(timeline_is_dead(&s));
    cr_assert_eq(timeline_state(&s, 41), FENCE_PASSED);
    cr_assert_eq(timeline_state(&s, 42), FENCE_LOST);
    cr_assert_eq(timeline_submitted(&s), TIMELINE_DEAD_SUBMITTED);
    timeline_kill(&s);
    cr_assert_eq(timeline_state(&s, 41), FENCE_PASSED);
    cr_assert_eq(timeline_state(&s, 42), FENCE_LOST);
}

/* A stream compares cyclically: what it waits for is there when (int64_t)(done - value) >= 0. */
static bool
stream_goes_on(const struct timeline_slot *s, uint64_t value)
{
    return (int64_t)(atomic_load(&s->done) - value) >= 0;
}

CAID_TEST(slot, killed_lets_every_stream_go)
{
    static const uint64_t left[] =
        {0,      41, TIMELINE_VALUE_MAX, TIMELINE_DEAD, TIMELINE_DEAD + 1, UINT64_C(1) << 63,
         HOSTILE};

    for (size_t i = 0; i < ARRAY_SIZE(left); i++) {
        struct timeline_slot s = slot(left[i], 0);
        timeline_kill(&s);
        cr_assert(stream_goes_on(&s, 1), "%zu", i);
        cr_assert(stream_goes_on(&s, TIMELINE_VALUE_MAX), "%zu", i);
        cr_assert_eq(timeline_submitted(&s), TIMELINE_DEAD_SUBMITTED, "%zu", i);
    }
}

/* What its owner wrote there is no value that has been reached. */
CAID_TEST(slot, killed_counts_no_hostile_value_as_landed)
{
    struct timeline_slot s = slot(HOSTILE, HOSTILE);

    timeline_kill(&s);
    cr_assert_eq(timeline_state(&s, 1), FENCE_LOST);
}

/* Its owner has killed it, for a context that is dead; then it exits. */
CAID_TEST(slot, killed_by_its_owner_stays_as_it_was)
{
    struct timeline_slot s = slot(41, 43);

    timeline_kill(&s);
    atomic_store(&s.submitted, 43);
    timeline_kill(&s);
    cr_assert_eq(timeline_state(&s, 41), FENCE_PASSED);
    cr_assert_eq(timeline_submitted(&s), TIMELINE_DEAD_SUBMITTED);
}

/* It had looked before, and sleeps after: what it compares, a half, is another. */
CAID_TEST(slot, killed_wakes_who_was_about_to_sleep)
{
    static const uint64_t seen[] = {0, 1, UINT32_MAX - 1, UINT64_C(1) << 32, UINT64_C(7) << 40};

    for (size_t i = 0; i < ARRAY_SIZE(seen); i++) {
        struct timeline_slot s = slot(0, seen[i]);
        const struct timespec pause = {.tv_nsec = 1};
        timeline_kill(&s);
        cr_assert_lt(syscall(SYS_futex, &s.submitted, FUTEX_WAIT, (uint32_t)seen[i], &pause,
                             NULL, 0),
                     0);
        cr_assert_eq(errno, EAGAIN, "%zu", i);
    }
}
