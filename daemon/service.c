/* SPDX-License-Identifier: Apache-2.0 */
#include "service.h"

#include "base/clock.h"

#define RETRY_MS 100

void
service_init(struct service *s, uv_loop_t *loop, struct notify *notify)
{
    s->notify = notify;
    uv_timer_init(loop, &s->retry);
    uv_timer_init(loop, &s->watchdog);
    s->retry.data = s->watchdog.data = s;
}

static void
on_retry(uv_timer_t *timer)
{
    struct service *s = timer->data;

    notify_flush(s->notify);
    if (!notify_is_pending(s->notify))
        uv_timer_stop(timer);
}

void
service_tell(struct service *s, const char *state)
{
    notify_send(s->notify, state);
    if (notify_is_pending(s->notify))
        uv_timer_start(&s->retry, on_retry, RETRY_MS, RETRY_MS);
}

static void
on_watchdog(uv_timer_t *timer)
{
    struct service *s = timer->data;

    if (!notify_is_pending(s->notify))
        service_tell(s, "WATCHDOG=1");
}

void
service_watch(struct service *s)
{
    uint64_t ms = s->notify->watchdog_ns / NSEC_PER_MSEC / 2;

    if (s->notify->watchdog_ns)
        uv_timer_start(&s->watchdog, on_watchdog, ms, ms ? ms : 1);
}
