/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What there is and who is charged for it: memory_info, pools, users; and what moves it: flush,
 * drain, defer; and export.
 */
#include "array.h"
#include "block.h"
#include "device.h"
#include "flush.h"
#include "reclaim.h"
#include "request.h"

#define USERS_MAX 256 /* in one portion */

/* ---- memory_info ---- */

HANDLER(on_memory_info)
{
    const struct msg_memory_params *p = params;
    uint32_t device = (uint32_t)core->config.n_devices;
    struct job *job;

    if (job_admit(core, conn, r) || (p->device.p && device_find(core, p->device, &device, r)))
        return REFUSED;
    job = calloc(1, sizeof(*job));
    if (!job)
        return -ENOMEM;
    if (charge_init(&job->charge, conn->user, RES_JOBS, 1, 0, r)) {
        free(job);
        return REFUSED;
    }
    job->entry.action = (struct core_action){.type = CORE_MEMORY, .device = device, .fd = -1};
    job_start_for(core, job, JOB_MEMORY, conn, id);
    return 0;
}

/* What a create of kind "device" may get without the driver: free ranges, ranges in the queue, and
 * spare blocks. */
static uint64_t
available(const struct core *core, struct pool *pool, uint32_t device)
{
    const struct zone *zone = pool_zone(core, pool, device, KIND_DEVICE);

    return zone->space.bytes_free + zone->pending + zone->spare;
}

static struct msg_memory_info
memory_record(const struct core *core, struct pool *pool, uint32_t device,
              const struct core_memory_result *result)
{
    const struct device *d = &core->devices[device];

    return (struct msg_memory_info){
        .uuid = MSG_STR(d->info.uuid),
        .name = MSG_STR(d->info.name),
        .total = result->total,
        .free = result->free,
        .used = d->used,
        .blocks = d->n_blocks,
        .arrays = d->n_arrays,
        .allocated = d->allocated,
        .reserve = d->reserve,
        .available = available(core, pool, device),
        .pending = d->queue.n,
        .pending_bytes = d->queue.bytes,
        .pinned = d->pinned,
        .flushes = d->queue.n_flushes,
        .releases = d->n_releases,
        .quarantined = d->n_quarantined,
        .quarantined_bytes = d->bytes_quarantined,
        .context = d->n_legacy > 0,
    };
}

void
reply_memory(struct core *core, struct conn *conn, const struct job *job,
             const struct core_memory_result *results, size_t n)
{
    uint32_t device = job->entry.action.device;
    uint32_t first = device < core->config.n_devices ? device : 0;
    _cleanup_free_ struct msg_memory_info *devices = calloc(n + 1, sizeof(*devices));
    struct refusal r;

    if (!devices) {
        conn_end(core, conn, "out of memory");
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (results[i].error) {
            refusal_fill(&r, PROTO_ERR_DRIVER, "device %u (%s): no memory figures: %s",
                         first + i, core->devices[first + i].info.name, results[i].text);
            r.cuda = results[i].cuda;
            send_refusal(core, conn, job->request, MSG_MEMORY_INFO, &r);
            return;
        }
        devices[i] = memory_record(core, conn->user->pool, first + i, &results[i]);
    }
    send_result(core, conn, job->request, MSG_MEMORY_INFO,
                &(struct msg_memory_result){.devices = devices, .n_devices = (uint32_t)n}, NULL,
                0);
}

/* ---- flush, drain, defer ---- */

HANDLER(on_flush)
{
    const struct msg_flush_params *p = params;
    uint32_t device = (uint32_t)core->config.n_devices;

    if (core->stopping)
        return refuse(r, PROTO_ERR_SHUTDOWN, "the daemon is stopping");
    if (p->device.p && device_find(core, p->device, &device, r))
        return REFUSED;
    return flush_start(core, conn, id, device, r);
}

HANDLER(on_drain)
{
    const struct msg_drain_params *p = params;

    if (!is_administrator(core, conn->user))
        return refuse(r, PROTO_ERR_PERMISSION,
                      "only root and the daemon's own user may drain it");
    core->draining = !p->undo;
    send_result(core, conn, id, MSG_DRAIN, &(struct msg_none){}, NULL, 0);
    return 0;
}

HANDLER(on_defer)
{
    const struct msg_defer_params *p = params;

    if (p->begin && conn->deferring == DEFER_DEPTH_MAX)
        return refuse(r, PROTO_ERR_LIMIT, "limit of %d nested deferrals reached",
                      DEFER_DEPTH_MAX);
    if (!p->begin && !conn->deferring)
        return refuse(r, PROTO_ERR_INVALID, "there is no deferral to end");
    if (conn->resumes)
        persist_conn_needed(core, conn);
    if (p->begin)
        reclaim_defer(core, conn);
    else
        reclaim_undefer(core, conn);
    send_result(core, conn, id, MSG_DEFER, &(struct msg_none){}, NULL, 0);
    return 0;
}

/* ---- pools ---- */

static void
pool_add_holes(const struct core *core, struct pool *pool, struct msg_pool *record)
{
    for (uint32_t d = 0; d < core->config.n_devices; d++)
        for (enum core_kind kind = 0; kind < N_KINDS; kind++) {
            const struct space *space = &pool_zone(core, pool, d, kind)->space;
            if (kind == KIND_PINNED || !space->n_extents)
                continue;
            uint64_t largest = space_largest_hole(space);
            record->holes += space_holes(space);
            record->largest = largest > record->largest ? largest : record->largest;
        }
}

struct msg_pool
pool_record(const struct core *core, struct pool *pool)
{
    struct msg_pool record = {
        .name = MSG_STR(pool->name),
        .uid = pool->uid,
        .gid = pool->gid,
        .mode = pool->mode,
        .quota = pool->quota,
        .used = pool->used,
        .blocks = pool->n_blocks,
        .allocated = pool->allocated,
        .pending = pool->pending,
        .reserve = pool->reserve,
        .pinned = pool->pinned,
        .legacy = pool->legacy,
        .names = pool->n_names,
        .arrays = pool->n_arrays,
        .drops = pool->n_drops,
    };

    pool_add_holes(core, pool, &record);
    return record;
}

HANDLER(on_pools)
{
    const struct msg_pools_params *p = params;
    _cleanup_free_ struct msg_pool *records = calloc(PORTION_MAX, sizeof(*records));
    struct portion portion = PORTION(core, records, PORTION_MAX);
    struct pool *pool = pool_find_from(core, p->after);

    if (!records)
        return -ENOMEM;
    for (; pool && !portion.more; pool = RB_NEXT(pools, &core->pools, pool)) {
        if (msg_str_eq(p->after, pool->name) || !pool_may(pool, conn, MAY_READ))
            continue;
        struct msg_pool record = pool_record(core, pool);
        portion_add(&portion, &record, msg_pool_size(&record));
    }
    SEND_PORTION(core, conn, id, POOLS, pools_result, pools, portion);
    return 0;
}

/* ---- users ---- */

struct msg_user
user_record(const struct user *user)
{
    return (struct msg_user){.uid = user->uid,
                             .pending = user->n_pending,
                             .deferred = user->n_deferring,
                             .time_ns = user->counts[COUNT_TIME_NS],
#define RESOURCE(NAME, figure, limit, bytes, text) .figure = user->used[RES_##NAME],
                             RESOURCES(RESOURCE)
#undef RESOURCE
    };
}

/* All users for administrators; for other users, themselves. */
HANDLER(on_users)
{
    const struct msg_users_params *p = params;
    bool all = is_administrator(core, conn->user);
    _cleanup_free_ struct msg_user *records = calloc(USERS_MAX, sizeof(*records));
    struct portion portion = PORTION(core, records, USERS_MAX);
    struct user key = {.uid = (uid_t)p->from}, *user = conn->user;

    if (!records)
        return -ENOMEM;
    if (all)
        user = RB_NFIND(users, &core->users, &key);
    if (p->from > (uid_t)-1 || (user && user->uid < p->from))
        user = NULL;
    for (; user && !portion.more; user = all ? RB_NEXT(users, &core->users, user) : NULL) {
        struct msg_user record = user_record(user);
        portion_add(&portion, &record, msg_user_size(&record));
    }
    SEND_PORTION(core, conn, id, USERS, users_result, users, portion);
    return 0;
}

/* ---- export ---- */

/* Whoever gets the dma-buf may read and write the whole block, for as long as he likes. */
static int
export_check(const struct lease *lease, struct refusal *r)
{
    const struct array *array = lease->array;

    if (!array_block(array) || array->kind != KIND_DEVICE)
        return refuse(r, PROTO_ERR_INVALID,
                      "array \"%s\" has no memory of kind \"device\", which alone is exported",
                      array_label(array));
    if (lease->readonly)
        return refuse(r, PROTO_ERR_PERMISSION,
                      "array \"%s\" was opened for reading, and a dma-buf can be written",
                      array_label(array));
    if (array->is_part)
        return refuse(
            r, PROTO_ERR_INVALID,
            "array \"%s\" lies in the memory of another one: export that one, or a copy",
            array_label(array));
    if (!array->own)
        return refuse(r, PROTO_ERR_INVALID,
                      "array \"%s\" shares its block with others: make it with exclusive",
                      array_label(array));
    return 0;
}

HANDLER(on_export)
{
    const struct msg_export_params *p = params;
    struct lease *lease;

    if (lease_get(conn, p->lease, &lease, r) || export_check(lease, r))
        return REFUSED;
    block_export(core, array_block(lease->array));
    send_result(core, conn, id, MSG_EXPORT, &(struct msg_none){}, NULL, 0);
    return 0;
}
