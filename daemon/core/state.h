/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core's objects and who holds whom. Only files in core/ include this; each object's own header
 * says how long it lives.
 *
 *   core ── users (by uid) ── own pool
 *    │        └─ what the uid is charged
 *    ├─── pools (by name) ── names, nameless ── arrays ── range ── extent ── block
 *    │        ├─ a space for each device and kind, in which shared blocks are extents
 *    │        └─ arrays that are sets ── members ── arrays
 *    ├─── devices ── deallocation queue ── arrays that nobody holds any more
 *    │        └─ reserve: empty blocks, oldest first;  doomed: those on their way to the driver
 *    ├─── conns (by number) ── leases ── array
 *    │        ├─ tickets (in the core's tree, and the user's: they outlive it) ── array
 *    │        ├─ holds: blocks and others' pages that the client has an fd or handle of
 *    │        ├─ pages of timelines ── fences ── use ── array
 *    │        ├─ brackets ── claims ── use ── array
 *    │        ├─ monitor: it looks on (in the core's list, or its user's)
 *    │        ├─ waiters: creates that wait for memory
 *    │        └─ watches (in the core's tree by pool and name)
 *    ├─── departed: connections that have hung up, whose process has not exited
 *    └─── jobs (by number): driver calls under way; those that wait for their turn are with
 *             the user
 *
 * Who may call whom: an object calls those to its left only, and none between the same two bars.
 * What has to be done further up is returned to the caller, or put on a list of the core that
 * core_run() looks at when the event ends. `./dev lint` holds the order against the files.
 *
 *   refusal journal found │ actions user device restore_read │ audit │ array_view
 *   reply+monitor job pool expiry │ persist │ block done lost set suspect use │ array linger
 *   watch │ page part reclaim units │ settle fences flush │ lease │ ticket publish │ former
 *   grant │ bracket waiter │ conn release │ request_* │ metrics renewal request work │ core+restore
 *
 * +: each calls the other.
 */
#pragma once

/* All that the core holds; what it does not, each file includes itself. */
#include "actions.h"
#include "base/tree.h"
#include "block.h"
#include "bracket.h"
#include "conn.h"
#include "core.h"
#include "expiry.h"
#include "job.h"
#include "page.h"
#include "part.h"
#include "persist.h"
#include "pool.h"
#include "renewal.h"
#include "suspect.h"
#include "ticket.h"
#include "user.h"
#include "watch.h"

#define N_OUTCOMES 64 /* PROTO_OK, and errors.def up to 63 */

struct core {
    struct core_config config; /* deep copy */
    struct device *devices;
    char *strings[2]; /* what config.server and .driver_path point to */
    struct users users;
    struct pools pools;
    struct pool_list leaving_pools;
    struct conns conns, departed;
    struct jobs jobs;
    struct watches watches;
    struct wholes wholes;
    struct pages pages;
    struct tickets tickets;
    struct ticket_ends ticket_ends;
    uint64_t ran_out[RAN_OUT_MAX][TICKET_WORDS]; /* the secrets of the last ones that have */
    size_t n_ran_out;                            /* ever */
    struct timelines timelines;
    struct deadlines deadlines;
    struct expiries expiries;          /* of names, the first one first */
    struct expiring expiring;          /* the same by array */
    LIST_HEAD(, block) blocks;         /* all of them */
    TAILQ_HEAD(, set) sets;            /* all, those that a new journal has not got first */
    LIST_HEAD(, block) aside;          /* of which something is to be put back */
    uint64_t n_formers;                /* user->formers, of all */
    uint64_t formers_end_ns;           /* by which all of them have told what they have */
    uint64_t formers_at_ns;            /* when to look who is late */
    struct conn_list landing;          /* that have, with streams still to store something */
    struct known_doubts known;         /* of which some may be settled */
    struct array_index *former_arrays; /* or NULL */
    struct units *units;               /* what is not back yet; NULL: all is */
    struct conn_list waiting;          /* for HELLO, by deadline */
    struct user_list turns;            /* users with jobs that wait, the next one first */

    /* What the end of an event looks at. */
    uint64_t used[N_RESOURCES];     /* by all users */
    uint64_t due[N_RESOURCES];      /* about what will be, of HOST and FDS, when all is back */
    struct user_list busy;          /* for whom something is to be done: work_run() */
    struct use_list lingering;      /* of dead arrays, whose fences have not passed */
    struct use_list landed;         /* of those whose have */
    struct page_list closing_pages; /* given up, with values that have not landed */
    struct waiter_list hopeful;     /* creates that wait for lingering arrays */
    struct user_list touched_users; /* that may have nothing any more */
    uint64_t linger_at_ns;          /* when what waits for values is looked at */

    size_t reply_max; /* bytes of records */
    uint64_t n_searches, n_arrivals;
    struct core_turns turns_given;
    uint64_t counts[N_COUNTS];
    uint64_t outcomes[MSG_N_METHODS + 1][N_OUTCOMES]; /* of unknown methods, too: metrics.c */
    struct persist persist;
    struct renewal renewal;
    struct suspects suspects;
    struct entries queue;
    struct monitor_list monitors; /* of administrators */
    uint32_t n_monitors;          /* all */
    struct entry *taken;          /* owned entry that core_next() gave out last */
    struct msg_buf buf;
    uint64_t next_job, next_block, next_array, next_page, next_ticket;
    uint64_t n_conns, n_departed, n_users, n_pools, n_blocks, n_arrays, n_names, n_leases,
        n_watches, n_jobs, n_running, n_release_errors, n_pages, n_timelines, n_brackets;
    uint64_t floor; /* of pools that are gone: generations never repeat (pool->floor) */
    uint64_t started_ns, now_ns;
    uint64_t boot_ns;                                          /* core_set_boottime() */
    void (*figures)(void *userdata, struct core_figures *ret); /* core_set_figures() */
    void *figures_userdata;
    uint32_t n_lost_audits;
    uint32_t pieces; /* of each kind of work that may wait, in one event: some 2 us each */
    bool stopping;
    bool draining; /* no array is made any more */
    bool behind;   /* the last event has left something to be done: core_tick() at once */
};

/* Root and whom the daemon runs as, unless that may be anybody. */
static inline bool
is_administrator(const struct core *core, const struct user *user)
{
    return user->uid == 0 || (user->uid == core->config.uid && !user->pool->is_none);
}

/* Counts what has happened, for its user, whose counts go with it, and for all. */
static inline void
metrics_count(struct user *user, enum count count, uint64_t n)
{
    user->counts[count] += n;
    user->core->counts[count] += n;
}

/* Of a request that was answered, or a notification. r: NULL where it was not refused. */
static inline void
metrics_count_outcome(struct user *user, enum msg_method method, const struct refusal *r)
{
    user->core->outcomes[method][r ? r->code : PROTO_OK]++;
    metrics_count(user, r ? COUNT_REFUSED : COUNT_ANSWERED, 1);
    if (r)
        metrics_count(user, r->limit, 1);
}

/* A uid's, which has its own pool; gid: of that, where it is made. -ENOMEM. */
int core_get_user(struct core *core, uid_t uid, gid_t gid, struct user **ret);
