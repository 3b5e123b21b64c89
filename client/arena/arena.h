/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An arena hands out pieces of blocks that the client leases, without a call to the daemon or the
 * driver (caid/arena.h). A block is an unnamed array of bytes with memory of its own. Small
 * allocations share blocks, by a range allocator (mem/space.h). One of more than half a block's
 * size has a block of its own.
 *
 * The states of an allocation:
 *
 *   in use --free--> pending --flush--> draining --the GPU is done--> gone: room again
 *            \--> pinned, while parts of it are published --the last one is gone--> pending
 *
 *   pending   in the queue `freed` (mem/dealloc.h, by Numba's rules), in the order of the frees
 *   draining  in a batch, which has all that one flush took, and an event that was recorded after
 *             all work that the device's primary context had been given (cuCtxRecordEvent)
 *
 * Invariants
 *   1. Work that the primary context was given before a free may use the freed memory. Before that
 *      work is done the memory is not handed out again, and its block is not given back. Nothing
 *      else frees a range. The exception: pending memory that was freed on a lane
 *      (CAID_ARENA_ORDERED) serves an allocation on that lane.
 *   2. A batch's event covers at least the work of the batches before it: batches are done in their
 *      order, and only the first one is asked.
 *   3. Every address of a block belongs to at most one struct allocation. All allocations that are
 *      not gone are in the tree, by address.
 *   4. A block is in the queue `empty` exactly when no allocation lies in it. Other blocks are not
 *      given back before caid_arena_close().
 *   5. For deferred memory (caid_arena_defer_begin()) no event is recorded, and no block is given
 *      back. Nor is an event recorded, or the context synchronized, while a graph is known to be
 *      captured (batch.c): either call would end every capture in the context, and fail; the memory
 *      stays in the queue. Events are asked and waited for with the thread's capture mode relaxed,
 *      since that would end its captures, too.
 *   6. `lock` is not held over a call to the daemon, nor while the client's lock is taken, nor over
 *      a wait for the GPU's work. Calls to the client are noted under it, and made by
 *      arena_unlock(). It is held over the driver calls that make, record and ask events, and that
 *      ask for captures. Recording (cuCtxRecordEvent) may wait as a launch does where the device's
 *      queues are full; so may a free that flushes, and everybody who wants the lock. The client's
 *      thread does not wait for the lock.
 *
 * Where the driver has no cuCtxRecordEvent (before CUDA 12.5) batches are blind: they are done when
 * the context has been synchronized, which an allocation does before it leases another block. A
 * context in which nothing runs any more (gpu_is_gone()) is done with everything.
 *
 * Lifetimes: the arena has a reference to the client, and so have the blocks' arrays. The client
 * lists its arenas, from their making to caid_arena_close(), which waits until the client's thread
 * is out of the arena. While the program allocates nothing, that thread (session/reaper.h) polls
 * draining batches, and gives back blocks that have been empty for long. It records no event, since
 * that would end captures of other threads: pending memory in an idle process stays pending.
 * Allocations, batches and blocks belong to the arena. The userdata of a part's hook is the
 * allocation that it pins; the hook is forgotten before the allocation is freed. In a child after
 * fork() everything fails but caid_arena_close(), which frees host memory.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "base/tree.h"
#include "cuda_abi.h"
#include "dealloc.h"
#include "space.h"

struct caid_array;
struct caid_client;
struct caid_member;

/* The client's thread polls draining batches so often. */
#define ARENA_TICK_NS (250 * NSEC_PER_MSEC)

struct arena_block {
    struct caid_arena *arena;
    struct caid_array *array;
    uint64_t ptr, bytes;
    bool own;                      /* it is for one allocation at a time */
    bool empty;                    /* in arena->empty */
    TAILQ_ENTRY(arena_block) link; /* arena->blocks, or arena->leaving */
    struct extent extent;          /* not own: in arena->space */
    RB_ENTRY(arena_block) by_size; /* own and empty: in arena->spare_blocks */
    struct dealloc_entry emptied;
};

/* A stream, as work is ordered by it: handles are used again, and the default streams' are of a
 * context or a thread. */
struct arena_lane {
    uint64_t stream; /* its id and 1; 0: none */
    uint64_t thread; /* of a default stream; 0: any */
};

struct allocation {
    RB_ENTRY(allocation) by_address;
    struct arena_block *block;
    struct range *range; /* NULL: it has a block of its own */
    uint64_t ptr, nbytes;
    uint32_t n_parts; /* published, or being published */
    bool freed;
    struct arena_lane lane; /* pending: on which it was freed */

    union {
        struct dealloc_entry entry;       /* pending */
        STAILQ_ENTRY(allocation) batched; /* draining */
    };
};

STAILQ_HEAD(allocation_list, allocation);

struct batch {
    TAILQ_ENTRY(batch) link; /* arena->batches or arena->spare_batches */
    CUevent event;           /* NULL: blind */
    uint32_t n_waiting;      /* threads in arena_wait(): the batch is not reused */
    bool done;               /* out of the list; the last of these threads puts it away */
    struct allocation_list allocations;
    uint64_t n, bytes;
};

LIST_HEAD(arenas, caid_arena);
RB_HEAD(allocation_tree, allocation);
RB_HEAD(arena_block_tree, arena_block);
TAILQ_HEAD(arena_blocks, arena_block);
TAILQ_HEAD(batch_list, batch);

struct caid_arena {
    struct caid_client *client;
    LIST_ENTRY(caid_arena) of_client; /* under the client's lock */

    /* Fixed. */
    int32_t device; /* index */
    const char *memory;
    char *pool; /* or NULL */
    uint64_t block_bytes, granularity, capacity;

    pthread_mutex_t lock;

    /* Under lock. */
    pthread_cond_t leased; /* a thread has leased a shared block, or failed to */
    bool leasing;          /* a thread leases a shared block */
    CUcontext context;     /* NULL before the first block */
    bool blind;            /* the driver has no cuCtxRecordEvent */
    uint32_t n_deferred;

    struct arena_blocks blocks;
    uint64_t n_blocks, bytes;
    struct space space;
    struct arena_block_tree spare_blocks; /* own and empty, by size */
    struct allocation_tree allocations;

    struct dealloc freed;
    struct dealloc_owner freed_owner;
    struct batch_list batches; /* oldest first */
    uint32_t n_batches;
    struct batch_list spare_batches;
    struct dealloc empty;
    struct dealloc_owner empty_owner;

    uint64_t n_allocations, allocated; /* not freed */
    uint64_t draining, draining_bytes;
    uint64_t n_parts;
    uint64_t n_allocs, n_leased; /* ever */

    /* For arena_unlock(). */
    struct arena_blocks leaving; /* blocks to be given back */
    uint64_t n_leaving;          /* blocks that threads are giving back */
    pthread_cond_t closed;       /* n_leaving has become less */
    bool kick;                   /* the client's thread is to be told to look */
    bool ticking;                /* it has been told, and will look */
};

struct arena_list { /* under the client's lock */
    struct arenas all;
    uint64_t due;               /* when the client's thread has something to do */
    struct caid_arena *tidying; /* the one that the client's thread is in */
    pthread_cond_t tidied;
};

static inline void
arena_look_by(struct arena_list *list, uint64_t time)
{
    if (time < list->due)
        list->due = time;
}

extern const struct feature arena_feature;

void arena_list_init(struct arena_list *list);

/* ---- lock.c ---- */

void arena_lock(struct caid_arena *arena);
/* With CAID_ARENA_NOWAIT: CAID_ERR_TIMEOUT if another thread has the lock. */
int arena_lock_by(struct caid_arena *arena, uint32_t flags, struct caid_error *error);
/* Unlocks, then gives back the blocks that are leaving, and wakes the client's thread. */
void arena_unlock(struct caid_arena *arena);

/* All of the following under the arena's lock. */

/* ---- allocation.c ---- */

RB_PROTOTYPE(allocation_tree, allocation, by_address, allocation_cmp)

/* The allocation that the address lies in, freed or not; or NULL. */
struct allocation *arena_find(struct caid_arena *arena, uint64_t ptr);
/* The same for one that is in use; CAID_ERR_NOT_FOUND. */
int arena_find_used(struct caid_arena *arena, uint64_t ptr, struct allocation **ret,
                    struct caid_error *error);

/* Takes pending memory of that size back that was freed on the lane. SPACE_FULL: there is none. */
int arena_take_back(struct caid_arena *arena, uint64_t nbytes, struct arena_lane lane,
                    struct allocation **ret);

/* Whether an allocation of so many bytes has a block of its own. */
bool arena_is_own(const struct caid_arena *arena, uint64_t nbytes);
/* Takes room for so many bytes where there is some: 0, SPACE_FULL, -ENOMEM. */
int arena_take(struct caid_arena *arena, uint64_t nbytes, struct allocation **ret);
/* The GPU is done with the allocation: its memory can be used again, and the struct is freed. */
void arena_reclaim(struct allocation *allocation);

/* ---- block.c ---- */

/* CAID_ERR_NO_MEMORY, with the figures: it is more than the device has. Not under the lock. */
int arena_check_size(const struct caid_arena *arena, uint64_t bytes, struct caid_error *error);
/* Leases a block of so many bytes, rounded up to the granularity; it is empty then. Drops the
 * lock. */
int arena_lease(struct caid_arena *arena, uint64_t bytes, bool own, struct caid_error *error);
/* An empty block of its own for so many bytes, or NULL. */
struct arena_block *arena_find_spare(struct caid_arena *arena, uint64_t bytes);
/* The block has its first allocation; it has lost its last one. */
void arena_block_fill(struct arena_block *block);
void arena_block_empty(struct arena_block *block);
/* Gives back the empty blocks that are not deferred. */
void arena_give_back(struct caid_arena *arena);
/* The arena ends: closes the block. Not under the lock. */
void arena_block_close(struct arena_block *block);

/* ---- batch.c ---- */

/* That of the thread's stream, which need not be locked for it; none while that one may capture a
 * graph, since the graph runs elsewhere. */
struct arena_lane arena_lane(const struct caid_arena *arena);

/* Whether memory is pending that is not deferred. */
bool arena_has_pending(const struct caid_arena *arena);
/* Puts pending memory that is not deferred into a batch, behind the work that the context has,
 * unless too many batches drain already. On failure nothing changes. */
int arena_flush(struct caid_arena *arena, struct caid_error *error);
/* Ends the batches that are done: their memory can be used again. */
void arena_poll(struct caid_arena *arena);
/* Waits for the batches that drain now, and ends them. Drops the lock meanwhile. Fails if they
 * cannot be waited for. */
int arena_wait(struct caid_arena *arena, struct caid_error *error);
/* The arena ends. */
void arena_free_batches(struct caid_arena *arena);

/* ---- part.c ---- */

/* Pins the allocation that the array lies in, whose offset is an address; it is to become a part.
 * CAID_ERR_NOT_FOUND; CAID_ERR_INVALID: the array is longer. */
int arena_pin(struct caid_arena *arena, const struct caid_member *array,
              struct allocation **ret, struct caid_error *error);
void arena_unpin(struct allocation *allocation);
/* The hook of a part, with the allocation. It does not flush: it runs on whichever thread reads
 * from the daemon, while another thread may capture a graph. Takes the lock. */
void arena_released(void *allocation);

/* Forgets the hooks of the allocation's parts. The arena ends; not under the lock. */
void arena_forget_parts(struct allocation *allocation);
