/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the longest turn of the loop has taken. A turn is the work between two looks at the
 * sockets.
 *
 * By the wall clock, a turn lasts from its first event to its end. To read the thread's own clock
 * costs 1 to 2 us (the wall clock 0.05), so it is read only at the end of a turn, and only if
 * LAPS_SPAN_NS have passed since the last reading. The turns of such a span share what the thread
 * has used in it. So no turn of the span has used more than that, nor more than the span's longest
 * turn by the wall clock. The lesser of these is the span's bound; cpu_ns is the largest bound.
 *
 * So no turn has taken more of the thread's time than cpu_ns. And one has taken at least cpu_ns -
 * LAPS_SPAN_NS, since all turns of a span but its last end within LAPS_SPAN_NS.
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
    uint64_t span_cpu_ns;   /* and what the thread's clock said */
};

/* An event of the turn. */
static inline void
laps_event(struct laps *laps, uint64_t now_ns)
{
    if (laps->began_ns == 0)
        laps->began_ns = now_ns;
}

/* The turn ends. Always on the same thread. */
void laps_end(struct laps *laps, uint64_t now_ns);
