/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How memory that nobody holds gets back: the deallocation queue of each device, the reserve of
 * empty blocks, and their release to the driver.
 *
 * Freeing a range needs no driver and cannot fail, so a flush of the queue happens at once. Blocks
 * that ran empty by it are in reserve. Those that are to go are doomed, and released one after the
 * other; as long as its turn has not come, a doomed block may still serve a create. When a release
 * fails, its block is written off and the others are spared. The round ends when nothing is doomed
 * and nothing under way: then flushes are answered, and creates that were refused for want of
 * memory or quota are tried once more.
 */
#include <assert.h>

#include "state.h"

void
device_init(struct device *device, const struct core_device *info,
            const struct core_memory *memory)
{
    struct dealloc_limits limits = {
        .max_count = memory->pending_count,
        .max_bytes = dealloc_ratio_bytes(info->total, memory->pending_ratio),
        .max_age_ns = memory->pending_age_ns,
    };

    device->info = *info;
    dealloc_init(&device->queue, &limits);
    TAILQ_INIT(&device->reserved);
    TAILQ_INIT(&device->doomed);
    TAILQ_INIT(&device->retries);
    TAILQ_INIT(&device->flushers);
}

static struct device *
device_of(struct core *core, const struct array *array)
{
    return &core->devices[array->device];
}

/* ---- the queue ---- */

static struct array *
array_of(struct dealloc_entry *entry)
{
    return container_of(entry, struct array, entry);
}

/* What the pool and the device count of an array in the queue. */
static void
count_pending(struct core *core, const struct array *array, bool there)
{
    uint64_t bytes = array->kind == KIND_PINNED ? 0 : array_bytes(array);

    if (!there)
        bytes = -bytes;
    array->pool->pending += bytes;
    device_of(core, array)->pending += bytes;
    array->user->n_pending += there ? 1 : UINT64_MAX;
}

/* The array has left the queue: ends everything but its range. */
static struct range *
unqueue(struct core *core, struct array *array)
{
    struct user *user = array->user;
    struct pool *pool = array->pool;
    struct range *range = TAKE_PTR(array->range);
    const struct block *block = container_of(range->extent, struct block, extent);

    count_pending(core, array, false);
    if (!block->own)
        TAILQ_REMOVE(&pool_zone(core, pool, array->device, array->kind)->pendings, array,
                     of_zone);
    array_free(array);
    users_settle(core, user, pool); /* the pool stays: it has a block */
    return range;
}

static void
put_range(struct core *core, struct range *range)
{
    struct block *block = container_of(range->extent, struct block, extent);

    space_free(range);
    block_settle(core, block);
}

struct range *
reclaim_steal(struct core *core, struct array *array)
{
    dealloc_remove(&device_of(core, array)->queue, &array->entry);
    return unqueue(core, array);
}

void
reclaim_free(struct core *core, struct array *array)
{
    put_range(core, reclaim_steal(core, array));
}

static void
drain_overriding(struct core *core, struct device *device, const struct dealloc_owner *own)
{
    struct dealloc *q = &device->queue;
    struct dealloc_entry *entry;

    dealloc_begin(q);
    while ((entry = dealloc_next_overriding(q, own))) {
        uint64_t bytes = entry->bytes;
        put_range(core, unqueue(core, array_of(entry)));
        dealloc_done(q, bytes, 0);
    }
}

uint64_t
reclaim_queue(struct core *core, uint32_t index, struct user *user)
{
    struct device *device = &core->devices[index];
    struct dealloc *q = &device->queue;
    struct dealloc_entry *entry;
    uint64_t n = 0;

    dealloc_begin(q);
    while ((entry = user ? dealloc_next_of(q, &user->owners[index]) : dealloc_next(q))) {
        uint64_t bytes = entry->bytes;
        put_range(core, unqueue(core, array_of(entry)));
        dealloc_done(q, bytes, 0);
        n++;
    }
    return n;
}

void
reclaim_add(struct core *core, struct array *array)
{
    struct device *device = device_of(core, array);
    struct block *block = array_block(array);
    struct dealloc_owner *owner = &array->user->owners[array->device];
    uint64_t bytes = array->kind == KIND_PINNED ? 0 : array_bytes(array); /* R5 */

    array->pending = true;
    count_pending(core, array, true);
    if (block->own)
        block_spare(block);
    else
        TAILQ_INSERT_TAIL(&pool_zone(core, array->pool, array->device, array->kind)->pendings,
                          array, of_zone);
    if (dealloc_add(&device->queue, owner, &array->entry, bytes, core->now_ns))
        reclaim_queue(core, array->device, NULL);
}

/* ---- deferring ---- */

void
reclaim_defer(struct core *core, struct conn *conn)
{
    if (conn->deferring++)
        return;
    conn->user->n_deferring++;
    for (size_t i = 0; i < core->config.n_devices; i++)
        dealloc_hold(&core->devices[i].queue, &conn->user->owners[i]);
}

void
reclaim_undefer(struct core *core, struct conn *conn)
{
    assert(conn->deferring);
    if (--conn->deferring)
        return;
    conn->user->n_deferring--;
    for (size_t i = 0; i < core->config.n_devices; i++)
        dealloc_unhold(&core->devices[i].queue, &conn->user->owners[i]);
}

/* ---- dooming ---- */

static void
doom(struct core *core, struct block *block)
{
    if (block->doomed)
        return;
    block->doomed = true;
    TAILQ_INSERT_TAIL(&core->devices[block->device].doomed, block, of_doomed);
}

void
reclaim_undoom(struct core *core, struct block *block)
{
    if (block->doomed)
        TAILQ_REMOVE(&core->devices[block->device].doomed, block, of_doomed);
    block->doomed = false;
}

/* Frees what of the pool is in the queues and not held back: it takes up the quota. */
static void
drain_pool(struct core *core, struct pool *pool)
{
    struct array *array, *next;
    struct block *block, *after;

    for (size_t i = 0; i < core->config.n_devices * N_KINDS; i++)
        for (array = TAILQ_FIRST(&pool->zones[i].pendings); array; array = next) {
            next = TAILQ_NEXT(array, of_zone);
            if (!array->entry.owner->held)
                reclaim_free(core, array);
        }
    for (block = RB_MIN(spares, &pool->spares); block; block = after) {
        after = RB_NEXT(spares, &pool->spares, block);
        array = extent_is_empty(&block->extent) ? NULL : block->extent.first->userdata;
        if (array && !array->entry.owner->held)
            reclaim_free(core, array);
    }
}

uint32_t
reclaim_pool(struct core *core, struct pool *pool)
{
    uint32_t device;

    drain_pool(core, pool);
    device = reclaim_reserve(core, pool, 0);
    for (uint32_t i = 0; i < core->config.n_devices && device == core->config.n_devices; i++)
        if (core->devices[i].releasing && core->devices[i].releasing->pool == pool)
            device = i;
    return device;
}

uint32_t
reclaim_reserve(struct core *core, struct pool *pool, uint64_t keep)
{
    uint32_t device = (uint32_t)core->config.n_devices;
    uint64_t left = pool->reserve;
    struct block *block, *next;

    for (block = TAILQ_FIRST(&pool->reserved); block && left > keep; block = next) {
        next = TAILQ_NEXT(block, of_pool);
        doom(core, block);
        left -= block->size;
        device = block->device;
    }
    return device;
}

void
reclaim_doom(struct core *core, uint32_t device, const struct conn *conn)
{
    struct block *block;

    TAILQ_FOREACH(block, &core->devices[device].reserved, of_device)
    if (!conn || pool_may(block->pool, conn, MAY_WRITE))
        doom(core, block);
}

void
reclaim_all(struct core *core, uint32_t device, const struct user *user)
{
    struct device *d = &core->devices[device];

    drain_overriding(core, d, &user->owners[device]);
    reclaim_doom(core, device, NULL);
}

/* ---- rounds ---- */

void
reclaim_wait(struct core *core, uint32_t device, struct waiter *waiter)
{
    TAILQ_INSERT_TAIL(&core->devices[device].retries, waiter, link);
}

static void
retry(struct core *core, struct waiter *waiter)
{
    struct refusal r;
    int rc;

    if (!waiter->conn || core->stopping) {
        refusal_fill(&r, PROTO_ERR_SHUTDOWN, "the daemon is stopping");
        waiter_end(core, waiter, &r);
        return;
    }
    rc = block_place(core, waiter, &r);
    if (rc < 0) {
        conn_end(core, waiter->conn, "out of memory");
        waiter_end(core, waiter, NULL);
    } else if (rc != BLOCK_WAITS) {
        waiter_end(core, waiter, rc == REFUSED ? &r : NULL);
    }
}

static void
end_round(struct core *core, struct device *device)
{
    struct waiter_list retries = TAILQ_HEAD_INITIALIZER(retries);
    struct flusher *flusher;
    struct waiter *waiter;

    while ((flusher = TAILQ_FIRST(&device->flushers))) {
        TAILQ_REMOVE(&device->flushers, flusher, link);
        flush_leave(core, flusher->flush);
    }
    TAILQ_CONCAT(&retries, &device->retries, link);
    while ((waiter = TAILQ_FIRST(&retries))) {
        TAILQ_REMOVE(&retries, waiter, link);
        retry(core, waiter);
    }
}

static void
go_on(struct core *core, struct device *device)
{
    while (!device->releasing) {
        device->releasing = core->stopping ? NULL : TAILQ_FIRST(&device->doomed);
        if (device->releasing)
            block_release(core, device->releasing);
        else if (TAILQ_EMPTY(&device->flushers) && TAILQ_EMPTY(&device->retries))
            break;
        else
            end_round(core, device); /* which may doom more */
    }
}

void
reclaim_run(struct core *core)
{
    for (size_t i = 0; i < core->config.n_devices; i++)
        go_on(core, &core->devices[i]);
}

/* The block is written off: its memory may be there or not, but its handle is not tried again. The
 * rest of the round is called off. */
static void
release_failed(struct core *core, struct device *device, const struct block *block, int cuda,
               const char *text)
{
    struct flusher *flusher;
    struct block *doomed;

    core->n_release_errors++;
    device->n_quarantined++;
    device->bytes_quarantined += block->size;
    device->calm_until_ns = core->now_ns + core->config.memory.pending_age_ns;
    if (device->calm_until_ns < core->now_ns)
        device->calm_until_ns = UINT64_MAX;
    TAILQ_FOREACH(flusher, &device->flushers, link)
    flush_fail(flusher->flush, block, cuda, text);
    while ((doomed = TAILQ_FIRST(&device->doomed)))
        reclaim_undoom(core, doomed);
}

void
core_release_done(struct core *core, uint64_t id, int error, int cuda, const char *text)
{
    struct job *job = job_find(core, id, JOB_RELEASE);
    struct block *block = container_of(job, struct block, job);
    struct device *device = &core->devices[block->device];
    struct flusher *flusher;

    assert(device->releasing == block);
    job_end(core, job);
    device->releasing = NULL;
    if (error) {
        release_failed(core, device, block, cuda, text);
    } else {
        device->n_releases++;
        TAILQ_FOREACH(flusher, &device->flushers, link)
        flush_count(flusher->flush, block);
    }
    block_destroy(core, block);
    reclaim_run(core);
}

/* ---- time ---- */

static uint64_t
later(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns + b_ns < a_ns ? UINT64_MAX : a_ns + b_ns;
}

static uint64_t
reserve_deadline_ns(const struct core *core, const struct device *device)
{
    const struct block *block;

    TAILQ_FOREACH(block, &device->reserved, of_device)
    if (!block->doomed) {
        uint64_t at = later(block->emptied_ns, core->config.memory.pending_age_ns);
        return at > device->calm_until_ns ? at : device->calm_until_ns;
    }
    return UINT64_MAX;
}

uint64_t
reclaim_deadline_ns(const struct core *core)
{
    uint64_t deadline = UINT64_MAX;

    for (size_t i = 0; i < core->config.n_devices && !core->stopping; i++) {
        const struct device *device = &core->devices[i];
        uint64_t queue = dealloc_deadline_ns(&device->queue);
        uint64_t reserve = reserve_deadline_ns(core, device);
        if (queue < deadline)
            deadline = queue;
        if (reserve < deadline)
            deadline = reserve;
    }
    return deadline;
}

static void
age_reserve(struct core *core, struct device *device)
{
    struct block *block;

    TAILQ_FOREACH(block, &device->reserved, of_device)
    {
        if (later(block->emptied_ns, core->config.memory.pending_age_ns) > core->now_ns)
            break;
        doom(core, block);
    }
}

void
reclaim_tick(struct core *core)
{
    for (uint32_t i = 0; i < core->config.n_devices && !core->stopping; i++) {
        struct device *device = &core->devices[i];
        if (dealloc_deadline_ns(&device->queue) <= core->now_ns)
            reclaim_queue(core, i, NULL);
        if (reserve_deadline_ns(core, device) <= core->now_ns)
            age_reserve(core, device);
    }
}
