/* SPDX-License-Identifier: Apache-2.0 */
#include "reclaim.h"

#include <assert.h>

#include "array.h"
#include "device.h"
#include "state.h"

/* Entries of a uid that may be deferred on a device: nobody is charged for them. Beyond that, the
 * oldest are freed. */
#define HELD_MAX 512

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

/* Counts the array in its pool and device while it is in the queue. */
static void
count_pending(struct core *core, const struct array *array, bool there)
{
    struct zone *zone = pool_zone(core, array->pool, array->device, array->kind);
    uint64_t one = there ? 1 : UINT64_MAX, bytes = array_bytes(core, array);

    if (!there)
        bytes = -bytes;
    *(array->own ? &zone->n_own_pending : &zone->pending) += array->own ? one : bytes;
    array->charge.user->n_pending += one;
    if (array->kind == KIND_PINNED)
        return;
    array->pool->pending += bytes;
    device_of(core, array)->pending += bytes;
}

/* The array has left the queue: ends all of it but its range. */
static struct range *
unqueue(struct core *core, struct array *array)
{
    struct range *range = TAKE_PTR(array->range);

    count_pending(core, array, false);
    if (!array->own)
        TAILQ_REMOVE(&pool_zone(core, array->pool, array->device, array->kind)->pendings, array,
                     of_zone);
    user_touch(array->charge.user);
    array_free(array);
    return range;
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
    block_put_range(core, reclaim_steal(core, array));
}

static void
drain_overriding(struct core *core, struct device *device, const struct dealloc_owner *own)
{
    struct dealloc *q = &device->queue;
    struct dealloc_entry *entry;

    dealloc_begin(q);
    while ((entry = dealloc_next_overriding(q, own))) {
        uint64_t bytes = entry->bytes;
        block_put_range(core, unqueue(core, array_of(entry)));
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
    while ((entry = user ? dealloc_next_of(q, &user->devices[index].queue) : dealloc_next(q))) {
        uint64_t bytes = entry->bytes;
        block_put_range(core, unqueue(core, array_of(entry)));
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
    struct dealloc_owner *owner = &array->charge.user->devices[array->device].queue;
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
    /* the queue's owner: the array may be gone */
    while (owner->deferred && owner->n > HELD_MAX)
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
        dealloc_hold(&core->devices[i].queue, &conn->user->devices[i].queue);
}

void
reclaim_undefer(struct core *core, struct conn *conn)
{
    assert(conn->deferring);
    if (--conn->deferring)
        return;
    conn->user->n_deferring--;
    for (size_t i = 0; i < core->config.n_devices; i++)
        dealloc_unhold(&core->devices[i].queue, &conn->user->devices[i].queue);
}

/* ---- dooming ---- */

static bool
is_held_by(const struct array *array, const struct user *user)
{
    return array->charge.user == user && array->entry.owner->deferred;
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
    blocks_doom(core, pool, 0);
    while (i < n_zones && !pool->zones[i].n_doomed)
        i++;
    return (uint32_t)(i / N_KINDS);
}

static uint64_t
doom_pool(struct core *core, struct pool *pool, uint32_t device)
{
    struct block *block, *next;
    uint64_t last = 0;

    for (block = TAILQ_FIRST(&pool->reserved); block; block = next) {
        next = TAILQ_NEXT(block, of_pool);
        if (block->device == device)
            block_doom(core, block);
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
        block_doom(core, block);
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
    drain_overriding(core, &core->devices[device], &user->devices[device].queue);
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
        block_doom(core, block);
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
