/* SPDX-License-Identifier: Apache-2.0 */
/* What is known about a pointer. */
#include "context.h"
#include "memory.h"
#include "peer.h"
#include "pool.h"

#include <string.h>

/* The bytes of an attribute's value; 0 for none that is answered here. Flags have four. */
static size_t
attribute_size(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return 8;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: return 4;
    default: return 0;
    }
}

/* The range as the attributes RANGE_START_ADDR and RANGE_SIZE mean it: around a mapping, all
 * that was reserved with it. */
static const struct range *
range_around(const struct range *range)
{
    return range->kind == RANGE_MAPPING ? range_find(&soft->ranges.reservations, range->start)
                                        : range;
}

/* A registration is of bytes, the mapping behind it of whole pages. */
static size_t
bytes_before(const struct range *range)
{
    return range->kind == RANGE_REGISTERED ? range->start % SOFT_PAGE_SIZE : 0;
}

struct mapping {
    uintptr_t start;
    size_t size;
    uint64_t id;
};

/* The mapping in which the address is: a piece of its pool's memory, or the range's own. */
static struct mapping
mapping_around(const struct range *range, uintptr_t at)
{
    const struct range *piece = range_find(&soft->ranges.pieces, at);
    size_t before = bytes_before(range), size = range->size + before;
    if (piece)
        return (struct mapping){piece->start, piece->size, piece->id};
    return (struct mapping){range->start - before, size + -size % SOFT_PAGE_SIZE, range->id};
}

/* Memory of a device that the process does not see is told to be of the one that it works with. */
static CUdevice
told_ordinal(const struct range *range)
{
    return range->ordinal == CU_DEVICE_INVALID ? context_device()->ordinal : range->ordinal;
}

/* To the caller's device; without a context, the most that any has. */
static int
told_access(const struct range *range)
{
    _cleanup_(context_unrefp) struct context *context = context_get(NULL);
    return context ? peer_access(context->device, range) : range->access;
}

/* Whether the caller's device can use the memory; without a context, whether any can. */
static bool
is_reached(const struct range *range)
{
    _cleanup_(context_unrefp) struct context *context = context_get(NULL);
    return !context || peer_reaches(context, range);
}

/* The value of an attribute that is about a usable range. */
static uint64_t
attribute_value(const struct range *range, uintptr_t at, CUpointer_attribute attribute)
{
    struct mapping mapping = mapping_around(range, at);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return range->context;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return range_kind_has(range->kind, TRAIT_HOST) ? CU_MEMORYTYPE_HOST
                                                       : CU_MEMORYTYPE_DEVICE;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: return at;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return range->sync_memops;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return range->kind == RANGE_MANAGED;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return range->id;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return mapping.id;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return (uint32_t)told_ordinal(range);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return range_around(range)->start;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return range_around(range)->size;
    case CU_POINTER_ATTRIBUTE_MAPPED: return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return range->pool ? range->pool->object.handle : 0;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        if (range->pool)
            return range->pool->heap.handle_types;
        return range->memory ? range->memory->handle_types : CU_MEM_HANDLE_TYPE_NONE;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return range->kind == RANGE_DEVICE;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return (uint64_t)told_access(range);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return mapping.size;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return mapping.start;
    default: return 0; /* no: RDMA, decompression */
    }
}

/* Stores an attribute; a NULL range stands for an address that nobody knows. */
static void
attribute_store(void *value, const struct range *range, uintptr_t at,
                CUpointer_attribute attribute)
{
    size_t size = attribute_size(attribute);
    uint64_t number = 0;
    if (range)
        number = attribute_value(range, at, attribute);
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        number = (uint32_t)CU_DEVICE_INVALID;
    uint32_t short_number = (uint32_t)number;
    memcpy(value, size == 8 ? (void *)&number : (void *)&short_number, size);
}

/* Whether the range has the attribute at all. Needs the map's lock. */
static bool
attribute_applies(const struct range *range, CUpointer_attribute attribute)
{
    if (range && attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
        return is_reached(range);
    if (!range || attribute != CU_POINTER_ATTRIBUTE_HOST_POINTER)
        return range;
    return range_kind_has(range->kind, TRAIT_HOST) || range->kind == RANGE_MANAGED;
}

CUresult
soft_cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    ENTER();
    if (!value || attribute_size(attribute) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.usable, (uintptr_t)address);
    if (!attribute_applies(range, attribute))
        return CUDA_ERROR_INVALID_VALUE;
    attribute_store(value, range, (uintptr_t)address, attribute);
    return CUDA_SUCCESS;
}

/* The plural form takes any pointer: what does not apply is answered with "nothing". */
CUresult
soft_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values,
                            CUdeviceptr address)
{
    ENTER();
    if (count == 0 || !attributes || !values)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++)
        if (!values[i] || attribute_size(attributes[i]) == 0)
            return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.usable, (uintptr_t)address);
    for (unsigned int i = 0; i < count; i++)
        attribute_store(values[i], attribute_applies(range, attributes[i]) ? range : NULL,
                        (uintptr_t)address, attributes[i]);
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    struct context *context;
    RETURN_IF(context_current(&context));
    if (!base && !size)
        return CUDA_SUCCESS;
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.usable, (uintptr_t)address);
    if (!range || !peer_reaches(context, range))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = range->start;
    if (size)
        *size = range->size;
    return CUDA_SUCCESS;
}
