/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How memory that nobody holds gets back: the deallocation queue of each device, the reserve of
 * empty blocks, and their release to the driver.
 *
 * Freeing a range needs no driver and cannot fail, so a flush of the queue happens at once. Blocks
 * that ran empty by it are in reserve. Those that are to go are doomed, and released one after the
 * other; as long as its turn has not come, a doomed block may still serve a create. When a release
 * fails, its block is written off and the others are spared. Flushes are answered, and creates that
 * were refused for want of memory or quota are tried once more, when all that was doomed at their
 * time has been released.
 */
#include <assert.h>

#include "state.h"

/* Entries that a uid can hold back on a device: they are charged to nobody. Beyond it the oldest go. */
#define HELD_MAX 4096

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
    struct zone *zone = pool_zone(core, array->pool, array->device, array->kind);
    uint64_t one = there ? 1 : UINT64_MAX, bytes = array_bytes(core, array);

    if (!there)
        bytes = -bytes;
    *(array->own ? &zone->n_own_pending : &zone->pending) += array->own ? one : bytes;
    array->user->n_pending += one;
    if (array->kind == KIND_PINNED)
        return;
    array->pool->pending += bytes;
    device_of(core, array)->pending += bytes;
}

/* The array has left the queue: ends everything but its range. */
static struct range *
unqueue(struct core *core, struct array *array)
{
    struct user *user = array->user;
    struct pool *pool = array->pool;
    struct range *range = TAKE_PTR(array->range);

    count_pending(core, array, false);
    if (!array->own)
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
    uint64_t bytes = array->kind == KIND_PINNED ? 0 : array_bytes(core, array); /* R5 */

    array->pending = true;
    count_pending(core, array, true);
    if (array->own)
        block_spare(core, block);
    else
        TAILQ_INSERT_TAIL(&pool_zone(core, array->pool, array->device, array->kind)->pendings,
                          array, of_zone);
    if (dealloc_add(&device->queue, owner, &array->entry, bytes, core->now_ns))
        reclaim_queue(core, (uint32_t)(device - core->devices), NULL);
    while (owner->held && owner->n > HELD_MAX) /* not the array's: it may be gone */
        reclaim_free(core, array_of(TAILQ_FIRST(&owner->entries)));
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

static struct zone *
zone_of(const struct core *core, const struct block *block)
{
    return pool_zone(core, block->pool, block->device, block->kind);
}

/* From the lists of what is in reserve to that of the doomed: none of them is walked to find the
 * others. */
static void
doom(struct core *core, struct block *block)
{
    struct device *device = &core->devices[block->device];

    TAILQ_REMOVE(&block->pool->reserved, block, of_pool);
    TAILQ_REMOVE(&device->reserved, block, of_device);
    TAILQ_INSERT_TAIL(&device->doomed, block, of_device);
    block->doomed = true;
    block->doom = ++device->n_dooms;
    block->pool->doomed += block->size;
    zone_of(core, block)->n_doomed++;
    zone_of(core, block)->last_doom = block->doom;
}

void
reclaim_undoom(struct core *core, struct block *block)
{
    struct device *device = &core->devices[block->device];

    TAILQ_REMOVE(&device->doomed, block, of_device);
    TAILQ_INSERT_HEAD(&device->reserved, block, of_device);
    TAILQ_INSERT_HEAD(&block->pool->reserved, block, of_pool);
    block->doomed = false;
    block->pool->doomed -= block->size;
    zone_of(core, block)->n_doomed--;
}

static bool
is_held_by(const struct array *array, const struct user *user)
{
    return array->user == user && array->entry.owner->held;
}

static void
drain_zone(struct core *core, struct zone *zone, const struct user *user)
{
    struct array *array, *next;

    for (array = TAILQ_FIRST(&zone->pendings); array; array = next) {
        next = TAILQ_NEXT(array, of_zone);
        if (!is_held_by(array, user))
            reclaim_free(core, array);
    }
}

static void
drain_spares(struct core *core, struct pool *pool, const struct user *user)
{
    struct block *block, *next;

    for (block = RB_MIN(spares, &pool->spares); block; block = next) {
        next = RB_NEXT(spares, &pool->spares, block);
        struct array *array = extent_is_empty(&block->extent) ? NULL
                                                              : block->extent.first->userdata;
        if (array && !is_held_by(array, user))
            reclaim_free(core, array);
    }
}

uint32_t
reclaim_pool(struct core *core, struct pool *pool, const struct user *user)
{
    size_t n_zones = core->config.n_devices * N_KINDS, i = 0;
    uint64_t n_own = 0;

    for (size_t z = 0; z < n_zones; z++) {
        drain_zone(core, &pool->zones[z], user);
        n_own += pool->zones[z].n_own_pending;
    }
    if (n_own)
        drain_spares(core, pool, user);
    reclaim_reserve(core, pool, 0);
    while (i < n_zones && !pool->zones[i].n_doomed)
        i++;
    return (uint32_t)(i / N_KINDS);
}

void
reclaim_reserve(struct core *core, struct pool *pool, uint64_t keep)
{
    struct block *block;

    while (pool->reserve - pool->doomed > keep && (block = TAILQ_FIRST(&pool->reserved)))
        doom(core, block);
}

static uint64_t
doom_pool(struct core *core, struct pool *pool, uint32_t device)
{
    struct block *block, *next;
    uint64_t last = 0;

    for (block = TAILQ_FIRST(&pool->reserved); block; block = next) {
        next = TAILQ_NEXT(block, of_pool);
        if (block->device == device)
            doom(core, block);
    }
    for (enum core_kind kind = 0; kind < N_KINDS; kind++) {
        const struct zone *zone = pool_zone(core, pool, device, kind);
        if (zone->n_doomed && zone->last_doom > last)
            last = zone->last_doom;
    }
    return last;
}

uint64_t
reclaim_doom(struct core *core, uint32_t device, const struct conn *conn)
{
    struct device *d = &core->devices[device];
    struct block *block;
    struct pool *pool;
    uint64_t last = 0;

    while (!conn && (block = TAILQ_FIRST(&d->reserved)))
        doom(core, block);
    if (!conn)
        return d->n_dooms;
    RB_FOREACH(pool, pools, &core->pools)
    if (pool_may(pool, conn, MAY_WRITE)) {
        uint64_t doomed = doom_pool(core, pool, device);
        last = doomed > last ? doomed : last;
    }
    return last;
}

void
reclaim_all(struct core *core, uint32_t device, const struct user *user)
{
    drain_overriding(core, &core->devices[device], &user->owners[device]);
}

/* ---- rounds ---- */

void
reclaim_wait(struct core *core, uint32_t device, struct waiter *waiter)
{
    waiter->until = core->devices[device].n_dooms;
    TAILQ_INSERT_TAIL(&core->devices[device].retries, waiter, link);
}

void
waiter_retry(struct core *core, struct waiter *waiter)
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

/* Whether that doom, and all before it, has been carried out or called off. */
static bool
is_over(const struct core *core, const struct device *device, uint64_t until)
{
    const struct block *next = core->stopping ? NULL : TAILQ_FIRST(&device->doomed);

    return (!device->releasing || device->releasing->doom > until) &&
           (!next || next->doom > until);
}

/* Everyone waits for what was doomed when he came, not for what others doom meanwhile. */
static bool
serve_one(struct core *core, struct device *device)
{
    struct flusher *flusher = TAILQ_FIRST(&device->flushers);
    struct waiter *waiter = TAILQ_FIRST(&device->retries);

    if (flusher && is_over(core, device, flusher->until)) {
        TAILQ_REMOVE(&device->flushers, flusher, link);
        flush_leave(core, flusher->flush);
        return true;
    }
    if (waiter && is_over(core, device, waiter->until)) {
        TAILQ_REMOVE(&device->retries, waiter, link);
        waiter_retry(core, waiter);
        return true;
    }
    return false;
}

static void
release_next(struct core *core, struct device *device)
{
    struct block *block = core->stopping ? NULL : TAILQ_FIRST(&device->doomed);

    if (!block || device->releasing)
        return;
    device->releasing = block;
    block_release(core, block);
    zone_of(core, block)->n_doomed++; /* until it is gone */
}

void
reclaim_run(struct core *core)
{
    bool again;

    do { /* who is served on one device may doom blocks of another one */
        again = false;
        for (size_t i = 0; i < core->config.n_devices; i++) {
            release_next(core, &core->devices[i]);
            again |= serve_one(core, &core->devices[i]);
        }
    } while (again);
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
    flush_fail(core, flusher->flush, block, cuda, text);
    while ((doomed = TAILQ_LAST(&device->doomed, block_list)))
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
        flush_count(core, flusher->flush, block);
    }
    zone_of(core, block)->n_doomed--;
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
    const struct block *block = TAILQ_FIRST(&device->reserved);
    uint64_t at;

    if (!block)
        return UINT64_MAX;
    at = later(block->emptied_ns, core->config.memory.pending_age_ns);
    return at > device->calm_until_ns ? at : device->calm_until_ns;
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

    while ((block = TAILQ_FIRST(&device->reserved)) &&
           later(block->emptied_ns, core->config.memory.pending_age_ns) <= core->now_ns)
        doom(core, block);
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
