/* SPDX-License-Identifier: Apache-2.0 */
/*
 * While something of a uid waits, no other uid is served for longer than this one, except for a few
 * slices, the time that a few pieces of work take beyond their share, and a 32nd for what is done
 * between two turns. A turn counts as work for its uid, except for work on another uid's
 * connection. Work for no uid is bounded call by call.
 */
#include "conns.h"
#include "sim.h"

#define FOLLOWED    32 /* uids */
#define CALL_MAX_NS (2 * NSEC_PER_MSEC)
#define SHARE_NS    (6 * TURNS_SLICE_NS)

static struct user *users, *nobody, *serving; /* nobody is behind the last one */
static uint32_t n_users, n_followed;
static uint64_t began_ns, longest_ns;

void
fair_init(struct user *all, uint32_t n_all)
{
    users = all;
    n_users = n_all;
    n_followed = n_all < FOLLOWED ? n_all : FOLLOWED;
    for (uint32_t i = 0; i < n_followed; i++)
        users[i].since_ns = calloc(n_users + 1, sizeof(uint64_t));
    nobody = serving = &users[n_users];
    began_ns = world_now_ns();
    longest_ns = 0;
}

void
fair_deinit(void)
{
    while (n_followed > 0) {
        struct user *user = &users[--n_followed];
        free(user->since_ns);
        user->since_ns = NULL;
    }
}

static void
check(const struct user *waits)
{
    uint64_t own_ns = waits->spent_ns - waits->since_ns[waits - users],
             ns = serving->spent_ns - waits->since_ns[serving - users],
             most_ns = own_ns + own_ns / 32 + SHARE_NS + 3 * longest_ns;

    SIM_CHECK(ns <= most_ns, "uid %u waited, and was served for %llu ns, uid %u for %llu ns",
              waits->uid, (unsigned long long)own_ns, serving->uid, (unsigned long long)ns);
}

void
fair_serve(struct user *user)
{
    uint64_t now_ns = world_now_ns(), ns = now_ns - began_ns;

    serving->spent_ns += ns;
    if (serving != nobody && longest_ns < ns)
        longest_ns = ns;
    for (uint32_t i = 0; i < n_followed; i++)
        if (users[i].waits && serving != nobody && serving != &users[i])
            check(&users[i]);
    began_ns = now_ns;
    serving = user ? user : nobody;
}

static void
serve_uid(uid_t uid)
{
    fair_serve(&users[uid - USERS_UID]);
}

struct turn *__real_turns_next(struct turns *turns);

WRAPPED(struct turn *, turns_next, struct turns *turns)
{
    struct turn *entry;

    fair_serve(NULL);
    entry = __real_turns_next(turns);
    if (entry)
        serve_uid(container_of(entry->user, struct conn_owner, turns)->uid);
    return entry;
}

void __real_conn_flush(struct conn *c);

WRAPPED(void, conn_flush, struct conn *c)
{
    serve_uid(c->uid);
    __real_conn_flush(c);
}

void
fair_wait(struct user *user)
{
    if (user->waits || !user->since_ns)
        return;
    fair_serve(serving);
    user->waits = true;
    for (uint32_t i = 0; i <= n_users; i++)
        user->since_ns[i] = users[i].spent_ns;
}

void
fair_rest(struct user *user)
{
    user->waits = false;
}

void
fair_call(const char *what, uint64_t since_ns)
{
    uint64_t ns = world_now_ns() - since_ns;

    SIM_CHECK(ns <= CALL_MAX_NS, "one call (%s) took %llu ns", what, (unsigned long long)ns);
}
