/* SPDX-License-Identifier: Apache-2.0 */
#include "waiter.h"

#include <assert.h>
#include <stdio.h>

#include "array.h"
#include "device.h"
#include "drop.h"
#include "grant.h"
#include "linger.h"
#include "reclaim.h"
#include "settle.h"
#include "state.h"

#define RETRY_MAX 64 /* tried again in one event */
#define PATIENCE_NS \
    UINT64_C(1000000000) /* how long a create waits for lingering arrays, in all */
#define MAPPED_NS \
    UINT64_C(2000000000) /* and for clients to unmap: they keep small blocks for a second */

int
waiter_new(struct conn *conn, uint32_t request, struct array *array,
           const struct array_request *req, struct waiter **ret, struct refusal *r)
{
    struct waiter *waiter = calloc(1, sizeof(*waiter));

    if (!waiter)
        return -ENOMEM;
    if (charge_init(&waiter->charge, conn->user, RES_JOBS, 1, sizeof(*waiter), r)) {
        free(waiter);
        return REFUSED;
    }
    waiter->conn = conn;
    waiter->request = request;
    waiter->array = array;
    waiter->alignment = req->alignment;
    LIST_INSERT_HEAD(&conn->waiters, waiter, of_conn);
    *ret = waiter;
    return 0;
}

void
waiter_free(struct waiter *waiter)
{
    LIST_REMOVE(waiter, of_conn);
    charge_deinit(&waiter->charge);
    free(waiter);
}

static void
waiter_put(struct waiter *waiter, struct waiter_list *list)
{
    waiter->in = list;
    TAILQ_INSERT_TAIL(list, waiter, link);
}

/* A create that has waited is to be answered: with a range, or with the refusal. */
static void
waiter_end(struct waiter *waiter, const struct refusal *r)
{
    struct user *user = waiter->charge.user;

    waiter->refused = r;
    if (r)
        waiter->refusal = *r;
    waiter_put(waiter, &user->done);
    user_wake(user);
}

void
waiter_answer(struct core *core, struct waiter *waiter)
{
    struct conn *conn = waiter->conn;

    TAILQ_REMOVE(waiter->in, waiter, link);
    if (waiter->refused)
        send_refusal(core, conn, waiter->request, MSG_CREATE, &waiter->refusal);
    if (conn->closing || waiter->refused)
        array_abandon(core, waiter->array);
    else
        grant_created(core, conn, waiter->request, waiter->array);
    waiter_free(waiter);
}

/* Frees a block that no other create waits for, unless the driver is at work on it: then the pool
 * gets it. */
void
waiter_drop(struct core *core, struct waiter *waiter)
{
    struct array *array = waiter->array;
    struct block *block = array->range ? block_of(array->range) : NULL;

    TAILQ_REMOVE(waiter->in, waiter, link);
    waiter_free(waiter);
    array_abandon(core, array);
    if (block && TAILQ_EMPTY(&block->waiters) && job_drop(core, &block->job)) {
        block_retire(core, block);
        block_destroy(core, block);
    }
}

/* ---- short of memory, or of quota ---- */

/* Tries the create again when all is released that is doomed on the device now. */
static void
wait_for_releases(struct core *core, uint32_t device, struct waiter *waiter)
{
    waiter->until = core->devices[device].n_dooms;
    waiter_put(waiter, &core->devices[device].retries);
}

/* true: the create waits, since lingering arrays have such memory or it may come otherwise (and it
 * has not waited too long), or not all is restored. It tries again when some of it is free, or all
 * is restored. */
static bool
wait_for_landing(struct core *core, struct waiter *waiter, const struct lingering *lingering,
                 bool may_come)
{
    if ((!lingering->n && !core->units && !may_come) || core->stopping)
        return false;
    if (!waiter->patience_ns && !core->units)
        waiter->patience_ns = core->now_ns + PATIENCE_NS;
    if (waiter->patience_ns <= core->now_ns && !core->units)
        return false;
    waiter->lingering = lingering;
    waiter->n_over = lingering->n_over - waiter->again;
    waiter_put(waiter, &core->hopeful);
    linger_later(core, LINGER_TURN_NS);
    return true;
}

/* The array's span in whole granules. */
static uint64_t
needed(const struct core *core, const struct waiter *waiter)
{
    const struct array *array = waiter->array;

    return ALIGN_UP(array->span, core->devices[array->device].info.granularity);
}

static bool
is_patient(const struct core *core, const struct waiter *waiter)
{
    return !waiter->patience_ns || waiter->patience_ns > core->now_ns;
}

/* Drops a set for it, unless one has been whose memory is on its way, and is patient anew. Whether
 * memory may come of it. of: where so many bytes are wanted, the pool or (NULL) the device. */
static bool
make_room(struct core *core, struct waiter *waiter, struct pool *of, uint64_t wanted)
{
    uint32_t device = waiter->array->device;
    const struct lingering *lingering = of ? &of->lingering : &core->devices[device].lingering;
    enum drop drop;

    if (waiter->array->kind == KIND_PINNED || lingering->n_dropped || core->units ||
        core->stopping)
        drop = DROP_NONE;
    else if (of)
        drop = drop_in_pool(core, waiter->conn, of, wanted);
    else
        drop = drop_on_device(core, waiter->conn, device, wanted, is_patient(core, waiter));
    waiter->again = drop == DROP_MORE;
    if (drop == DROP_DONE)
        waiter->patience_ns = 0;
    else if (drop != DROP_NONE && !waiter->patience_ns)
        waiter->patience_ns = core->now_ns + MAPPED_NS;
    return drop != DROP_NONE;
}

/* How much more than the pool has left; 0: that is not what is short. */
static uint64_t
over_quota(const struct pool *pool, uint64_t bytes)
{
    uint64_t left = pool->used < pool->quota ? pool->quota - pool->used : 0;

    if (!pool->quota || bytes > pool->quota || bytes <= left)
        return 0;
    left = pool->quota - min_u64(pool->used - pool->reserve, pool->quota);
    return bytes > left ? bytes - left : 1;
}

/* Blocks that nobody uses may take up the quota: they go first. So may blocks that nobody will use
 * when fences have passed; then sets that may be dropped. */
static int
wait_for_quota(struct core *core, struct waiter *waiter)
{
    struct pool *pool = waiter->array->pool;
    uint32_t device = reclaim_pool(core, pool, waiter->charge.user);

    /* One round for each device, and one more: else others who fill the pool could make it wait for
     * ever. */
    if (device == core->config.n_devices || waiter->quota_waits > core->config.n_devices) {
        uint64_t over = over_quota(pool, needed(core, waiter));
        bool may_come = over && make_room(core, waiter, pool, over);
        return wait_for_landing(core, waiter, &pool->lingering, may_come) ? WAITS : REFUSED;
    }
    waiter->quota_waits++;
    wait_for_releases(core, device, waiter);
    return WAITS;
}

/* ---- placing ---- */

static struct zone *
zone_of(const struct core *core, const struct waiter *waiter)
{
    const struct array *array = waiter->array;

    return pool_zone(core, array->pool, array->device, array->kind);
}

/* The size of a new shared block: as large as all that the zone has, so that the number of blocks
 * stays small, within the bound; or what the array needs, if memory is short. */
static uint64_t
growth(const struct core *core, const struct waiter *waiter)
{
    uint64_t granularity = core->devices[waiter->array->device].info.granularity;
    uint64_t least = needed(core, waiter), size = zone_of(core, waiter)->space.bytes;

    if (waiter->array->own || waiter->minimal || waiter->retried)
        return least;
    if (size > core->config.memory.block_size)
        size = core->config.memory.block_size;
    size = size / granularity * granularity;
    return size > least ? size : least;
}

/* 0: a new block is there, in which the array has room. */
static int
grow(struct core *core, struct waiter *waiter, struct block **ret, struct refusal *r)
{
    const struct array *array = waiter->array;
    uint64_t size = growth(core, waiter);

    if (pool_check(core, array->pool, array->kind, size, r))
        size = needed(core, waiter);
    if (pool_check(core, array->pool, array->kind, size, r) ||
        user_check(waiter->charge.user, RES_FDS, 1, r))
        return wait_for_quota(core, waiter);
    return block_new(core, array, waiter->charge.user, size, ret, r);
}

static int
give(struct core *core, struct waiter *waiter, struct range *range)
{
    struct block *block = block_of(range);

    range->userdata = waiter->array;
    waiter->array->range = range;
    block_use(core, block);
    if (block->state != BLOCK_ALLOCATING)
        return 0;
    waiter_put(waiter, &block->waiters);
    return WAITS;
}

/* Takes a range in the zone: free, or of an array in the queue, also of a deferred one (no driver
 * call comes of it). */
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
    struct zone *zone = zone_of(core, waiter);
    struct range *range;
    struct block *block;
    int rc = zone_take(core, zone, waiter, &range);

    if (rc == SPACE_FULL) {
        rc = grow(core, waiter, &block, r);
        if (rc == 0)
            rc = space_take(&zone->space, waiter->array->span, waiter->alignment, &range);
    }
    return rc ? rc : give(core, waiter, range);
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
    struct block *block = block_find_spare(core, waiter->array);
    int rc;

    if (block)
        return give(core, waiter, spare_take(core, block));
    rc = grow(core, waiter, &block, r);
    return rc ? rc : give(core, waiter, extent_take(&block->extent));
}

int
waiter_place(struct core *core, struct waiter *waiter, struct refusal *r)
{
    return waiter->array->own ? place_own(core, waiter, r) : place_shared(core, waiter, r);
}

/* ---- trying again ---- */

void
waiter_retry(struct core *core, struct waiter *waiter)
{
    struct refusal r;
    int rc;

    if (core->stopping) {
        refusal_fill(&r, PROTO_ERR_SHUTDOWN, "the daemon is stopping");
        waiter_end(waiter, &r);
        return;
    }
    rc = waiter_place(core, waiter, &r);
    if (rc < 0) {
        conn_end(core, waiter->conn, "out of memory");
        waiter_end(waiter, NULL);
    } else if (rc != WAITS) {
        waiter_end(waiter, rc == REFUSED ? &r : NULL);
    }
}

/* As if it had not waited, since the queue may have ranges that are freed by now. */
static void
try_again(struct core *core, struct waiter *waiter)
{
    waiter->retried = false;
    waiter->minimal = true;
    waiter->quota_waits = 0;
    waiter_retry(core, waiter);
}

void
waiters_run(struct core *core)
{
    const struct waiter *last = TAILQ_LAST(&core->hopeful, waiter_list);
    bool is_last = !last;

    for (int n = 0; n < RETRY_MAX && !is_last;) {
        struct waiter *waiter = TAILQ_FIRST(&core->hopeful);
        bool over = core->stopping || (waiter->patience_ns <= core->now_ns && !core->units);
        is_last = waiter == last;
        TAILQ_REMOVE(&core->hopeful, waiter, link);
        over |= waiter->n_over != waiter->lingering->n_over;
        n += over;
        if (over)
            try_again(core, waiter);
        else
            waiter_put(waiter, &core->hopeful);
    }
}

/* ---- the driver's answer ---- */

static void
refuse_alloc(struct core *core, const struct block *block, const struct core_alloc_result *res,
             struct refusal *r)
{
    const struct core_device *d = &core->devices[block->device].info;
    char left[2 * SIZE_TEXT_MAX + 16] = "";

    if (res->error == -ENOMEM && res->free != CORE_FREE_UNKNOWN)
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

/*
 * Out of memory. A create that needs less than the block tries that at once. Others try again when
 * all has been freed that can be; then, if lingering arrays have memory, when fences have passed.
 * Refused creates have left the list.
 */
static void
sort_waiter(struct core *core, struct waiter *waiter, uint64_t size,
            struct waiter_list *smaller, struct waiter_list *retries, const struct refusal *r,
            uint64_t free)
{
    const struct device *device = &core->devices[waiter->array->device];
    uint64_t wanted = needed(core, waiter);
    bool less = size > wanted;

    block_put_range(core, TAKE_PTR(waiter->array->range));
    if (r->code == PROTO_ERR_NO_MEMORY && !core->stopping && (less || !waiter->retried)) {
        *(less ? &waiter->minimal : &waiter->retried) = true;
        waiter_put(waiter, less ? smaller : retries);
        return;
    }
    bool may_come = r->code == PROTO_ERR_NO_MEMORY && wanted <= device->info.total &&
                    make_room(core, waiter, NULL, wanted > free ? wanted - free : 1);
    if (r->code != PROTO_ERR_NO_MEMORY ||
        !wait_for_landing(core, waiter, &device->lingering, may_come))
        waiter_end(waiter, r);
}

static void
alloc_failed(struct core *core, struct block *block, const struct core_alloc_result *result)
{
    struct waiter_list smaller = TAILQ_HEAD_INITIALIZER(smaller);
    struct waiter_list retries = TAILQ_HEAD_INITIALIZER(retries);
    uint32_t device = block->device;
    struct waiter *waiter;
    struct refusal r;

    refuse_alloc(core, block, result, &r);
    while ((waiter = TAILQ_FIRST(&block->waiters))) {
        TAILQ_REMOVE(&block->waiters, waiter, link);
        sort_waiter(core, waiter, block->size, &smaller, &retries, &r, result->free);
    }
    block_retire(core, block);
    block_destroy(core, block);
    TAILQ_FOREACH(waiter, &retries, link)
        reclaim_all(core, device, waiter->charge.user);
    if (!TAILQ_EMPTY(&retries))
        reclaim_doom(core, device, NULL);
    while ((waiter = TAILQ_FIRST(&retries))) {
        TAILQ_REMOVE(&retries, waiter, link);
        wait_for_releases(core, device, waiter);
    }
    while ((waiter = TAILQ_FIRST(&smaller))) {
        TAILQ_REMOVE(&smaller, waiter, link);
        waiter_retry(core, waiter);
    }
}

void
waiters_alloc_done(struct core *core, struct block *block,
                   const struct core_alloc_result *result)
{
    struct waiter *waiter;

    if (result->error) {
        alloc_failed(core, block, result);
        return;
    }
    block_live(block, result);
    while ((waiter = TAILQ_FIRST(&block->waiters))) {
        TAILQ_REMOVE(&block->waiters, waiter, link);
        waiter_end(waiter, NULL);
    }
    block_settle(core, block);
}
