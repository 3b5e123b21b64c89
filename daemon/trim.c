/* SPDX-License-Identifier: Apache-2.0 */
#include "trim.h"

#include <malloc.h>

#include "base/macros.h"

/* So many objects take a few MiB: less is not worth a trim. */
#define TRIM_MIN 10000
#define QUIET_MS 1000

/* Without fast bins, free(3) merges small chunks with their neighbours at once. glibc would put
 * that off, and then merge all in one call, which takes 20 ms for 800,000. */
void
trim_init(struct trim *t, uv_loop_t *loop)
{
    mallopt(M_MXFAST, 0);
    *t = (struct trim){.loop = loop};
    uv_timer_init(loop, &t->timer);
    t->timer.data = t;
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
    trim_look(t, t->n); /* more may have gone while it ran */
}

static void
on_timer(uv_timer_t *timer)
{
    struct trim *t = timer->data;

    if (uv_now(t->loop) - t->seen_ms < QUIET_MS)
        return;
    uv_timer_stop(timer);
    t->peak = t->n;
    t->running = true;
    uv_queue_work(t->loop, &t->work, trim_run, trim_after);
}

/* Trims each time that half of the objects have gone, so that all trims together cost about as much
 * as the largest one. */
void
trim_look(struct trim *t, uint64_t n)
{
    t->n = n;
    t->seen_ms = uv_now(t->loop);
    if (n > t->peak)
        t->peak = n;
    if (t->peak < TRIM_MIN || n > t->peak / 2 || t->running ||
        uv_is_active((uv_handle_t *)&t->timer))
        return;
    uv_timer_start(&t->timer, on_timer, QUIET_MS, QUIET_MS);
}
