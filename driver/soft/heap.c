/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces and blocks. */
#include "heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "memory.h"

/* How much larger than its device's memory a window is: what is in use may lie scattered. */
#define WINDOW_SHARE 4
#define HOST_WINDOW  (UINT64_C(64) << 30)

int
heap_compare(const struct heap_block *a, const struct heap_block *b)
{
    return CMP(a->at, b->at);
}

RB_GENERATE_STATIC(heap_tree, heap_block, node, heap_compare)

/* Blocks. */

void
heap_mark(struct heap *heap, struct heap_block *block, struct stream *stream, uint64_t number)
{
    struct stream *before = block->since.stream;
    block->since = (struct point){stream_ref(stream), number};
    stream_unref(before);
    bool waiting = block->state == HEAP_FREE && stream;
    if (waiting && !block->waiting)
        LIST_INSERT_HEAD(&heap->waiting, block, wait);
    else if (!waiting && block->waiting)
        LIST_REMOVE(block, wait);
    block->waiting = waiting;
}

static void
block_set(struct heap *heap, struct heap_block *block, enum heap_state state)
{
    if (block->state == HEAP_FREE)
        RB_REMOVE(heap_tree, &heap->free, block);
    block->state = state;
    if (state == HEAP_FREE)
        RB_INSERT(heap_tree, &heap->free, block);
    heap_mark(heap, block, block->since.stream, block->since.number);
}

static void
block_free(struct heap *heap, struct heap_block *block)
{
    block_set(heap, block, HEAP_BARE);
    TAILQ_REMOVE(&heap->blocks, block, link);
    stream_unref(block->since.stream);
    free(block);
}

/* The block gets what the next one has. Both have one point, or none. */
static void
block_join(struct heap *heap, struct heap_block *block, struct heap_block *next)
{
    if (next->since.stream &&
        (!block->since.stream || next->since.number > block->since.number))
        heap_mark(heap, block, next->since.stream, next->since.number);
    block->size += next->size;
    block_free(heap, next);
}

static bool
block_joins(const struct heap_block *block, const struct heap_block *next)
{
    return block && next && block->state != HEAP_USED && block->state == next->state &&
           block->since.stream == next->since.stream;
}

/* Joins the block with all its like around it, which are more than two where several places were
 * backed at once; it may be another one then. */
static struct heap_block *
block_join_around(struct heap *heap, struct heap_block *block)
{
    struct heap_block *next = TAILQ_NEXT(block, link);
    struct heap_block *before = TAILQ_PREV(block, heap_blocks, link);
    for (; block_joins(block, next); next = TAILQ_NEXT(block, link))
        block_join(heap, block, next);
    for (; block_joins(before, block); before = TAILQ_PREV(block, heap_blocks, link)) {
        block_join(heap, before, block);
        block = before;
    }
    return block;
}

/* Cuts a block in two of the same state, the first with size bytes; 0 or -ENOMEM. */
static int
block_cut(struct heap *heap, struct heap_block *block, size_t size)
{
    if (block->size == size)
        return 0;
    struct heap_block *rest = calloc(1, sizeof(*rest));
    if (!rest)
        return -ENOMEM;
    rest->at = block->at + size;
    rest->size = block->size - size;
    block->size = size;
    heap_mark(heap, rest, block->since.stream, block->since.number);
    TAILQ_INSERT_AFTER(&heap->blocks, block, rest, link);
    block_set(heap, rest, block->state);
    return 0;
}

/* Cuts out [at, at + size) from the block around it. */
static int
block_cut_out(struct heap *heap, struct heap_block *block, uintptr_t at, size_t size,
              struct heap_block **ret)
{
    if (at > block->at) {
        if (block_cut(heap, block, at - block->at) < 0)
            return -ENOMEM;
        block = TAILQ_NEXT(block, link);
    }
    if (block_cut(heap, block, size) < 0)
        return -ENOMEM;
    *ret = block;
    return 0;
}

/* The block in which the address is. */
static struct heap_block *
block_around(struct heap *heap, uintptr_t at)
{
    struct heap_block *block = TAILQ_FIRST(&heap->blocks);
    while (block && at - block->at >= block->size)
        block = TAILQ_NEXT(block, link);
    return block;
}

/* The window. */

static CUresult
window_reserve(struct heap *heap, size_t size)
{
    struct heap_block *block = calloc(1, sizeof(*block));
    void *at = block ? range_reserve(size, SOFT_GRANULARITY) : NULL;
    if (!at) {
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    heap->at = (uintptr_t)at;
    heap->size = size;
    block->at = heap->at;
    block->size = size;
    TAILQ_INSERT_HEAD(&heap->blocks, block, link);
    return CUDA_SUCCESS;
}

static void
heap_prepare(struct heap *heap, struct device *device, size_t unit,
             CUmemAllocationHandleType handle_types)
{
    *heap = (struct heap){
        .device = device,
        .handle_types = handle_types,
        .keep = handle_types != CU_MEM_HANDLE_TYPE_NONE,
        .piece = HEAP_PIECE,
        .unit = unit,
        .reuse_passed = 1,
        .reuse_waiting = 1,
        .reuse_events = 1,
    };
    TAILQ_INIT(&heap->blocks);
    RB_INIT(&heap->free);
    if (device && device->total < 8 * HEAP_PIECE) /* smaller than any real one */
        heap->piece = SOFT_GRANULARITY;
}

/* The most that addresses are there for, of what the device could ever need. */
static CUresult
window_reserve_most(struct heap *heap)
{
    uint64_t most = heap->device ? heap->device->total : HOST_WINDOW;
    size_t least = heap->piece, size = ALIGN_UP(most, heap->piece) * WINDOW_SHARE;
    CUresult result;
    while ((result = window_reserve(heap, size)) != CUDA_SUCCESS && size / 2 >= least)
        size = ALIGN_UP(size / 2, heap->piece);
    return result;
}

CUresult
heap_init(struct heap *heap, struct device *device, size_t unit,
          CUmemAllocationHandleType handle_types, uint64_t max)
{
    heap_prepare(heap, device, unit, handle_types);
    if (max == 0)
        return window_reserve_most(heap);
    if (max > INT64_MAX - heap->piece)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return window_reserve(heap, ALIGN_UP(max, heap->piece));
}

CUresult
heap_init_imported(struct heap *heap, struct memory *memory)
{
    struct stat st;
    heap_prepare(heap, memory->device, HEAP_UNIT, CU_MEM_HANDLE_TYPE_NONE);
    heap->memory = memory;
    if (fstat(memory->fd, &st) < 0 || st.st_size <= 0)
        return CUDA_ERROR_UNKNOWN;
    if (st.st_size % (off_t)heap->piece != 0) /* its exporter's device is a small one */
        heap->piece = SOFT_GRANULARITY;
    if (st.st_size % (off_t)heap->piece != 0)
        return CUDA_ERROR_UNKNOWN;
    return window_reserve(heap, (size_t)st.st_size);
}

CUresult
heap_file(struct heap *heap, struct memory **ret)
{
    if (!heap->memory)
        RETURN_IF(memory_new_pool(heap->device, heap->size, heap->handle_types, &heap->memory));
    *ret = heap->memory;
    return CUDA_SUCCESS;
}

/* Pieces. */

/* Maps a piece, and makes it known to what runs in streams. Not counted yet. */
static int
piece_map(struct heap *heap, uintptr_t at)
{
    struct range *range = range_new(RANGE_PIECE, at, heap->piece);
    int prot = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_FIXED;
    LOCKED(&soft->ranges.lock); /* a fork finds all or nothing of it */
    if (!range || mmap((void *)at, heap->piece, prot, flags, heap->memory->fd,
                       (off_t)(at - heap->at)) == MAP_FAILED) {
        free(range);
        return -ENOMEM;
    }
    range->access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    range->memory = memory_ref(heap->memory);
    range_insert(&soft->ranges.pieces, range);
    return 0;
}

/* The pages go back at once, not only with the last one who has the file. */
static void
piece_unmap(struct heap *heap, uintptr_t at)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    {
        struct range *range;
        LOCKED(&soft->ranges.lock);
        while ((range = range_find(&soft->ranges.pieces, at)) && range->n_users > 0)
            pthread_cond_wait(&soft->ranges.idle, &soft->ranges.lock);
        mmap((void *)at, heap->piece, PROT_NONE, flags, -1, 0);
        range_remove(&soft->ranges.pieces, range);
    }
    heap->reserved -= heap->piece;
    if (heap->memory->imported || heap->keep) /* others may have the pages */
        return;
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE; /* else they go with the file */
    fallocate(heap->memory->fd, mode, (off_t)(at - heap->at), (off_t)heap->piece);
    memory_resize(heap->memory, heap->reserved);
}

/* The part of a bare block that is to be backed for [start, end): whole pieces, as it is itself. */
static size_t
bare_part(const struct heap *heap, const struct heap_block *block, uintptr_t start,
          uintptr_t end, uintptr_t *ret_at)
{
    uintptr_t from = start - (start - heap->at) % heap->piece;
    uintptr_t to = heap->at + ALIGN_UP(end - heap->at, heap->piece);
    if (block->state != HEAP_BARE)
        return 0;
    *ret_at = block->at > from ? block->at : from;
    return (block->at + block->size < to ? block->at + block->size : to) - *ret_at;
}

/* Maps [at, at + size) of a bare block, which becomes free as far as that succeeds. */
static int
block_back(struct heap *heap, struct heap_block *block, uintptr_t at, size_t size)
{
    size_t done = 0;
    if (block_cut_out(heap, block, at, size, &block) < 0)
        return -ENOMEM;
    while (done < size && piece_map(heap, at + done) == 0)
        done += heap->piece;
    if (done == 0 || block_cut(heap, block, done) < 0)
        return -ENOMEM;
    block_set(heap, block, HEAP_FREE);
    heap->reserved += done;
    return done == size ? 0 : -ENOMEM;
}

/* Backs what is bare of [start, end), which begins in the first block. All of it counts before the
 * first piece is mapped. */
static CUresult
heap_back(struct heap *heap, struct heap_block *first, uintptr_t start, uintptr_t end)
{
    struct heap_block *block, *next;
    struct memory *memory;
    uint64_t counted = heap->reserved;
    uintptr_t at;
    size_t size;
    int r = 0;
    RETURN_IF(heap_file(heap, &memory));
    for (block = first; block && block->at < end; block = TAILQ_NEXT(block, link))
        counted += bare_part(heap, block, start, end, &at);
    if (!memory->imported)
        RETURN_IF(memory_resize(memory, counted));
    for (block = first; r == 0 && block && block->at < end; block = next) {
        next = TAILQ_NEXT(block, link);
        if ((size = bare_part(heap, block, start, end, &at)) > 0)
            r = block_back(heap, block, at, size);
    }
    if (r < 0 && !memory->imported)
        memory_resize(memory, heap->reserved);
    if (heap->reserved > heap->reserved_high)
        heap->reserved_high = heap->reserved;
    return r < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Taking and giving. */

/* Whether work that comes next in the stream may have the block. */
static bool
block_is_ready(const struct heap *heap, const struct heap_block *block, struct stream *stream)
{
    const struct point *since = &block->since;
    return !since->stream || since->stream == stream ||
           (heap->reuse_events && stream_follows(stream, since));
}

/* The first free block that is large enough; stream NULL: whatever it has to wait for. */
static struct heap_block *
find_free(struct heap *heap, size_t size, struct stream *stream)
{
    struct heap_block *block;
    RB_FOREACH(block, heap_tree, &heap->free) {
        if (block->size >= size && (!stream || block_is_ready(heap, block, stream)))
            return block;
    }
    return NULL;
}

/* The first of the blocks that together are large enough, with pieces that are yet to be backed. */
static struct heap_block *
find_run(struct heap *heap, size_t size, struct stream *stream)
{
    struct heap_block *block, *first = NULL;
    TAILQ_FOREACH(block, &heap->blocks, link) {
        if (block->state == HEAP_USED || !block_is_ready(heap, block, stream))
            first = NULL;
        else if (!first)
            first = block;
        if (first && block->at + block->size - first->at >= size)
            return first;
    }
    return NULL;
}

/* Makes one block of the first size bytes of a run. The stream comes after all of their points, so
 * that they have all passed when it gets past where it is now. */
static CUresult
run_join(struct heap *heap, struct heap_block *block, size_t size, struct stream *stream)
{
    while (block->size < size) {
        struct heap_block *next = TAILQ_NEXT(block, link);
        size_t missing = size - block->size;
        if (next->size > missing && block_cut(heap, next, missing) < 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
        block_join(heap, block, next);
        if (block->since.stream)
            heap_mark(heap, block, stream, stream->submitted);
    }
    return CUDA_SUCCESS;
}

/* Backs a run and makes it one block. */
static CUresult
heap_grow(struct heap *heap, size_t size, struct stream *stream, struct heap_block **ret)
{
    struct heap_block *first = find_run(heap, size, stream);
    if (!first)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct heap_block *before = TAILQ_PREV(first, heap_blocks, link);
    uintptr_t at = first->at;
    RETURN_IF(heap_back(heap, first, at, at + size));
    struct heap_block *block = before ? TAILQ_NEXT(before, link) : TAILQ_FIRST(&heap->blocks);
    RETURN_IF(run_join(heap, block, size, stream));
    *ret = block;
    return CUDA_SUCCESS;
}

/* A free block of at least that size. */
static CUresult
heap_find(struct heap *heap, size_t size, struct stream *stream, struct heap_block **ret)
{
    if (heap->reuse_passed)
        heap_settle(heap);
    if ((*ret = find_free(heap, size, stream)))
        return CUDA_SUCCESS;
    CUresult result = heap_grow(heap, size, stream, ret);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && heap->reserved > heap->used) {
        heap_shrink(heap, 0); /* what is free is in places that are too small */
        result = heap_grow(heap, size, stream, ret);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY && heap->reuse_waiting &&
        (*ret = find_free(heap, size, NULL)))
        return CUDA_SUCCESS;
    return result;
}

static void
block_use(struct heap *heap, struct heap_block *block, size_t asked)
{
    block_set(heap, block, HEAP_USED);
    block->asked = asked;
    heap->used += asked;
    if (heap->used > heap->used_high)
        heap->used_high = heap->used;
}

CUresult
heap_take(struct heap *heap, size_t size, struct stream *stream, struct heap_block **ret)
{
    struct heap_block *block;
    if (size > heap->size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t rounded = ALIGN_UP(size, heap->unit);
    RETURN_IF(heap_find(heap, rounded, stream, &block));
    if (block_cut(heap, block, rounded) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block_use(heap, block, size);
    *ret = block;
    return CUDA_SUCCESS;
}

CUresult
heap_take_at(struct heap *heap, uint64_t offset, size_t size, struct heap_block **ret)
{
    size_t rounded = ALIGN_UP(size, heap->unit);
    if (offset % heap->unit != 0 || size == 0 || offset > heap->size ||
        size > heap->size - offset)
        return CUDA_ERROR_INVALID_VALUE;
    uintptr_t at = heap->at + offset;
    heap_settle(heap);
    RETURN_IF(heap_back(heap, block_around(heap, at), at, at + rounded));
    struct heap_block *block = block_join_around(heap, block_around(heap, at));
    if (block->state != HEAP_FREE || at + rounded > block->at + block->size)
        return CUDA_ERROR_INVALID_VALUE;
    if (block_cut_out(heap, block, at, rounded, &block) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block_use(heap, block, size);
    *ret = block;
    return CUDA_SUCCESS;
}

void
heap_give(struct heap *heap, struct heap_block *block)
{
    heap->used -= block->asked;
    block_set(heap, block, HEAP_FREE);
    block_join_around(heap, block);
}

void
heap_settle(struct heap *heap)
{
    struct heap_block *block, *next;
    for (block = LIST_FIRST(&heap->waiting); block; block = next) {
        next = LIST_NEXT(block, wait);
        if (stream_passed(block->since.stream, block->since.number)) {
            heap_mark(heap, block, NULL, 0);
            block_join_around(heap, block);
        }
    }
}

/* Gives back the last piece that lies in the block, if there is one. */
static bool
give_back_from(struct heap *heap, struct heap_block *block)
{
    uintptr_t end = block->at + block->size;
    end -= (end - heap->at) % heap->piece;
    if (end < block->at + heap->piece)
        return false;
    uintptr_t at = end - heap->piece;
    if (block_cut_out(heap, block, at, heap->piece, &block) < 0)
        return false;
    piece_unmap(heap, at);
    block_set(heap, block, HEAP_BARE);
    block_join_around(heap, block);
    return true;
}

static bool
give_back_one(struct heap *heap)
{
    struct heap_block *block;
    TAILQ_FOREACH_REVERSE(block, &heap->blocks, heap_blocks, link) {
        if (block->state == HEAP_FREE && !block->since.stream && give_back_from(heap, block))
            return true;
    }
    return false;
}

void
heap_shrink(struct heap *heap, uint64_t keep)
{
    while (!heap->keep && heap->reserved >= heap->piece &&
           heap->reserved - heap->piece >= keep && give_back_one(heap))
        continue;
    if (!heap->keep && heap->reserved == 0 && heap->memory && !heap->memory->imported)
        heap->memory = memory_unref(heap->memory); /* the next piece starts a new file */
}

void
heap_deinit(struct heap *heap)
{
    struct heap_block *block;
    TAILQ_FOREACH(block, &heap->blocks, link)
        heap_mark(heap, block, NULL, 0);
    TAILQ_FOREACH(block, &heap->blocks, link)
        block = block_join_around(heap, block);
    while (give_back_one(heap))
        continue;
    while ((block = TAILQ_FIRST(&heap->blocks)))
        block_free(heap, block);
    heap->memory = memory_unref(heap->memory);
    if (heap->at)
        munmap((void *)heap->at, heap->size);
}
