/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A uid and what it is charged, from its first connection until it has none, is charged nothing, has
 * nothing in a queue, and its own pool has neither blocks nor watchers. Charges are undone with the
 * object that they were made for (I4), so a user that holds nothing is at zero everywhere.
 *
 * Nobody who gives something up asks whether its user is to go: it says so by user_touch(), and the
 * core looks at the end of the event.
 */
#pragma once

#include "base/tree.h"
#include "dealloc.h"
#include "refusal.h"

TAILQ_HEAD(job_list, job);

enum resource {
    RES_CONNECTIONS, /* departed ones, too */
    RES_ARRAYS,
    RES_NAMES,
    RES_LEASES,
    RES_WATCHES,
    RES_BYTES,  /* of device memory, by ranges */
    RES_PINNED, /* the same of host memory */
    RES_HOST,   /* bytes of the daemon's own memory */
    RES_JOBS,
    RES_BRACKETS,
    RES_PAGES,
    N_RESOURCES,
};

struct user {
    RB_ENTRY(user) node;
    struct core *core;
    uid_t uid;
    uint64_t used[N_RESOURCES];
    struct pool *pool; /* the uid's own */
    struct job_list waiting;
    TAILQ_ENTRY(user) turn; /* core->turns, while jobs wait */
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
/* Nothing holds it any more. */
bool user_is_idle(const struct user *user);
/* Whether amount may be charged; refuses with the resource's name and limit. */
int user_check(const struct user *user, enum resource res, uint64_t amount, struct refusal *r);
/* Charges amount, or refuses in the same way: for what an object cannot have a struct charge for. */
int user_charge(struct user *user, enum resource res, uint64_t amount, struct refusal *r);
void user_uncharge(struct user *user, enum resource res, uint64_t amount);
uint64_t user_limit(const struct core *core, enum resource res);

/* What an object costs its user: so many of one resource, and bytes of the daemon's own memory. It lies
 * in that object and is undone with it (I4). All zero, it is none; undone, it still says whose it was. */
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
/* So many bytes more, or less. Less is never refused. */
int charge_resize(struct charge *charge, int64_t host, struct refusal *r);
