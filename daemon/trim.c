/* SPDX-License-Identifier: Apache-2.0 */
#include "trim.h"

#include <malloc.h>

#include "base/macros.h"

/* Below it there is nothing to gain: a few MiB. */
#define TRIM_MIN 10000

/* What is freed is joined with its neighbours at once: glibc would put that off for small ones, and
 * then do it for all of them in one call, which takes 20 ms for 800,000. */
void
trim_init(struct trim *t, uv_loop_t *loop)
{
    mallopt(M_MXFAST, 0);
    *t = (struct trim){.loop = loop};
}

static void
trim_run(uv_work_t *work UNUSED)
{
    malloc_trim(0);
}

static void
trim_after(uv_work_t *work, int status UNUSED)
{
    struct trim *t = container_of(work, struct trim, work);

    t->running = false;
    trim_look(t, t->n); /* what has gone meanwhile */
}

/* Each time that half is gone, so that the sum of all trims is like the largest of them. */
void
trim_look(struct trim *t, uint64_t n)
{
    t->n = n;
    if (n > t->peak)
        t->peak = n;
    if (t->peak < TRIM_MIN || n > t->peak / 2 || t->running)
        return;
    t->peak = n;
    t->running = true;
    uv_queue_work(t->loop, &t->work, trim_run, trim_after);
}
