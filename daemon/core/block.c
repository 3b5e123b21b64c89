/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks: where arrays get their ranges. Small arrays share the blocks of their zone (pool, device,
 * kind); large and exclusive ones have one of their own. Who may give memory back, and when, is
 * reclaim.c's.
 */
#include <assert.h>
#include <stdio.h>

#include "state.h"

static struct block *
block_of(const struct range *range)
{
    return container_of(range->extent, struct block, extent);
}

/* ---- creates that wait ---- */

int
waiter_new(struct core *core, struct conn *conn, uint32_t request, struct array *array,
           const struct array_request *req, struct waiter **ret, struct refusal *r)
{
    struct waiter *waiter = calloc(1, sizeof(*waiter));

    if (!waiter)
        return -ENOMEM;
    if (user_charge(core, conn->user, RES_JOBS, 1, r)) {
        free(waiter);
        return REFUSED;
    }
    waiter->conn = conn;
    waiter->user = conn->user;
    waiter->request = request;
    waiter->array = array;
    waiter->alignment = req->alignment;
    LIST_INSERT_HEAD(&conn->waiters, waiter, of_conn);
    *ret = waiter;
    return 0;
}

void
waiter_orphan(struct waiter *waiter)
{
    LIST_REMOVE(waiter, of_conn);
    waiter->conn = NULL;
}

void
waiter_free(struct waiter *waiter)
{
    if (waiter->conn)
        waiter_orphan(waiter);
    user_uncharge(waiter->user, RES_JOBS, 1);
    free(waiter);
}

void
waiter_end(struct core *core, struct waiter *waiter, const struct refusal *r)
{
    struct conn *conn = waiter->conn;
    struct user *user = waiter->user;
    struct array *array = waiter->array;
    uint32_t request = waiter->request;

    user->n_refs++; /* while what may be the last of it goes */
    waiter_free(waiter);
    if (conn && r)
        send_refusal(core, conn, request, r);
    if (!conn || conn->closing || r)
        array_abandon(core, array);
    else
        array_complete(core, conn, request, array);
    user->n_refs--;
    user_settle(core, user);
}

/* ---- birth ---- */

static void
block_count(struct core *core, const struct block *block, bool there)
{
    struct device *device = &core->devices[block->device];
    struct pool *pool = block->pool;
    uint64_t one = there ? 1 : UINT64_MAX, size = there ? block->size : -block->size;

    core->n_blocks += one;
    device->n_blocks += one;
    pool->n_blocks += one;
    block->user->n_refs += one;
    *(block->kind == KIND_PINNED ? &device->pinned : &device->used) += size;
    *(block->kind == KIND_PINNED ? &pool->pinned : &pool->used) += size;
}

static int
block_new(struct core *core, const struct waiter *waiter, uint64_t size, struct block **ret)
{
    const struct array *array = waiter->array;
    struct block *block = calloc(1, sizeof(*block));
    struct space *space;

    if (!block)
        return -ENOMEM;
    space_init(&block->solo);
    space = waiter->array->own
                ? &block->solo
                : &pool_zone(core, array->pool, array->device, array->kind)->space;
    if (space_add(space, &block->extent, size) < 0) {
        free(block);
        return -ENOMEM;
    }
    block->id = ++core->next_block;
    block->kind = array->kind;
    block->own = waiter->array->own;
    block->device = array->device;
    block->size = size;
    block->pool = array->pool;
    block->user = waiter->user;
    block->fd = -1;
    TAILQ_INIT(&block->waiters);
    LIST_INIT(&block->holds);
    LIST_INSERT_HEAD(&core->blocks, block, of_core);
    block_count(core, block, true);
    *ret = block;
    return 0;
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
    job_start(core, &block->job, JOB_ALLOC, block->user);
}

/* Bytes for a new shared block: as much again as the zone has, so that the number of blocks stays in
 * proportion, within the bound; what the array needs, where memory is short. */
static uint64_t
growth(const struct core *core, const struct waiter *waiter)
{
    const struct array *array = waiter->array;
    const struct zone *zone = pool_zone(core, array->pool, array->device, array->kind);
    uint64_t granularity = core->devices[array->device].info.granularity;
    uint64_t needed = ALIGN_UP(array->span, granularity), size = zone->space.bytes;

    if (array->own || waiter->minimal || waiter->retried)
        return needed;
    if (size > core->config.memory.block_size)
        size = core->config.memory.block_size;
    size = size / granularity * granularity;
    return size > needed ? size : needed;
}

/* The quota may be taken up by blocks that nobody uses: then they go first; or that nobody will use when
 * fences have passed. */
static int
wait_for_quota(struct core *core, struct waiter *waiter)
{
    uint32_t device = reclaim_pool(core, waiter->array->pool, waiter->user);

    /* Once for each device, and once more: it must not go on for ever while others fill the pool. */
    if (device == core->config.n_devices || waiter->quota_waits > core->config.n_devices)
        return linger_wait(core, waiter, &waiter->array->pool->lingering) ? BLOCK_WAITS
                                                                          : REFUSED;
    waiter->quota_waits++;
    reclaim_wait(core, device, waiter);
    return BLOCK_WAITS;
}

/* 0: there is a new block that the waiter's array fits in. */
static int
block_grow(struct core *core, struct waiter *waiter, struct block **ret, struct refusal *r)
{
    struct array *array = waiter->array;
    uint64_t size = growth(core, waiter);
    uint64_t needed = ALIGN_UP(array->span, core->devices[array->device].info.granularity);
    int rc;

    if (pool_check(core, array->pool, array->kind, size, r)) {
        size = needed;
        if (pool_check(core, array->pool, array->kind, size, r))
            return wait_for_quota(core, waiter);
    }
    rc = block_new(core, waiter, size, ret);
    if (rc < 0)
        return rc;
    block_allocate(core, *ret);
    return 0;
}

/* ---- placing ---- */

static void block_leave_reserve(struct core *core, struct block *block);
static void block_unspare(struct core *core, struct block *block);

static int
block_give(struct core *core, struct waiter *waiter, struct range *range)
{
    struct block *block = block_of(range);

    range->userdata = waiter->array;
    waiter->array->range = range;
    block_leave_reserve(core, block);
    if (block->state != BLOCK_ALLOCATING)
        return 0;
    TAILQ_INSERT_TAIL(&block->waiters, waiter, link);
    return BLOCK_WAITS;
}

/* Room in the zone: what is free, or else what waits in the queue to be (also when it is held back:
 * no driver call comes of this). */
static int
zone_take(struct core *core, struct zone *zone, const struct waiter *waiter, struct range **ret)
{
    uint64_t bytes = waiter->array->span;
    struct array *oldest;
    int rc = space_take(&zone->space, bytes, waiter->alignment, ret);

    while (rc == SPACE_FULL && (oldest = TAILQ_FIRST(&zone->pendings))) {
        reclaim_free(core, oldest);
        rc = space_take(&zone->space, bytes, waiter->alignment, ret);
    }
    return rc;
}

static int
place_shared(struct core *core, struct waiter *waiter, struct refusal *r)
{
    const struct array *array = waiter->array;
    struct zone *zone = pool_zone(core, array->pool, array->device, array->kind);
    struct range *range;
    struct block *block;
    int rc = zone_take(core, zone, waiter, &range);

    if (rc == SPACE_FULL) {
        rc = block_grow(core, waiter, &block, r);
        if (rc == 0)
            rc = space_take(&zone->space, array->span, waiter->alignment, &range);
    }
    return rc ? rc : block_give(core, waiter, range);
}

/* The smallest own block that is spare and wastes no more than an eighth. */
static struct block *
spare_find(const struct core *core, const struct array *array)
{
    uint64_t needed = ALIGN_UP(array->span, core->devices[array->device].info.granularity);
    struct block key = {.device = array->device, .kind = array->kind, .size = needed};
    struct block *block = RB_NFIND(spares, &array->pool->spares, &key);

    if (!block || block->device != array->device || block->kind != array->kind ||
        block->size > needed + needed / 8)
        return NULL;
    return block;
}

static struct range *
spare_take(struct core *core, struct block *block)
{
    block_unspare(core, block);
    if (extent_is_empty(&block->extent))
        return extent_take(&block->extent);
    return reclaim_steal(core, block->extent.first->userdata);
}

static int
place_own(struct core *core, struct waiter *waiter, struct refusal *r)
{
    struct block *block = spare_find(core, waiter->array);
    int rc;

    if (block)
        return block_give(core, waiter, spare_take(core, block));
    rc = block_grow(core, waiter, &block, r);
    return rc ? rc : block_give(core, waiter, extent_take(&block->extent));
}

int
block_place(struct core *core, struct waiter *waiter, struct refusal *r)
{
    return waiter->array->own ? place_own(core, waiter, r) : place_shared(core, waiter, r);
}

/* ---- the driver's answer ---- */

static void
refuse_alloc(struct core *core, const struct block *block, const struct core_alloc_result *res,
             struct refusal *r)
{
    const struct core_device *d = &core->devices[block->device].info;
    char left[2 * SIZE_TEXT_MAX + 16] = "";

    if (res->error == -ENOMEM && res->free)
        snprintf(left, sizeof(left), ", %s of %s are free", SIZE_TEXT(res->free),
                 SIZE_TEXT(d->total));
    refusal_fill(r,
                 res->error == -ENOMEM    ? PROTO_ERR_NO_MEMORY
                 : res->error == -ENOTSUP ? PROTO_ERR_UNSUPPORTED
                                          : PROTO_ERR_DRIVER,
                 "device %u (%s): %s of %s memory could not be allocated%s: %s", block->device,
                 d->name, SIZE_TEXT(block->size), core_kind_name(block->kind), left, res->text);
    r->cuda = res->cuda;
}

/* Memory has come: everyone who waited for this block is answered. */
static void
block_live(struct core *core, struct block *block, const struct core_alloc_result *result)
{
    struct waiter *waiter;

    block->state = BLOCK_LIVE;
    block->handle = result->handle;
    block->fd = result->fd;
    memcpy(block->ipc, result->ipc, sizeof(block->ipc));
    while ((waiter = TAILQ_FIRST(&block->waiters))) {
        TAILQ_REMOVE(&block->waiters, waiter, link);
        waiter_end(core, waiter, NULL);
    }
    block_settle(core, block);
}

static bool
needs_less(const struct core *core, const struct block *block, const struct waiter *waiter)
{
    return block->size >
           ALIGN_UP(waiter->array->span, core->devices[block->device].info.granularity);
}

/*
 * Out of memory. Who needs less than the block was tries that again at once; the others, for the
 * first time, when all that can be freed is.
 */
static void
block_retry(struct core *core, struct block *block, struct waiter_list *smaller,
            struct waiter_list *retries)
{
    struct waiter *waiter, *next;

    for (waiter = TAILQ_FIRST(&block->waiters); waiter; waiter = next) {
        next = TAILQ_NEXT(waiter, link);
        bool less = needs_less(core, block, waiter);
        if ((waiter->retried && !less) || !waiter->conn || core->stopping)
            continue;
        *(less ? &waiter->minimal : &waiter->retried) = true;
        TAILQ_REMOVE(&block->waiters, waiter, link);
        block_put_range(core, waiter->array);
        TAILQ_INSERT_TAIL(less ? smaller : retries, waiter, link);
    }
}

/* There is no memory: but there may be when fences have passed. */
static bool
wait_for_fences(struct core *core, uint32_t device, struct waiter *waiter)
{
    if (!linger_wait(core, waiter, &core->devices[device].lingering))
        return false;
    block_put_range(core, waiter->array);
    return true;
}

static void
block_fail(struct core *core, struct block *block, const struct core_alloc_result *result)
{
    struct waiter_list smaller = TAILQ_HEAD_INITIALIZER(smaller);
    struct waiter_list retries = TAILQ_HEAD_INITIALIZER(retries);
    uint32_t device = block->device;
    struct waiter *waiter;
    struct refusal r;

    refuse_alloc(core, block, result, &r);
    if (result->error == -ENOMEM)
        block_retry(core, block, &smaller, &retries);
    while ((waiter = TAILQ_FIRST(&block->waiters))) {
        TAILQ_REMOVE(&block->waiters, waiter, link);
        if (result->error != -ENOMEM || !wait_for_fences(core, device, waiter))
            waiter_end(core, waiter, &r);
    }
    block_retire(core, block);
    block_destroy(core, block);
    TAILQ_FOREACH(waiter, &retries, link)
    reclaim_all(core, device, waiter->user);
    if (!TAILQ_EMPTY(&retries))
        reclaim_doom(core, device, NULL);
    while ((waiter = TAILQ_FIRST(&retries))) {
        TAILQ_REMOVE(&retries, waiter, link);
        reclaim_wait(core, device, waiter);
    }
    while ((waiter = TAILQ_FIRST(&smaller))) {
        TAILQ_REMOVE(&smaller, waiter, link);
        waiter_retry(core, waiter);
    }
}

void
core_alloc_done(struct core *core, uint64_t id, const struct core_alloc_result *result)
{
    struct job *job = job_find(core, id, JOB_ALLOC);
    struct block *block = container_of(job, struct block, job);

    job_end(core, job);
    core->devices[block->device].context |= result->context;
    if (result->error == 0)
        block_live(core, block, result);
    else
        block_fail(core, block, result);
    reclaim_run(core);
}

/* ---- giving back ---- */

void
block_put_range(struct core *core, struct array *array)
{
    struct block *block = array_block(array);

    space_free(TAKE_PTR(array->range));
    block_settle(core, block);
}

static struct zone *
block_zone(const struct core *core, const struct block *block)
{
    return pool_zone(core, block->pool, block->device, block->kind);
}

void
block_spare(struct core *core, struct block *block)
{
    RB_INSERT(spares, &block->pool->spares, block);
    block->spared = true;
    block_zone(core, block)->spare += block->size;
}

static void
block_unspare(struct core *core, struct block *block)
{
    if (!block->spared)
        return;
    RB_REMOVE(spares, &block->pool->spares, block);
    block->spared = false;
    block_zone(core, block)->spare -= block->size;
}

/* A legacy allocation must not be freed while somebody has it open, and page-locked memory that
 * somebody has mapped does not go. Device memory is counted by the driver. */
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
    reclaim_reserve(core, pool, core->config.memory.reserve);
}

static void
block_leave_reserve(struct core *core, struct block *block)
{
    block_unspare(core, block);
    if (!block->reserved)
        return;
    if (block->doomed)
        reclaim_undoom(core, block);
    block->reserved = false;
    TAILQ_REMOVE(&block->pool->reserved, block, of_pool);
    TAILQ_REMOVE(&core->devices[block->device].reserved, block, of_device);
    block->pool->reserve -= block->size;
    core->devices[block->device].reserve -= block->size;
}

void
block_retire(struct core *core, struct block *block)
{
    struct hold *hold;

    block_leave_reserve(core, block);
    block->state = BLOCK_RELEASING; /* from here on block_settle() leaves it alone */
    while ((hold = LIST_FIRST(&block->holds)))
        hold_free(core, hold);
    space_remove(&block->extent);
}

static void
block_persist(struct core *core, struct block *block, enum core_record_type record)
{
    block->saved.action =
        (struct core_action){.type = CORE_PERSIST, .record = record, .block = block->id};
    entry_push(core, &block->saved);
}

void
block_promise(struct core *core, struct block *block)
{
    if (block->promised)
        return;
    block->promised = true;
    block_persist(core, block, RECORD_BLOCK);
}

void
block_release(struct core *core, struct block *block)
{
    block_retire(core, block);
    if (block->saved.queued)
        entry_remove(core, &block->saved); /* nobody has seen the first record */
    else if (block->promised)
        block_persist(core, block, RECORD_BLOCK_GONE);
    block->job.entry.action = (struct core_action){.type = CORE_RELEASE,
                                                   .kind = block->kind,
                                                   .device = block->device,
                                                   .size = block->size,
                                                   .handle = block->handle,
                                                   .fd = block->fd};
    job_start(core, &block->job, JOB_RELEASE, block->user);
}

void
block_destroy(struct core *core, struct block *block)
{
    struct user *user = block->user;
    struct pool *pool = block->pool;

    LIST_REMOVE(block, of_core);
    block_count(core, block, false);
    space_deinit(&block->solo);
    entry_remove(core, &block->saved);
    free(block);
    users_settle(core, user, pool);
}
