/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a pool: a window of addresses, and a file of which the pieces that are needed are
 * mapped into it, each at its own offset. Blocks, in the order of their addresses, cover it all.
 *
 * A block is bare (nothing is mapped there), free, or used. Free and used ones are so since a point
 * of a stream: where the block was freed, or allocated. Until that point has passed, older work may
 * still touch it, so a free one is given out again only in the same stream, whose order sees to it;
 * or after the point has passed; or, when there is no other memory left, with a wait for the point,
 * which is the caller's to enqueue. Where a new piece is needed and where allocations end up was
 * compared with an H200.
 *
 * A heap is part of a pool. Everything here needs the lock of all pools (pool.h).
 */
#pragma once

#include "stream.h"

#define HEAP_UNIT  ((size_t)512) /* blocks start and end at multiples of this, or of pages */
#define HEAP_PIECE ((size_t)32 << 20) /* of a device that is large enough */

struct memory;

enum heap_state {
    HEAP_BARE,
    HEAP_FREE,
    HEAP_USED
};

struct heap_block {
    TAILQ_ENTRY(heap_block) link; /* by address */
    RB_ENTRY(heap_block) node;    /* of free ones, in heap.free */
    LIST_ENTRY(heap_block) wait;  /* of those with a point, in heap.waiting */
    enum heap_state state;
    uintptr_t at;
    size_t size;
    size_t asked;       /* what a used one counts as */
    struct point since; /* stream NULL: for as long as anybody may care */
    bool waiting;       /* free, and there is a point */
};

int heap_compare(const struct heap_block *a, const struct heap_block *b);
RB_HEAD(heap_tree, heap_block);

struct heap {
    struct device *device; /* NULL: memory of the host */
    CUmemAllocationHandleType handle_types;
    bool keep;             /* never gives memory back: other processes may have it mapped */
    struct memory *memory; /* the file; NULL while nothing is reserved */
    size_t piece, unit;
    size_t size;  /* of the window; the pool cannot be larger */
    uintptr_t at; /* of the window; 0: there is none */
    uint64_t reserved, used;
    uint64_t reserved_high, used_high;
    int reuse_passed, reuse_waiting, reuse_events; /* CU_MEMPOOL_ATTR_REUSE_ALLOW_... */
    TAILQ_HEAD(heap_blocks, heap_block) blocks;
    struct heap_tree free;
    LIST_HEAD(, heap_block) waiting;
};

/* Of a device's memory, or of the host's for a device of NULL. max: in bytes, 0 for what there is.
 * OUT_OF_MEMORY: no addresses for it. */
CUresult heap_init(struct heap *heap, struct device *device, size_t unit,
                   CUmemAllocationHandleType handle_types, uint64_t max);
/* Another process's; takes over the reference. */
CUresult heap_init_imported(struct heap *heap, struct memory *memory);
/* All points have passed. Also of a heap whose initialisation failed. */
void heap_deinit(struct heap *heap);

/* A block for work that comes next in the stream, which has to wait for block->since first.
 * OUT_OF_MEMORY. */
CUresult heap_take(struct heap *heap, size_t size, struct stream *stream,
                   struct heap_block **ret);
/* The block at that place of the file. INVALID_VALUE where there cannot be one. */
CUresult heap_take_at(struct heap *heap, uint64_t offset, size_t size, struct heap_block **ret);
void heap_give(struct heap *heap, struct heap_block *block);
/* What the block is, it is since this point; takes a reference of its own. stream may be NULL. */
void heap_mark(struct heap *heap, struct heap_block *block, struct stream *stream,
               uint64_t number);

/* The file, made if there is none yet: what to export. Borrowed. */
CUresult heap_file(struct heap *heap, struct memory **ret);

/* Looks which points have passed: those blocks are free for everybody. */
void heap_settle(struct heap *heap);
/* Gives pieces back in which nothing is used, and leaves at least so many bytes reserved. */
void heap_shrink(struct heap *heap, uint64_t keep);
