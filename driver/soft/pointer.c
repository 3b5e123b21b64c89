/* SPDX-License-Identifier: Apache-2.0 */
/* What is known about a pointer. */
#include "context.h"
#include "memory.h"
#include "peer.h"
#include "pool.h"

#include <string.h>

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

static struct mapping
mapping_around(const struct range *range)
{
    size_t before = bytes_before(range), size = range->size + before;
    return (struct mapping){range->start - before, size + -size % SOFT_PAGE_SIZE, range->id};
}

/* Memory of a device that the process does not see is told to be of the one that it works with. */
static CUdevice
told_ordinal(const struct range *range)
{
    return range->ordinal == CU_DEVICE_INVALID ? context_device()->ordinal : range->ordinal;
}

static bool
is_hosts(const struct range *range)
{
    return range_kind_has(range->kind, TRAIT_HOST);
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

/* The types of handles that the memory may be exported as. */
static uint64_t
told_handle_types(const struct range *range)
{
    if (range->pool)
        return range->pool->handle_types;
    return range->memory ? range->memory->handle_types : CU_MEM_HANDLE_TYPE_NONE;
}

/* The attributes that are answered here: how many bytes a value has, flags four, and what it is for
 * an address in a usable range. */
#define ATTRIBUTES(A)                                                              \
    A(CONTEXT, 8, range->context)                                                  \
    A(MEMORY_TYPE, 4, is_hosts(range) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE) \
    A(DEVICE_POINTER, 8, at)                                                       \
    A(HOST_POINTER, 8, at)                                                         \
    A(SYNC_MEMOPS, 4, range->kind == RANGE_MANAGED && !range->pool)                \
    A(BUFFER_ID, 8, range->id)                                                     \
    A(IS_MANAGED, 4, range->kind == RANGE_MANAGED)                                 \
    A(DEVICE_ORDINAL, 4, (uint32_t)told_ordinal(range))                            \
    A(IS_LEGACY_CUDA_IPC_CAPABLE, 4, range->kind == RANGE_DEVICE)                  \
    A(RANGE_START_ADDR, 8, range_around(range)->start)                             \
    A(RANGE_SIZE, 8, range_around(range)->size)                                    \
    A(MAPPED, 4, true)                                                             \
    A(ALLOWED_HANDLE_TYPES, 8, told_handle_types(range))                           \
    A(IS_GPU_DIRECT_RDMA_CAPABLE, 4, range->memory && range->memory->rdma)         \
    A(ACCESS_FLAGS, 4, (uint64_t)told_access(range))                               \
    A(MEMPOOL_HANDLE, 8, range->pool ? range->pool->object.handle : 0)             \
    A(MAPPING_SIZE, 8, mapping.size)                                               \
    A(MAPPING_BASE_ADDR, 8, mapping.start)                                         \
    A(MEMORY_BLOCK_ID, 8, mapping.id)                                              \
    A(IS_HW_DECOMPRESS_CAPABLE, 4, false)

/* 0 for none that is answered here. */
static size_t
attribute_size(CUpointer_attribute attribute)
{
    switch (attribute) {
#define SIZE(name, size, value) \
    case CU_POINTER_ATTRIBUTE_##name: return size;
        ATTRIBUTES(SIZE)
    default: return 0;
    }
}

static uint64_t
attribute_value(const struct range *range, uintptr_t at, CUpointer_attribute attribute)
{
    struct mapping mapping = mapping_around(range);
    switch (attribute) {
#define VALUE(name, size, value) \
    case CU_POINTER_ATTRIBUTE_##name: return value;
        ATTRIBUTES(VALUE)
    default: return 0;
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
    return is_hosts(range) || range->kind == RANGE_MANAGED;
}

CUresult
soft_cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
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
    CURRENT(context);
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
