/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered host memory: pages of the program's own that count as pinned from cuMemHostRegister
 * to cuMemHostUnregister, or to the end of what is in the context. A registration is of bytes, not
 * of pages: two of them can share one.
 *
 * Pinning keeps a device's access alive when the program unmaps the pages too early. That cannot
 * be had here: work then finds them gone and faults the device, and a registration ends when the
 * driver puts something else at its address.
 */
#include "alloc.h"

#include <sys/mman.h>
#include <unistd.h>

#include "context.h"

#ifndef MADV_POPULATE_READ
#    define MADV_POPULATE_READ  22
#    define MADV_POPULATE_WRITE 23
#endif

#define ALL_FLAGS                                                 \
    (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | \
     CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)

/* Finds out what pinning would: whether all pages are there and can be read, or written. Before
 * Linux 5.14 only the first is known. */
static int
pages_check(uintptr_t start, size_t size, bool write)
{
    uintptr_t before = start % (uintptr_t)getpagesize();
    void *at = (void *)(start - before);
    int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    if (madvise(at, 0, advice) < 0)
        return msync(at, before + size, MS_ASYNC) < 0 ? -errno : 0;
    return madvise(at, before + size, advice) < 0 ? -errno : 0;
}

/* What is registered cannot be so again, and what is the driver's own cannot be at all. Needs the
 * map's lock. */
static CUresult
check_free(uintptr_t start, size_t size)
{
    struct range *range = range_find_in(&soft->ranges.usable, start, size);
    if (range)
        return range->kind == RANGE_REGISTERED ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                                               : CUDA_ERROR_INVALID_VALUE;
    return range_find_in(&soft->ranges.reservations, start, size) ? CUDA_ERROR_INVALID_VALUE
                                                                  : CUDA_SUCCESS;
}

CUresult
soft_cuMemHostRegister_v2(void *address, size_t size, unsigned int flags)
{
    uintptr_t start = (uintptr_t)address, end;
    CURRENT(context);
    if (!address || size == 0 || __builtin_add_overflow(start, size, &end) ||
        (flags & ~(unsigned int)ALL_FLAGS))
        return CUDA_ERROR_INVALID_VALUE;
    /* No memory of another device can be told from ordinary one, so none is taken. */
    if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
        return CUDA_ERROR_INVALID_VALUE;
    bool read_only = flags & CU_MEMHOSTREGISTER_READ_ONLY;
    RETURN_IF(device_has(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED));
    if (read_only)
        RETURN_IF(device_has(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED));
    {
        LOCKED(&soft->ranges.lock);
        RETURN_IF(check_free(start, size));
    }
    if (pages_check(start, size, !read_only) < 0)
        return CUDA_ERROR_INVALID_VALUE;

    _cleanup_free_ struct range *range =
        alloc_range_new(context, RANGE_REGISTERED, address, size);
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* What cuMemHostGetFlags tells: with unified addressing all of it is mapped, asked for or not,
     * and that it is read-only is not said. */
    range->host_flags = (flags & CU_MEMHOSTREGISTER_PORTABLE) | CU_MEMHOSTREGISTER_DEVICEMAP;
    if (read_only)
        range->access = CU_MEM_ACCESS_FLAGS_PROT_READ;
    LOCKED(&soft->ranges.lock);
    RETURN_IF(check_free(start, size));
    range_insert(&soft->ranges.usable, TAKE_PTR(range));
    return CUDA_SUCCESS;
}

static bool
address_is_known(uintptr_t address)
{
    LOCKED(&soft->ranges.lock);
    return range_find(&soft->ranges.usable, address);
}

CUresult
soft_cuMemHostUnregister(void *address)
{
    if (context_current_is_dead())
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!address)
        return CUDA_ERROR_INVALID_VALUE;
    if (!address_is_known((uintptr_t)address))
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    return alloc_free(1U << RANGE_REGISTERED, (uintptr_t)address);
}
