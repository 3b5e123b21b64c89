/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a block of each kind gets its address (block.h). All of it under block->lock. What fails
 * half-way leaves the block as it was, or imported but not mapped, which goes with the block.
 */
#include <inttypes.h>

#include "block.h"
#include "client.h"

static int
fail_map(const struct block *block, int r, const struct drv_error *cause,
         struct caid_error *error)
{
    return fail_driver(error, r, cause, "cannot map %s block %" PRIu64 " of %zu bytes",
                       block_kind_name(block->kind), block->id, block->size);
}

/* ---- device ---- */

static int
import_device(const struct drv *drv, struct block *block, struct caid_error *error)
{
    struct drv_error cause = {0};

    if (block->imported)
        return 0;
    int r = vmm_alloc_import(drv, block->fd, block->size, &block->alloc, &cause);
    if (r < 0)
        return fail_driver(error, r, &cause, "cannot import block %" PRIu64 " of %zu bytes",
                           block->id, block->size);
    block->imported = true;
    block->fd = fd_close(block->fd);
    return 0;
}

static int
map_device(struct caid_client *client, struct block *block, enum vmm_access access,
           uint32_t place, struct block_address *ret, struct caid_error *error)
{
    struct block_map *map = &block->maps[access == VMM_READ_WRITE];
    const struct drv *drv = client->gpu.drv;
    struct drv_error cause = {0};

    if (!(map->places & UINT64_C(1) << place)) {
        int ordinal = client->gpu.devices[place].ordinal;
        int r = import_device(drv, block, error);
        if (r < 0)
            return r;
        r = map->vmm.ptr ? vmm_map_allow(drv, &map->vmm, ordinal, &cause)
                         : vmm_map_new(drv, &block->alloc, ordinal, access, &map->vmm, &cause);
        if (r < 0)
            return fail_map(block, r, &cause, error);
        map->places |= UINT64_C(1) << place;
    }
    *ret = (struct block_address){.ptr = map->vmm.ptr};
    return 0;
}

/* ---- legacy ---- */

static int
open_legacy(struct caid_client *client, struct block *block, uint32_t place,
            struct caid_error *error)
{
    struct drv_error cause = {0};
    const struct drv *drv;

    int r = gpu_push_place(client, place, &drv, error);
    if (r < 0)
        return r;
    r = legacy_map_new(drv, block->handle, block->size, &block->legacy, &cause);
    gpu_pop(drv);
    if (r < 0)
        return fail_map(block, r, &cause, error);
    block->place = place;
    return 0;
}

static int
map_legacy(struct caid_client *client, struct block *block, uint32_t place,
           struct block_address *ret, struct caid_error *error)
{
    if (!block->legacy) {
        int r = open_legacy(client, block, place, error);
        if (r < 0)
            return r;
    }
    if (block->place != place)
        return fail(error, CAID_ERR_UNSUPPORTED,
                    "legacy block %" PRIu64 " is open for device %d of this process: it cannot "
                    "be for device %d, too",
                    block->id, client->gpu.devices[block->place].ordinal,
                    client->gpu.devices[place].ordinal);
    *ret = (struct block_address){.ptr = block->legacy};
    return 0;
}

/* ---- pinned ---- */

static int
map_pinned(struct caid_client *client, struct block *block, enum vmm_access access,
           uint32_t place, struct block_address *ret, struct caid_error *error)
{
    struct pinned_map *map = &block->maps[access == VMM_READ_WRITE].pinned;
    struct drv_error cause = {0};
    const struct drv *drv;

    if (!map->host) {
        int r = gpu_push_place(client, place, &drv, error);
        if (r < 0)
            return r;
        r = pinned_map_new(drv, block->fd, block->size, access, map, &cause);
        gpu_pop(drv);
        if (r < 0)
            return fail_map(block, r, &cause, error);
        block->place = place;
    }
    *ret = (struct block_address){.ptr = map->ptr, .host = map->host};
    return 0;
}

int
block_map(struct caid_client *client, struct block *block, enum vmm_access access,
          uint32_t place, struct block_address *ret, struct caid_error *error)
{
    int r;

    pthread_mutex_lock(&block->lock);
    switch (block->kind) {
    case BLOCK_LEGACY: r = map_legacy(client, block, place, ret, error); break;
    case BLOCK_PINNED: r = map_pinned(client, block, access, place, ret, error); break;
    default: r = map_device(client, block, access, place, ret, error); break;
    }
    pthread_mutex_unlock(&block->lock);
    return r;
}
