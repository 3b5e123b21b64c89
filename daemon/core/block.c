/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#include <assert.h>

#include "array.h"
#include "conn.h"
#include "device.h"
#include "state.h"

/* Exported ones come last: they serve no array, and are freed with the others. */
static int
spare_compare(const struct block *a, const struct block *b)
{
    int c = CMP(a->exported, b->exported);

    if (!c)
        c = CMP(a->device, b->device);
    if (!c)
        c = CMP(a->kind, b->kind);
    if (!c)
        c = CMP(a->size, b->size);
    return c ? c : CMP(a->id, b->id);
}

RB_GENERATE(spares, block, spare, spare_compare)

static int
id_compare(const struct block *a, const struct block *b)
{
    return CMP(a->id, b->id);
}

RB_GENERATE(blocks, block, node, id_compare)

struct block *
block_of(const struct range *range)
{
    return container_of(range->extent, struct block, extent);
}

struct zone *
block_zone(const struct core *core, const struct block *block)
{
    return pool_zone(core, block->pool, block->device, block->kind);
}

/* ---- holds ---- */

RB_GENERATE_BY(holds, hold, node, id)

struct hold *
hold_find(struct holds *tree, uint64_t id)
{
    struct hold key = {.id = id};

    return RB_FIND(holds, tree, &key);
}

/* Holds are charged as host memory: they outlive leases, for as long as the client likes. */
int
hold_get(struct conn *conn, struct holds *tree, uint64_t id, struct hold_list *list,
         struct hold **ret, bool *ret_new, struct refusal *r)
{
    struct hold *hold = hold_find(tree, id);

    *ret = hold;
    *ret_new = !hold;
    if (hold)
        return 0;
    hold = calloc(1, sizeof(*hold));
    if (!hold)
        return -ENOMEM;
    if (charge_init(&hold->charge, conn->user, RES_HOST, 0, HOLD_HOST, r)) {
        free(hold);
        return REFUSED;
    }
    hold->conn = conn;
    hold->id = id;
    hold->tree = tree;
    RB_INSERT(holds, tree, hold);
    LIST_INSERT_HEAD(list, hold, of_held);
    *ret = hold;
    return 0;
}

void
hold_free(struct hold *hold)
{
    assert(!hold->n_leases);
    RB_REMOVE(holds, hold->tree, hold);
    LIST_REMOVE(hold, of_held);
    charge_deinit(&hold->charge);
    free(hold);
}

/* ---- birth ---- */

static void
block_count(struct core *core, struct block *block, bool there)
{
    struct device *device = &core->devices[block->device];
    struct pool *pool = block->pool;
    uint64_t one = there ? 1 : UINT64_MAX, size = there ? block->size : -block->size;

    core->n_blocks += one;
    device->n_blocks += one;
    device->n_legacy += block->kind == KIND_LEGACY ? one : 0;
    pool->n_blocks += one;
    block->charge.user->n_refs += one;
    device->used_of[block->kind] += size;
    block_zone(core, block)->used += size;
    *(block->kind == KIND_PINNED ? &device->pinned : &device->used) += size;
    *(block->kind == KIND_PINNED ? &pool->pinned : &pool->used) += size;
    if (there)
        RB_INSERT(blocks, &pool->blocks, block);
    else
        RB_REMOVE(blocks, &pool->blocks, block);
}

static void
block_allocate(struct core *core, struct block *block)
{
    block->state = BLOCK_ALLOCATING;
    block->job.entry.action = (struct core_action){.type = CORE_ALLOC,
                                                   .device = block->device,
                                                   .kind = block->kind,
                                                   .size = block->size,
                                                   .fd = -1};
    job_start(core, &block->job, JOB_ALLOC, block->charge.user);
}

int
block_new(struct core *core, const struct array *array, struct user *user, uint64_t size,
          struct block **ret, struct refusal *r)
{
    struct block *block = calloc(1, sizeof(*block));
    struct space *space;

    if (!block)
        return -ENOMEM;
    if (charge_init(&block->charge, user, RES_FDS, array->kind == KIND_LEGACY ? 0 : 1,
                    BLOCK_HOST, r)) {
        free(block);
        return REFUSED;
    }
    space_init(&block->solo);
    space = array->own ? &block->solo
                       : &pool_zone(core, array->pool, array->device, array->kind)->space;
    if (space_add(space, &block->extent, size) < 0) {
        charge_deinit(&block->charge);
        free(block);
        return -ENOMEM;
    }
    block->id = ++core->next_block;
    persist_id(core, block->id);
    block->kind = array->kind;
    block->own = array->own;
    block->device = array->device;
    block->size = size;
    block->pool = array->pool;
    block->fd = -1;
    TAILQ_INIT(&block->waiters);
    LIST_INSERT_HEAD(&core->blocks, block, of_core);
    block_count(core, block, true);
    block_allocate(core, block);
    *ret = block;
    return 0;
}

int
block_restore(struct core *core, struct pool *pool, struct user *user, uint32_t device,
              const struct restore_block *from, struct block **ret)
{
    const struct record_block *record = from->record;
    struct block *block = calloc(1, sizeof(*block));
    struct space *space;

    if (!block)
        return -ENOMEM;
    space_init(&block->solo);
    block->kind = (enum core_kind)record->kind;
    block->own = record->is_own;
    block->device = device;
    block->size = record->size;
    block->pool = pool;
    space = block->own ? &block->solo : &block_zone(core, block)->space;
    if (space_add(space, &block->extent, block->size) < 0) {
        free(block);
        return -ENOMEM;
    }
    charge_init(&block->charge, user, RES_FDS, 1, BLOCK_HOST, NULL);
    block->id = record->key.id;
    block->state = BLOCK_ALLOCATING; /* until all its arrays are restored */
    block->promised = true;
    block->handle = from->handle;
    block->fd = from->fd;
    block->kept = record->kept;
    block->exported = record->marks & BLOCK_EXPORTED;
    TAILQ_INIT(&block->waiters);
    LIST_INSERT_HEAD(&core->blocks, block, of_core);
    block_count(core, block, true);
    *ret = block;
    return 0;
}

/* ---- what is set aside ---- */

void
block_keep_aside(struct block *block, struct range *range)
{
    range->userdata = NULL;
    range->link = block->aside;
    block->aside = range;
}

int
block_set_aside(struct block *block)
{
    struct range *range;

    for (range = block->extent.first; range; range = range->next) {
        if (!range->is_free)
            continue;
        if (range_take_at(range, range_offset(range), range_bytes(range), &range))
            return -ENOMEM;
        block_keep_aside(block, range);
    }
    return 0;
}

void
block_put_back(struct core *core, struct block *block, uint32_t max)
{
    struct range *range;

    while (max-- > 0 && (range = block->aside)) {
        block->aside = range->link;
        space_free(range);
    }
    if (!block->aside)
        block_settle(core, block);
}

void
block_live(struct block *block, const struct core_alloc_result *result)
{
    block->state = BLOCK_LIVE;
    block->handle = result->handle;
    block->fd = result->fd;
    block->kept = result->kept;
    memcpy(block->ipc, result->ipc, sizeof(block->ipc));
}

/* ---- spare ones ---- */

void
block_spare(struct core *core, struct block *block)
{
    RB_INSERT(spares, &block->pool->spares, block);
    block->spared = true;
    if (!block->exported)
        block_zone(core, block)->spare += block->size;
}

void
block_unspare(struct core *core, struct block *block)
{
    if (!block->spared)
        return;
    RB_REMOVE(spares, &block->pool->spares, block);
    block->spared = false;
    if (!block->exported)
        block_zone(core, block)->spare -= block->size;
}

struct block *
block_find_spare(const struct core *core, const struct array *array)
{
    uint64_t needed = ALIGN_UP(array->span, core->devices[array->device].info.granularity);
    struct block key = {.device = array->device, .kind = array->kind, .size = needed};
    struct block *block = RB_NFIND(spares, &array->pool->spares, &key);

    if (!block || block->exported || block->device != array->device ||
        block->kind != array->kind || block->size > needed + needed / 8)
        return NULL;
    return block;
}

/* ---- the reserve ---- */

/* Reserved blocks and doomed ones are on lists of their own, so that neither search walks the
 * other. */
void
block_doom(struct core *core, struct block *block)
{
    struct device *device = &core->devices[block->device];
    struct zone *zone = block_zone(core, block);

    TAILQ_REMOVE(&block->pool->reserved, block, of_pool);
    TAILQ_REMOVE(&device->reserved, block, of_device);
    TAILQ_INSERT_TAIL(&device->doomed, block, of_device);
    block->doomed = true;
    block->doom = ++device->n_dooms;
    block->pool->doomed += block->size;
    zone->n_doomed++;
    zone->last_doom = block->doom;
}

void
block_undoom(struct core *core, struct block *block)
{
    struct device *device = &core->devices[block->device];

    TAILQ_REMOVE(&device->doomed, block, of_device);
    TAILQ_INSERT_HEAD(&device->reserved, block, of_device);
    TAILQ_INSERT_HEAD(&block->pool->reserved, block, of_pool);
    block->doomed = false;
    block->pool->doomed -= block->size;
    block_zone(core, block)->n_doomed--;
}

void
blocks_doom(struct core *core, struct pool *pool, uint64_t keep)
{
    struct block *block;

    while (pool->reserve - pool->doomed > keep && (block = TAILQ_FIRST(&pool->reserved)))
        block_doom(core, block);
}

/* Device memory is counted by the driver. A legacy allocation must not be freed while a client has
 * it open, nor page-locked memory while a client has it mapped. */
static bool
is_kept_by_holds(const struct block *block)
{
    return block->kind != KIND_DEVICE && !LIST_EMPTY(&block->holds);
}

void
block_settle(struct core *core, struct block *block)
{
    struct pool *pool = block->pool;
    struct device *device = &core->devices[block->device];

    if (block->state != BLOCK_LIVE || block->reserved || !extent_is_empty(&block->extent) ||
        is_kept_by_holds(block))
        return;
    block->reserved = true;
    block->emptied_ns = core->now_ns;
    TAILQ_INSERT_TAIL(&pool->reserved, block, of_pool);
    TAILQ_INSERT_TAIL(&device->reserved, block, of_device);
    pool->reserve += block->size;
    device->reserve += block->size;
    if (block->own && !block->spared)
        block_spare(core, block);
    if (block->exported)
        block_doom(core, block);
    blocks_doom(core, pool, pool->leaving ? 0 : core->config.memory.reserve);
}

void
block_put_range(struct core *core, struct range *range)
{
    struct block *block = block_of(range);

    space_free(range);
    block_settle(core, block);
}

void
block_use(struct core *core, struct block *block)
{
    struct device *device = &core->devices[block->device];

    block_unspare(core, block);
    if (!block->reserved)
        return;
    if (block->doomed)
        block_undoom(core, block);
    block->reserved = false;
    TAILQ_REMOVE(&block->pool->reserved, block, of_pool);
    TAILQ_REMOVE(&device->reserved, block, of_device);
    block->pool->reserve -= block->size;
    device->reserve -= block->size;
}

void
block_know_use(struct core *core, struct hold *hold)
{
    hold->unresumed = false;
    hold->landing = true;
    hold->block->n_unresumed--;
    hold->block->n_landing++;
    doubts_know(&core->known, &hold->block->doubts);
}

void
block_know_hold(struct core *core, struct hold *hold, bool stays)
{
    struct block *block = hold->block;

    if (!hold->before)
        return;
    block->n_unresumed -= hold->unresumed;
    block->n_landing -= hold->landing;
    hold->unresumed = hold->landing = false;
    if (!stays) {
        hold->before = false;
        if (--block->n_before == 0 && block->aside)
            LIST_INSERT_HEAD(&core->aside, block, of_aside);
    }
    doubts_know(&core->known, &block->doubts);
}

void
block_lose_writes(struct conn *conn)
{
    struct hold *hold;

    if (conn->loses)
        return;
    conn->loses = true;
    RB_FOREACH(hold, holds, &conn->holds)
        hold->block->lost_writers |= former_bit(conn->number);
}

void
block_unhold(struct core *core, struct hold *hold)
{
    struct block *block = hold->block;

    persist_hold_gone(core, hold);
    block_know_hold(core, hold, false);
    hold_free(hold);
    if (block->own && LIST_EMPTY(&block->holds)) { /* drop.h */
        core->devices[block->device].lingering.n_over++;
        block->pool->lingering.n_over++;
    }
    block_settle(core, block);
}

/* ---- the end ---- */

void
block_retire(struct core *core, struct block *block)
{
    doubts_leave(&block->doubts);
    block_use(core, block);
    block->state = BLOCK_RELEASING; /* from here on block_settle() leaves it alone */
    while (!LIST_EMPTY(&block->holds))
        hold_free(LIST_FIRST(&block->holds));
    space_remove(&block->extent);
}

void
block_promise(struct core *core, struct block *block)
{
    if (block->promised)
        return;
    block->promised = true;
    persist_block(core, block);
}

void
block_export(struct core *core, struct block *block)
{
    if (block->exported)
        return;
    block->exported = true;
    persist_block(core, block);
}

void
block_release(struct core *core, struct block *block)
{
    block_retire(core, block);
    if (block->promised)
        persist_block_gone(core, block);
    block->job.entry.action = (struct core_action){.type = CORE_RELEASE,
                                                   .kind = block->kind,
                                                   .device = block->device,
                                                   .size = block->size,
                                                   .handle = block->handle,
                                                   .fd = block->fd};
    job_start(core, &block->job, JOB_RELEASE, block->charge.user);
}

void
block_destroy(struct core *core, struct block *block)
{
    LIST_REMOVE(block, of_core);
    block_count(core, block, false);
    charge_deinit(&block->charge);
    pool_touch(block->pool);
    space_deinit(&block->solo);
    free(block);
}
