/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the longest turn of the loop has taken: what is done between two looks at the sockets.
 *
 * By the wall clock, a turn lasts from its first event to its end. The thread's own clock is dear,
 * 1 to 2 us where the other is 0.05, so it is read at the end of a turn once LAPS_SPAN_NS have
 * passed since it was last. What the thread has used since then, the turns of that span share: so
 * it is an upper bound of each, and so is the longest of them by the wall clock; cpu_ns is the
 * largest of the lesser of the two. No turn has taken more of the thread's time than cpu_ns, and
 * one has taken at least cpu_ns - LAPS_SPAN_NS, since those before the last end within that time.
 */
#pragma once

#include <stdint.h>

#define LAPS_SPAN_NS 500000
#define LAPS_N       16 /* by length */

struct laps {
    uint64_t cpu_ns, wall_ns; /* of the longest turn, by either clock */
    uint64_t n[LAPS_N];       /* of core_figures, by the wall clock */
    uint64_t sum_ns;
    uint64_t began_ns;      /* this turn; 0: no event has come */
    uint64_t span_wall_ns;  /* the longest turn of the span */
    uint64_t span_since_ns; /* when the thread's clock was read, by the wall clock */
    uint64_t span_cpu_ns;   /* and what it said */
};

/* An event of the turn. */
static inline void
laps_event(struct laps *laps, uint64_t now_ns)
{
    if (laps->began_ns == 0)
        laps->began_ns = now_ns;
}

/* The turn ends, on the thread of all the others. */
void laps_end(struct laps *laps, uint64_t now_ns);
