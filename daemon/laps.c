/* SPDX-License-Identifier: Apache-2.0 */
#include "laps.h"

#include <time.h>

#include "base/clock.h"

static void
raise_to(uint64_t *most, uint64_t ns)
{
    if (*most < ns)
        *most = ns;
}

static void
end_span(struct laps *laps, uint64_t now_ns)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    uint64_t cpu_ns = (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
    uint64_t used_ns = cpu_ns - laps->span_cpu_ns;
    raise_to(&laps->cpu_ns, used_ns < laps->span_wall_ns ? used_ns : laps->span_wall_ns);
    laps->span_wall_ns = 0;
    laps->span_since_ns = now_ns;
    laps->span_cpu_ns = cpu_ns;
}

void
laps_end(struct laps *laps, uint64_t now_ns)
{
    uint64_t ns = laps->began_ns > 0 ? now_ns - laps->began_ns : 0;
    uint32_t i = 0;

    while (i < LAPS_N - 1 && ns > NSEC_PER_USEC << i)
        i++;
    laps->n[i] += laps->began_ns > 0;
    laps->sum_ns += ns;
    raise_to(&laps->span_wall_ns, ns);
    laps->began_ns = 0;
    raise_to(&laps->wall_ns, laps->span_wall_ns);
    if (now_ns - laps->span_since_ns >= LAPS_SPAN_NS)
        end_span(laps, now_ns);
}
