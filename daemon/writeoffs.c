/* SPDX-License-Identifier: Apache-2.0 */
#include "writeoffs.h"

#include <stdio.h>

#include "base/log.h"
#include "base/macros.h"

#define WINDOW_MS 10000

void
writeoffs_init(struct writeoffs *w, uv_loop_t *loop)
{
    *w = (struct writeoffs){0};
    uv_timer_init(loop, &w->timer);
    w->timer.data = w;
}

void
writeoffs_tell(struct writeoffs *w)
{
    if (w->n > 0)
        log_error("%u block%s written off, since the driver failed to take %s back: %s", w->n,
                  w->n == 1 ? " is" : "s are", w->n == 1 ? "it" : "them", w->text);
    w->n = 0;
}

static void
on_timer(uv_timer_t *timer)
{
    struct writeoffs *w = timer->data;

    if (w->n == 0)
        uv_timer_stop(timer);
    writeoffs_tell(w);
}

void
writeoffs_add(struct writeoffs *w, const char *text)
{
    w->n++;
    snprintf(w->text, sizeof(w->text), "%s", text);
    if (uv_is_active((uv_handle_t *)&w->timer))
        return;
    writeoffs_tell(w);
    uv_timer_start(&w->timer, on_timer, WINDOW_MS, WINDOW_MS);
}
