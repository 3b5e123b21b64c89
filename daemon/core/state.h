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
 *    │        │        └─ participant ── channel (in the core's tree, by array)
 *    │        ├─ brackets ── claims ── use ── array
 *    │        ├─ monitor: it looks on (in the core's list, or its user's)
 *    │        ├─ waiters: creates that wait for memory
 *    │        ├─ vacates (also in the list of the whole that they wait for)
 *    │        └─ watches (in the core's tree by pool and name)
 *    ├─── departed: connections that have hung up, whose process has not exited
 *    └─── jobs (by number): driver calls under way; those that wait for their turn are with
 *             the user
 *
 * Who may call whom: an object calls those to its left only, and none between the same two bars.
 * What has to be done further up is returned to the caller, or put on a list of the core that
 * core_run() looks at when the event ends. `./dev lint` holds the order against the files.
 *
 *   refusal journal found │ actions user device restore_read │ audit pool │ array_view
 *   reply+monitor job expiry │ persist │ block done lost set suspect use │ array linger
 *   watch │ page+participant part reclaim units │ settle fences flush │ lease │ ticket publish │
 *   former drop grant │ bracket waiter vacate │ conn release │ request_* │
 *   metrics renewal request work │ core+restore
 *
 * +: each calls the other.
 */
#pragma once

/* Headers of all that struct core has in it. Other headers each file includes itself. */
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
#include "participant.h"
#include "persist.h"
#include "pool.h"
#include "renewal.h"
#include "suspect.h"
#include "ticket.h"
#include "user.h"
#include "vacate.h"
#include "watch.h"

#define N_OUTCOMES 64 /* PROTO_OK, and errors.def up to 63 */

struct core {
    struct core_config config; /* deep copy */
    struct device *devices;
    char *strings[2]; /* what config.server and .driver_path point to */
    struct users users;
    struct pools pools;
    uid_t drop_next; /* the user whose sets a search for others' has not come to */
    struct pool_list leaving_pools;
    struct conns conns, departed;
    struct jobs jobs;
    struct watches watches;
    struct wholes wholes;
    struct vacates vacates;
    struct pages pages;
    struct channels channels;
    LIST_HEAD(, channel) held_channels;
    uint64_t held_until_ns;
    struct participants participants;
    struct tickets tickets;
    struct ticket_ends ticket_ends;
    /* secrets of tickets that have run out, the last ones */
    uint64_t ran_out[RAN_OUT_MAX][TICKET_WORDS];
    size_t n_ran_out; /* so far */
    struct timelines timelines;
    struct deadlines deadlines;
    struct expiries expiries;  /* of names, the earliest first */
    struct expiring expiring;  /* the same expiries, by array */
    LIST_HEAD(, block) blocks; /* all of them */
    TAILQ_HEAD(, set) sets;    /* those first that a new journal has not got */
    LIST_HEAD(, block) aside;  /* with ranges that are set aside and are to be free again */
    uint64_t n_formers;        /* the sum of user->formers */
    uint64_t formers_end_ns;   /* the time by which all former connections must have resumed */
    uint64_t formers_at_ns;    /* when to look for late ones */
    struct conn_list landing;  /* connections that have resumed, and have signals on the way */
    struct kicked kicked[KICKED_MAX]; /* those that were kicked while away, the last ones */
    uint32_t n_kicked;
    struct known_doubts known;         /* doubts of which some may be settled */
    struct array_index *former_arrays; /* or NULL */
    struct units *units;               /* pools that are not restored; NULL: all are */
    struct conn_list waiting;          /* HELLO has not come; sorted by deadline */
    struct user_list turns;            /* users with jobs that wait, the next one first */

    /* What core_run() looks at when an event ends. */
    uint64_t used[N_RESOURCES]; /* by all users */
    uint64_t due[N_RESOURCES];  /* restored soon: about so much of HOST and FDS */
    struct user_list busy;      /* with work left: work_run() */
    struct use_list lingering;  /* of dead arrays, with fences that have not passed */
    struct use_list landed;     /* of dead arrays, whose fences have passed */
    /* given up by their owners, with values that have not landed */
    struct page_list closing_pages;
    struct waiter_list hopeful;     /* creates that wait for lingering arrays */
    struct user_list touched_users; /* users that may have nothing left */
    uint64_t linger_at_ns;          /* when to look which values have landed */

    size_t reply_max; /* bytes of records */
    uint64_t n_searches, n_arrivals;
    struct core_turns turns_given;
    uint64_t counts[N_COUNTS];
    /* with one for unknown methods: metrics.c */
    uint64_t outcomes[MSG_N_METHODS + 1][N_OUTCOMES];
    struct persist persist;
    struct renewal renewal;
    struct suspects suspects;
    struct entries queue;
    struct monitor_list monitors; /* of administrators */
    uint32_t n_monitors;          /* of all users */
    struct entry *taken;          /* owned entry that core_next() gave out last */
    struct msg_buf buf;
    uint64_t next_job, next_block, next_array, next_page, next_ticket;
    uint64_t n_conns, n_departed, n_users, n_pools, n_blocks, n_arrays, n_names, n_leases,
        n_watches, n_jobs, n_running, n_release_errors, n_pages, n_timelines, n_brackets;
    uint64_t floor; /* of pools that have gone: no generation comes twice (pool->floor) */
    uint64_t started_ns, now_ns;
    uint64_t boot_ns;                                          /* core_set_boottime() */
    void (*figures)(void *userdata, struct core_figures *ret); /* core_set_figures() */
    void *figures_userdata;
    uint32_t n_lost_audits;
    uint32_t pieces; /* how much of each kind of work one event does; a piece takes some 2 us */
    bool stopping;
    bool draining; /* no array can be created any more */
    bool behind;   /* the last event has left work: core_tick() is due at once */
};

/* Root, and the uid that the daemon runs as unless that stands for anybody. */
static inline bool
is_administrator(const struct core *core, const struct user *user)
{
    return user->uid == 0 || (user->uid == core->config.uid && !user->pool->is_none);
}

/* A stamp is a time by core->boot_ns in units of 2^26 ns, 0.07 s, so that it takes 4 bytes of an
 * array; the last one comes when the machine is up for 9 years. 0: never. */
#define STAMP_SHIFT 26

static inline uint32_t
stamp_now(const struct core *core)
{
    return (uint32_t)min_u64((core->boot_ns >> STAMP_SHIFT) + 1, UINT32_MAX);
}

/* At least 1; 0: never. */
static inline uint64_t
stamp_age_ns(const struct core *core, uint32_t stamp)
{
    uint64_t since_ns = stamp ? (uint64_t)(stamp - 1) << STAMP_SHIFT : core->boot_ns;

    return core->boot_ns > since_ns ? core->boot_ns - since_ns : stamp > 0;
}

/* Counts something for the user, as long as it lives, and for all. */
static inline void
metrics_count(struct user *user, enum count count, uint64_t n)
{
    user->counts[count] += n;
    user->core->counts[count] += n;
}

/* Counts an answered request, or a notification. r NULL: it was not refused. */
static inline void
metrics_count_outcome(struct user *user, enum msg_method method, const struct refusal *r)
{
    user->core->outcomes[method][r ? r->code : PROTO_OK]++;
    metrics_count(user, r ? COUNT_REFUSED : COUNT_ANSWERED, 1);
    if (r)
        metrics_count(user, r->limit, 1);
}

/* The user of a uid; a new one gets its own pool, of that gid. -ENOMEM. */
int core_get_user(struct core *core, uid_t uid, gid_t gid, struct user **ret);
