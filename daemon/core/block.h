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
    bool before;    /* the connection is one of an earlier core: restore.h */
    bool unresumed; /* the connection is a former one that has not resumed: former.h */
    /* the connection has resumed, and streams of its client have signals on the way */
    bool landing;
    bool resumed; /* the client has said, when resuming, that it has this */
};

/* What a hold is charged. */
#define HOLD_HOST (sizeof(struct hold) + RECORD_HOST(sizeof(struct record_hold)))

RB_PROTOTYPE(holds, hold, node, )

enum block_state {
    BLOCK_ALLOCATING, /* the driver is at work; arrays have ranges in it already */
    BLOCK_LIVE,
    BLOCK_RELEASING, /* out of its space: no create can use it */
};

struct block {
    uint64_t id;
    enum block_state state;
    enum core_kind kind;
    bool own;      /* for one array; else for arrays that share it */
    bool reserved; /* in reserve: empty, and may be released */
    bool spared;   /* in pool->spares: own, and in reserve or its array is pending */
    bool doomed;   /* in reserve, and to be released unless a create needs it first */
    bool promised; /* recorded, since a client was sent it */
    bool
        exported; /* for good: somebody may have it as a dma-buf, so nobody is given it again */
    uint32_t device;
    uint64_t size;
    struct pool *pool; /* pays for its bytes, and for one block */
    /* the struct and its fd, if any: this user's turns serve its driver calls */
    struct charge charge;
    struct extent extent; /* of an own block: no space's but `solo` */
    struct space solo;    /* of an own block: the space of its extent */
    uint64_t handle;
    int fd;        /* -1 until allocated, and for KIND_LEGACY */
    uint32_t kept; /* core_alloc_result */
    uint64_t ipc[CORE_HANDLE_WORDS];
    struct waiter_list waiters; /* creates that wait for the allocation */
    struct hold_list holds;
    uint32_t n_before;    /* holds of an earlier core's connections: restore.h */
    uint32_t n_unresumed; /* those of them that have not resumed: former.h */
    /* those of them that have, while their streams have signals on the way */
    uint32_t n_landing;
    uint64_t lost_writers; /* those of them that block_lose_writes() was called for */
    struct doubts doubts;
    /* ranges that were free when the core started, or are so since, until no such hold is left */
    struct range *aside;
    LIST_ENTRY(block) of_aside; /* core->aside, until all of them are free again */
    uint64_t emptied_ns;
    LIST_ENTRY(block) of_core;    /* core->blocks */
    RB_ENTRY(block) node;         /* pool->blocks, by id */
    uint64_t doom;                /* its number, if it is doomed or being released */
    TAILQ_ENTRY(block) of_pool;   /* pool->reserved */
    TAILQ_ENTRY(block) of_device; /* device->reserved, or ->doomed */
    RB_ENTRY(block) spare;        /* pool->spares */
    struct job job;               /* of its allocation, and later of its release */
};

/* What a block is charged. */
#define BLOCK_HOST (sizeof(struct block) + RECORD_HOST(sizeof(struct record_block)))

RB_PROTOTYPE(spares, block, spare, )
RB_PROTOTYPE(blocks, block, node, )

struct block *block_of(const struct range *range);
struct zone *block_zone(const struct core *core, const struct block *block);
/* A block of `size` bytes for this array and those that come later; starts its allocation. -ENOMEM,
 * or REFUSED. */
int block_new(struct core *core, const struct array *array, struct user *user, uint64_t size,
              struct block **ret, struct refusal *r);
/* A block of an earlier core, none of whose ranges is taken yet. -ENOMEM. */
int block_restore(struct core *core, struct pool *pool, struct user *user, uint32_t device,
                  const struct restore_block *from, struct block **ret);
/* Sets the free ranges aside: no create gets them while connections of the earlier core have the
 * block. -ENOMEM. */
int block_set_aside(struct block *block);
/* Sets the range of an array that has ended since aside as well. */
void block_keep_aside(struct block *block, struct range *range);
/* Frees up to `max` of these ranges, once nobody has them. */
void block_put_back(struct core *core, struct block *block, uint32_t max);
/* The driver has allocated it. */
void block_live(struct block *block, const struct core_alloc_result *result);
/* Takes the block out of the spares and the reserve: a range was taken in it, or it goes. */
void block_use(struct core *core, struct block *block);
/* The range is free again. */
void block_put_range(struct core *core, struct range *range);
/* An own block's array is pending: its range may serve another array. */
void block_spare(struct core *core, struct block *block);
void block_unspare(struct core *core, struct block *block);
/* The smallest spare block that fits the array, and of which it wastes at most an eighth. */
struct block *block_find_spare(const struct core *core, const struct array *array);
/* Puts the block into reserve if it is empty and no hold keeps it. */
void block_settle(struct core *core, struct block *block);
/* Records the block before the first reply that has it. */
void block_promise(struct core *core, struct block *block);
/* A promised block: its client may now make a dma-buf of it. */
void block_export(struct core *core, struct block *block);

/* Dooms a block in reserve: doomed blocks are released in the order of their dooms. */
void block_doom(struct core *core, struct block *block);
/* The block is not doomed any more, and still in reserve. */
void block_undoom(struct core *core, struct block *block);
/* Dooms the pool's oldest reserved blocks until no more than `keep` bytes are left. */
void blocks_doom(struct core *core, struct pool *pool, uint64_t keep);
/* Starts the release of a reserved block: no create can get it any more. */
void block_release(struct core *core, struct block *block);
/* Takes an empty block out of its space, the spares and the reserve; ends its holds. */
void block_retire(struct core *core, struct block *block);
void block_destroy(struct core *core, struct block *block);

/* The hold's client has said what it uses; its streams may still have signals on the way. */
void block_know_use(struct core *core, struct hold *hold);
/* The hold is like any other from now on. `stays`: what is set aside stays so because of it. */
void block_know_hold(struct core *core, struct hold *hold, bool stays);
/* What the former connection was writing with others (former_bit()) is not whole. */
void block_lose_writes(struct conn *conn);
/* Ends a hold that has no leases. */
void block_unhold(struct core *core, struct hold *hold);

struct hold *hold_find(struct holds *tree, uint64_t id);
/* conn's hold on that, or a new one, which is put into the list. -ENOMEM or REFUSED. */
int hold_get(struct conn *conn, struct holds *tree, uint64_t id, struct hold_list *list,
             struct hold **ret, bool *ret_new, struct refusal *r);
void hold_free(struct hold *hold);
