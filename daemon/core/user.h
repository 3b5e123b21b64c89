/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user: a uid, and what it is charged. It lives from the first connection until it has none, is
 * charged nothing, has no entry in a queue, and its own pool has neither blocks nor watches.
 * Charges are undone with the object that they were made for (I4), so a user without objects is at
 * zero everywhere.
 *
 * Code that gives something up need not know whether its user can go. It calls user_touch(), and
 * the core looks at the end of the event.
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
 * messages call it). A limit of 0 bytes is none. Departed connections count. Bytes of memory are
 * those of ranges. */
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

/* COUNT(NAME, its name in metrics): events since the start. A bracket whose client has died has
 * begun, and never ends. A drop is of the user whose set made room. */
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
    COUNT(DROPS, "drops_total")                   \
    COUNT(TIME_NS, "time_ns_total")

enum count {
    COUNT_NONE,
#define COUNT(NAME, name) COUNT_##NAME,
    COUNTS(COUNT)
#undef COUNT
    COUNT_LIMIT_QUOTA, /* refusals, for struct refusal: by a pool's quota, */
    COUNT_LIMIT_BLOCKS,
#define RESOURCE(NAME, figure, limit, bytes, text) \
    COUNT_LIMIT_##NAME, /* and by a uid's limits */
    RESOURCES(RESOURCE)
#undef RESOURCE
    N_COUNTS,
};

RB_HEAD(own_droppables, set);

struct user_device {
    struct dealloc_owner queue;       /* its part of the device's queue */
    uint64_t bytes;                   /* of device memory that it is charged for there */
    struct own_droppables droppables; /* its sets there that are in their pool's list, too */
    struct set *drop_next;            /* as the pool's */
};

struct user {
    RB_ENTRY(user) node;
    struct core *core;
    uid_t uid;
    uint64_t used[N_RESOURCES];
    uint64_t counts[N_COUNTS]; /* TIME_NS: time that the loop has spent on it */
    struct monitor_list monitors;
    struct tickets_of_user tickets;
    struct conn_list formers; /* former connections: former.h */
    uint32_t n_landing;       /* connections in core->landing */
    struct pool *pool;        /* the uid's own */
    struct job_list waiting;
    TAILQ_ENTRY(user) turn; /* core->turns, while jobs wait */
    /* Work that is left, a piece of each at a time: work_run(). */
    struct bracket_list ready; /* they wait for nothing any more */
    struct watch_list due;     /* the name has another generation */
    struct waiter_list done;   /* creates to be answered */
    struct conn_list ending;   /* departed connections that may have something to take back */
    struct set_list ended;     /* sets with members to let go of */
    bool busy;
    TAILQ_ENTRY(user) of_busy; /* core->busy, while one of these is not empty */
    bool touched;
    TAILQ_ENTRY(user) of_touched; /* core->touched_users, until the end of the event */
    uint64_t n_pending;           /* entries in all queues */
    uint64_t n_refs;              /* blocks whose driver calls take its turns */
    uint32_t n_deferring;         /* connections with an open defer */
    struct user_device devices[]; /* one for each device */
};

RB_HEAD(users, user);
TAILQ_HEAD(user_list, user);
RB_PROTOTYPE(users, user, node, )

struct user *user_find(struct core *core, uid_t uid);
/* A user without a pool. NULL: out of memory. */
struct user *user_new(struct core *core, uid_t uid);
void user_free(struct core *core, struct user *user);
/* The user has given something up. */
void user_touch(struct user *user);
/* There is work for the user. */
void user_wake(struct user *user);
/* Whether the user can be freed. */
bool user_is_idle(const struct user *user);
/* Whether amount may be charged; REFUSED says the resource and the limit. r NULL, here and in all
 * that charges: no limit is checked, as for what was charged before. */
int user_check(const struct user *user, enum resource res, uint64_t amount, struct refusal *r);
/* Charges amount, or refuses as above: for what a struct charge in the object cannot say. */
int user_charge(struct user *user, enum resource res, uint64_t amount, struct refusal *r);
/* Charges without a limit, in exchange for something that is uncharged next. */
void user_charge_anyway(struct user *user, enum resource res, uint64_t amount);
void user_uncharge(struct user *user, enum resource res, uint64_t amount);
/* Counts bytes of device memory on the device, or takes them out. */
void user_count(struct user *user, uint32_t device, uint64_t bytes, bool there);
uint64_t user_limit(const struct core *core, enum resource res);
/* What all users' total leaves for this one, with what is due; UINT64_MAX: no total limit. */
uint64_t user_share(const struct user *user, enum resource res);

/* What an object costs its user: an amount of one resource, and bytes of the daemon's memory. It
 * lies in the object and is undone with it (I4). All zero: nothing. Undone, it still says whose it
 * was. */
struct charge {
    struct user *user;
    uint32_t host;
    uint16_t n;
    uint8_t resource;
};

/* Charges all or nothing. REFUSED. */
int charge_init(struct charge *ret, struct user *user, enum resource res, uint32_t n,
                size_t host, struct refusal *r);
/* May be called twice. */
void charge_deinit(struct charge *charge);
/* Another object takes over a part of the charge. */
void charge_split(struct charge *charge, struct charge *ret, uint32_t n, size_t host);
