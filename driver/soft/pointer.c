/* SPDX-License-Identifier: Apache-2.0 */
/* What is known about a pointer. */
#include "context.h"
#include "memory.h"

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

/* The value of an attribute that is about a usable range. */
static uint64_t
attribute_value(const struct range *range, uintptr_t at, CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return range->context;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return range->kind == RANGE_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: return at;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return range->sync_memops;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return range->id;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return (uint32_t)range->ordinal;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return range_around(range)->start;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return range_around(range)->size;
    case CU_POINTER_ATTRIBUTE_MAPPED: return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return range->memory ? range->memory->handle_types : CU_MEM_HANDLE_TYPE_NONE;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return (uint64_t)range->access;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return range->size;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return range->start;
    default: return 0; /* no: managed, pooled, legacy inter-process, RDMA, decompression */
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
    return range &&
           (attribute != CU_POINTER_ATTRIBUTE_HOST_POINTER || range->kind == RANGE_HOST);
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

/* SYNC_MEMOPS is kept and told; every fill and copy within the device is ordered by its stream
 * either way. */
CUresult
soft_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                           CUdeviceptr address)
{
    ENTER();
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->ranges.lock);
    struct range *range = range_find(&soft->ranges.usable, (uintptr_t)address);
    if (!range)
        return CUDA_ERROR_INVALID_VALUE;
    if (range->kind == RANGE_MAPPING)
        return CUDA_ERROR_NOT_SUPPORTED;
    range->sync_memops = *(const int *)value != 0;
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
    if (!range)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = range->start;
    if (size)
        *size = range->size;
    return CUDA_SUCCESS;
}
