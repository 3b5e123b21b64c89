/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations of contexts, and questions about memory. */
#include "alloc.h"

#include <string.h>
#include <sys/mman.h>

#include "context.h"
#include "memory.h"
#include "pool.h"
#include "stream.h"

#define ALL_HOST_FLAGS \
    (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)

struct range *
alloc_range_new(const struct context *context, enum range_kind kind, void *at, size_t size)
{
    struct range *range = range_new(kind, (uintptr_t)at, size);
    if (!range)
        return NULL;
    range->context = context->object.handle;
    range->access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    range->ordinal = context->device->ordinal;
    range->device_access[context->device->ordinal] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return range;
}

/* Managed memory may be larger than the machine. A forked child has none of the device's memory
 * (fork.c): managed memory is not inherited at all. */
CUresult
alloc_map(const struct context *context, enum range_kind kind, size_t size,
          struct memory *memory, struct range **ret)
{
    struct range *range = NULL;
    bool managed = kind == RANGE_MANAGED;
    int fd = memory ? memory->fd : -1,
        flags = memory ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *at =
        mmap(NULL, size, PROT_READ | PROT_WRITE, flags | (managed ? MAP_NORESERVE : 0), fd, 0);
    if (at != MAP_FAILED && (!managed || madvise(at, size, MADV_DONTFORK) == 0))
        range = alloc_range_new(context, kind, at, size);
    if (!range) {
        if (at != MAP_FAILED)
            munmap(at, size);
        memory_unref(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->memory = memory;
    range_insert(&soft->ranges.usable, range);
    *ret = range;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    struct memory *memory;
    struct range *range;
    size_t whole;
    CURRENT(context);
    if (!address || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(thread_forbid_capture());
    if (__builtin_add_overflow(size, SOFT_PAGE_SIZE - 1, &whole))
        return CUDA_ERROR_OUT_OF_MEMORY;
    whole -= whole % SOFT_PAGE_SIZE;
    RETURN_IF(memory_new(context->device, whole, CU_MEM_HANDLE_TYPE_NONE, &memory));
    LOCKED(&soft->ranges.lock);
    RETURN_IF(alloc_map(context, RANGE_DEVICE, size, memory, &range));
    *address = range->start;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags)
{
    struct range *range;
    CURRENT(context);
    if (!address || size == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->ranges.lock);
    RETURN_IF(alloc_map(context, RANGE_MANAGED, size, NULL, &range));
    *address = range->start;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemHostAlloc(void **address, size_t size, unsigned int flags)
{
    struct range *range;
    CURRENT(context);
    if (!address || (flags & ~(unsigned int)ALL_HOST_FLAGS))
        return CUDA_ERROR_INVALID_VALUE;
    if (size == 0) {
        *address = NULL;
        return CUDA_SUCCESS;
    }
    LOCKED(&soft->ranges.lock);
    RETURN_IF(alloc_map(context, RANGE_HOST, size, NULL, &range));
    /* With unified addressing all pinned memory is mapped, asked for or not. */
    range->host_flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
    *address = (void *)range->start;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemAllocHost_v2(void **address, size_t size)
{
    return soft_cuMemHostAlloc(address, size, 0);
}

/* Needs the map's lock. */
static struct range *
alloc_find(unsigned int kinds, uintptr_t at)
{
    struct range *range = range_find(&soft->ranges.usable, at);
    bool found = range && range->start == at;
    return found && (kinds & 1U << range->kind) ? range : NULL;
}

static void
alloc_remove(struct range *range)
{
    if (range->kind != RANGE_REGISTERED)
        munmap((void *)range->start, range->size);
    range_remove(&soft->ranges.usable, range);
}

/* Waits for the work of the allocation's context and returns its device's fault. */
static CUresult
alloc_settle(unsigned int kinds, uintptr_t at, CUresult *ret_fault)
{
    uint64_t handle = 0;
    {
        LOCKED(&soft->ranges.lock);
        struct range *range = alloc_find(kinds, at);
        if (!range)
            return CUDA_ERROR_INVALID_VALUE;
        handle = range->context;
    }
    _cleanup_(context_unrefp) struct context *context =
        context_get((CUcontext)(uintptr_t)handle);
    *ret_fault = context ? context_synchronize_users(context) : CUDA_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult
alloc_free(unsigned int kinds, uintptr_t at)
{
    struct range *range;
    CUresult fault;
    RETURN_IF(alloc_settle(kinds, at, &fault));
    LOCKED(&soft->ranges.lock);
    /* Work of other contexts may still touch it; it may be freed or opened again while we wait. */
    while ((range = alloc_find(kinds, at)) && range->n_opens <= 1 && range->n_users > 0)
        pthread_cond_wait(&soft->ranges.idle, &soft->ranges.lock);
    if (!range)
        return CUDA_ERROR_INVALID_VALUE;
    if (range->n_opens > 1)
        range->n_opens--;
    else
        alloc_remove(range);
    return fault;
}

CUresult
soft_cuMemFree_v2(CUdeviceptr address)
{
    if (context_current_is_dead())
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!address)
        return CUDA_SUCCESS;
    RETURN_IF(thread_forbid_capture());
    if (pool_owns((uintptr_t)address))
        return pool_free_at((uintptr_t)address, NULL);
    return alloc_free(1U << RANGE_DEVICE | 1U << RANGE_MANAGED, (uintptr_t)address);
}

CUresult
soft_cuMemFreeHost(void *address)
{
    if (context_current_is_dead())
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return address ? alloc_free(1U << RANGE_HOST, (uintptr_t)address) : CUDA_SUCCESS;
}

/* Some allocation of the context; NULL when there is none. Needs the map's lock. */
static struct range *
alloc_find_of(uint64_t context_handle)
{
    struct range *range = range_find_from(&soft->ranges.usable, 0);
    while (range && range->context != context_handle)
        range = range_find_from(&soft->ranges.usable, range->start + 1);
    return range;
}

void
alloc_free_all(uint64_t context_handle)
{
    LOCKED(&soft->ranges.lock);
    struct range *range;
    while ((range = alloc_find_of(context_handle))) {
        if (range->n_users > 0)
            pthread_cond_wait(&soft->ranges.idle, &soft->ranges.lock);
        else
            alloc_remove(range);
    }
}

CUresult
soft_cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    uint64_t free_now, total_now;
    CURRENT(context);
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    memory_figures(context->device, &free_now, &total_now);
    *free_bytes = free_now;
    *total = total_now;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host, unsigned int flags)
{
    CURRENT(context);
    if (!address || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.usable, (uintptr_t)host);
    if (!range || !range_kind_has(range->kind, TRAIT_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    *address = (uintptr_t)host;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemHostGetFlags(unsigned int *flags, void *host)
{
    CURRENT(context);
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.usable, (uintptr_t)host);
    if (!range || !(range_kind_has(range->kind, TRAIT_HOST) || range->kind == RANGE_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = range->host_flags;
    return CUDA_SUCCESS;
}
