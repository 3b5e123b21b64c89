/* SPDX-License-Identifier: Apache-2.0 */
#include "turns.h"

#include <stddef.h>

void
turns_init(struct turns *s)
{
    s->round = 1;
    TAILQ_INIT(&s->users);
}

void
turns_user_init(struct turns *s, struct turns_user *user)
{
    TAILQ_INIT(&user->queue);
    user->round = s->round; /* no time in this round: it may have used some, and come back */
    user->left_ns = 0;
}

/* The user's time left in this round. Unused time of an earlier round is lost; time that was used
 * beyond a slice is owed. */
static int64_t
left(const struct turns *s, struct turns_user *user)
{
    uint64_t rounds = s->round - user->round;

    user->round = s->round;
    if (rounds > (uint64_t)(TURNS_SLICE_NS - user->left_ns) / TURNS_SLICE_NS)
        user->left_ns = TURNS_SLICE_NS;
    else
        user->left_ns += (int64_t)rounds * TURNS_SLICE_NS;
    return user->left_ns;
}

void
turns_add(struct turns *s, struct turn *entry)
{
    if (entry->queued)
        return;
    if (TAILQ_EMPTY(&entry->user->queue))
        TAILQ_INSERT_TAIL(&s->users, entry->user, link);
    TAILQ_INSERT_TAIL(&entry->user->queue, entry, link);
    entry->queued = true;
}

void
turns_remove(struct turns *s, struct turn *entry)
{
    if (!entry->queued)
        return;
    TAILQ_REMOVE(&entry->user->queue, entry, link);
    entry->queued = false;
    if (TAILQ_EMPTY(&entry->user->queue))
        TAILQ_REMOVE(&s->users, entry->user, link);
}

void
turns_forget(struct turns *s)
{
    s->round += UINT32_MAX;
}

/* The first user with time left. Where there is none, a later round begins. */
static struct turns_user *
pick(struct turns *s)
{
    struct turns_user *user, *least = TAILQ_FIRST(&s->users);

    TAILQ_FOREACH(user, &s->users, link) {
        if (left(s, user) > 0)
            return user;
        if (user->left_ns > least->left_ns)
            least = user;
    }
    if (least)
        s->round += (uint64_t)(-least->left_ns) / TURNS_SLICE_NS + 1;
    return least;
}

struct turn *
turns_next(struct turns *s)
{
    struct turns_user *user = pick(s);
    struct turn *entry;

    if (!user)
        return NULL;
    TAILQ_REMOVE(&s->users, user, link); /* and to the end of the list */
    TAILQ_INSERT_TAIL(&s->users, user, link);
    entry = TAILQ_FIRST(&user->queue);
    turns_remove(s, entry);
    return entry;
}

bool
turns_is_busy(const struct turns *s)
{
    return !TAILQ_EMPTY(&s->users);
}

void
turns_spent(const struct turns *s, struct turns_user *user, uint64_t ns)
{
    left(s, user);
    user->left_ns -= ns < TURNS_COST_MAX ? (int64_t)ns : TURNS_COST_MAX;
}
