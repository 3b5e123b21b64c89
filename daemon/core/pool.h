/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool: a sharing domain, the trust boundary (I1), and a name space. A uid's own lives as long as
 * its user; a configured one until a configuration lacks it. It leaves then: there is no such pool
 * for anybody, and it goes when its last block has, unless a configuration has it again before.
 */
#pragma once

#include "base/tree.h"
#include "core.h"
#include "doubt.h"
#include "reply.h"
#include "space.h"

RB_HEAD(names, array);
RB_HEAD(nameless, array);
RB_HEAD(losts, lost);
RB_HEAD(spares, block);
RB_HEAD(blocks, block);
TAILQ_HEAD(array_list, array);
TAILQ_HEAD(block_list, block);
RB_HEAD(pools, pool);
LIST_HEAD(pool_list, pool);

struct lingering {   /* arrays that linger, with memory */
    uint64_t n;      /* now */
    uint64_t n_over; /* and do no more, ever */
};

struct zone {                   /* what a pool has of one kind on one device */
    struct space space;         /* shared blocks */
    struct array_list pendings; /* whose ranges lie there, oldest first */
    uint64_t pending;           /* bytes of those */
    uint64_t spare;             /* bytes of own blocks that nobody uses */
    uint64_t used, allocated;   /* bytes of blocks; of them, those that arrays take */
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
    bool legacy; /* may have arrays of that kind */
    bool leaving;
    bool is_none;                /* the overflow uid's: nobody may do anything in it */
    LIST_ENTRY(pool) of_leaving; /* core->leaving_pools */
    uint64_t quota;              /* bytes; 0: none */
    uint64_t used;               /* bytes of blocks in device memory */
    uint64_t pinned;             /* bytes of blocks in host memory */
    uint64_t allocated, pending; /* bytes of ranges: of arrays; in queues. Device memory */
    uint64_t reserve;            /* bytes of blocks in reserve, of every kind */
    uint64_t n_blocks, n_arrays, n_names, n_watches, n_timelines;
    uint32_t number; /* in the journal; 0: none */
    uint64_t floor;  /* the highest generation that a name had when it was taken away */
    struct names names;
    struct losts losts;         /* names that are lost: none of `names` */
    struct nameless nameless;   /* arrays without a name that are not pending */
    struct blocks blocks;       /* all that it is charged for */
    struct spares spares;       /* own blocks that nobody uses, by device, kind, size */
    struct block_list reserved; /* blocks in reserve that are not doomed, oldest first */
    struct lingering lingering;
    struct doubts doubts; /* of arrays without bytes */
    struct unit *unit;    /* until it is whole again: units.h; else NULL */
    uint64_t doomed;      /* bytes of those that are */
    struct zone zones[];  /* one for each device and kind: pool_zone() */
};

RB_PROTOTYPE(pools, pool, node, )
RB_PROTOTYPE(names, array, node, )
RB_PROTOTYPE(nameless, array, node, )

enum {
    MAY_READ = 4,
    MAY_WRITE = 2
};

/* The name is not taken. -ENOMEM. */
int pool_new(struct core *core, const struct core_pool_config *config, struct pool **ret);
void pool_free(struct core *core, struct pool *pool);
/* All of config but the name. */
void pool_set(struct pool *pool, const struct core_pool_config *config);
/* What nobody needs any more must not go with it. */
bool pool_is_used(const struct pool *pool);
/* A configured one leaves, or does so no more. */
void pool_leave(struct core *core, struct pool *pool);
void pool_stay(struct core *core, struct pool *pool);
/* Something of it has gone: so may its owner be, whose own it is. */
void pool_touch(struct pool *pool);
/* Whether conn may do all of `what` (MAY_*): the first class that fits decides, as for files. */
bool pool_may(const struct pool *pool, const struct conn *conn, int what);
/* Whether there are clients of an earlier core that may have something there and have not told it
 * yet, or whose streams may use it: former.h. */
bool pool_may_resume(struct core *core, const struct pool *pool);
bool pool_is_landing(const struct core *core, const struct pool *pool);
/* The pool that a request names, or the caller's own; NULL when there is none. */
struct pool *pool_find(struct core *core, const struct conn *conn, struct msg_str name);
struct pool *pool_find_from(struct core *core, struct msg_str name); /* first one >= name */
/* The same for a request; refuses where conn may not read it, as if there were none, or not
 * write. */
int pool_find_readable(struct core *core, const struct conn *conn, struct msg_str name,
                       struct pool **ret, struct refusal *r);
int pool_find_writable(struct core *core, const struct conn *conn, struct msg_str name,
                       struct pool **ret, struct refusal *r);
/* Of a pool that conn may read: whether it may be written, too. */
int pool_check_writable(const struct pool *pool, const struct conn *conn, struct refusal *r);
/* The same answer for a pool that is absent, one that is forbidden, and a name that is absent. */
void refusal_fill_name(struct refusal *r, const char *what, struct msg_str pool,
                       struct msg_str name);
#define refuse_name(...) (refusal_fill_name(__VA_ARGS__), REFUSED)

/* Fills a page from the pool of that name, or from all that conn may read, by name from there on.
 * `resumed`: what the client has seen of this pool is not to be listed again. */
int pools_list(struct core *core, const struct conn *conn, struct pager *pager, bool all,
               struct msg_str name,
               void (*add)(const struct core *core, struct pager *pager, struct pool *pool,
                           const void *params, bool resumed),
               const void *params, struct refusal *r);
struct zone *pool_zone(const struct core *core, struct pool *pool, uint32_t device,
                       enum core_kind kind);
/* Whether bytes more of blocks fit the quota (device memory), or one block more the limit. */
int pool_check(const struct core *core, const struct pool *pool, enum core_kind kind,
               uint64_t bytes, struct refusal *r);
struct array *pool_find_array(struct pool *pool, struct msg_str name);
/* The last one < name. */
struct array *pool_find_before(struct pool *pool, struct msg_str name);
/* The first one > after that has the prefix, or comes after those that do. */
struct array *pool_find_next(struct pool *pool, struct msg_str after, struct msg_str prefix);
int name_check(struct msg_str name, struct refusal *r);

/* Nameless arrays that are not pending, by last name, generation and id: the first one that is
 * not less. */
struct array *pool_find_nameless(struct pool *pool, struct msg_str name, uint64_t generation,
                                 uint64_t id);
