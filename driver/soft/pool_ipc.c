/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of other processes. What is exported is the pool's file: whoever has it can map any of it,
 * and what is said about an allocation is only where in the file it is. So importing needs nothing
 * from the exporter but the fd, and works when that process has ended.
 *
 * An imported pool is a heap whose blocks are placed by others: it has those that were imported.
 */
#include "pool.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "memory.h"

#define MAGIC "caidpool"

/* The data of an exported pointer. */
struct place {
    char magic[8];
    uint64_t device, inode; /* of the file */
    uint64_t offset, size;
    uint64_t zero[3];
};

_Static_assert(sizeof(struct place) == sizeof(CUmemPoolPtrExportData), "no larger than CUDA's");

/* Unlike other exported fds this one stays open across exec, as on hardware. */
CUresult
soft_cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    struct memory *file;
    if (!shareable || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    HOLD(pool, pool, handle);
    if (type == CU_MEM_HANDLE_TYPE_NONE || !(pool->heap.handle_types & type))
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->pools.lock);
    RETURN_IF(heap_file(&pool->heap, &file));
    int fd = fcntl(file->fd, F_DUPFD, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = fd;
    return CUDA_SUCCESS;
}

static bool
is_same_file(int a, int b)
{
    struct stat a_st, b_st;
    return fstat(a, &a_st) == 0 && fstat(b, &b_st) == 0 && a_st.st_dev == b_st.st_dev &&
           a_st.st_ino == b_st.st_ino;
}

/* The handle of a pool that was imported from this file before; NULL for none. Needs the lock of
 * all pools. */
static CUmemoryPool
imported_find(int fd)
{
    struct pool *pool;
    LIST_FOREACH(pool, &soft->pools.all, link) {
        if (pool->imported && !pool->ended && is_same_file(pool->heap.memory->fd, fd))
            return pool_handle(pool);
    }
    return NULL;
}

/* Needs the lock of all pools. Takes over the reference on the memory. */
static CUresult
imported_new(struct memory *memory, CUmemoryPool *ret)
{
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, memory_ordinal(memory)};
    if (memory->host)
        location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    struct pool *pool = pool_alloc(&location, CU_MEM_ALLOCATION_TYPE_PINNED, memory->device);
    if (!pool) {
        memory_unref(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->imported = true;
    RETURN_IF(pool_start(pool, heap_init_imported(&pool->heap, memory)));
    *ret = pool_handle(pool);
    return CUDA_SUCCESS;
}

/* Importing the same pool again gives the same handle. */
CUresult
soft_cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *shareable,
                                        CUmemAllocationHandleType type,
                                        unsigned long long flags)
{
    struct memory *memory;
    int fd = (int)(intptr_t)shareable;
    if (!handle || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(check_handle_type(type));
    LOCKED(&soft->pools.lock);
    CUmemoryPool before = imported_find(fd);
    if (before) {
        *handle = before;
        return CUDA_SUCCESS;
    }
    RETURN_IF(memory_import_pool(fd, &memory));
    return imported_new(memory, handle);
}

/* Pointers. */

CUresult
soft_cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
    struct stat st;
    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->pools.lock);
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.usable, (uintptr_t)address);
    if (!range || !range->pool || range->start != address ||
        range->pool->heap.handle_types == CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    const struct heap *heap = &range->pool->heap;
    if (fstat(heap->memory->fd, &st) < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    struct place place = {.device = st.st_dev,
                          .inode = st.st_ino,
                          .offset = range->start - heap->at,
                          .size = range->size};
    memcpy(place.magic, MAGIC, sizeof(place.magic));
    memcpy(data, &place, sizeof(*data));
    return CUDA_SUCCESS;
}

static CUresult
check_place(const struct place *place, const struct heap *heap)
{
    struct stat st;
    if (memcmp(place->magic, MAGIC, sizeof(place->magic)) != 0 ||
        fstat(heap->memory->fd, &st) < 0 || place->device != st.st_dev ||
        place->inode != st.st_ino || place->zero[0] || place->zero[1] || place->zero[2])
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* Whether just this is imported already. It is not counted how often: a free ends it, as with the
 * drivers of today. */
static bool
is_imported(uintptr_t at, size_t size)
{
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.usable, at);
    return range && range->start == at && range->size == size;
}

static CUresult
place_import(struct pool *pool, const struct place *place, CUdeviceptr *ret)
{
    struct heap *heap = &pool->heap;
    struct heap_block *block;
    LOCKED(&soft->pools.lock);
    if (pool->ended)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(check_place(place, heap));
    if (!is_imported(heap->at + place->offset, place->size)) {
        RETURN_IF(heap_take_at(heap, place->offset, place->size, &block));
        CUresult result = pool_publish(pool, block);
        if (result != CUDA_SUCCESS) {
            heap_give(heap, block);
            return result;
        }
    }
    *ret = heap->at + place->offset;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool handle,
                            CUmemPoolPtrExportData *data)
{
    struct place place;
    if (!address || !data)
        return CUDA_ERROR_INVALID_VALUE;
    HOLD(pool, pool, handle);
    if (!pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(device_check(pool->device));
    memcpy(&place, data, sizeof(place));
    return place_import(pool, &place, address);
}
