/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core's objects and who holds whom. Only files in core/ include this.
 *
 *   core ── users (by uid) ── own pool
 *    │        └─ what the uid is charged
 *    ├─── pools (by name) ── names ── arrays ── block
 *    ├─── conns (by number) ── leases ── array
 *    │        └─ holds: blocks that the client has an fd of
 *    └─── jobs (by number): driver calls under way; those that wait for their turn are with
 *             the user
 *
 * Lifetimes
 *   user   from its first connection until it has none, is charged nothing and its own pool is
 *          empty.
 *   pool   configured: as long as the core; a uid's own: as long as its user.
 *   array  from the request that creates it until it has neither name nor lease. While its block
 *          is being allocated it is `pending`: its name is taken but nobody can open it.
 *   block  with its array. Its memory is given back to the driver by a release job; the struct
 *          goes, and with it what was charged, when that job is done.
 *   lease  until close, or the end of its connection: by hang-up or exit, whichever comes first.
 *   hold   while its connection has a lease in the block (I3: an fd is sent once per hold).
 *   job    until its result is reported; one whose connection has gone has conn NULL. Its charge,
 *          or its block's, keeps its user.
 *
 * What must not fail does not allocate: the entries of the action queue that give memory back or
 * end a connection are embedded in what they are about.
 */
#pragma once

#include "base/tree.h"
#include "core.h"
#include "geometry.h"

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
    RES_CONNECTIONS,
    RES_NAMES,
    RES_LEASES,
    RES_BLOCKS,
    RES_BYTES,
    RES_HOST, /* bytes of host memory */
    RES_JOBS,
    N_RESOURCES,
};

struct user {
    RB_ENTRY(user) node;
    uid_t uid;
    uint64_t used[N_RESOURCES];
    struct pool *pool; /* the uid's own */
    struct job_list waiting;
    TAILQ_ENTRY(user) turn; /* core->turns, while jobs wait */
};

/* ---- pools (pool.c) ---- */

RB_HEAD(names, array);

struct pool {
    RB_ENTRY(pool) node;
    char name[PROTO_POOL_MAX + 1];
    struct user *owner; /* whose own pool it is; NULL: a configured one */
    uid_t uid;
    gid_t gid;
    mode_t mode;
    uint64_t quota; /* bytes; 0: none */
    uint64_t used;
    uint64_t n_arrays, n_names;
    struct names names;
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

/* ---- blocks, arrays, leases (array.c) ---- */

struct block {
    uint64_t id;
    uint32_t device;
    uint64_t size;
    struct pool *pool; /* charged for size */
    struct user *user; /* charged for size and for one block */
    uint64_t handle;
    int fd;              /* -1 until allocated */
    struct array *array; /* NULL once it is being released */
    bool promised;       /* a client was told of it */
    struct job job;      /* first its allocation, then its release */
    struct entry saved;  /* CORE_PERSIST: first BLOCK, then BLOCK_GONE */
};

struct array {
    RB_ENTRY(array) by_name; /* pool->names, while it has a name */
    uint64_t id;
    struct pool *pool;
    struct user *user; /* who created it, charged for the name and for n_host */
    uint64_t n_host;   /* bytes of host memory that the array takes here */
    char *name;        /* NULL: unnamed */
    uint32_t n_name;
    uint64_t generation;
    uint32_t device;
    struct geometry geometry; /* its numbers lie behind this struct */
    char typestr[PROTO_TYPESTR_MAX + 1];
    const char *descr;   /* or NULL; lies there, too */
    struct block *block; /* NULL: no bytes */
    uint64_t offset;
    bool pending;
    LIST_HEAD(, lease) leases;
    uint64_t n_leases;
    struct entry *saved; /* the CORE_PERSIST of its name, until it is promised */
};

struct lease {
    RB_ENTRY(lease) node; /* conn->leases */
    uint64_t id;
    struct conn *conn;
    struct array *array;
    LIST_ENTRY(lease) of_array;
    struct hold *hold; /* NULL for an array without a block */
    bool readonly;
};

struct hold {
    RB_ENTRY(hold) node; /* conn->holds */
    struct block *block;
    uint64_t n_leases;
};

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
    bool greeted; /* HELLO has passed */
    bool closing; /* a CORE_CLOSE is on its way: nothing more is taken or sent */
    uint64_t deadline_ns;
    TAILQ_ENTRY(conn) waiting; /* core->waiting, until greeted */
    struct leases leases;
    struct holds holds;
    uint64_t next_lease;
    LIST_HEAD(, job) jobs;
    struct entry close;
};

RB_HEAD(users, user);
RB_HEAD(pools, pool);
RB_HEAD(conns, conn);
RB_HEAD(jobs, job);

struct core {
    struct core_config config; /* deep copy */
    struct core_device *devices;
    uint64_t *device_used, *device_blocks, *device_arrays;
    char *strings[2]; /* what config.server and .driver_path point to */
    struct users users;
    struct pools pools;
    struct conns conns;
    struct jobs jobs;
    TAILQ_HEAD(, conn) waiting; /* for HELLO, by deadline */
    TAILQ_HEAD(, user) turns;   /* users with jobs that wait, the next one first */
    struct entries queue;
    struct entry *taken; /* owned entry that core_next() gave out last */
    struct msg_buf buf;
    uint64_t next_job, next_block, next_array;
    uint64_t n_conns, n_blocks, n_arrays, n_names, n_leases, n_jobs, n_running,
        n_release_errors;
    uint64_t started_ns, now_ns;
    bool stopping;
};

RB_PROTOTYPE(users, user, node, )
RB_PROTOTYPE(pools, pool, node, )
RB_PROTOTYPE(names, array, by_name, )
RB_PROTOTYPE(conns, conn, node, )
RB_PROTOTYPE(jobs, job, node, )
RB_PROTOTYPE(leases, lease, node, )
RB_PROTOTYPE(holds, hold, node, )

/* A refusal on its way to the client: the function that decides fills it, the dispatcher sends
 * it. Functions that fill one return REFUSED. */
#define REFUSED 1

struct refusal {
    enum proto_error code;
    int32_t cuda;
    char text[512];
};

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
int pool_charge(struct pool *pool, uint64_t bytes, struct refusal *r);
void pool_uncharge(struct pool *pool, uint64_t bytes);
struct array *pool_find_array(struct pool *pool, struct msg_str name);
/* The first one > after that has the prefix, or comes after those that do. */
struct array *pool_find_next(struct pool *pool, struct msg_str after, struct msg_str prefix);
int name_check(struct msg_str name, struct refusal *r);

/* array.c */
struct array_request {
    struct pool *pool;
    struct msg_str name; /* or not set */
    uint32_t device;
    struct geometry geometry;
    struct msg_str typestr, descr;
};

/* A pending array with its name taken and everything charged; its block, if it has bytes, is not
 * allocated yet. -ENOMEM or REFUSED. */
int array_new(struct core *core, struct conn *conn, const struct array_request *req,
              struct array **ret, struct refusal *r);
/* Takes the array's name away. */
void array_unname(struct core *core, struct array *array);
/* Gives up an array that was never promised to anybody. */
void array_abandon(struct core *core, struct array *array);
/* The memory is there: leases the array to its creator, records it and replies. */
void array_complete(struct core *core, struct conn *conn, uint32_t request,
                    struct array *array);
/* Frees an array that nobody holds any more. */
void array_settle(struct core *core, struct array *array);
int lease_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
              struct lease **ret, bool *ret_new_hold, struct refusal *r);
void lease_free(struct core *core, struct lease *lease);
struct lease *lease_find(struct conn *conn, uint64_t id);
void block_allocate(struct core *core, struct block *block, struct conn *conn,
                    uint32_t request);
void block_free(struct core *core, struct block *block);

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

/* request.c */
void request_handle(struct core *core, struct conn *conn, const void *packet, size_t n);
/* The reply to a create whose memory has come. */
void reply_created(struct core *core, struct conn *conn, uint32_t request,
                   const struct lease *lease);
void reply_memory(struct core *core, struct conn *conn, const struct job *job,
                  const struct core_memory_result *results, size_t n);
