/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool: a sharing domain, the trust boundary (I1), and a name space. A uid's own pool lives as
 * long as its user, a configured one until a configuration lacks it. Then it is leaving: nobody can
 * name it any more, and it is freed with its last block, unless a configuration has it again
 * before.
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
RB_HEAD(droppables, set);
RB_HEAD(spares, block);
RB_HEAD(blocks, block);
TAILQ_HEAD(array_list, array);
TAILQ_HEAD(block_list, block);
RB_HEAD(pools, pool);
LIST_HEAD(pool_list, pool);

struct lingering {      /* lingering arrays with memory */
    uint64_t n;         /* at present */
    uint64_t n_over;    /* how often one has stopped, or such memory may have come otherwise */
    uint64_t n_dropped; /* of n: those of sets that were dropped */
};

struct zone {           /* what a pool has of one kind on one device */
    struct space space; /* shared blocks */
    /* arrays that wait in a queue for their ranges to be freed, oldest first */
    struct array_list pendings;
    uint64_t pending;         /* bytes of those */
    uint64_t spare;           /* bytes of own blocks that are spare */
    uint64_t used, allocated; /* bytes of blocks; of them, those that arrays take */
    uint64_t n_own_pending;   /* own blocks whose array is pending */
    uint64_t n_doomed;        /* blocks that are doomed or being released */
    uint64_t last_doom;       /* the number of the last doom */
};

struct pool {
    RB_ENTRY(pool) node;
    char name[PROTO_POOL_MAX + 1];
    struct user *owner; /* the user whose own pool it is; NULL: a configured one */
    uid_t uid;
    gid_t gid;
    mode_t mode;
    bool legacy; /* arrays of KIND_LEGACY are allowed */
    bool leaving;
    bool is_none;                /* the overflow uid's: nobody may use it */
    LIST_ENTRY(pool) of_leaving; /* core->leaving_pools */
    uint64_t quota;              /* bytes; 0: none */
    uint64_t used;               /* bytes of blocks in device memory */
    uint64_t pinned;             /* bytes of blocks in host memory */
    uint64_t allocated, pending; /* bytes of ranges: of arrays; in queues. Device memory */
    uint64_t reserve;            /* bytes of blocks in reserve, of every kind */
    uint64_t n_blocks, n_arrays, n_names, n_watches, n_timelines;
    uint32_t number; /* in the journal; 0: none */
    uint64_t floor;  /* the highest generation of the names that it has lost */
    struct names names;
    struct losts losts;           /* lost names: none of them is in `names` */
    struct droppables droppables; /* sets that may be dropped, as far as is known */
    struct set *drop_next;        /* of these, that a search has not come to; or NULL */
    struct nameless nameless;     /* arrays without a name that are not pending */
    struct blocks blocks;         /* all that it is charged for */
    struct spares spares;         /* spare blocks, by exported, device, kind and size */
    struct block_list reserved;   /* reserved blocks that are not doomed, oldest first */
    uint64_t n_drops;             /* of its sets, ever */
    struct lingering lingering;
    struct doubts doubts; /* of arrays without bytes */
    struct unit *unit;    /* units.h; NULL: the pool is restored */
    uint64_t doomed;      /* bytes of doomed blocks */
    struct zone zones[];  /* one for each device and kind: pool_zone() */
};

RB_PROTOTYPE(pools, pool, node, )
RB_PROTOTYPE(droppables, set, of_pool, )
RB_PROTOTYPE(names, array, node, )
RB_PROTOTYPE(nameless, array, node, )

enum {
    MAY_READ = 4,
    MAY_WRITE = 2
};

/* The name is not taken. -ENOMEM. */
int pool_new(struct core *core, const struct core_pool_config *config, struct pool **ret);
void pool_free(struct core *core, struct pool *pool);
/* Sets all that config says, but for the name. */
void pool_set(struct pool *pool, const struct core_pool_config *config);
/* Whether the pool has arrays or timelines. */
bool pool_is_used(const struct pool *pool);
/* A configured pool is leaving, or no longer so. */
void pool_leave(struct core *core, struct pool *pool);
void pool_stay(struct core *core, struct pool *pool);
/* Something of the pool has gone: the core looks whether the user whose own it is can be freed. */
void pool_touch(struct pool *pool);
/* Whether conn may do all of `what` (MAY_*). The first class that fits decides, as for files. */
bool pool_may(const struct pool *pool, const struct conn *conn, int what);
/* Whether a former connection may have something in the pool: it may still resume, or its streams
 * have signals on the way (former.h). */
bool pool_may_resume(struct core *core, const struct pool *pool);
bool pool_is_landing(const struct core *core, const struct pool *pool);
/* The pool of that name, or the caller's own; NULL: none. */
struct pool *pool_find(struct core *core, const struct conn *conn, struct msg_str name);
struct pool *pool_find_from(struct core *core,
                            struct msg_str name); /* the first pool >= name */
/* The pool that a request names. A pool that conn may not read is refused as if it did not exist;
 * one that it may not write, by PERMISSION. */
int pool_find_readable(struct core *core, const struct conn *conn, struct msg_str name,
                       struct pool **ret, struct refusal *r);
int pool_find_writable(struct core *core, const struct conn *conn, struct msg_str name,
                       struct pool **ret, struct refusal *r);
/* Whether a pool that conn may read may be written. REFUSED. */
int pool_check_writable(const struct pool *pool, const struct conn *conn, struct refusal *r);
/* NOT_FOUND: the same for a pool that does not exist, one that is forbidden, and a name that does
 * not exist. */
void refusal_fill_name(struct refusal *r, const char *what, struct msg_str pool,
                       struct msg_str name);
#define refuse_name(...) (refusal_fill_name(__VA_ARGS__), REFUSED)

/* Fills a portion from the pool of that name, or from all that conn may read, from that name on.
 * `resumed`: the list goes on in this pool, after what the client has. */
int pools_list(struct core *core, const struct conn *conn, struct portion *portion, bool all,
               struct msg_str name,
               void (*add)(const struct core *core, struct portion *portion, struct pool *pool,
                           const void *params, bool resumed),
               const void *params, struct refusal *r);
struct zone *pool_zone(const struct core *core, struct pool *pool, uint32_t device,
                       enum core_kind kind);
/* Whether the quota has room for that many bytes of blocks (device memory), and the limit for one
 * block more. REFUSED. */
int pool_check(const struct core *core, const struct pool *pool, enum core_kind kind,
               uint64_t bytes, struct refusal *r);
struct array *pool_find_array(struct pool *pool, struct msg_str name);
/* The last array < name. */
struct array *pool_find_before(struct pool *pool, struct msg_str name);
/* The first array > after that has the prefix or comes after it. */
struct array *pool_find_next(struct pool *pool, struct msg_str after, struct msg_str prefix);
int name_check(struct msg_str name, struct refusal *r);

/* The first nameless array (not pending) that is not less than that, by last name, generation and
 * id. */
struct array *pool_find_nameless(struct pool *pool, struct msg_str name, uint64_t generation,
                                 uint64_t id);
