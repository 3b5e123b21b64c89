/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: made, found, asked about and ended. */
#include "pool.h"

#include <string.h>

#include "memory.h"

#define ALL_HANDLE_TYPES \
    ((unsigned int)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)

/* Runs where the last reference is dropped, which no caller does under the lock of all pools. */
static void
pool_free(struct object *object)
{
    struct pool *pool = container_of(object, struct pool, object);
    LOCKED(&soft->pools.lock);
    LIST_REMOVE(pool, link);
    memory_unref(pool->memory);
    free(pool);
}

CUresult
pool_new(const CUmemPoolProps *props, struct device *device, struct memory *memory,
         struct pool **ret)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    if (!pool) {
        memory_unref(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    object_init(&pool->object, OBJECT_POOL, pool_free);
    if (object_publish(&pool->object) < 0) {
        memory_unref(memory);
        free(pool);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->location = props->location;
    pool->type = props->allocType;
    pool->handle_types = props->handleTypes;
    pool->device = device;
    pool->memory = memory;
    pool->imported = memory;
    pool->max = props->maxSize ? props->maxSize : UINT64_MAX;
    for (size_t i = 0; i < ARRAY_SIZE(pool->reuse); i++)
        pool->reuse[i] = 1;
    if (device && device->ordinal >= 0)
        pool->access[device->ordinal] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    LIST_INSERT_HEAD(&soft->pools.all, pool, link);
    pool_unref(pool); /* the handle's reference stays */
    *ret = pool;
    return CUDA_SUCCESS;
}

static bool
is_managed(const struct pool *pool)
{
    return pool->type == CU_MEM_ALLOCATION_TYPE_MANAGED;
}

CUresult
pool_get(CUmemoryPool handle, struct pool **ret)
{
    *ret = pool_by_handle((uintptr_t)handle);
    return *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Which memory a pool can be of. */

/* The device at a location, NULL for memory of the host. bad_device: the error for a device that
 * does not exist. */
static CUresult
location_device(const CUmemLocation *location, CUmemAllocationType type, CUresult bad_device,
                struct device **ret)
{
    *ret = NULL;
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_INVALID: /* for managed memory: nowhere in particular */
        return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST: return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return host_node_exists(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_DEVICE:
        *ret = device_find(location->id);
        return *ret ? CUDA_SUCCESS : bad_device;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static bool
location_is(const CUmemLocation *a, const CUmemLocation *b)
{
    bool numbered = a->type == CU_MEM_LOCATION_TYPE_DEVICE ||
                    a->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    return a->type == b->type && (!numbered || a->id == b->id);
}

static CUresult
check_type(CUmemAllocationType type)
{
    return type == CU_MEM_ALLOCATION_TYPE_PINNED || type == CU_MEM_ALLOCATION_TYPE_MANAGED
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static bool
is_hosts(const struct pool *pool)
{
    return pool->location.type == CU_MEM_LOCATION_TYPE_HOST ||
           pool->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

static bool
is_zero(const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

/* `usage` is a hint: any value is accepted. */
static CUresult
check_props(const CUmemPoolProps *props, struct device **ret_device)
{
    RETURN_IF(check_type(props->allocType));
    if (props->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(location_device(&props->location, props->allocType, CUDA_ERROR_INVALID_VALUE,
                              ret_device));
    unsigned int types = props->handleTypes;
    bool shared = props->location.type != CU_MEM_LOCATION_TYPE_HOST &&
                  props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED;
    if ((types & ~ALL_HANDLE_TYPES) || (types && !shared) || props->win32SecurityAttributes ||
        !is_zero(props->reserved, sizeof(props->reserved)))
        return CUDA_ERROR_INVALID_VALUE;
    return types & CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult
soft_cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props)
{
    struct device *device;
    struct pool *pool;
    if (!handle || !props)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(check_props(props, &device));
    RETURN_IF(device_check(device));
    LOCKED(&soft->pools.lock);
    RETURN_IF(pool_new(props, device, NULL, &pool));
    *handle = pool_handle(pool);
    return CUDA_SUCCESS;
}

/* Marks the pool as ended. The one caller that succeeds ends the handle. INVALID_VALUE: the pool
 * cannot be destroyed, or already was. */
static CUresult
pool_end(struct pool *pool)
{
    LOCKED(&soft->pools.lock);
    LOCKED(&soft->ranges.lock);
    if (pool->standard || pool->ended || (pool->imported && pool->figures[POOL_USED].now > 0))
        return CUDA_ERROR_INVALID_VALUE;
    pool->ended = true;
    return CUDA_SUCCESS;
}

/* The pool lives on while it has allocations. */
CUresult
soft_cuMemPoolDestroy(CUmemoryPool handle)
{
    HOLD(pool, pool, handle);
    RETURN_IF(pool_end(pool));
    pool_unref(pool_end_handle((uintptr_t)handle));
    return CUDA_SUCCESS;
}

/* The default pool of a location. */

/* NULL where there is none. Needs the lock of all pools. */
static struct pool *
standard_find(const CUmemLocation *location, CUmemAllocationType type)
{
    struct pool *pool;
    LIST_FOREACH(pool, &soft->pools.all, link) {
        if (pool->standard && pool->type == type && location_is(&pool->location, location))
            return pool;
    }
    return NULL;
}

/* A reference on the default pool, which is made when first asked for. */
static CUresult
location_pool(const CUmemLocation *location, CUmemAllocationType type, struct pool **ret)
{
    CUmemPoolProps props = {.allocType = type, .location = *location};
    struct device *device;
    RETURN_IF(check_type(type));
    RETURN_IF(location_device(location, type, CUDA_ERROR_INVALID_DEVICE, &device));
    LOCKED(&soft->pools.lock);
    struct pool *pool = standard_find(location, type);
    if (!pool) {
        RETURN_IF(pool_new(&props, device, NULL, &pool));
        pool->standard = true;
    }
    *ret = pool_ref(pool);
    return CUDA_SUCCESS;
}

CUresult
pool_of_device(struct device *device, struct pool **ret)
{
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal};
    return location_pool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, ret);
}

CUresult
soft_cuMemGetMemPool(CUmemoryPool *handle, CUmemLocation *location, CUmemAllocationType type)
{
    _cleanup_(pool_unrefp) struct pool *pool = NULL;
    if (!handle || !location)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(location_pool(location, type, &pool));
    *handle = pool_handle(pool);
    return CUDA_SUCCESS;
}

CUresult
soft_cuDeviceGetMemPool(CUmemoryPool *handle, CUdevice device)
{
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return soft_cuMemGetMemPool(handle, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

/* Figures and settings. Those of an imported pool are its exporter's. */

static CUresult
own_get(CUmemoryPool handle, struct pool **ret)
{
    HOLD(pool, pool, handle);
    if (pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = TAKE_PTR(pool);
    return CUDA_SUCCESS;
}

/* Where an attribute is stored: the three switches are ints, the others have 64 bits. NULL: there
 * is no such attribute. */
static void *
attribute_at(struct pool *pool, CUmemPool_attribute attribute)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return &pool->reuse[0];
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return &pool->reuse[1];
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return &pool->reuse[2];
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &pool->figures[POOL_RESERVED].now;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &pool->figures[POOL_RESERVED].high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &pool->figures[POOL_USED].now;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &pool->figures[POOL_USED].high;
    default: return NULL;
    }
}

static bool
is_switch(CUmemPool_attribute attribute)
{
    return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

/* A high-water mark can only be lowered to what there is now, by saying 0. */
CUresult
soft_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    _cleanup_(pool_unrefp) struct pool *pool = NULL;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(own_get(handle, &pool));
    LOCKED(&soft->ranges.lock);
    void *at = attribute_at(pool, attribute);
    if (at && is_switch(attribute))
        *(int *)at = *(const int *)value != 0;
    else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(const uint64_t *)value;
    else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && *(const uint64_t *)value == 0)
        pool->figures[POOL_RESERVED].high = pool->figures[POOL_RESERVED].now;
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH && *(const uint64_t *)value == 0)
        pool->figures[POOL_USED].high = pool->figures[POOL_USED].now;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    _cleanup_(pool_unrefp) struct pool *pool = NULL;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(own_get(handle, &pool));
    LOCKED(&soft->ranges.lock);
    const void *at = attribute_at(pool, attribute);
    if (!at)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(value, at, is_switch(attribute) ? sizeof(int) : sizeof(uint64_t));
    return CUDA_SUCCESS;
}

/* Access is kept and told: there is no peer hardware that could lack it. */

/* A device's own memory stays in its reach. */
static CUresult
check_access(const struct pool *pool, const CUmemAccessDesc *desc)
{
    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct device *device = device_find(desc->location.id);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    switch (desc->flags) {
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE: return CUDA_SUCCESS;
    case CU_MEM_ACCESS_FLAGS_PROT_READ: return CUDA_ERROR_NOT_SUPPORTED;
    case CU_MEM_ACCESS_FLAGS_PROT_NONE:
        return device == pool->device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult
soft_cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *desc, size_t count)
{
    if (!desc)
        return CUDA_ERROR_INVALID_VALUE;
    HOLD(pool, pool, handle);
    for (size_t i = 0; i < count; i++)
        RETURN_IF(check_access(pool, &desc[i]));
    LOCKED(&soft->pools.lock);
    for (size_t i = 0; i < count; i++)
        pool->access[desc[i].location.id] = (uint8_t)desc[i].flags;
    return CUDA_SUCCESS;
}

CUresult
soft_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
    struct device *device;
    if (!flags || !location)
        return CUDA_ERROR_INVALID_VALUE;
    HOLD(pool, pool, handle);
    RETURN_IF(location_device(location, CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE,
                              &device));
    LOCKED(&soft->pools.lock);
    if (is_managed(pool) || (!device && is_hosts(pool)))
        *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    else
        *flags = device ? (CUmemAccess_flags)pool->access[device->ordinal]
                        : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
