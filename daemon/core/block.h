/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block: one allocation of the driver, exported once (I3). It lives from the first array that
 * needs it. It comes into its space at once, so that further arrays wait for the same driver call.
 * Empty, it is in its pool's reserve, is doomed, and goes when its release is done; one that the
 * driver refuses to take is written off.
 *
 * A hold is what a connection has of memory that it was sent once and may keep mapped (I3): of a
 * block, or of another one's page. It lasts until the client forgets the block or the page, its
 * process exits, or the block is released.
 */
#pragma once

#include "base/tree.h"
#include "job.h"
#include "pool.h"
#include "restore.h"
#include "space.h"
#include "use.h"

RB_HEAD(holds, hold);
LIST_HEAD(hold_list, hold);

struct hold {
    RB_ENTRY(hold) node; /* tree, by id */
    struct holds *tree;  /* conn->holds, or ->page_holds */
    LIST_ENTRY(hold) of_held;
    struct conn *conn;
    struct charge charge;
    uint64_t id; /* the block's, or the page's */

    union {
        struct block *block;
        struct page *page;
    };

    uint64_t n_leases;
    bool before;    /* by a connection of an earlier core: restore.h */
    bool unresumed; /* of a former one: former.h */
    bool landing;   /* of one that was, and has streams that are still to store something */
    bool resumed;   /* which has told of it */
};

/* What one is charged. */
#define HOLD_HOST (sizeof(struct hold) + RECORD_HOST(sizeof(struct record_hold)))

RB_PROTOTYPE(holds, hold, node, )

enum block_state {
    BLOCK_ALLOCATING, /* its memory is on its way; arrays have ranges in it already */
    BLOCK_LIVE,
    BLOCK_RELEASING, /* out of its space: nobody can get it */
};

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
    struct charge charge; /* itself, and an fd, where the kind has one: jobs take that turn */
    struct extent extent; /* own: of no space's free ranges but its own */
    struct space solo;    /* own: the space that its extent is in */
    uint64_t handle;
    int fd;        /* -1 until allocated, and for KIND_LEGACY */
    uint32_t kept; /* core_alloc_result */
    uint64_t ipc[CORE_HANDLE_WORDS];
    struct waiter_list waiters; /* while it is allocated */
    struct hold_list holds;
    uint32_t n_before;    /* of those, by connections of an earlier core: restore.h */
    uint32_t n_unresumed; /* and by those of whom it is not known what for: former.h */
    uint32_t n_landing;   /* and by those of whom it is, while their streams may use it */
    struct doubts doubts;
    struct range *aside; /* what was free then, one by the link of the other, until they end */
    LIST_ENTRY(block) of_aside; /* core->aside, from then on until all is put back */
    uint64_t emptied_ns;
    LIST_ENTRY(block) of_core;    /* core->blocks */
    RB_ENTRY(block) node;         /* pool->blocks, by id */
    uint64_t doom;                /* its number, if doomed or being released */
    TAILQ_ENTRY(block) of_pool;   /* pool->reserved */
    TAILQ_ENTRY(block) of_device; /* device->reserved, or ->doomed */
    RB_ENTRY(block) spare;        /* pool->spares */
    struct job job;               /* first its allocation, then its release */
};

/* What one is charged. */
#define BLOCK_HOST (sizeof(struct block) + RECORD_HOST(sizeof(struct record_block)))

RB_PROTOTYPE(spares, block, spare, )
RB_PROTOTYPE(blocks, block, node, )

struct block *block_of(const struct range *range);
struct zone *block_zone(const struct core *core, const struct block *block);
/* One of `size` bytes for an array and those to come, whose allocation begins. -ENOMEM, or
 * REFUSED. */
int block_new(struct core *core, const struct array *array, struct user *user, uint64_t size,
              struct block **ret, struct refusal *r);
/* One of an earlier core's, of which nothing is taken yet. -ENOMEM. */
int block_restore(struct core *core, struct pool *pool, struct user *user, uint32_t device,
                  const struct restore_block *from, struct block **ret);
/* What is free in it is nobody's, as long as connections of the earlier core have it. -ENOMEM. */
int block_set_aside(struct block *block);
/* The same of a range whose array has ended since. */
void block_keep_aside(struct block *block, struct range *range);
/* Some of that is free again: so many ranges at most. */
void block_put_back(struct core *core, struct block *block, uint32_t max);
/* Its memory has come. */
void block_live(struct block *block, const struct core_alloc_result *result);
/* Neither spare nor in reserve any more: a range was taken in it, or it goes. */
void block_use(struct core *core, struct block *block);
/* A range goes back to its block. */
void block_put_range(struct core *core, struct range *range);
/* An own block's array is pending: its range may serve another one. */
void block_spare(struct core *core, struct block *block);
void block_unspare(struct core *core, struct block *block);
/* The smallest own block that is spare, has the array's size, and wastes no more than an eighth. */
struct block *block_find_spare(const struct core *core, const struct array *array);
/* Lets a block that is empty, and that no hold keeps, come into reserve. */
void block_settle(struct core *core, struct block *block);
/* Records, once, that the block is promised to clients. */
void block_promise(struct core *core, struct block *block);

/* A block in reserve is to be released: in the order in which they are doomed. */
void block_doom(struct core *core, struct block *block);
/* A doomed block is in reserve as before. */
void block_undoom(struct core *core, struct block *block);
/* Dooms the pool's oldest reserved blocks until no more than `keep` bytes are left. */
void blocks_doom(struct core *core, struct pool *pool, uint64_t keep);
/* Starts the release of a block in reserve: nobody can get it any more. */
void block_release(struct core *core, struct block *block);
/* Takes an empty block out of everything. */
void block_retire(struct core *core, struct block *block);
void block_destroy(struct core *core, struct block *block);

/* It is known what for, but for what streams do. */
void block_know_use(struct core *core, struct hold *hold);
/* A hold is like any other from now on; `stays`: set aside for it is what is free, as before. */
void block_know_hold(struct core *core, struct hold *hold, bool stays);
/* A hold without leases goes. */
void block_unhold(struct core *core, struct hold *hold);

struct hold *hold_find(struct holds *tree, uint64_t id);
/* The one that conn has, or a new one of what the list is that of. -ENOMEM or REFUSED. */
int hold_get(struct conn *conn, struct holds *tree, uint64_t id, struct hold_list *list,
             struct hold **ret, bool *ret_new, struct refusal *r);
void hold_free(struct hold *hold);
