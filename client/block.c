/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "client.h"

static int
block_cmp(const struct block *a, const struct block *b)
{
    return CMP(a->id, b->id);
}

RB_GENERATE_STATIC(block_tree, block, entry, block_cmp)

void
block_table_init(struct block_table *table)
{
    RB_INIT(&table->tree);
    TAILQ_INIT(&table->idle);
}

struct block *
block_find(struct block_table *table, uint64_t id)
{
    struct block key = {.id = id};
    return RB_FIND(block_tree, &table->tree, &key);
}

static void
make_idle(struct caid_client *client, struct block *block)
{
    block->idle_since = client->seq;
    TAILQ_INSERT_TAIL(&client->blocks.idle, block, idle_entry);
}

int
block_add(struct caid_client *client, uint64_t id, size_t size, int32_t device, int *fd)
{
    struct block *block = calloc(1, sizeof(*block));

    if (!block)
        return -ENOMEM;
    block->id = id;
    if (RB_INSERT(block_tree, &client->blocks.tree, block)) {
        free(block);
        return -EEXIST;
    }
    block->size = size;
    block->device = device;
    block->fd = TAKE_FD(*fd);
    pthread_mutex_init(&block->lock, NULL);
    make_idle(client, block);
    return 0;
}

void
block_lease(struct caid_client *client, struct block *block)
{
    if (block->leases++ == 0)
        TAILQ_REMOVE(&client->blocks.idle, block, idle_entry);
}

void
block_unlease(struct caid_client *client, struct block *block)
{
    if (--block->leases == 0)
        make_idle(client, block);
}

void
block_sweep(struct caid_client *client, struct block_list *ret)
{
    struct block *block;

    if (TAILQ_EMPTY(&client->blocks.idle))
        return;
    uint64_t oldest = call_oldest_with_blocks(client);
    while ((block = TAILQ_FIRST(&client->blocks.idle)) && block->idle_since < oldest) {
        TAILQ_REMOVE(&client->blocks.idle, block, idle_entry);
        RB_REMOVE(block_tree, &client->blocks.tree, block);
        TAILQ_INSERT_TAIL(ret, block, idle_entry);
    }
}

/* Failures are not reported: the driver may give an earlier launch's error here, and the memory
 * is let go either way. */
static void
block_free(struct caid_client *client, struct block *block)
{
    const struct drv *drv = block->imported ? client->gpu.drv : NULL;

    for (size_t i = 0; i < ARRAY_SIZE(block->maps); i++)
        if (block->maps[i].ptr)
            vmm_map_free(drv, &block->maps[i]);
    if (block->imported)
        vmm_alloc_release(drv, &block->alloc, NULL);
    fd_close(block->fd);
    pthread_mutex_destroy(&block->lock);
    free(block);
}

void
block_list_free(struct caid_client *client, struct block_list *list)
{
    struct block *block;

    while ((block = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, block, idle_entry);
        block_free(client, block);
    }
}

void
block_table_abandon(struct block_table *table)
{
    struct block *block, *next;

    for (block = RB_MIN(block_tree, &table->tree); block; block = next) {
        next = RB_NEXT(block_tree, &table->tree, block);
        RB_REMOVE(block_tree, &table->tree, block);
        fd_close(block->fd);
        free(block);
    }
}

/* ---- mapping: under block->lock ---- */

static int
block_import(const struct drv *drv, struct block *block, struct caid_error *error)
{
    struct drv_error cause = {0};

    int r = vmm_alloc_import(drv, block->fd, block->size, &block->alloc, &cause);
    if (r < 0)
        return fail_driver(error, r, &cause, "cannot import block %" PRIu64 " of %zu bytes",
                           block->id, block->size);
    block->imported = true;
    block->fd = fd_close(block->fd);
    return 0;
}

static int
block_map_new(struct caid_client *client, struct block *block, enum vmm_access access,
              struct vmm_map *ret, struct caid_error *error)
{
    struct drv_error cause = {0};
    const struct drv *drv;
    CUdevice ordinal;

    int r = gpu_ordinal(client, block->device, &drv, &ordinal, error);
    if (r < 0)
        return r;
    if (!block->imported) {
        r = block_import(drv, block, error);
        if (r < 0)
            return r;
    }
    r = vmm_map_new(drv, &block->alloc, ordinal, access, ret, &cause);
    if (r < 0)
        return fail_driver(error, r, &cause, "cannot map block %" PRIu64 " of %zu bytes",
                           block->id, block->size);
    return 0;
}

int
block_map(struct caid_client *client, struct block *block, enum vmm_access access,
          CUdeviceptr *ret, struct caid_error *error)
{
    struct vmm_map *map = &block->maps[access == VMM_READ_WRITE];
    int r = 0;

    pthread_mutex_lock(&block->lock);
    if (!map->ptr)
        r = block_map_new(client, block, access, map, error);
    if (r == 0)
        *ret = map->ptr;
    pthread_mutex_unlock(&block->lock);
    return r;
}
