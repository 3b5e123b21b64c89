/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory pools: what cuMemAllocAsync allocates from.
 *
 * Pool memory belongs to no context, and a reset leaves it alone. An allocation is a block of the
 * pool's heap and a range of the map, which is there from the call that allocates to the call that
 * frees. The work between those two in stream order may run later than the second: it finds the
 * memory by its piece.
 *
 * A pool lives as long as its handle, any allocation of it, and any free that a stream has not
 * reached. The default pools' handles never end. Freed memory stays with the pool; what is above
 * its threshold is given back when the host has waited for something (pools_settle()). A pool
 * whose memory other processes can map gives nothing back while it lives, as on hardware.
 */
#pragma once

#include "heap.h"

struct pool {
    struct object object;
    LIST_ENTRY(pool) link; /* in soft->pools.all, until it is freed */
    CUmemLocation location;
    CUmemAllocationType type;
    struct device *device; /* of the location; NULL: the host */
    bool standard;         /* the default one of its location and type */
    bool current;          /* the one to allocate from; none: the default one */
    bool imported;
    bool ended; /* there is no handle any more; under the lock of all pools */
    uint64_t threshold;
    _Atomic uint8_t access[SOFT_MAX_DEVICES]; /* CUmemAccess_flags */
    struct heap heap;
};

OBJECT_REFS(pool, OBJECT_POOL)

/* A new reference; INVALID_VALUE for no handle of a pool. */
CUresult pool_get(CUmemoryPool handle, struct pool **ret);

static inline CUmemoryPool
pool_handle(const struct pool *pool)
{
    return (CUmemoryPool)(uintptr_t)pool->object.handle;
}

/* For who initialises the heap, and tells pool_start() what came of it: the pool has a handle
 * then, or there is none any more. Both need the lock of all pools. NULL: no memory. */
struct pool *pool_alloc(const CUmemLocation *location, CUmemAllocationType type,
                        struct device *device);
CUresult pool_start(struct pool *pool, CUresult result);
/* The current pool of a device, made if need be; a new reference. */
CUresult pool_of_device(struct device *device, struct pool **ret);

/* Makes a block of the pool known as an allocation. OUT_OF_MEMORY. Needs the lock of all pools. */
CUresult pool_publish(struct pool *pool, struct heap_block *block);
/* Whether the address is the start of a pool's allocation. */
bool pool_owns(uintptr_t at);
/* Frees it, in stream order or, for a stream of NULL, now. */
CUresult pool_free_at(uintptr_t at, struct stream *stream);
/* The host has waited for something: gives memory back. */
void pools_settle(void);
