/* SPDX-License-Identifier: Apache-2.0 */
#include "flight.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "proto_limits.h"

void
flight_init(struct flight *f, uint32_t max)
{
    *f = (struct flight){.max = max};
    TAILQ_INIT(&f->shares);
}

void
flight_share_init(struct flight_share *s, int sock)
{
    *s = (struct flight_share){.sock = sock};
}

void
flight_share_deinit(struct flight *f, struct flight_share *s)
{
    if (s->n == 0)
        return;
    TAILQ_REMOVE(&f->shares, s, link);
    f->n -= s->n;
    s->n = 0;
}

/* Gives the share back when the peer has received everything. */
static void
settle(struct flight *f, struct flight_share *s)
{
    int unread;

    if (ioctl(s->sock, SIOCOUTQ, &unread) == 0 && unread == 0)
        flight_share_deinit(f, s);
}

static void
settle_all(struct flight *f)
{
    struct flight_share *s, *next;

    for (s = TAILQ_FIRST(&f->shares); s; s = next) {
        next = TAILQ_NEXT(s, link);
        settle(f, s);
    }
}

bool
flight_admits(struct flight *f, struct flight_share *s, size_t n)
{
    if (s->n + n > FLIGHT_SHARE_MAX)
        settle(f, s);
    if (s->n + n > FLIGHT_SHARE_MAX)
        return false;
    if (f->n + n > f->max)
        settle_all(f);
    return f->n + n <= f->max;
}

void
flight_sent(struct flight *f, struct flight_share *s, size_t n, uint64_t now_ms)
{
    if (n == 0)
        return;
    if (s->n == 0) {
        s->since_ms = now_ms;
        TAILQ_INSERT_TAIL(&f->shares, s, link);
    }
    s->n += (uint32_t)n;
    f->n += (uint32_t)n;
}

struct flight_share *
flight_culprit(struct flight *f, uint64_t age_ms, uint64_t now_ms)
{
    struct flight_share *s;

    if (f->n + PROTO_FDS_MAX <= f->max)
        return NULL;
    settle_all(f);
    s = TAILQ_FIRST(&f->shares);
    return s && f->n + PROTO_FDS_MAX > f->max && now_ms - s->since_ms >= age_ms ? s : NULL;
}
