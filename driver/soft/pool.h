/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory pools: what cuMemAllocAsync allocates from.
 *
 * Pool memory belongs to no context, and a reset leaves it alone. The call that allocates gives an
 * allocation pages of the pool's file and addresses of its own. The call that frees it ends the
 * allocation, which counts no longer; its pages stay mapped until the stream reaches the free, for
 * the work that was enqueued before, and are never used again. Nothing is reused: the release
 * threshold and the three reuse switches are stored and returned, and change nothing.
 *
 * A pool lives as long as its handle and its last allocation. The default pools' handles never end.
 */
#pragma once

#include "object.h"
#include "range.h"

/* Of its file: more than there are pages for. */
#define POOL_LENGTH ((size_t)1 << 44)

struct stream;

enum pool_figure {
    POOL_RESERVED, /* whole pages; what counts for the device */
    POOL_USED,     /* what was asked for */
    N_POOL_FIGURES
};

struct pool {
    struct object object;
    LIST_ENTRY(pool) link; /* in soft->pools.all, until it is freed */
    CUmemLocation location;
    CUmemAllocationType type;
    CUmemAllocationHandleType handle_types;
    struct device *device; /* of the location; NULL: the host */
    bool standard;         /* the default one of its location and type */
    bool imported;
    bool ended; /* the handle has ended; under the lock of all pools */
    int reuse[3];
    uint64_t threshold;
    _Atomic uint8_t access[SOFT_MAX_DEVICES]; /* CUmemAccess_flags */
    struct memory *memory;                    /* the file; NULL while nothing of it is mapped */
    uint64_t max, end; /* the most that is reserved; how far the file is used */

    struct {
        uint64_t now, high;
    } figures[N_POOL_FIGURES]; /* this and the next under the map's lock */

    size_t n_mapped; /* allocations, also those that are freed and not gone */
};

OBJECT_REFS(pool, OBJECT_POOL)

/* A new reference; INVALID_VALUE for no handle of a pool. */
CUresult pool_get(CUmemoryPool handle, struct pool **ret);

static inline CUmemoryPool
pool_handle(const struct pool *pool)
{
    return (CUmemoryPool)(uintptr_t)pool->object.handle;
}

/* The handle holds the one reference. memory: the file of an imported pool, whose reference is
 * consumed, also on failure. Needs the lock of all pools. */
CUresult pool_new(const CUmemPoolProps *props, struct device *device, struct memory *memory,
                  struct pool **ret);
/* Sees to it that there is a file. Needs the lock of all pools. */
CUresult pool_file(struct pool *pool);
/* The default pool of a device, made if need be; a new reference. */
CUresult pool_of_device(struct device *device, struct pool **ret);

/* Makes that part of the file an allocation. Needs the lock of all pools. */
CUresult pool_map(struct pool *pool, uint64_t offset, size_t size, CUdeviceptr *ret);
/* Whether the address is the start of a pool's allocation. */
bool pool_owns(uintptr_t at);
/* Frees it, in stream order or, for a stream of NULL, now. */
CUresult pool_free_at(uintptr_t at, struct stream *stream);
