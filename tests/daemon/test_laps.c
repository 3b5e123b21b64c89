/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The longest turn, by a wall clock that the test sets, and the thread's own.
 */
#include "caid_test.h"
#include "laps.h"

static void
turn(struct laps *laps, uint64_t since_ns, uint64_t until_ns)
{
    laps_event(laps, since_ns);
    laps_event(laps, (since_ns + until_ns) / 2); /* a further event of it */
    laps_end(laps, until_ns);
}

CAID_TEST(laps, a_turn_that_was_not_run_takes_no_time_of_the_thread)
{
    const uint64_t hour = UINT64_C(3600000000000);
    struct laps laps = {0};

    turn(&laps, hour, hour + 1000);
    cr_assert_eq(laps.wall_ns, 1000);
    cr_assert_eq(laps.cpu_ns, 1000, "what was used before it is not known");
    turn(&laps, 2 * hour, 3 * hour);
    cr_assert_eq(laps.wall_ns, hour);
    cr_assert(laps.cpu_ns >= 1000 && laps.cpu_ns < hour);
}

/* Each has the time between two readings as its bound, and its own by the wall clock. */
CAID_TEST(laps, short_turns_are_not_added_up)
{
    struct laps laps = {0};
    volatile unsigned int spin = 0;

    for (uint64_t ns = LAPS_SPAN_NS; ns < 100 * LAPS_SPAN_NS; ns += 1000) {
        while (++spin % 256)
            ;
        turn(&laps, ns, ns + 10);
    }
    cr_assert_eq(laps.wall_ns, 10);
    cr_assert_eq(laps.cpu_ns, 10);
}

CAID_TEST(laps, what_is_between_turns_is_none_of_them)
{
    struct laps laps = {0};

    laps_end(&laps, LAPS_SPAN_NS); /* no event has come */
    turn(&laps, 10 * LAPS_SPAN_NS, 10 * LAPS_SPAN_NS + 7);
    cr_assert_eq(laps.wall_ns, 7);
}
