/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of other processes. An exported pool is its file: a process that has the fd can map any
 * part of it. An exported pointer is an offset and a size in that file. So an import needs nothing
 * of the exporter but the fd, and works after that process has ended.
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
    if (!shareable || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    HOLD(pool, pool, handle);
    if (type == CU_MEM_HANDLE_TYPE_NONE || !(pool->handle_types & type))
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->pools.lock);
    RETURN_IF(pool_file(pool));
    int fd = fcntl(pool->memory->fd, F_DUPFD, 0);
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
        if (pool->imported && !pool->ended && is_same_file(pool->memory->fd, fd))
            return pool_handle(pool);
    }
    return NULL;
}

/* Importing the same pool again gives the same handle. */
CUresult
soft_cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *shareable,
                                        CUmemAllocationHandleType type,
                                        unsigned long long flags)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
    struct memory *memory;
    struct pool *pool;
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
    props.location = memory->host
                         ? (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}
                         : (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, memory_ordinal(memory)};
    RETURN_IF(pool_new(&props, memory->device, memory, &pool));
    *handle = pool_handle(pool);
    return CUDA_SUCCESS;
}

/* Pointers. */

CUresult
soft_cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
    struct stat st;
    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.usable, (uintptr_t)address);
    if (!range || !range->pool || range->start != address ||
        range->pool->handle_types == CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    if (fstat(range->memory->fd, &st) < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    struct place place = {.device = st.st_dev,
                          .inode = st.st_ino,
                          .offset = range->offset,
                          .size = range->size};
    memcpy(place.magic, MAGIC, sizeof(place.magic));
    memcpy(data, &place, sizeof(*data));
    return CUDA_SUCCESS;
}

static bool
place_is_in(const struct place *place, int fd)
{
    struct stat st;
    return memcmp(place->magic, MAGIC, sizeof(place->magic)) == 0 && fstat(fd, &st) == 0 &&
           place->device == st.st_dev && place->inode == st.st_ino && place->size > 0 &&
           place->offset % SOFT_PAGE_SIZE == 0 && place->offset < (uint64_t)st.st_size &&
           place->size <= (uint64_t)st.st_size - place->offset && !place->zero[0] &&
           !place->zero[1] && !place->zero[2];
}

/* The address of this allocation if it is imported already, or 0. Imports are not counted: one free
 * ends all of them, as with the real drivers of today. */
static CUdeviceptr
imported_at(const struct pool *pool, const struct place *place)
{
    struct range *range;
    LOCKED(&soft->ranges.lock);
    RB_FOREACH(range, range_tree, &soft->ranges.usable) {
        if (range->pool == pool && range->offset == place->offset && range->size == place->size)
            return range->start;
    }
    return 0;
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
    LOCKED(&soft->pools.lock);
    if (pool->ended || !place_is_in(&place, pool->memory->fd))
        return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr at = imported_at(pool, &place);
    if (!at)
        RETURN_IF(pool_map(pool, place.offset, place.size, &at));
    *address = at;
    return CUDA_SUCCESS;
}
