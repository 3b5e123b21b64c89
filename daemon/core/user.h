/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A uid and what it is charged, from its first connection until it has none, is charged nothing,
 * has nothing in a queue, and its own pool has neither blocks nor watchers. Charges are undone with
 * the object that they were made for (I4), so a user that holds nothing is at zero everywhere.
 *
 * Nobody who gives something up asks whether its user is to go: it says so by user_touch(), and the
 * core looks at the end of the event.
 */
#pragma once

#include "base/tree.h"
#include "dealloc.h"
#include "refusal.h"

TAILQ_HEAD(job_list, job);
TAILQ_HEAD(bracket_list, bracket);
TAILQ_HEAD(watch_list, watch);
TAILQ_HEAD(waiter_list, waiter);
TAILQ_HEAD(conn_list, conn);
TAILQ_HEAD(set_list, set);
LIST_HEAD(monitor_list, monitor);
RB_HEAD(tickets_of_user, ticket);

/* RESOURCE(NAME, its figure in msg_user, its limit in core_limits, whether it is in bytes, what
 * messages call it). Of bytes, a limit of 0 is none. Departed connections count; bytes of memory
 * are those of ranges. */
#define RESOURCES(RESOURCE)                                               \
    RESOURCE(CONNECTIONS, connections, connections, false, "connections") \
    RESOURCE(ARRAYS, arrays, arrays, false, "arrays")                     \
    RESOURCE(NAMES, names, names, false, "names")                         \
    RESOURCE(LEASES, leases, leases, false, "leases")                     \
    RESOURCE(WATCHES, watches, watches, false, "watches")                 \
    RESOURCE(BYTES, bytes, bytes, true, "of device memory")               \
    RESOURCE(PINNED, pinned, pinned_bytes, true, "of pinned memory")      \
    RESOURCE(HOST, host, host_bytes, true, "of the daemon's memory")      \
    RESOURCE(JOBS, jobs, jobs, false, "driver calls under way")           \
    RESOURCE(BRACKETS, brackets, brackets, false, "brackets")             \
    RESOURCE(PAGES, pages, pages, false, "pages of timelines")            \
    RESOURCE(FDS, fds, fds, false, "file descriptors")

enum resource {
#define RESOURCE(NAME, figure, limit, bytes, text) RES_##NAME,
    RESOURCES(RESOURCE)
#undef RESOURCE
    N_RESOURCES,
};

/* COUNT(NAME, its name in metrics): of what has happened, ever. Brackets of who has died have
 * begun, and do not end. */
#define COUNTS(COUNT)                             \
    COUNT(CONNECTIONS, "connections_total")       \
    COUNT(DEATHS, "deaths_total")                 \
    COUNT(LEASES, "leases_total")                 \
    COUNT(ANSWERED, "answered_total")             \
    COUNT(REFUSED, "refused_total")               \
    COUNT(BRACKETS_BEGUN, "brackets_begun_total") \
    COUNT(BRACKETS_ENDED, "brackets_ended_total") \
    COUNT(FENCES, "fences_total")                 \
    COUNT(WAITS, "waits_total")                   \
    COUNT(WAIT_NS, "wait_ns_total")               \
    COUNT(TIME_NS, "time_ns_total")

enum count {
    COUNT_NONE,
#define COUNT(NAME, name) COUNT_##NAME,
    COUNTS(COUNT)
#undef COUNT
    COUNT_LIMIT_QUOTA, /* refusals by what was reached, for struct refusal: of a pool, */
    COUNT_LIMIT_BLOCKS,
#define RESOURCE(NAME, figure, limit, bytes, text) COUNT_LIMIT_##NAME, /* of a uid */
    RESOURCES(RESOURCE)
#undef RESOURCE
    N_COUNTS,
};

struct user {
    RB_ENTRY(user) node;
    struct core *core;
    uid_t uid;
    uint64_t used[N_RESOURCES];
    uint64_t counts[N_COUNTS]; /* TIME_NS: of the loop, spent on it */
    struct monitor_list monitors;
    struct tickets_of_user tickets;
    struct conn_list
        formers;        /* of an earlier core, and have not told what they have: former.h */
    uint32_t n_landing; /* of those that have, in core->landing */
    struct pool *pool;  /* the uid's own */
    struct job_list waiting;
    TAILQ_ENTRY(user) turn; /* core->turns, while jobs wait */
    /* What is left to be done for it, a piece of each at a time: work_run(). */
    struct bracket_list ready; /* that wait for nothing any more */
    struct watch_list due;     /* whose name has another generation */
    struct waiter_list done;   /* creates that are to be answered */
    struct conn_list ending;   /* that have hung up, and may have something to give back */
    struct set_list ended;     /* that have members to let go of */
    bool busy;
    TAILQ_ENTRY(user) of_busy; /* core->busy, with any of these */
    bool touched;
    TAILQ_ENTRY(user) of_touched;  /* core->touched_users, until the end of the event */
    uint64_t n_pending;            /* entries of all queues */
    uint64_t n_refs;               /* by blocks whose turn it is */
    uint32_t n_deferring;          /* connections that hold them back */
    struct dealloc_owner owners[]; /* one for each device */
};

RB_HEAD(users, user);
TAILQ_HEAD(user_list, user);
RB_PROTOTYPE(users, user, node, )

struct user *user_find(struct core *core, uid_t uid);
/* One without a pool. NULL: out of memory. */
struct user *user_new(struct core *core, uid_t uid);
void user_free(struct core *core, struct user *user);
/* Something of it has gone. */
void user_touch(struct user *user);
/* There is something to be done for it. */
void user_wake(struct user *user);
/* Nothing holds it any more. */
bool user_is_idle(const struct user *user);
/* Whether amount may be charged; refuses with the resource's name and limit. r NULL, here and where
 * else something is charged: whatever the limit; it was charged before. */
int user_check(const struct user *user, enum resource res, uint64_t amount, struct refusal *r);
/* Charges amount, or refuses in the same way: for what an object cannot have a struct charge
 * for. */
int user_charge(struct user *user, enum resource res, uint64_t amount, struct refusal *r);
/* In place of what is about to be uncharged. */
void user_charge_anyway(struct user *user, enum resource res, uint64_t amount);
void user_uncharge(struct user *user, enum resource res, uint64_t amount);
uint64_t user_limit(const struct core *core, enum resource res);
/* What there is for it beside others, with what is due; UINT64_MAX: all have no limit together. */
uint64_t user_share(const struct user *user, enum resource res);

/* What an object costs its user: so many of one resource, and bytes of the daemon's own memory.
 * It lies in that object and is undone with it (I4). All zero, it is none; undone, it still says
 * whose it was. */
struct charge {
    struct user *user;
    uint32_t host;
    uint16_t n;
    uint8_t resource;
};

/* REFUSED: nothing is charged. */
int charge_init(struct charge *ret, struct user *user, enum resource res, uint32_t n,
                size_t host, struct refusal *r);
/* May be called twice. */
void charge_deinit(struct charge *charge);
/* A part of it is another object's from now on. */
void charge_split(struct charge *charge, struct charge *ret, uint32_t n, size_t host);
