/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocating and freeing in stream order. The figures change and the address is known at once;
 * what the stream is given are places: one that the memory's earlier users have to be done before,
 * and one after which others may have it.
 */
#include "pool.h"

#include "memory.h"

static enum range_kind
pool_kind(const struct pool *pool)
{
    if (pool->type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return RANGE_MANAGED;
    bool hosts = !pool->heap.device && !(pool->imported && !pool->heap.memory->host);
    return hosts ? RANGE_POOL_HOST : RANGE_POOL;
}

CUresult
pool_publish(struct pool *pool, struct heap_block *block)
{
    struct range *range = range_new(pool_kind(pool), block->at, block->asked);
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->ordinal = pool->device ? pool->device->ordinal : CU_DEVICE_INVALID;
    range->access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    range->pool = pool_ref(pool);
    range->block = block;
    LOCKED(&soft->ranges.lock);
    range_insert(&soft->ranges.usable, range);
    return CUDA_SUCCESS;
}

static CUresult
pool_take(struct pool *pool, size_t size, struct stream *stream, CUdeviceptr *ret)
{
    struct heap_block *block;
    uint64_t number;
    if (size == 0) { /* of nothing there is an allocation, too */
        *ret = 0;
        return CUDA_SUCCESS;
    }
    LOCKED(&soft->pools.lock);
    RETURN_IF(heap_take(&pool->heap, size, stream, &block));
    /* It waits until the memory is nobody's any more. */
    CUresult result = stream_submit_after(stream, &block->since, &number);
    if (result == CUDA_SUCCESS) {
        heap_mark(&pool->heap, block, stream, number);
        result = pool_publish(pool, block);
    }
    if (result == CUDA_SUCCESS)
        *ret = block->at;
    else /* nobody has heard of it */
        heap_give(&pool->heap, block);
    return result;
}

CUresult
soft_cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool handle,
                             CUstream stream_handle)
{
    HOLD(stream, stream, stream_handle);
    if (!address)
        return CUDA_ERROR_INVALID_VALUE;
    HOLD(pool, pool, handle);
    if (pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    return pool_take(pool, size, stream, address);
}

CUresult
soft_cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream_handle)
{
    HOLD(stream, stream, stream_handle);
    _cleanup_(pool_unrefp) struct pool *pool = NULL;
    if (!address)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(pool_of_device(stream->context->device, &pool));
    return pool_take(pool, size, stream, address);
}

/* Freeing. */

/* Holds the pool until the stream has come by. */
struct free_op {
    struct op op;
    struct pool *pool;
};

static void
free_free(struct op *op)
{
    struct free_op *free_op = container_of(op, struct free_op, op);
    pool_unref(free_op->pool);
    free(free_op);
}

/* The caller has a reference on the pool, too. */
static CUresult
free_submit(struct pool *pool, struct stream *stream, uint64_t *ret_number)
{
    struct free_op *free_op = malloc(sizeof(*free_op));
    if (!free_op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op_init(&free_op->op, NULL, free_free);
    free_op->op.stretched = false;
    free_op->pool = pool_ref(pool);
    return stream_submit(stream, &free_op->op, ret_number);
}

/* The allocation that starts there, or NULL. Needs the map's lock. */
static struct range *
allocation_find(uintptr_t at)
{
    struct range *range = range_find(&soft->ranges.usable, at);
    return range && range->pool && range->start == at ? range : NULL;
}

bool
pool_owns(uintptr_t at)
{
    LOCKED(&soft->ranges.lock);
    return allocation_find(at);
}

/* A free that waits for nothing. Who calls it knows that the work on the allocation is done; but
 * the one that had the memory before may not be, if nobody waited for the allocation. */
static void
mark_freed_now(struct heap *heap, struct heap_block *block)
{
    const struct point *since = &block->since;
    if (since->stream && stream_passed(since->stream, since->number))
        heap_mark(heap, block, NULL, 0);
}

CUresult
pool_free_at(uintptr_t at, struct stream *stream)
{
    _cleanup_(pool_unrefp) struct pool *pool =
        NULL; /* after the lock: it may be the last one */
    struct range *range;
    uint64_t number;
    LOCKED(&soft->pools.lock); /* without it no range of a pool ends */
    {
        LOCKED(&soft->ranges.lock);
        range = allocation_find(at);
    }
    if (!range)
        return CUDA_ERROR_INVALID_VALUE;
    struct heap_block *block = range->block;
    if (stream) {
        RETURN_IF(free_submit(range->pool, stream, &number));
        heap_mark(&range->pool->heap, block, stream, number);
    } else {
        mark_freed_now(&range->pool->heap, block);
    }
    pool = range->pool;
    {
        LOCKED(&soft->ranges.lock);
        range_remove(&soft->ranges.usable, range);
    }
    heap_give(&pool->heap, block);
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemFreeAsync(CUdeviceptr address, CUstream stream_handle)
{
    HOLD(stream, stream, stream_handle);
    uintptr_t at = (uintptr_t)address;
    if (!at)
        return CUDA_SUCCESS;
    return pool_free_at(at, stream);
}
