/* SPDX-License-Identifier: Apache-2.0 */
/*
 * create, open, close.
 */
#include "request.h"

static struct msg_array
array_record(const struct core *core, const struct array *array)
{
    const struct block *block = array_block(array);
    const int64_t *strides = array_strides(array);
    struct msg_array record = {
        .nbytes = array->nbytes,
        .typestr = MSG_STR(array_typestr(array)),
        .shape = {.v = array_shape(array), .n = array->ndim},
        .descr = msg_str_opt(array_descr(array)),
        .metadata = {array->metadata, array->n_metadata},
        .generation = array->generation,
        .uid = array->user->uid,
        .memory = msg_str_opt(array->mapped ? "mapped" : NULL), /* else the block says it */
    };

    if (block) {
        record.block = block->id;
        record.offset = array_offset(array);
    } else {
        record.device = MSG_STR(core->devices[array->device].info.uuid);
        record.memory = MSG_STR(array_memory(array));
    }
    if (strides)
        record.strides = (struct msg_i64s){.v = strides, .n = array->ndim};
    return record;
}

/* ---- a reply of arrays ---- */

struct reply {
    struct room room;
    struct pool *pool;
    struct msg_array *arrays;
    struct lease **leases;
    uint32_t n_arrays;
    struct msg_block *blocks; /* those whose hold is new */
    struct hold **holds;
    uint32_t n_blocks;
    int fds[PROTO_FDS_MAX];
    uint32_t n_fds;
    void *storage;
};

static void
reply_deinit(struct reply *reply)
{
    free(reply->storage);
}

static int
reply_init(struct reply *ret, size_t n)
{
    size_t each = sizeof(struct msg_array) + sizeof(struct lease *) + sizeof(struct msg_block) +
                  sizeof(struct hold *);
    struct reply reply = {.room = ROOM_INIT};
    char *p = malloc(n * each + 1);

    if (!p)
        return -ENOMEM;
    reply.storage = p;
    reply.arrays = (struct msg_array *)(void *)p;
    p += n * sizeof(struct msg_array);
    reply.leases = (struct lease **)(void *)p;
    p += n * sizeof(struct lease *);
    reply.blocks = (struct msg_block *)(void *)p;
    p += n * sizeof(struct msg_block);
    reply.holds = (struct hold **)(void *)p;
    *ret = reply;
    return 0;
}

static struct msg_block
block_record(const struct core *core, const struct reply *reply, const struct block *block)
{
    struct msg_block record = {
        .block = block->id,
        .size = block->size,
        .device = MSG_STR(core->devices[block->device].info.uuid),
        .kind = MSG_STR(core_kind_name(block->kind)),
    };

    if (block->kind == KIND_LEGACY)
        record.handle = (struct msg_u64s){.v = block->ipc, .n = CORE_HANDLE_WORDS};
    else
        record.fd = reply->n_fds;
    return record;
}

/* Whether there is room for the array and for its block, where that has to be sent as well. */
static bool
reply_take_room(struct reply *reply, const struct msg_array *array,
                const struct msg_block *block)
{
    size_t bytes = msg_array_size(array);
    size_t fds = 0;

    if (block) {
        bytes += msg_block_size(block);
        fds = block->handle.v ? 0 : 1;
    }
    return room_take(&reply->room, bytes, fds);
}

static void
reply_add_block(struct reply *reply, const struct msg_block *record, struct hold *hold)
{
    if (!record->handle.v)
        reply->fds[reply->n_fds++] = hold->block->fd;
    reply->holds[reply->n_blocks] = hold;
    reply->blocks[reply->n_blocks++] = *record;
}

static void
reply_add(struct reply *reply, const struct msg_array *record, struct lease *lease)
{
    reply->leases[reply->n_arrays] = lease;
    reply->arrays[reply->n_arrays] = *record;
    reply->arrays[reply->n_arrays++].lease = lease->id;
}

/* Takes back what the client has not been told of. */
static void
reply_undo(struct core *core, struct reply *reply)
{
    while (reply->n_arrays)
        lease_free(core, reply->leases[--reply->n_arrays]);
    while (reply->n_blocks)
        hold_free(core, reply->holds[--reply->n_blocks]);
}

static void
reply_send(struct core *core, struct conn *conn, uint32_t id, enum msg_method method,
           const struct reply *reply)
{
    struct msg_arrays_result result = {
        .pool = MSG_STR(reply->pool->name),
        .arrays = reply->arrays,
        .n_arrays = reply->n_arrays,
        .blocks = reply->blocks,
        .n_blocks = reply->n_blocks,
    };

    send_result(core, conn, id, method, &result, reply->fds, reply->n_fds);
}

/* ---- create ---- */

static int
create_kind(struct msg_str memory, struct array_request *req, struct refusal *r)
{
    req->mapped = msg_str_eq(memory, "mapped");
    req->kind = req->mapped ? KIND_PINNED : KIND_DEVICE;
    if (req->mapped || !memory.p)
        return 0;
    for (enum core_kind kind = 0; kind < N_KINDS; kind++)
        if (msg_str_eq(memory, core_kind_name(kind))) {
            req->kind = kind;
            return 0;
        }
    return refuse(
        r, PROTO_ERR_INVALID,
        "memory \"%.*s\" is none of \"device\", \"legacy\", \"pinned\" and \"mapped\"",
        STR_FMT(memory));
}

static int
create_memory(const struct core *core, const struct msg_create_params *p,
              struct array_request *req, struct refusal *r)
{
    const struct core_device *d;

    if (device_find(core, p->device, &req->device, r) || create_kind(p->memory, req, r))
        return REFUSED;
    d = &core->devices[req->device].info;
    if (d->lacks[req->kind])
        return refuse(r, PROTO_ERR_UNSUPPORTED, "device %u (%s) has no memory of kind \"%s\"",
                      req->device, d->name, core_kind_name(req->kind));
    if (p->alignment > PROTO_ALIGNMENT_MAX || (p->alignment & (p->alignment - 1)))
        return refuse(r, PROTO_ERR_INVALID,
                      "an alignment is a power of 2 up to %d, and %llu is not",
                      PROTO_ALIGNMENT_MAX, (unsigned long long)p->alignment);
    req->alignment = p->alignment > SPACE_UNIT ? p->alignment : SPACE_UNIT;
    return 0;
}

static int
create_check(struct core *core, struct conn *conn, const struct msg_create_params *p,
             struct array_request *ret, struct refusal *r)
{
    struct array_request req = {
        .name = p->name,
        .typestr = p->typestr,
        .descr = p->descr,
        .metadata = p->metadata,
        .exclusive = p->exclusive,
    };

    if (job_admit(core, conn, r) || (p->name.p && name_check(p->name, r)) ||
        metadata_check(p->metadata, r) || create_memory(core, p, &req, r) ||
        pool_find_writable(core, conn, p->pool, &req.pool, r) ||
        geometry_check(p->name, p->typestr, p->shape, p->strides, p->descr, &req.geometry, r))
        return REFUSED;
    *ret = req;
    return 0;
}

/* Gives the new array its memory, now or later, or gives it up. */
static int
create_place(struct core *core, struct conn *conn, uint32_t id, struct array *array,
             const struct array_request *req, struct refusal *r)
{
    struct waiter *waiter = NULL;
    int rc = waiter_new(core, conn, id, array, req, &waiter, r);

    if (rc == 0)
        rc = block_place(core, waiter, r);
    if (rc == BLOCK_WAITS)
        return 0;
    if (waiter)
        waiter_free(waiter);
    if (rc == 0)
        array_complete(core, conn, id, array);
    else
        array_abandon(core, array);
    return rc;
}

int
on_create(struct core *core, struct conn *conn, uint32_t id, const void *params,
          struct refusal *r)
{
    struct array_request req;
    struct array *array;
    int rc = create_check(core, conn, params, &req, r);

    if (rc == 0)
        rc = array_new(core, conn, &req, &array, r);
    if (rc)
        return rc;
    if (array->span)
        return create_place(core, conn, id, array, &req, r);
    array_complete(core, conn, id, array);
    return 0;
}

void
reply_created(struct core *core, struct conn *conn, uint32_t request, const struct lease *lease,
              bool new_hold)
{
    struct msg_array record = array_record(core, lease->array);
    struct reply reply;

    if (reply_init(&reply, 1) < 0) {
        conn_end(core, conn, "out of memory");
        return;
    }
    reply.pool = lease->array->pool;
    if (new_hold) {
        struct msg_block block = block_record(core, &reply, lease->hold->block);
        reply_add_block(&reply, &block, lease->hold);
    }
    record.lease = lease->id;
    reply.arrays[reply.n_arrays++] = record;
    reply_send(core, conn, request, MSG_CREATE, &reply);
    reply_deinit(&reply);
}

/* ---- open ---- */

struct opening {
    const struct msg_open_params *params;
    struct pool *pool; /* NULL: none that the caller may read */
    bool readonly;
    bool full; /* what is left does not fit into this reply */
};

/* The same answer for a pool that is absent, one that is forbidden, and a name that is absent. */
static int
no_array(struct msg_str pool, struct msg_str name, struct refusal *r)
{
    if (!pool.p)
        return refuse(r, PROTO_ERR_NOT_FOUND, "no array \"%.*s\"", STR_FMT(name));
    return refuse(r, PROTO_ERR_NOT_FOUND, "no array \"%.*s\" in pool \"%.*s\"", STR_FMT(name),
                  STR_FMT(pool));
}

/* One that has lost its name is still to be had while a living connection holds it. */
static int
open_find_generation(struct pool *pool, struct array *current, struct msg_str name,
                     uint64_t generation, struct array **ret, struct refusal *r)
{
    struct array *old;

    if (current && current->generation == generation) {
        *ret = current;
        return 0;
    }
    old = pool_find_nameless(pool, name, generation, 0);
    if (old && old->n_leases && old->generation == generation && old->n_name == name.n &&
        memcmp(old->name, name.p, name.n) == 0) {
        *ret = old;
        return 0;
    }
    if (!current)
        return refuse(r, PROTO_ERR_STALE,
                      "no array \"%.*s\" of generation %llu; there is none of that name now",
                      STR_FMT(name), (unsigned long long)generation);
    return refuse(r, PROTO_ERR_STALE,
                  "no array \"%.*s\" of generation %llu; the current one is %llu",
                  STR_FMT(name), (unsigned long long)generation,
                  (unsigned long long)current->generation);
}

static int
open_find(const struct opening *o, struct msg_str name, struct array **ret, struct refusal *r)
{
    struct array *array;

    if (name_check(name, r))
        return REFUSED;
    array = o->pool ? pool_find_array(o->pool, name) : NULL;
    if (array && array->creating)
        array = NULL;
    if (o->pool && o->params->generation)
        return open_find_generation(o->pool, array, name, o->params->generation, ret, r);
    if (!array)
        return no_array(o->params->pool, name, r);
    *ret = array;
    return 0;
}

static int
open_begin(struct core *core, struct conn *conn, struct opening *o, struct refusal *r)
{
    const struct msg_open_params *p = o->params;
    struct pool *pool = pool_find(core, conn, p->pool);

    o->readonly = msg_str_eq(p->mode, "r");
    if (!o->readonly && !msg_str_eq(p->mode, "rw"))
        return refuse(r, PROTO_ERR_INVALID, "mode \"%.*s\" is neither \"r\" nor \"rw\"",
                      STR_FMT(p->mode));
    if (p->names.n == 0 || p->names.n > PROTO_OPEN_MAX)
        return refuse(r, PROTO_ERR_INVALID, "open takes 1 to %d names, not %u", PROTO_OPEN_MAX,
                      p->names.n);
    if (p->generation && p->names.n > 1)
        return refuse(r, PROTO_ERR_INVALID, "a generation is of one name, not of %u",
                      p->names.n);
    if (pool && !pool_may(pool, conn, MAY_READ))
        pool = NULL;
    if (pool && !o->readonly && !pool_may(pool, conn, MAY_WRITE))
        return refuse(r, PROTO_ERR_PERMISSION, "pool \"%s\" may be read, not written",
                      pool->name);
    o->pool = pool;
    return 0;
}

/* Adds one array to the reply, or finds that it is full. */
static int
open_one(struct core *core, struct conn *conn, struct opening *o, struct reply *reply,
         struct array *array, struct refusal *r)
{
    const struct block *block = array_block(array);
    bool is_new = block && !hold_find(conn, block->id);
    struct msg_array record = array_record(core, array);
    struct msg_block block_entry;
    struct lease *lease;
    int rc;

    if (is_new)
        block_entry = block_record(core, reply, block);
    o->full = !reply_take_room(reply, &record, is_new ? &block_entry : NULL);
    if (o->full)
        return 0;
    rc = lease_new(core, conn, array, o->readonly, &lease, &is_new, r);
    if (rc)
        return rc;
    if (is_new)
        reply_add_block(reply, &block_entry, lease->hold);
    reply_add(reply, &record, lease);
    return 0;
}

static int
open_all(struct core *core, struct conn *conn, struct opening *o, struct reply *reply,
         struct refusal *r)
{
    const struct msg_strs *names = &o->params->names;
    struct array *array;
    int rc = open_begin(core, conn, o, r);

    for (uint32_t i = 0; rc == 0 && !o->full && i < names->n; i++) {
        rc = open_find(o, names->v[i], &array, r);
        if (rc == 0)
            rc = open_one(core, conn, o, reply, array, r);
    }
    if (rc)
        reply_undo(core, reply);
    reply->pool = o->pool;
    return rc;
}

int
on_open(struct core *core, struct conn *conn, uint32_t id, const void *params,
        struct refusal *r)
{
    struct opening opening = {.params = params};
    struct reply reply;
    int rc;

    if (reply_init(&reply, opening.params->names.n) < 0)
        return -ENOMEM;
    rc = open_all(core, conn, &opening, &reply, r);
    if (rc == 0)
        reply_send(core, conn, id, MSG_OPEN, &reply);
    reply_deinit(&reply);
    return rc;
}

/* ---- close ---- */

/* A block that is not held is none of the client's any more: it was released meanwhile. */
static int
forget(struct core *core, struct conn *conn, uint64_t block, struct refusal *r)
{
    struct hold *hold = hold_find(conn, block);

    if (hold && hold->n_leases)
        return refuse(r, PROTO_ERR_INVALID, "block %llu is in use", (unsigned long long)block);
    if (hold)
        hold_free(core, hold);
    return 0;
}

int
on_close(struct core *core, struct conn *conn, uint32_t id, const void *params,
         struct refusal *r)
{
    const struct msg_close_params *p = params;
    int rc = 0;

    (void)id;
    if (p->leases.n > PROTO_CLOSE_MAX)
        return refuse(r, PROTO_ERR_INVALID, "close takes at most %d leases", PROTO_CLOSE_MAX);
    for (uint32_t i = 0; i < p->leases.n; i++) {
        struct lease *lease = lease_find(conn, p->leases.v[i]);
        if (!lease)
            return refuse(r, PROTO_ERR_INVALID, "no lease %llu",
                          (unsigned long long)p->leases.v[i]);
        lease_free(core, lease);
    }
    for (uint32_t i = 0; rc == 0 && i < p->forget.n; i++)
        rc = forget(core, conn, p->forget.v[i], r);
    return rc;
}
