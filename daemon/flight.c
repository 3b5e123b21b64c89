/* SPDX-License-Identifier: Apache-2.0 */
#include "flight.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

/* An unread packet counts more in SIOCOUTQ. One that is being freed counts 1 when its release wakes
 * us (sock_wfree()); the kernel does not count its fds any more. */
#define UNREAD_MIN   256
#define SETTLE_MAX   16 /* shares of a uid that are looked at, at a time */
#define SETTLE_USERS 4  /* uids that are looked at, at a time */
#define KEPT_PARTS   3  /* kept fds may be so many times max; the kernel's limit is 4 times */

void
flight_init(struct flight *f, uint32_t max)
{
    *f = (struct flight){.max = max};
    TAILQ_INIT(&f->users);
}

void
flight_user_init(struct flight_user *user)
{
    *user = (struct flight_user){0};
    TAILQ_INIT(&user->shares);
}

void
flight_share_init(struct flight_share *s, struct flight_user *user, int sock)
{
    *s = (struct flight_share){.user = user, .sock = sock};
}

void
flight_share_deinit(struct flight *f, struct flight_share *s)
{
    if (s->kept) {
        f->n_kept -= s->n;
        s->user->n_kept -= s->n;
        s->n = 0;
        s->kept = false;
    }
    if (s->n == 0)
        return;
    if (s->user->next == s)
        s->user->next = TAILQ_NEXT(s, link);
    TAILQ_REMOVE(&s->user->shares, s, link);
    f->n -= s->n;
    s->user->n -= s->n;
    s->n = 0;
    if (s->user->n == 0)
        TAILQ_REMOVE(&f->users, s->user, link);
}

/* Gives the share back when the peer has received everything. */
static void
flight_settle(struct flight *f, struct flight_share *s)
{
    int unread;

    if (s->n > 0 && ioctl(s->sock, SIOCOUTQ, &unread) == 0 && unread < UNREAD_MIN)
        flight_share_deinit(f, s);
}

bool
flight_keep(struct flight *f, struct flight_share *s)
{
    uint32_t n;

    flight_settle(f, s);
    n = s->n;
    if (n == 0 || s->kept)
        return n > 0;
    flight_share_deinit(f, s);
    s->n = n;
    f->n_kept += n;
    s->user->n_kept += n;
    s->kept = true;
    return true;
}

/* Settles some of the user's shares; the next call goes on with the others. */
static void
settle_some(struct flight *f, struct flight_user *user, uint64_t now_ms)
{
    struct flight_share *s;

    if (user->settled_ms == now_ms)
        return;
    user->settled_ms = now_ms;
    s = user->next ? user->next : TAILQ_FIRST(&user->shares);
    for (int i = 0; i < SETTLE_MAX && s; i++) {
        user->next = TAILQ_NEXT(s, link);
        flight_settle(f, s);
        s = user->next;
    }
}

/* Does so for some users; the next call goes on with the others. */
static void
settle_others(struct flight *f, uint64_t now_ms)
{
    struct flight_user *user;

    for (int i = 0; i < SETTLE_USERS && (user = TAILQ_FIRST(&f->users)); i++) {
        TAILQ_REMOVE(&f->users, user, link);
        TAILQ_INSERT_TAIL(&f->users, user, link);
        settle_some(f, user, now_ms);
    }
}

uint32_t
flight_room(const struct flight *f, const struct flight_user *user)
{
    uint32_t others = f->n - user->n;

    return others < f->max ? (f->max - others) / 2 : 0;
}

struct flight_share *
flight_culprit(struct flight *f, const struct flight_user *user, uint64_t age_ms,
               uint64_t now_ms)
{
    struct flight_share *s;

    while ((s = TAILQ_FIRST(&user->shares)) && now_ms - s->since_ms >= age_ms) {
        flight_settle(f, s);
        if (s->n > 0)
            return s;
    }
    return NULL;
}

/* Where the process may have few fds, a packet may carry more than the room. It is admitted if its
 * uid has none in flight and the others have little. */
static bool
has_room(const struct flight *f, const struct flight_user *user, size_t n)
{
    if (user->n_kept > 0 &&
        (user->n_kept + user->n + n > f->max || f->n_kept + f->n + n > KEPT_PARTS * f->max))
        return false;
    return user->n + n <= flight_room(f, user) || (user->n == 0 && f->n <= f->max / 4);
}

bool
flight_admits(struct flight *f, struct flight_share *s, size_t n, uint64_t now_ms)
{
    if (s->n + n > FLIGHT_SHARE_MAX)
        flight_settle(f, s);
    if (s->n + n > FLIGHT_SHARE_MAX)
        return false;
    if (!has_room(f, s->user, n))
        settle_some(f, s->user, now_ms);
    if (!has_room(f, s->user, n))
        settle_others(f, now_ms);
    return has_room(f, s->user, n);
}

void
flight_sent(struct flight *f, struct flight_share *s, size_t n, uint64_t now_ms)
{
    if (n == 0)
        return;
    if (s->n == 0) {
        s->since_ms = now_ms;
        TAILQ_INSERT_TAIL(&s->user->shares, s, link);
    }
    if (s->user->n == 0)
        TAILQ_INSERT_TAIL(&f->users, s->user, link);
    s->n += (uint32_t)n;
    s->user->n += (uint32_t)n;
    f->n += (uint32_t)n;
}
