/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays, the blocks that they lie in, and the leases that clients have on them.
 */
#include <assert.h>
#include <stdio.h>

#include "state.h"

static int
lease_compare(const struct lease *a, const struct lease *b)
{
    return CMP(a->id, b->id);
}

static int
hold_compare(const struct hold *a, const struct hold *b)
{
    return CMP(a->block->id, b->block->id);
}

RB_GENERATE(leases, lease, node, lease_compare)
RB_GENERATE(holds, hold, node, hold_compare)

/* ---- blocks ---- */

static int
block_charge(struct core *core, struct conn *conn, struct pool *pool, uint64_t size,
             struct refusal *r)
{
    struct user *user = conn->user;

    if (pool_charge(pool, size, r))
        return REFUSED;
    if (user_charge(core, user, RES_BYTES, size, r))
        goto undo_pool;
    if (user_charge(core, user, RES_BLOCKS, 1, r))
        goto undo_bytes;
    return 0;

undo_bytes:
    user_uncharge(user, RES_BYTES, size);
undo_pool:
    pool_uncharge(pool, size);
    return REFUSED;
}

static int
block_new(struct core *core, struct conn *conn, struct pool *pool, uint32_t device,
          uint64_t bytes, struct block **ret, struct refusal *r)
{
    const struct core_device *d = &core->devices[device];
    uint64_t size;
    struct block *block;

    if (bytes > d->total)
        return refuse(r, PROTO_ERR_NO_MEMORY, "device %u has %s, %s were asked for", device,
                      SIZE_TEXT(d->total), SIZE_TEXT(bytes));
    size = ALIGN_UP(bytes, d->granularity);
    if (block_charge(core, conn, pool, size, r))
        return REFUSED;

    block = calloc(1, sizeof(*block));
    if (!block) {
        user_uncharge(conn->user, RES_BLOCKS, 1);
        user_uncharge(conn->user, RES_BYTES, size);
        pool_uncharge(pool, size);
        return -ENOMEM;
    }
    block->id = ++core->next_block;
    block->device = device;
    block->size = size;
    block->pool = pool;
    block->user = conn->user;
    block->fd = -1;
    core->n_blocks++;
    core->device_used[device] += size;
    core->device_blocks[device]++;
    *ret = block;
    return 0;
}

void
block_allocate(struct core *core, struct block *block, struct conn *conn, uint32_t request)
{
    block->job.entry.action = (struct core_action){.type = CORE_ALLOC,
                                                   .device = block->device,
                                                   .size = block->size,
                                                   .fd = -1};
    job_start_for(core, &block->job, JOB_ALLOC, conn, request);
}

static void
block_destroy(struct core *core, struct block *block)
{
    struct user *user = block->user;
    struct pool *pool = block->pool;

    core->n_blocks--;
    core->device_used[block->device] -= block->size;
    core->device_blocks[block->device]--;
    pool_uncharge(pool, block->size);
    user_uncharge(user, RES_BYTES, block->size);
    user_uncharge(user, RES_BLOCKS, 1);
    entry_remove(core, &block->saved);
    free(block);
    users_settle(core, user, pool);
}

static void
block_persist(struct core *core, struct block *block, enum core_record_type record)
{
    block->saved.action =
        (struct core_action){.type = CORE_PERSIST, .record = record, .block = block->id};
    entry_push(core, &block->saved);
}

static void
block_release(struct core *core, struct block *block)
{
    block->array = NULL;
    if (block->fd < 0) { /* never allocated */
        block_destroy(core, block);
        return;
    }
    if (block->saved.queued)
        entry_remove(core, &block->saved); /* nobody has seen the first record */
    else if (block->promised)
        block_persist(core, block, RECORD_BLOCK_GONE);
    block->job.entry.action = (struct core_action){.type = CORE_RELEASE,
                                                   .size = block->size,
                                                   .handle = block->handle,
                                                   .fd = block->fd};
    job_start(core, &block->job, JOB_RELEASE, block->user);
}

void
core_release_done(struct core *core, uint64_t id, int error)
{
    struct job *job = job_find(core, id, JOB_RELEASE);

    if (error)
        core->n_release_errors++;
    job_end(core, job);
    block_destroy(core, container_of(job, struct block, job));
}

/* ---- arrays ---- */

static void
array_destroy(struct core *core, struct array *array)
{
    struct user *user = array->user;
    struct pool *pool = array->pool;

    assert(!array->n_leases && !array->block);
    user_uncharge(user, RES_HOST, array->n_host);
    pool->n_arrays--;
    core->device_arrays[array->device]--;
    core->n_arrays--;
    entry_free(array->saved);
    free(array->name);
    free(array);
    users_settle(core, user, pool);
}

/* Puts the name into the pool and charges it; the record is made here, where it may fail. */
static int
array_take_name(struct core *core, struct array *array, struct msg_str name, struct refusal *r)
{
    struct user *user = array->user;

    array->name = strndup(name.p, name.n);
    array->n_name = name.n;
    if (!array->name)
        return -ENOMEM;
    array->saved = entry_new_name(RECORD_NAME, array->pool, array->name, array->n_name);
    if (!array->saved)
        return -ENOMEM;
    if (user_charge(core, user, RES_NAMES, 1, r))
        return REFUSED;
    if (RB_INSERT(names, &array->pool->names, array)) {
        user_uncharge(user, RES_NAMES, 1);
        return refuse(r, PROTO_ERR_EXISTS, "\"%s\" exists in pool \"%s\"", array->name,
                      array->pool->name);
    }
    array->pool->n_names++;
    core->n_names++;
    array->generation = 1;
    return 0;
}

static void
array_drop_name(struct core *core, struct array *array)
{
    RB_REMOVE(names, &array->pool->names, array);
    array->pool->n_names--;
    core->n_names--;
    free(TAKE_PTR(array->name));
    user_uncharge(array->user, RES_NAMES, 1);
}

/* What belongs to the array for life is allocated with it: shape, strides, descr. */
static struct array *
array_alloc(const struct array_request *req)
{
    const struct geometry *g = &req->geometry;
    size_t n_extents = g->ndim * sizeof(int64_t), n_strides = g->strides ? n_extents : 0;
    size_t n_descr = req->descr.p ? req->descr.n + 1 : 0;
    size_t n = sizeof(struct array) + n_extents + n_strides + n_descr;
    struct array *array = calloc(1, n);
    char *p;

    if (!array)
        return NULL;
    p = (char *)(array + 1);
    array->n_host = n + (req->name.p ? req->name.n + 1 : 0);
    array->geometry = *g;
    array->geometry.shape = memcpy(p, g->shape, n_extents);
    if (g->strides)
        array->geometry.strides = memcpy(p + n_extents, g->strides, n_strides);
    if (req->descr.p)
        array->descr = memcpy(p + n_extents + n_strides, req->descr.p, req->descr.n);
    memcpy(array->typestr, req->typestr.p, req->typestr.n);
    array->pool = req->pool;
    array->device = req->device;
    array->pending = true;
    LIST_INIT(&array->leases);
    return array;
}

static int
array_admit(struct core *core, struct user *user, struct array *array, struct refusal *r)
{
    if (user_charge(core, user, RES_HOST, array->n_host, r))
        return REFUSED;
    array->user = user;
    array->id = ++core->next_array;
    array->pool->n_arrays++;
    core->device_arrays[array->device]++;
    core->n_arrays++;
    return 0;
}

int
array_new(struct core *core, struct conn *conn, const struct array_request *req,
          struct array **ret, struct refusal *r)
{
    struct array *array = array_alloc(req);
    int rc;

    if (!array)
        return -ENOMEM;
    if (array_admit(core, conn->user, array, r)) {
        free(array);
        return REFUSED;
    }
    rc = req->name.p ? array_take_name(core, array, req->name, r) : 0;
    if (rc) {
        free(TAKE_PTR(array->name));
        array_destroy(core, array);
        return rc;
    }
    if (req->geometry.span) {
        rc =
            block_new(core, conn, req->pool, req->device, req->geometry.span, &array->block, r);
        if (rc) {
            array_abandon(core, array);
            return rc;
        }
        array->block->array = array;
    }
    *ret = array;
    return 0;
}

void
array_settle(struct core *core, struct array *array)
{
    struct block *block = array->block;

    if (array->name || array->n_leases || array->pending)
        return;
    array->block = NULL;
    array_destroy(core, array);
    if (block) /* last: its charge keeps the user alive until here */
        block_release(core, block);
}

void
array_abandon(struct core *core, struct array *array)
{
    array->pending = false;
    if (array->name)
        array_drop_name(core, array);
    array_settle(core, array);
}

void
array_unname(struct core *core, struct array *array)
{
    array_drop_name(core, array);
    array_settle(core, array);
}

/* What is promised with the reply that follows is recorded first (I9). */
static void
array_promise(struct core *core, struct array *array)
{
    array->pending = false;
    if (array->block) {
        array->block->promised = true;
        block_persist(core, array->block, RECORD_BLOCK);
    }
    if (array->saved)
        entry_push(core, TAKE_PTR(array->saved));
}

void
array_complete(struct core *core, struct conn *conn, uint32_t request, struct array *array)
{
    struct refusal r;
    struct lease *lease;
    bool new_hold;
    int rc = lease_new(core, conn, array, false, &lease, &new_hold, &r);

    if (rc) {
        if (rc == REFUSED)
            send_refusal(core, conn, request, &r);
        else
            conn_end(core, conn, "out of memory");
        array_abandon(core, array);
        return;
    }
    array_promise(core, array);
    reply_created(core, conn, request, lease);
}

static void
refuse_alloc(struct core *core, const struct block *block, const struct core_alloc_result *res,
             struct refusal *r)
{
    const struct core_device *d = &core->devices[block->device];
    char left[2 * SIZE_TEXT_MAX + 16] = "";

    if (res->error == -ENOMEM && res->free)
        snprintf(left, sizeof(left), ", %s of %s are free", SIZE_TEXT(res->free),
                 SIZE_TEXT(d->total));
    refusal_fill(r, res->error == -ENOMEM ? PROTO_ERR_NO_MEMORY : PROTO_ERR_DRIVER,
                 "device %u (%s): %s could not be allocated%s: %s", block->device, d->name,
                 SIZE_TEXT(block->size), left, res->text);
    r->cuda = res->cuda;
}

void
core_alloc_done(struct core *core, uint64_t id, const struct core_alloc_result *result)
{
    struct job *job = job_find(core, id, JOB_ALLOC);
    struct block *block = container_of(job, struct block, job);
    struct array *array = block->array;
    struct conn *conn = job->conn;
    struct refusal r;

    job_end(core, job);
    if (result->error == 0) {
        block->handle = result->handle;
        block->fd = result->fd;
    } else if (conn) {
        refuse_alloc(core, block, result, &r);
        send_refusal(core, conn, job->request, &r);
    }
    if (result->error || !conn || conn->closing)
        array_abandon(core, array);
    else
        array_complete(core, conn, job->request, array);
}

/* ---- leases ---- */

static struct hold *
hold_get(struct conn *conn, struct block *block, bool *ret_new)
{
    struct hold key = {.block = block}, *hold = RB_FIND(holds, &conn->holds, &key);

    *ret_new = !hold;
    if (!hold) {
        hold = calloc(1, sizeof(*hold));
        if (!hold)
            return NULL;
        hold->block = block;
        RB_INSERT(holds, &conn->holds, hold);
    }
    hold->n_leases++;
    return hold;
}

int
lease_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
          struct lease **ret, bool *ret_new_hold, struct refusal *r)
{
    _cleanup_free_ struct lease *lease = calloc(1, sizeof(*lease));

    if (!lease)
        return -ENOMEM;
    if (user_charge(core, conn->user, RES_LEASES, 1, r))
        return REFUSED;
    *ret_new_hold = false;
    if (array->block) {
        lease->hold = hold_get(conn, array->block, ret_new_hold);
        if (!lease->hold) {
            user_uncharge(conn->user, RES_LEASES, 1);
            return -ENOMEM;
        }
    }
    lease->id = ++conn->next_lease;
    lease->conn = conn;
    lease->array = array;
    lease->readonly = readonly;
    RB_INSERT(leases, &conn->leases, lease);
    LIST_INSERT_HEAD(&array->leases, lease, of_array);
    array->n_leases++;
    core->n_leases++;
    *ret = TAKE_PTR(lease);
    return 0;
}

void
lease_free(struct core *core, struct lease *lease)
{
    struct conn *conn = lease->conn;
    struct array *array = lease->array;

    RB_REMOVE(leases, &conn->leases, lease);
    LIST_REMOVE(lease, of_array);
    if (lease->hold && --lease->hold->n_leases == 0) {
        RB_REMOVE(holds, &conn->holds, lease->hold);
        free(lease->hold);
    }
    user_uncharge(conn->user, RES_LEASES, 1);
    core->n_leases--;
    array->n_leases--;
    free(lease);
    array_settle(core, array);
}

struct lease *
lease_find(struct conn *conn, uint64_t id)
{
    struct lease key = {.id = id};

    return RB_FIND(leases, &conn->leases, &key);
}
