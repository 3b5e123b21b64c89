/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An arena: pieces of blocks that the client leases, handed out without asking anybody
 * (caid/arena.h). A block is an unnamed array of bytes with memory of its own. Small allocations
 * share blocks, by a range allocator (mem/space.h); one of more than half a block's size has a
 * block to itself.
 *
 * What an allocation goes through:
 *
 *   in use --free--> pending --flush--> draining --the GPU is done--> gone: room again
 *            \--> pinned, while parts of it are published --the last one is gone--> pending
 *
 *   pending   in the queue `freed` (mem/dealloc.h, by Numba's rules), in the order of the frees
 *   draining  in a batch: what one flush took, behind an event that was recorded after all work
 *             that the device's primary context had been given (cuCtxRecordEvent)
 *
 * Invariants
 *   1. Memory that work given to the primary context before the free may use is not given out
 *      again, and its block not given back, before that work is done. Nothing else frees a range.
 *   2. A batch's event stands for no less work than those of the batches before it: they are done
 *      in their order, and only the first is asked.
 *   3. Every address from a block's start to its end belongs to at most one struct allocation; all
 *      that are not gone are in the tree, by address.
 *   4. A block is in the queue `empty` exactly when nothing lies in it. A block in which there is
 *      something is not given back before caid_arena_close().
 *   5. Neither an event is recorded nor a block given back for what is held back
 *      (caid_arena_defer_begin()). Nor is an event recorded, or the context synchronized, while a
 *      graph is known to be captured (batch.c): either ends every capture in the context, and
 *      fails, and what was to be flushed stays in the queue. Events are asked and waited for with
 *      the thread's capture mode relaxed, else that ends its captures, too.
 *   6. `lock` is not held over a call to the daemon, nor while the client's lock is taken, nor over
 *      a wait for the GPU's work. What has to be done with the client is noted meanwhile and done
 *      by arena_unlock(). It is held over the calls that make, record and ask events, and ask for
 *      captures, of which recording (cuCtxRecordEvent) may wait as a launch does where the device's
 *      queues are full: so a free that flushes, and all who want the lock, may. The client's thread
 *      does not wait for the lock.
 *
 * Where the driver has no cuCtxRecordEvent (before CUDA 12.5) batches are blind: they are done
 * once the context has been synchronized, which an allocation does before it leases another block.
 * A context in which nothing runs any more (gpu_is_gone()) is done with everything.
 *
 * Lifetimes: the arena holds the client, by a reference of its own and by the blocks' arrays. The
 * client lists its arenas, from their making to caid_arena_close(), which waits for the client's
 * thread to be out of the arena. That thread (session/reaper.h) looks at what drains, and gives
 * back what has been empty for long, while the program allocates nothing. It records no event,
 * which would end the captures of threads that know nothing of it: what is pending in an idle
 * process stays so. Allocations, batches and blocks are the arena's. A part's hook has the
 * allocation that it pins as its userdata, and is forgotten before that goes. In a child after
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

#define ARENA_ALIGNMENT SPACE_UNIT

struct caid_array;
struct caid_client;

/* Until the client's thread looks, where something drains. */
#define ARENA_TICK_NS (250 * NSEC_PER_MSEC)

struct arena_block {
    struct caid_arena *arena;
    struct caid_array *array;
    uint64_t ptr, bytes;
    bool own;                      /* for one allocation at a time, which has all of it */
    bool empty;                    /* in arena->empty */
    TAILQ_ENTRY(arena_block) link; /* arena->blocks, or arena->leaving */
    struct extent extent;          /* not own: in arena->space */
    RB_ENTRY(arena_block) by_size; /* own and empty: in arena->spare_blocks */
    struct dealloc_entry emptied;
};

struct allocation {
    RB_ENTRY(allocation) by_address;
    struct arena_block *block;
    struct range *range; /* NULL: the block is its own */
    uint64_t ptr, nbytes;
    uint32_t n_parts; /* published, or being published */
    bool freed;

    union {
        struct dealloc_entry entry;       /* pending */
        STAILQ_ENTRY(allocation) batched; /* draining */
    };
};

STAILQ_HEAD(allocation_list, allocation);

struct batch {
    TAILQ_ENTRY(batch) link; /* arena->batches or arena->spare_batches */
    CUevent event;           /* NULL: blind */
    uint32_t n_waiting;      /* threads in arena_wait(): it stays where it is */
    bool done;               /* out of the list, and left for those to put away */
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
    pthread_cond_t leased; /* a shared block has come, or has not */
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
    uint64_t n_leaving;          /* that threads give back now */
    pthread_cond_t closed;       /* these have become fewer */
    bool kick;                   /* the client's thread is to look, in a while */
    bool ticking;                /* it will */
};

struct arena_list { /* under the client's lock */
    struct arenas all;
    uint64_t due;               /* when the client's thread has something to do */
    struct caid_arena *tidying; /* that the client's thread is in */
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
/* With CAID_ARENA_NOWAIT: CAID_ERR_TIMEOUT where another thread has it. */
int arena_lock_by(struct caid_arena *arena, uint32_t flags, struct caid_error *error);
/* Lets go, then gives back the blocks that are leaving and wakes the client's thread. */
void arena_unlock(struct caid_arena *arena);

/* All of the following under the arena's lock. */

/* ---- allocation.c ---- */

RB_PROTOTYPE(allocation_tree, allocation, by_address, allocation_cmp)

/* The allocation that the address lies in, freed or not; or NULL. */
struct allocation *arena_find(struct caid_arena *arena, uint64_t ptr);
/* The same for one that is in use; CAID_ERR_NOT_FOUND. */
int arena_find_used(struct caid_arena *arena, uint64_t ptr, struct allocation **ret,
                    struct caid_error *error);

/* Whether an allocation of so many bytes has a block to itself. */
bool arena_is_own(const struct caid_arena *arena, uint64_t nbytes);
/* Takes room for so many bytes where there is some: 0, SPACE_FULL, -ENOMEM. */
int arena_take(struct caid_arena *arena, uint64_t nbytes, struct allocation **ret);
/* The GPU is done with it: makes its memory room again, and frees it. */
void arena_reclaim(struct allocation *allocation);

/* ---- block.c ---- */

/* NO_MEMORY, with the figures, for more than the device has. Not under the lock. */
int arena_check_size(const struct caid_arena *arena, uint64_t bytes, struct caid_error *error);
/* Leases a block of so many bytes, rounded up to the granularity; it is empty then. Drops the
 * lock. */
int arena_lease(struct caid_arena *arena, uint64_t bytes, bool own, struct caid_error *error);
/* An empty block of its own for so many bytes, or NULL. */
struct arena_block *arena_find_spare(struct caid_arena *arena, uint64_t bytes);
/* The first allocation is in it; the last one has left it. */
void arena_block_fill(struct arena_block *block);
void arena_block_empty(struct arena_block *block);
/* The empty blocks that are not held back leave. */
void arena_give_back(struct caid_arena *arena);
/* The arena ends: the block goes. Not under the lock. */
void arena_block_close(struct arena_block *block);

/* ---- batch.c ---- */

/* Whether something waits that is not held back. */
bool arena_has_pending(const struct caid_arena *arena);
/* Puts what is pending, but for what is held back, behind the work that the context has, unless too
 * much drains already. On failure nothing changes. */
int arena_flush(struct caid_arena *arena, struct caid_error *error);
/* Makes room of the batches that are done. */
void arena_poll(struct caid_arena *arena);
/* Waits for those that there are, then the same. Drops the lock meanwhile. Fails where they
 * cannot be waited for. */
int arena_wait(struct caid_arena *arena, struct caid_error *error);
/* The arena ends. */
void arena_free_batches(struct caid_arena *arena);

/* ---- part.c ---- */

/* Forgets the hooks of the allocation's parts. The arena ends; not under the lock. */
void arena_forget_parts(struct allocation *allocation);
