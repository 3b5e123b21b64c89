/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating, at the call, and freeing, in stream order. */
#include "pool.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "memory.h"
#include "stream.h"

static size_t
whole_pages(size_t size)
{
    return ALIGN_UP(size, SOFT_PAGE_SIZE);
}

static enum range_kind
pool_kind(const struct pool *pool)
{
    if (pool->type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return RANGE_MANAGED;
    bool hosts = !pool->device && !(pool->imported && !pool->memory->host);
    return hosts ? RANGE_POOL_HOST : RANGE_POOL;
}

/* Needs the map's lock. */
static void
figure_add(struct pool *pool, enum pool_figure figure, size_t size)
{
    uint64_t now = pool->figures[figure].now += size;
    if (now > pool->figures[figure].high)
        pool->figures[figure].high = now;
}

CUresult
pool_map(struct pool *pool, uint64_t offset, size_t size, CUdeviceptr *ret)
{
    LOCKED(&soft->ranges.lock); /* a fork finds all or nothing of it */
    void *at =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, pool->memory->fd, (off_t)offset);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct range *range = range_new(pool_kind(pool), (uintptr_t)at, size);
    if (!range) {
        munmap(at, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->ordinal = pool->device ? pool->device->ordinal : CU_DEVICE_INVALID;
    range->access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    range->memory = memory_ref(pool->memory);
    range->pool = pool_ref(pool);
    range->offset = offset;
    range_insert(&soft->ranges.usable, range);
    pool->n_mapped++;
    figure_add(pool, POOL_USED, size);
    figure_add(pool, POOL_RESERVED, whole_pages(size));
    *ret = range->start;
    return CUDA_SUCCESS;
}

/* Managed memory is the host's. */
CUresult
pool_file(struct pool *pool)
{
    bool managed = pool->type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (pool->memory)
        return CUDA_SUCCESS;
    pool->end = 0;
    return memory_new_pool(managed ? NULL : pool->device, POOL_LENGTH, &pool->memory);
}

static uint64_t
pool_reserved(const struct pool *pool)
{
    LOCKED(&soft->ranges.lock);
    return pool->figures[POOL_RESERVED].now;
}

static bool
pool_is_mapped(const struct pool *pool)
{
    LOCKED(&soft->ranges.lock);
    return pool->n_mapped > 0;
}

/* Counts exactly the reserved bytes for the device. Closes a file of which nothing is mapped,
 * unless other processes may have it. Needs the lock of all pools. */
static void
pool_settle(struct pool *pool)
{
    if (!pool->memory || pool->imported)
        return;
    memory_resize(pool->memory, pool_reserved(pool));
    if (!pool_is_mapped(pool) && pool->handle_types == CU_MEM_HANDLE_TYPE_NONE)
        pool->memory = memory_unref(pool->memory);
}

/* Takes space of the file that was never used. Needs the lock of all pools. */
static CUresult
pool_extend(struct pool *pool, size_t size, CUdeviceptr *ret)
{
    uint64_t reserved = pool_reserved(pool);
    if (size > POOL_LENGTH || reserved + whole_pages(size) > pool->max)
        return CUDA_ERROR_OUT_OF_MEMORY;
    RETURN_IF(pool_file(pool));
    if (size > POOL_LENGTH - pool->end)
        return CUDA_ERROR_OUT_OF_MEMORY;
    RETURN_IF(memory_resize(pool->memory, reserved + whole_pages(size)));
    RETURN_IF(pool_map(pool, pool->end, size, ret));
    pool->end += whole_pages(size);
    return CUDA_SUCCESS;
}

static CUresult
pool_take(struct pool *pool, size_t size, struct stream *stream, CUdeviceptr *ret)
{
    if (size == 0) { /* an allocation of no bytes succeeds */
        *ret = 0;
        return CUDA_SUCCESS;
    }
    LOCKED(&soft->pools.lock);
    /* The allocation has a place in the stream. Where the stream takes no work, it is refused. */
    RETURN_IF(stream_submit_after(stream, &(struct point){0}, NULL));
    CUresult result = pool_extend(pool, size, ret);
    pool_settle(pool);
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

/* From now on only work that was enqueued before finds the allocation. NULL: none starts there. */
static struct range *
allocation_free(uintptr_t at)
{
    LOCKED(&soft->ranges.lock);
    struct range *range = allocation_find(at);
    if (!range)
        return NULL;
    range_move(&soft->ranges.usable, &soft->ranges.freed, range);
    range->pool->figures[POOL_USED].now -= range->size;
    range->pool->figures[POOL_RESERVED].now -= whole_pages(range->size);
    return range;
}

/* Gives the pages back. A process that has imported them must have freed them before. */
static void
allocation_unmap(struct range *range)
{
    struct pool *pool = range->pool;
    LOCKED(&soft->ranges.lock);
    while (range->n_users > 0)
        pthread_cond_wait(&soft->ranges.idle, &soft->ranges.lock);
    munmap((void *)range->start, range->size);
    if (!pool->imported)
        fallocate(range->memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)range->offset, (off_t)whole_pages(range->size));
    pool->n_mapped--;
    range_remove(&soft->ranges.freed, range);
}

static void
allocation_end(struct range *range)
{
    _cleanup_(pool_unrefp) struct pool *pool = range->pool; /* after the lock */
    allocation_unmap(range);
    LOCKED(&soft->pools.lock);
    pool_settle(pool);
}

struct free_op {
    struct op op;
    uintptr_t at;
    struct range *range; /* what ends when the stream comes by */
    bool *ret_freed;     /* the caller's, until the operation is placed */
};

static void
free_placed(struct op *op)
{
    struct free_op *free_op = container_of(op, struct free_op, op);
    free_op->range = allocation_free(free_op->at);
    *free_op->ret_freed = free_op->range;
}

static void
free_done(struct op *op)
{
    struct free_op *free_op = container_of(op, struct free_op, op);
    if (free_op->range)
        allocation_end(free_op->range);
    free(free_op);
}

static CUresult
free_in_stream(uintptr_t at, struct stream *stream, bool *ret_freed)
{
    struct free_op *free_op = calloc(1, sizeof(*free_op));
    if (!free_op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op_init(&free_op->op, NULL, free_done);
    free_op->op.placed = free_placed;
    free_op->op.stretched = false;
    free_op->at = at;
    free_op->ret_freed = ret_freed;
    return stream_submit(stream, &free_op->op, NULL);
}

/* A free that waits for nothing: who calls it knows that the work on the allocation is done. */
static bool
free_now(uintptr_t at)
{
    struct range *range = allocation_free(at);
    if (range)
        allocation_end(range);
    return range;
}

CUresult
pool_free_at(uintptr_t at, struct stream *stream)
{
    _cleanup_(pool_unrefp) struct pool *pool = NULL; /* after the lock */
    bool freed = false;
    {
        LOCKED(&soft->ranges.lock);
        struct range *range = allocation_find(at);
        pool = range ? pool_ref(range->pool) : NULL;
    }
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream)
        RETURN_IF(free_in_stream(at, stream, &freed));
    else
        freed = free_now(at);
    if (!freed) /* another thread was faster */
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->pools.lock);
    pool_settle(pool);
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
