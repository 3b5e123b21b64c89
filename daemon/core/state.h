/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core's objects and who holds whom. Only files in core/ include this.
 *
 *   core ── users (by uid) ── own pool
 *    │        └─ what the uid is charged
 *    ├─── pools (by name) ── names, nameless ── arrays ── range ── extent ── block
 *    │        └─ a space for each device and kind, in which shared blocks are extents
 *    ├─── devices ── deallocation queue ── arrays that nobody holds any more
 *    │        └─ reserve: empty blocks, oldest first;  doomed: those on their way to the driver
 *    ├─── conns (by number) ── leases ── array
 *    │        ├─ holds: blocks that the client has an fd or handle of
 *    │        ├─ waiters: creates that wait for memory
 *    │        └─ watches (in the core's tree by pool and name)
 *    ├─── departed: connections that have hung up, whose process has not exited
 *    └─── jobs (by number): driver calls under way; those that wait for their turn are with
 *             the user
 *
 * Lifetimes
 *   user   from its first connection until it has none, is charged nothing, has nothing in a queue,
 *          and its own pool has neither blocks nor watchers.
 *   pool   configured: as long as the core; a uid's own: as long as its user.
 *   array  from the request that creates it. `creating` until its memory is there: its name is taken
 *          but nobody can open it. Alive while it has a name or a lease. Then dead, while a process
 *          that had it leased hung up and lives on (its GPU work may still write: I2). Then pending,
 *          an entry of the device's deallocation queue, charged to nobody, until the queue frees it
 *          or its range serves a new array of the same pool.
 *   part   an array in another one's memory, its whole: part.h. It is never pending.
 *   block  from the first array that needs it. It comes into its space at once, so that further
 *          arrays wait for the same driver call. Empty, it is in reserve, is doomed, and goes when
 *          its release is done; one that the driver refuses to take is written off.
 *   lease  until close, or the end of its connection; if that hung up, on until the process exits.
 *   hold   until the client forgets the block, its process exits, or the block is released (I3: an
 *          fd is sent once per hold).
 *   job    until its result is reported.
 *   page   of timelines: from the request until its owner gives it up, every value has landed and
 *          nobody else holds it, or the owner's process has exited. Others hold it from when it is
 *          sent to them until they have unmapped it, or it is gone.
 *   bracket  from the request to begin it, waiting and then open, until it is ended, refused or
 *          cancelled; one that is open when its connection hangs up, until the process exits.
 *   fence  from the end of a bracket until it has passed, or its page is gone. An array that nobody
 *          holds any more lingers, dead, while a fence on it has not passed (I2).
 *   access  while an array has brackets or fences.
 *
 * What must not fail does not allocate: the entries of the action queue that give memory back or
 * end a connection are embedded in what they are about, and so are the deallocation queue's.
 */
#pragma once

#include "base/tree.h"
#include "core.h"
#include "dealloc.h"
#include "geometry.h"
#include "space.h"

/* A refusal on its way to the client: the function that decides fills it, the dispatcher sends
 * it. Functions that fill one return REFUSED. */
#define REFUSED 1

struct refusal {
    enum proto_error code;
    int32_t cuda;
    char text[512];
};

/* ---- the action queue (actions.c) ---- */

struct entry {
    TAILQ_ENTRY(entry) link;
    struct core_action action;
    bool owned; /* by the queue: freed after it was taken out */
    bool queued;
};

TAILQ_HEAD(entries, entry);

/* ---- users and what they are charged (user.c) ---- */

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
    uid_t uid;
    uint64_t used[N_RESOURCES];
    struct pool *pool; /* the uid's own */
    struct job_list waiting;
    TAILQ_ENTRY(user) turn; /* core->turns, while jobs wait */
    uint64_t n_pending;     /* entries of all queues */
    uint64_t n_refs;        /* by blocks whose turn it is, and by calls that are not over yet */
    uint32_t n_deferring;   /* connections that hold them back */
    struct dealloc_owner owners[]; /* one for each device */
};

/* ---- pools (pool.c) ---- */

RB_HEAD(names, array);
RB_HEAD(nameless, array);
RB_HEAD(spares, block);
TAILQ_HEAD(array_list, array);
TAILQ_HEAD(block_list, block);

struct lingering {   /* arrays that linger, with memory */
    uint64_t n;      /* now */
    uint64_t n_over; /* and do no more, ever */
};

struct zone {                   /* what a pool has of one kind on one device */
    struct space space;         /* shared blocks */
    struct array_list pendings; /* whose ranges lie there, oldest first */
    uint64_t pending;           /* bytes of those */
    uint64_t spare;             /* bytes of own blocks that nobody uses */
    uint64_t n_own_pending;     /* those of them whose array is pending */
    uint64_t n_doomed;          /* blocks that are doomed or being released */
    uint64_t last_doom;         /* the number of the one that was doomed last */
};

struct pool {
    RB_ENTRY(pool) node;
    char name[PROTO_POOL_MAX + 1];
    struct user *owner; /* whose own pool it is; NULL: a configured one */
    uid_t uid;
    gid_t gid;
    mode_t mode;
    uint64_t quota;              /* bytes; 0: none */
    uint64_t used;               /* bytes of blocks in device memory */
    uint64_t pinned;             /* bytes of blocks in host memory */
    uint64_t allocated, pending; /* bytes of ranges: of arrays; in queues. Device memory */
    uint64_t reserve;            /* bytes of blocks in reserve, of every kind */
    uint64_t n_blocks, n_arrays, n_names, n_watches, n_timelines;
    uint64_t floor; /* the highest generation that a name had when it was taken away */
    struct names names;
    struct nameless nameless;   /* arrays without a name that are not pending */
    struct spares spares;       /* own blocks that nobody uses, by device, kind, size */
    struct block_list reserved; /* blocks in reserve that are not doomed, oldest first */
    struct lingering lingering;
    uint64_t doomed;     /* bytes of those that are */
    struct zone zones[]; /* one for each device and kind: pool_zone() */
};

/* ---- jobs (job.c) ---- */

enum job_type {
    JOB_ALLOC,
    JOB_RELEASE,
    JOB_MEMORY
};

struct job {
    RB_ENTRY(job) node; /* core->jobs, while it is under way */
    uint64_t id;
    enum job_type type;
    struct user *user;        /* whose turn it takes; charged for it, but for a release */
    TAILQ_ENTRY(job) of_user; /* user->waiting, until it is its turn */
    struct conn *conn;        /* who waits for it, or NULL */
    LIST_ENTRY(job) of_conn;
    uint32_t request; /* id of the request to answer */
    struct entry entry;
};

/* ---- blocks (block.c) ---- */

enum block_state {
    BLOCK_ALLOCATING, /* its memory is on its way; arrays have ranges in it already */
    BLOCK_LIVE,
    BLOCK_RELEASING, /* out of its space: nobody can get it */
};

TAILQ_HEAD(waiter_list, waiter);

struct block {
    uint64_t id;
    enum block_state state;
    enum core_kind kind;
    bool own;      /* for one array; else shared */
    bool reserved; /* in reserve: empty, and could be released */
    bool spared;   /* in pool->spares: own, and in reserve or its array is pending */
    bool doomed;   /* in reserve, to be released unless it is needed first */
    bool promised; /* a client was told of it */
    uint32_t device;
    uint64_t size;
    struct pool *pool;    /* charged for size, and for one block */
    struct user *user;    /* whose turn its jobs take; not charged for it */
    struct extent extent; /* own: of no space's free ranges but its own */
    struct space solo;    /* own: the space that its extent is in */
    uint64_t handle;
    int fd; /* -1 until allocated, and for KIND_LEGACY */
    uint64_t ipc[CORE_HANDLE_WORDS];
    struct waiter_list waiters; /* while it is allocated */
    LIST_HEAD(, hold) holds;
    uint64_t emptied_ns;
    LIST_ENTRY(block) of_core;    /* core->blocks */
    uint64_t doom;                /* its number, if doomed or being released */
    TAILQ_ENTRY(block) of_pool;   /* pool->reserved */
    TAILQ_ENTRY(block) of_device; /* device->reserved, or ->doomed */
    RB_ENTRY(block) spare;        /* pool->spares */
    struct job job;               /* first its allocation, then its release */
    struct entry saved;           /* CORE_PERSIST: first BLOCK, then BLOCK_GONE */
};

/* A create that waits for memory. */
struct waiter {
    TAILQ_ENTRY(waiter) link; /* block->waiters, device->retries, or core->hopeful */
    LIST_ENTRY(waiter) of_conn;
    struct conn *conn; /* NULL: gone */
    struct user *user; /* charged for one job */
    uint32_t request;
    struct array *array;
    uint64_t alignment;
    uint64_t until;       /* in device->retries: the last doom that it waits for */
    uint32_t quota_waits; /* how often it has waited for its pool's quota */
    bool minimal;         /* a block that was grown could not be had for it */
    bool retried;         /* memory was flushed for it: the next refusal is final */
    const struct lingering *lingering; /* in core->hopeful: what it waits for */
    uint64_t n_over;                   /* of those, when it began to */
    uint64_t patience_ns;              /* until when it may wait there; 0: it has not */
};

/* A flush request that waits for blocks to be released. */
struct flush {
    LIST_ENTRY(flush) of_conn;
    struct conn *conn; /* NULL: gone */
    uint32_t request;
    uint32_t n_waiting; /* devices */
    struct msg_flush_result result;
    bool failed; /* a release; refusal says which */
    struct refusal refusal;

    struct flusher {
        TAILQ_ENTRY(flusher) link; /* device->flushers */
        struct flush *flush;
        uint64_t until; /* the last doom that it waits for */
    } flushers[];       /* one for each device */
};

/* ---- devices and what waits there to be freed (reclaim.c) ---- */

struct device {
    struct core_device info;
    struct dealloc queue;
    struct block_list reserved; /* that are not doomed, oldest first */
    struct block_list doomed;   /* to be released, one at a time, by their doom */
    uint64_t n_dooms;           /* ever */
    struct block *releasing;    /* the one that is under way */
    uint64_t calm_until_ns;     /* after a release that failed: nothing for reasons of age */
    struct waiter_list retries; /* creates that try again, by until */
    TAILQ_HEAD(flusher_list, flusher) flushers; /* by until */
    uint64_t used, pinned;       /* bytes of blocks, in device and in host memory */
    uint64_t allocated, pending; /* bytes of ranges: of arrays; in the queue */
    uint64_t reserve;            /* bytes of reserved blocks */
    uint64_t n_blocks, n_arrays;
    uint64_t n_releases, n_quarantined, bytes_quarantined;
    struct lingering lingering;
    bool context;
};

/* ---- arrays and leases (array.c, lease.c) ---- */

struct array { /* a million of them must be cheap */

    union {
        struct {                  /* alive or dead */
            RB_ENTRY(array) node; /* pool->names, or, from its first lease on, ->nameless */
            LIST_HEAD(, lease) leases; /* departed ones, too */
            struct entry *saved;       /* the CORE_PERSIST of its name, until it is promised */
            uint64_t generation;       /* of its name, the last one if it has none */
            uint64_t id;
        };

        struct { /* pending */
            struct dealloc_entry entry;
            TAILQ_ENTRY(array) of_zone; /* zone->pendings; not in an own block */
        };
    };
    struct pool *pool;
    struct user *user; /* who created it: charged for it, the name, n_host and its range */

    union {
        struct range *range; /* NULL: no bytes, or none yet */
        struct part *part;   /* is_part; NULL: given up */
    };

    struct access *access; /* NULL: nobody uses it, and no fence is left */
    char *name;            /* "": never had one. Lies behind this struct, or is allocated */
    char *metadata;        /* or NULL; allocated */
    uint64_t nbytes;
    uint64_t span;       /* bytes that it needs */
    uint32_t n_host;     /* bytes of host memory that the array takes here */
    uint32_t n_leases;   /* of connections that are there */
    uint32_t n_departed; /* of those that are not */
    uint16_t device, n_descr, n_metadata;
    uint8_t kind, ndim, n_name, n_typestr;
    bool named : 1, creating : 1, pending : 1, mapped : 1, has_strides : 1;
    bool own : 1;         /* has a block of its own: it is large, or was asked for so */
    bool listed : 1;      /* in pool->nameless */
    bool name_is_own : 1; /* name is allocated */
    bool abandoned : 1;   /* a writer died, and nobody has written or discarded it since */
    bool lingering : 1;   /* dead, in core->lingering */
    bool is_part : 1;     /* lies in another one's memory */
    bool is_whole : 1;    /* others lie in its memory */
    int64_t extents[];    /* shape, strides; then typestr, descr, name: terminated */
};

struct lease {
    RB_ENTRY(lease) node; /* conn->leases */
    uint64_t id;
    struct conn *conn;
    struct array *array;
    LIST_ENTRY(lease) of_array;
    struct hold *hold; /* NULL for an array without a block */
    LIST_HEAD(, claim) claims;
    bool readonly;
};

struct hold {
    RB_ENTRY(hold) node; /* conn->holds, by block id */
    LIST_ENTRY(hold) of_block;
    struct conn *conn;
    struct block *block;
    uint64_t n_leases;
};

#include "part.h"

/* ---- who uses them when ---- */

#include "use.h"

/* ---- watches (watch.c) ---- */

struct watch {
    RB_ENTRY(watch) node; /* core->watches, by pool, name, connection and request */
    LIST_ENTRY(watch) of_conn;
    struct conn *conn;
    struct pool *pool;
    uint32_t request;
    uint8_t n_name;
    char name[]; /* not terminated */
};

RB_HEAD(watches, watch);

/* ---- connections (core.c) ---- */

RB_HEAD(leases, lease);
RB_HEAD(holds, hold);

struct conn {
    RB_ENTRY(conn) node;
    uint64_t id;
    struct user *user;
    gid_t gid;
    pid_t pid;
    gid_t *groups;
    size_t n_groups;
    char client[PROTO_CLIENT_MAX + 1];
    bool greeted;       /* HELLO has passed */
    bool closing;       /* a CORE_CLOSE is on its way: nothing more is taken or sent */
    bool departed;      /* has hung up; in core->departed until its process has exited */
    uint32_t deferring; /* depth */
    uint64_t deadline_ns;
    TAILQ_ENTRY(conn) waiting; /* core->waiting, until greeted */
    struct leases leases;
    struct holds holds;
    struct page_holds page_holds;
    struct brackets brackets;
    struct asking asking;
    struct threads threads;
    uint64_t swept_ns; /* when passed fences in its pages were last looked for */
    LIST_HEAD(, page) pages;
    uint64_t next_lease;
    LIST_HEAD(, job) jobs; /* MEMORY */
    LIST_HEAD(, waiter) waiters;
    LIST_HEAD(, flush) flushes;
    LIST_HEAD(, watch) watches;
    struct published published;
    struct entry close;
};

RB_HEAD(users, user);
RB_HEAD(pools, pool);
RB_HEAD(conns, conn);
RB_HEAD(jobs, job);

struct core {
    struct core_config config; /* deep copy */
    struct device *devices;
    char *strings[2]; /* what config.server and .driver_path point to */
    struct users users;
    struct pools pools;
    struct conns conns, departed;
    struct jobs jobs;
    struct watches watches;
    struct wholes wholes;
    struct pages pages;
    struct timelines timelines;
    struct deadlines deadlines;
    struct bracket_list ready;
    struct access_list lingering;   /* of dead arrays, whose fences have not passed */
    struct access_list landed;      /* of those whose have, until the end of the event */
    struct page_list closing_pages; /* given up, with values that have not landed */
    struct waiter_list hopeful;     /* creates that wait for lingering arrays */
    uint64_t linger_at_ns;          /* when they are looked at */
    uint64_t n_searches, n_arrivals;
    struct core_turns turns_given;
    LIST_HEAD(, block) blocks;  /* all of them */
    TAILQ_HEAD(, conn) waiting; /* for HELLO, by deadline */
    TAILQ_HEAD(, user) turns;   /* users with jobs that wait, the next one first */
    struct entries queue;
    struct entry *taken; /* owned entry that core_next() gave out last */
    struct msg_buf buf;
    uint64_t next_job, next_block, next_array, next_page;
    uint64_t n_conns, n_departed, n_users, n_pools, n_blocks, n_arrays, n_names, n_leases,
        n_watches, n_jobs, n_running, n_release_errors, n_pages, n_timelines, n_brackets;
    uint64_t floor; /* of pools that are gone: generations never repeat (pool->floor) */
    uint64_t started_ns, now_ns;
    bool stopping;
};

RB_PROTOTYPE(users, user, node, )
RB_PROTOTYPE(pools, pool, node, )
RB_PROTOTYPE(names, array, node, )
RB_PROTOTYPE(nameless, array, node, )
RB_PROTOTYPE(spares, block, spare, )
RB_PROTOTYPE(watches, watch, node, )
RB_PROTOTYPE(conns, conn, node, )
RB_PROTOTYPE(jobs, job, node, )
RB_PROTOTYPE(leases, lease, node, )
RB_PROTOTYPE(holds, hold, node, )

void refusal_fill(struct refusal *r, enum proto_error code, const char *fmt, ...) PRINTF(3, 4);

/* A macro, so that the compiler sees that it is never 0. */
#define refuse(...) (refusal_fill(__VA_ARGS__), REFUSED)

/* "1.5 GiB", for messages */
#define SIZE_TEXT_MAX 32
const char *size_text(char buf[static SIZE_TEXT_MAX], uint64_t bytes);
#define SIZE_TEXT(bytes) size_text((char[SIZE_TEXT_MAX]){0}, bytes)

/* The %.*s of a string from a packet: its length, cut so that a message stays readable. */
#define STR_FMT(s) (int)((s).n < 256 ? (s).n : 256), (s).p ? (s).p : ""

/* actions.c */
void entry_push(struct core *core, struct entry *e);
void entry_remove(struct core *core, struct entry *e);
/* A CORE_PERSIST to be pushed later; copies its strings. NULL: out of memory. */
struct entry *entry_new_name(enum core_record_type record, const struct pool *pool,
                             const char *name, uint32_t n_name);
/* A CORE_PAGE_* to be pushed later. */
struct entry *entry_new_page(enum core_action_type type, uint64_t page);
/* The same of one that is about a connection. */
struct entry *entry_new_conn(enum core_action_type type, uint64_t conn);
void entry_free(struct entry *e);
/* What was to be sent to a connection that has ended. */
void entry_drop_sends(struct core *core, uint64_t conn);
void entry_drop_all(struct core *core);
/* Sends core->buf to conn, with the fds. */
void send_buf(struct core *core, struct conn *conn, const int *fds, size_t n_fds);
void send_result(struct core *core, struct conn *conn, uint32_t request, enum msg_method method,
                 const void *result, const int *fds, size_t n_fds);
void send_refusal(struct core *core, struct conn *conn, uint32_t request,
                  const struct refusal *r);
/* Ends a connection: cannot fail. reason is static. */
void conn_end(struct core *core, struct conn *conn, const char *reason);

/* user.c */
int user_get(struct core *core, uid_t uid, gid_t gid, struct user **ret);
/* Frees a user that nothing holds any more. */
void user_settle(struct core *core, struct user *user);
/* The same for one who gave something up, and for whoever owns the pool that it was in. */
void users_settle(struct core *core, struct user *user, struct pool *pool);
/* Keeps a user, and a pool's owner (or NULL), over calls that may settle them; then settles them. */
void users_ref(struct user *user, struct user *owner);
void users_unref(struct core *core, struct user *user, struct user *owner);
/* Whether amount may be charged; refuses with the resource's name and limit. */
int user_check(const struct core *core, const struct user *user, enum resource res,
               uint64_t amount, struct refusal *r);
/* Charges amount, or refuses in the same way. */
int user_charge(const struct core *core, struct user *user, enum resource res, uint64_t amount,
                struct refusal *r);
void user_uncharge(struct user *user, enum resource res, uint64_t amount);
uint64_t user_limit(const struct core *core, enum resource res);

/* pool.c */
enum {
    MAY_READ = 4,
    MAY_WRITE = 2
};

/* -EEXIST: the name is taken. */
int pool_new(struct core *core, const struct core_pool_config *config, struct pool **ret);
void pool_free(struct core *core, struct pool *pool);
/* Whether conn may do all of `what` (MAY_*): the first class that fits decides, as for files. */
bool pool_may(const struct pool *pool, const struct conn *conn, int what);
/* The pool that a request names, or the caller's own; NULL when there is none. */
struct pool *pool_find(struct core *core, const struct conn *conn, struct msg_str name);
struct pool *pool_find_from(struct core *core, struct msg_str name); /* first one >= name */
struct zone *pool_zone(const struct core *core, struct pool *pool, uint32_t device,
                       enum core_kind kind);
/* Whether bytes more of blocks fit the quota (device memory), or one block more the limit. */
int pool_check(const struct core *core, const struct pool *pool, enum core_kind kind,
               uint64_t bytes, struct refusal *r);
struct array *pool_find_array(struct pool *pool, struct msg_str name);
/* The first one > after that has the prefix, or comes after those that do. */
struct array *pool_find_next(struct pool *pool, struct msg_str after, struct msg_str prefix);
int name_check(struct msg_str name, struct refusal *r);

/* Nameless arrays that are not pending, by last name, generation and id: the first one that is
 * not less. */
struct array *pool_find_nameless(struct pool *pool, struct msg_str name, uint64_t generation,
                                 uint64_t id);

/* array.c */
struct array_request {
    struct pool *pool;
    struct msg_str name; /* or not set */
    uint32_t device;
    enum core_kind kind;
    bool mapped, exclusive;
    uint64_t alignment;
    struct geometry geometry;
    struct msg_str typestr, descr, metadata;
};

/* A `creating` array with its name taken and everything but its range charged. -ENOMEM or
 * REFUSED. */
int array_new(struct core *core, struct conn *conn, const struct array_request *req,
              struct array **ret, struct refusal *r);
const int64_t *array_shape(const struct array *array);
const int64_t *array_strides(const struct array *array); /* NULL: C order */
const char *array_typestr(const struct array *array);
const char *array_descr(const struct array *array); /* or NULL */
/* "device", "legacy", "pinned", "mapped" */
const char *array_memory(const struct array *array);
struct block *array_block(const struct array *array); /* NULL: no bytes, or none yet */
uint64_t array_offset(const struct array *array);

/* Takes the array's name away: records nothing, tells watchers. The array may be gone afterwards. */
void array_unname(struct core *core, struct array *array);
/* Puts the array, which somebody holds, under a name of its pool, in place of what has it now; its
 * old name goes. metadata.p NULL: keeps its own. -ENOMEM or REFUSED: nothing has changed. */
int array_publish(struct core *core, struct array *array, struct msg_str name,
                  struct msg_str metadata, struct refusal *r);
/* Gives up an array that was never promised to anybody. */
void array_abandon(struct core *core, struct array *array);
/* The memory is there: leases the array to its creator, records it and replies. */
void array_complete(struct core *core, struct conn *conn, uint32_t request,
                    struct array *array);
/* After a name, a lease or a departed holder went: lets it die, wait, or queue up. */
void array_settle(struct core *core, struct array *array);
/* The struct alone. */
void array_free(struct array *array);
/* Bytes of the range that it takes, as they are charged. */
uint64_t array_bytes(const struct core *core, const struct array *array);

/* lease.c */
int lease_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
              struct lease **ret, bool *ret_new_hold, struct refusal *r);
void lease_free(struct core *core, struct lease *lease);
/* Its connection has hung up. */
void lease_depart(struct core *core, struct lease *lease);
struct lease *lease_find(struct conn *conn, uint64_t id);
struct hold *hold_find(struct conn *conn, uint64_t block);
/* A hold without leases. */
void hold_free(struct core *core, struct hold *hold);

/* block.c */
/* A create of conn that may have to wait; -ENOMEM or REFUSED. */
int waiter_new(struct core *core, struct conn *conn, uint32_t request, struct array *array,
               const struct array_request *req, struct waiter **ret, struct refusal *r);
void waiter_free(struct waiter *waiter);
void waiter_orphan(struct waiter *waiter);
/* Gives the array a range: now (0), or BLOCK_WAITS: when memory has come the creator is answered, and
 * the waiter is not the caller's any more. -ENOMEM or REFUSED. */
#define BLOCK_WAITS 2
int block_place(struct core *core, struct waiter *waiter, struct refusal *r);
/* Places a create that has waited, and answers it if it need not wait on. */
void waiter_retry(struct core *core, struct waiter *waiter);
/* Answers a create that has waited, and frees its waiter: with a range, or with r. */
void waiter_end(struct core *core, struct waiter *waiter, const struct refusal *r);
/* The array's range goes back to its block. */
void block_put_range(struct core *core, struct array *array);
/* An own block's array is pending: its range may serve another one. */
void block_spare(struct core *core, struct block *block);
/* Lets a block that is empty, and that no hold keeps, come into reserve. */
void block_settle(struct core *core, struct block *block);
/* Starts the release of a block in reserve: nobody can get it any more. */
void block_release(struct core *core, struct block *block);
/* Takes an empty block out of everything. */
void block_retire(struct core *core, struct block *block);
void block_destroy(struct core *core, struct block *block);
/* Records, once, that the block is promised to clients. */
void block_promise(struct core *core, struct block *block);

/* reclaim.c */
void device_init(struct device *device, const struct core_device *info,
                 const struct core_memory *memory);
/* The array, which is charged for nothing any more, is in the queue from here on; may flush. */
void reclaim_add(struct core *core, struct array *array);
/* Takes a pending array out of the queue and frees it; its range goes back to its block. */
void reclaim_free(struct core *core, struct array *array);
/* The same, but the range is the caller's. */
struct range *reclaim_steal(struct core *core, struct array *array);
/* Dooms the pool's oldest reserved blocks until no more than `keep` bytes are left. */
void reclaim_reserve(struct core *core, struct pool *pool, uint64_t keep);
/* What a quota that is exceeded calls for, on behalf of user: frees what of the pool is in the queues
 * and not held back by him, and dooms all of its reserve. Returns a device where blocks of the pool
 * are about to be released, n_devices for none. */
uint32_t reclaim_pool(struct core *core, struct pool *pool, const struct user *user);
/* A doomed block is in reserve as before. */
void reclaim_undoom(struct core *core, struct block *block);
/* What out of memory calls for, on behalf of user: frees what is in the queue. */
void reclaim_all(struct core *core, uint32_t device, const struct user *user);
/* The waiter tries again when all that is doomed on the device now has been released. */
void reclaim_wait(struct core *core, uint32_t device, struct waiter *waiter);
/* At the end of each event: starts the releases that are due, or ends rounds. */
void reclaim_run(struct core *core);
/* Frees what is in the queue of the device and not held back: of the user, or, for NULL, of all.
 * Returns how many arrays that were. */
uint64_t reclaim_queue(struct core *core, uint32_t device, struct user *user);
/* Dooms the device's reserve: what lies in pools that conn may write, or, for NULL, all of it. Returns
 * the last doom that concerns it, 0 for none. */
uint64_t reclaim_doom(struct core *core, uint32_t device, const struct conn *conn);
void reclaim_tick(struct core *core);
uint64_t reclaim_deadline_ns(const struct core *core);
/* Nested per connection. */
void reclaim_defer(struct core *core, struct conn *conn);
void reclaim_undefer(struct core *core, struct conn *conn);

/* flush.c */
/* On behalf of conn: of one device or of all (n_devices). Answered at once or later. -ENOMEM. */
int flush_start(struct core *core, struct conn *conn, uint32_t request, uint32_t device);
void flush_orphan(struct flush *flush);
/* A device has ended its round. */
void flush_leave(struct core *core, struct flush *flush);
/* A block was released, or could not be. */
void flush_count(const struct core *core, struct flush *flush, const struct block *block);
void flush_fail(const struct core *core, struct flush *flush, const struct block *block,
                int cuda, const char *text);

/* watch.c */
/* Answers at once, or keeps a watch. -ENOMEM or REFUSED. */
int watch_new(struct core *core, struct conn *conn, uint32_t request, struct pool *pool,
              struct msg_str name, uint64_t seen, struct refusal *r);
struct watch *watch_find(struct conn *conn, uint32_t request);
void watch_free(struct core *core, struct watch *watch);
/* The name's generation is another one from now on; 0: there is no array of that name. */
void watch_notify(struct core *core, struct pool *pool, const char *name, uint32_t n_name,
                  uint64_t generation);

/* job.c */
/* Its action comes when it is the user's turn. */
void job_start(struct core *core, struct job *job, enum job_type type, struct user *user);
/* The same for a request of conn, which waits for the result; job_admit() has been asked. */
void job_start_for(struct core *core, struct job *job, enum job_type type, struct conn *conn,
                   uint32_t request);
/* Nobody waits for it any more. */
void job_orphan(struct job *job);
/* After its result came; the user is to be settled. */
void job_end(struct core *core, struct job *job);
struct job *job_find(struct core *core, uint64_t id, enum job_type type);

/* core.c */
/* A page of conn's is gone: if it has departed, and has nothing left, so is conn. */
void conn_settle(struct core *core, struct conn *conn);

/* request.c */
void request_handle(struct core *core, struct conn *conn, const void *packet, size_t n);
/* The reply to a create whose memory has come. */
void reply_created(struct core *core, struct conn *conn, uint32_t request,
                   const struct lease *lease, bool new_hold);
void reply_flushed(struct core *core, struct conn *conn, uint32_t request,
                   const struct msg_flush_result *result);
void reply_memory(struct core *core, struct conn *conn, const struct job *job,
                  const struct core_memory_result *results, size_t n);
/* request_access.c */
/* The reply to a begin, or to what asks for more fences: those of the bracket's arrays after a place, as
 * many as fit. -ENOMEM or REFUSED: nothing was sent. */
int reply_fences(struct core *core, struct bracket *bracket, uint32_t request,
                 enum msg_method method, uint64_t after_page, uint64_t after_slot,
                 struct refusal *r);
/* The page that conn asked for is there. */
void reply_page(struct core *core, struct conn *conn, uint32_t request,
                const struct page *page);
