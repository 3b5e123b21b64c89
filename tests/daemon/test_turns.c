/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of turns is fair: whatever others have queued, and whatever their packets cost, a user
 * who waits is served after at most the time of a slice and one packet of each other user.
 */
#include "caid_test.h"
#include "turns.h"

#define N_USERS 5
#define N_EACH  40
#define COST_NS 300000 /* of the most costly packet */

struct world {
    struct turns turns;
    struct turns_user users[N_USERS];
    struct turn entries[N_USERS][N_EACH];
    uint64_t spent[N_USERS];
};

static void
world_init(struct world *w)
{
    *w = (struct world){0};
    turns_init(&w->turns);
    for (int u = 0; u < N_USERS; u++) {
        turns_user_init(&w->turns, &w->users[u]);
        for (int i = 0; i < N_EACH; i++)
            w->entries[u][i].user = &w->users[u];
    }
    turns_forget(&w->turns); /* a new one has nothing of the round that it comes in */
}

static int
number(const struct world *w, const struct turn *entry)
{
    return (int)(entry->user - w->users);
}

/* The next one's packet costs so much. */
static int
serve(struct world *w, uint64_t cost)
{
    struct turn *entry = turns_next(&w->turns);

    cr_assert_not_null(entry);
    cr_assert_not(entry->queued);
    int u = number(w, entry);
    turns_spent(&w->turns, entry->user, cost);
    w->spent[u] += cost;
    return u;
}

static void
queue_all(struct world *w, int u, int n)
{
    for (int i = 0; i < n; i++)
        turns_add(&w->turns, &w->entries[u][i]);
}

CAID_TEST(turns, who_has_time_left_goes_first)
{
    struct world w;

    world_init(&w);
    cr_assert_not(turns_is_busy(&w.turns));
    cr_assert_null(turns_next(&w.turns));
    turns_spent(&w.turns, &w.users[0], TURNS_SLICE_NS);
    queue_all(&w, 0, 2);
    queue_all(&w, 1, 1);
    queue_all(&w, 1, 1); /* is there */
    cr_assert(turns_is_busy(&w.turns));
    cr_assert_eq(serve(&w, 1), 1);
    cr_assert_eq(serve(&w, 1), 0);
    turns_forget(&w.turns);
    queue_all(&w, 1, 1);
    cr_assert_eq(serve(&w, 1), 0, "what it had spent is forgotten");
    cr_assert_eq(serve(&w, 1), 1);
    cr_assert_not(turns_is_busy(&w.turns));
    turns_user_init(&w.turns, &w.users[0]);
    queue_all(&w, 0, 1);
    queue_all(&w, 1, 1);
    cr_assert_eq(serve(&w, 1), 1, "who has gone and come anew has nothing of this round");
}

CAID_TEST(turns, a_debt_is_paid_in_rounds)
{
    struct world w;

    world_init(&w);
    queue_all(&w, 0, N_EACH);
    queue_all(&w, 1, N_EACH);
    cr_assert_eq(serve(&w, 10 * TURNS_SLICE_NS), 0);
    for (int i = 0; i < 9; i++)
        cr_assert_eq(serve(&w, TURNS_SLICE_NS), 1);
    serve(&w, TURNS_SLICE_NS);
    serve(&w, TURNS_SLICE_NS);
    cr_assert_eq(w.spent[0], 11 * TURNS_SLICE_NS);
}

CAID_TEST(turns, one_that_goes_is_forgotten)
{
    struct world w;

    world_init(&w);
    queue_all(&w, 0, 2);
    turns_remove(&w.turns, &w.entries[0][0]);
    turns_remove(&w.turns, &w.entries[0][0]);
    cr_assert_eq(turns_next(&w.turns), &w.entries[0][1]);
    cr_assert_null(turns_next(&w.turns));
}

/* Random packets: those who always wait get the same time, within a slice and a packet. */
CAID_TEST(turns, time_is_shared_alike)
{
    struct world w;
    unsigned int seed = 1;

    world_init(&w);
    for (int u = 0; u < N_USERS; u++)
        queue_all(&w, u, u == 0 ? 1 : N_EACH);
    for (int i = 0; i < 100000; i++) {
        struct turn *entry = turns_next(&w.turns);
        int u = number(&w, entry);
        uint64_t cost = 1 + (uint64_t)rand_r(&seed) % (u % 2 ? COST_NS : COST_NS / 50);
        turns_spent(&w.turns, entry->user, cost);
        w.spent[u] += cost;
        turns_add(&w.turns, entry);
        for (int other = 0; other < N_USERS; other++) {
            int64_t ahead = (int64_t)(w.spent[u] - w.spent[other]);
            cr_assert_leq(ahead, 2 * (COST_NS + TURNS_SLICE_NS), "%d is %lld ns ahead of %d", u,
                          (long long)ahead, other);
        }
    }
}
