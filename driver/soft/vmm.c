/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: handles, reservations, mappings. None of it needs a context. */
#include "memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

/* Passes a new allocation to the caller: its only reference is the handle's. */
static CUresult
memory_hand_out(struct memory *memory, CUmemGenericAllocationHandle *ret)
{
    memory->n_handles = 1;
    return object_hand_out(&memory->object, ret);
}

/* Memory of the host is a location, too, but not one that this driver offers. */
static CUresult
check_location(const CUmemLocation *location)
{
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_SUCCESS;
    return location->type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE
                                                          : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult
check_prop(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) /* none is ever given out */
        return device_has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
    if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(check_location(&prop->location));
    if (!device_find(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    RETURN_IF(device_has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
    if (prop->allocFlags.gpuDirectRDMACapable)
        RETURN_IF(device_has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
    return prop->requestedHandleTypes
               ? device_has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
               : CUDA_SUCCESS;
}

CUresult
soft_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                   CUmemAllocationGranularity_flags option)
{
    if (!granularity || !prop ||
        (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
         option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = SOFT_GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                 const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct memory *memory;
    if (!handle || flags != 0 || size == 0 || size % SOFT_GRANULARITY != 0)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(check_prop(prop));
    RETURN_IF(
        memory_new(device_find(prop->location.id), size, prop->requestedHandleTypes, &memory));
    memory->rdma = prop->allocFlags.gpuDirectRDMACapable;
    return memory_hand_out(memory, handle);
}

CUresult
soft_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct memory *ended = NULL;
    {
        LOCKED(&soft->memory_lock);
        _cleanup_(memory_unrefp) struct memory *memory = memory_by_handle(handle);
        if (!memory)
            return CUDA_ERROR_INVALID_VALUE;
        if (--memory->n_handles == 0)
            ended = memory_end_handle(handle);
    }

    memory_unref(ended);
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                            CUmemGenericAllocationHandle handle)
{
    _cleanup_(memory_unrefp) struct memory *memory = memory_by_handle(handle);
    if (!prop || !memory)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = memory->handle_types,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, memory_ordinal(memory)},
        .allocFlags = {.gpuDirectRDMACapable = memory->rdma},
    };
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                  CUmemAllocationHandleType type, unsigned long long flags)
{
    _cleanup_(memory_unrefp) struct memory *memory = memory_by_handle(handle);
    if (!shareable || flags != 0 || !memory)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(memory->handle_types & type))
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(device_check(memory->device));
    int fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = fd;
    return CUDA_SUCCESS;
}

CUresult
check_handle_type(CUmemAllocationHandleType type)
{
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_SUCCESS;
    return type == CU_MEM_HANDLE_TYPE_NONE ? CUDA_ERROR_INVALID_VALUE
                                           : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult
soft_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                    CUmemAllocationHandleType type)
{
    struct memory *memory;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(check_handle_type(type));
    RETURN_IF(device_has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
    RETURN_IF(memory_import((int)(intptr_t)shareable, &memory));
    if (memory->size % SOFT_GRANULARITY != 0) {
        memory_unref(memory);
        return CUDA_ERROR_UNKNOWN;
    }
    return memory_hand_out(memory, handle);
}

CUresult
soft_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->memory_lock);

    _cleanup_(memory_unrefp) struct memory *memory = NULL;
    {
        LOCKED(&soft->ranges.lock);
        struct range *range = range_find(&soft->ranges.usable, (uintptr_t)address);
        if (!range || range->kind != RANGE_MAPPING)
            return CUDA_ERROR_INVALID_VALUE;
        memory = memory_ref(range->memory);
    }

    if (memory->n_handles == 0 && object_publish(&memory->object) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->n_handles++;
    *handle = memory->object.handle;
    return CUDA_SUCCESS;
}

static void *
reserve_at(uintptr_t hint, size_t size)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *at = mmap((void *)hint, size, PROT_NONE, flags, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    if ((uintptr_t)at != hint) { /* a kernel that takes the flag for a hint */
        munmap(at, size);
        return NULL;
    }
    return at;
}

void *
range_reserve(size_t size, size_t alignment)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    size_t room;
    if (__builtin_add_overflow(size, alignment, &room))
        return NULL;
    char *at = mmap(NULL, room, PROT_NONE, flags, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)at & (alignment - 1);
    if (before)
        munmap(at, before);
    if (room - before > size)
        munmap(at + before + size, room - before - size);
    return at + before;
}

CUresult
soft_cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
                         unsigned long long flags)
{
    if (!address || flags != 0 || size == 0 || size % SOFT_GRANULARITY != 0 ||
        (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment < SOFT_GRANULARITY)
        alignment = SOFT_GRANULARITY;
    void *at = hint && hint % alignment == 0 ? reserve_at((uintptr_t)hint, size) : NULL;
    if (!at)
        at = range_reserve(size, alignment);
    struct range *range = at ? range_new(RANGE_RESERVATION, (uintptr_t)at, size) : NULL;
    if (!range) {
        if (at)
            munmap(at, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    LOCKED(&soft->ranges.lock);
    range_insert(&soft->ranges.reservations, range);
    *address = (uintptr_t)at;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemAddressFree(CUdeviceptr address, size_t size)
{
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.reservations, (uintptr_t)address);
    if (!range || range->start != address || range->size != size ||
        range_find_in(&soft->ranges.usable, range->start, size))
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)range->start, size);
    range_remove(&soft->ranges.reservations, range);
    return CUDA_SUCCESS;
}

/* Whether [start, start + size) is reserved, in one piece, and free. */
static bool
range_is_reserved(uintptr_t start, size_t size)
{
    struct range *around = range_find(&soft->ranges.reservations, start);
    return around && around->size - (start - around->start) >= size &&
           !range_find_in(&soft->ranges.usable, start, size);
}

CUresult
soft_cuMemMap(CUdeviceptr address, size_t size, size_t offset,
              CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    _cleanup_(memory_unrefp) struct memory *memory = memory_by_handle(handle);
    void *at = (void *)(uintptr_t)address;
    _cleanup_free_ struct range *range = range_new(RANGE_MAPPING, (uintptr_t)at, size);
    if (!memory || flags != 0 || size == 0 || address % SOFT_GRANULARITY != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (offset != 0 || size != memory->size)
        return CUDA_ERROR_NOT_SUPPORTED;
    RETURN_IF(device_check(memory->device));
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    LOCKED(&soft->ranges.lock);
    if (!range_is_reserved((uintptr_t)address, size))
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap(at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, 0) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->ordinal = memory_ordinal(memory);
    range->memory = TAKE_PTR(memory);
    range_insert(&soft->ranges.usable, TAKE_PTR(range));
    return CUDA_SUCCESS;
}

/* Whether [start, end) cuts no mapping in two, with their users gone, and has no gap between them
 * where none may be. */
static bool
range_is_whole(uintptr_t start, uintptr_t end, bool gaps)
{
    struct range_tree *usable = &soft->ranges.usable;
    uintptr_t at = start;
    struct range *range;
    while (at < end && (range = range_find_in(usable, at, end - at))) {
        if (range->kind != RANGE_MAPPING || range->start < at || (range->start > at && !gaps) ||
            range->start + range->size > end)
            return false;
        if (range->n_users > 0) { /* all may have changed meanwhile */
            pthread_cond_wait(&soft->ranges.idle, &soft->ranges.lock);
            return range_is_whole(start, end, gaps);
        }
        at = range->start + range->size;
    }
    return gaps || at == end;
}

/* Whole mappings only, but reserved addresses between them do not matter, as on hardware. */
CUresult
soft_cuMemUnmap(CUdeviceptr address, size_t size)
{
    LOCKED(&soft->ranges.lock);
    uintptr_t at = (uintptr_t)address, end;
    struct range *around = range_find(&soft->ranges.reservations, at), *range;
    if (size == 0 || __builtin_add_overflow(at, size, &end) || !around ||
        end > around->start + around->size || !range_is_whole(at, end, true))
        return CUDA_ERROR_INVALID_VALUE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap((void *)at, size, PROT_NONE, flags, -1, 0) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    while ((range = range_find_from(&soft->ranges.usable, at)) && range->start < end)
        range_remove(&soft->ranges.usable, range);
    return CUDA_SUCCESS;
}

static CUresult
check_access(const CUmemAccessDesc *desc)
{
    RETURN_IF(check_location(&desc->location));
    if (!device_find(desc->location.id))
        return CUDA_ERROR_INVALID_VALUE;
    if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* What the pages must allow so that each device has its access: the flags are ordered. */
static int
range_widest(const uint8_t *device_access)
{
    int widest = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    for (int i = 0; i < SOFT_MAX_DEVICES; i++)
        if (device_access[i] > widest)
            widest = device_access[i];
    return widest;
}

static CUresult
range_set_access(struct range *range, const CUmemAccessDesc *desc, size_t count)
{
    uint8_t device_access[SOFT_MAX_DEVICES];
    memcpy(device_access, range->device_access, sizeof(device_access));
    for (size_t i = 0; i < count; i++)
        device_access[desc[i].location.id] = (uint8_t)desc[i].flags;
    int access = range_widest(device_access);
    int prot = (access & CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : 0) |
               (access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_WRITE : 0);
    if (mprotect((void *)range->start, range->size, prot) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(range->device_access, device_access, sizeof(device_access));
    range->access = access;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    uintptr_t at = (uintptr_t)address, end;
    if (!desc || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        RETURN_IF(check_access(&desc[i]));
    LOCKED(&soft->ranges.lock);
    if (size == 0 || __builtin_add_overflow(at, size, &end) || !range_is_whole(at, end, false))
        return CUDA_ERROR_INVALID_VALUE;
    while (at < end) {
        struct range *range = range_find(&soft->ranges.usable, at);
        RETURN_IF(device_check(range->memory->device));
        RETURN_IF(range_set_access(range, desc, count));
        at += range->size;
    }
    return CUDA_SUCCESS;
}
