/* SPDX-License-Identifier: Apache-2.0 */
/*
 * create, open, close.
 */
#include "request.h"

#define BLOCK_BYTES 160 /* that a block's record takes at most */

static struct msg_array
array_record(const struct core *core, const struct array *array)
{
    const struct geometry *g = &array->geometry;
    struct msg_array record = {
        .array = array->id,
        .block = array->block ? array->block->id : 0,
        .offset = array->offset,
        .nbytes = g->nbytes,
        .device = MSG_STR(core->devices[array->device].uuid),
        .typestr = MSG_STR(array->typestr),
        .shape = {.v = g->shape, .n = g->ndim},
        .descr = msg_str_opt(array->descr),
        .pool = MSG_STR(array->pool->name),
        .generation = array->generation,
    };

    if (g->strides)
        record.strides = (struct msg_i64s){.v = g->strides, .n = g->ndim};
    if (array->name)
        record.name = (struct msg_str){array->name, array->n_name};
    return record;
}

static struct msg_block
block_record(const struct core *core, const struct block *block, uint64_t fd)
{
    return (struct msg_block){
        .block = block->id,
        .size = block->size,
        .device = MSG_STR(core->devices[block->device].uuid),
        .kind = MSG_STR("device"),
        .fd = fd,
    };
}

/* ---- a reply of arrays ---- */

struct reply {
    struct room room;
    struct msg_array *arrays;
    struct lease **leases;
    uint32_t n_arrays;
    struct msg_block *blocks;
    int *fds;
    uint32_t n_blocks;
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
    size_t n_fds = n < PROTO_FDS_MAX ? n : PROTO_FDS_MAX;
    size_t each = sizeof(struct msg_array) + sizeof(struct lease *);
    struct reply reply = {.room = ROOM_INIT};
    char *p = malloc(n * each + n_fds * (sizeof(struct msg_block) + sizeof(int)));

    if (!p)
        return -ENOMEM;
    reply.storage = p;
    reply.arrays = (struct msg_array *)(void *)p;
    p += n * sizeof(struct msg_array);
    reply.leases = (struct lease **)(void *)p;
    p += n * sizeof(struct lease *);
    reply.blocks = (struct msg_block *)(void *)p;
    p += n_fds * sizeof(struct msg_block);
    reply.fds = (int *)(void *)p;
    *ret = reply;
    return 0;
}

static void
reply_add_block(struct core *core, struct reply *reply, const struct block *block)
{
    reply->blocks[reply->n_blocks] = block_record(core, block, reply->n_blocks);
    reply->fds[reply->n_blocks++] = block->fd;
}

static void
reply_send(struct core *core, struct conn *conn, uint32_t id, enum msg_method method,
           const struct reply *reply)
{
    struct msg_arrays_result result = {
        .arrays = reply->arrays,
        .n_arrays = reply->n_arrays,
        .blocks = reply->blocks,
        .n_blocks = reply->n_blocks,
    };

    send_result(core, conn, id, method, &result, reply->fds, reply->n_blocks);
}

/* ---- create ---- */

static int
create_check(struct core *core, struct conn *conn, const struct msg_create_params *p,
             struct array_request *ret, struct refusal *r)
{
    struct array_request req = {.name = p->name, .typestr = p->typestr, .descr = p->descr};
    char why[GEOMETRY_WHY_MAX];

    if (job_admit(core, conn, r) || (p->name.p && name_check(p->name, r)) ||
        device_find(core, p->device, &req.device, r))
        return REFUSED;
    req.pool = pool_find(core, conn, p->pool);
    if (!req.pool || !pool_may(req.pool, conn, MAY_WRITE)) {
        if (req.pool && pool_may(req.pool, conn, MAY_READ))
            return refuse(r, PROTO_ERR_PERMISSION, "pool \"%s\" may be read, not written",
                          req.pool->name);
        return refuse(r, PROTO_ERR_NOT_FOUND, "no pool \"%.*s\"", STR_FMT(p->pool));
    }
    if (geometry_init(&req.geometry, p->typestr, p->shape, p->strides, why) < 0)
        return p->name.p
                   ? refuse(r, PROTO_ERR_INVALID, "array \"%.*s\": %s", STR_FMT(p->name), why)
                   : refuse(r, PROTO_ERR_INVALID, "unnamed array: %s", why);
    if (p->descr.n > PROTO_DESCR_MAX)
        return refuse(r, PROTO_ERR_INVALID, "a descr has at most %d bytes, this one %u",
                      PROTO_DESCR_MAX, p->descr.n);
    if (p->descr.p && (p->typestr.p[1] != 'V' || memchr(p->descr.p, '\0', p->descr.n)))
        return refuse(r, PROTO_ERR_INVALID, "a descr goes with a typestr of kind V");
    *ret = req;
    return 0;
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
    if (array->block)
        block_allocate(core, array->block, conn, id);
    else
        array_complete(core, conn, id, array);
    return 0;
}

void
reply_created(struct core *core, struct conn *conn, uint32_t request, const struct lease *lease)
{
    struct array *array = lease->array;
    struct msg_array record = array_record(core, array);
    struct msg_block block;
    int fd = -1;
    struct msg_arrays_result result = {.arrays = &record, .n_arrays = 1};

    record.lease = lease->id;
    if (array->block) {
        block = block_record(core, array->block, 0);
        fd = array->block->fd;
        result.blocks = &block;
        result.n_blocks = 1;
    }
    send_result(core, conn, request, MSG_CREATE, &result, &fd, result.n_blocks);
}

/* ---- open ---- */

/* The same answer for a pool that is absent, one that is forbidden, and a name that is absent. */
static int
open_find(struct pool *pool, struct msg_str pool_name, struct msg_str name, struct array **ret,
          struct refusal *r)
{
    struct array *array = pool ? pool_find_array(pool, name) : NULL;

    if (name_check(name, r))
        return REFUSED;
    if (!array || array->pending) {
        if (!pool_name.p)
            return refuse(r, PROTO_ERR_NOT_FOUND, "no array \"%.*s\"", STR_FMT(name));
        return refuse(r, PROTO_ERR_NOT_FOUND, "no array \"%.*s\" in pool \"%.*s\"",
                      STR_FMT(name), STR_FMT(pool_name));
    }
    *ret = array;
    return 0;
}

static int
open_mode(struct core *core, struct conn *conn, const struct msg_open_params *p,
          struct pool **ret_pool, bool *ret_readonly, struct refusal *r)
{
    struct pool *pool = pool_find(core, conn, p->pool);

    *ret_readonly = msg_str_eq(p->mode, "r");
    if (!*ret_readonly && !msg_str_eq(p->mode, "rw"))
        return refuse(r, PROTO_ERR_INVALID, "mode \"%.*s\" is neither \"r\" nor \"rw\"",
                      STR_FMT(p->mode));
    if (p->names.n == 0 || p->names.n > PROTO_OPEN_MAX)
        return refuse(r, PROTO_ERR_INVALID, "open takes 1 to %d names, not %u", PROTO_OPEN_MAX,
                      p->names.n);
    if (pool && !pool_may(pool, conn, MAY_READ))
        pool = NULL;
    if (pool && !*ret_readonly && !pool_may(pool, conn, MAY_WRITE))
        return refuse(r, PROTO_ERR_PERMISSION, "pool \"%s\" may be read, not written",
                      pool->name);
    *ret_pool = pool;
    return 0;
}

/* Adds one array to the reply, or sets *ret_full. */
static int
open_one(struct core *core, struct conn *conn, struct reply *reply, struct array *array,
         bool readonly, bool *ret_full, struct refusal *r)
{
    struct msg_array record = array_record(core, array);
    struct lease *lease;
    bool new_hold;
    int rc;

    record.readonly = readonly;
    *ret_full =
        !room_take(&reply->room, msg_array_size(&record) + BLOCK_BYTES, array->block ? 1 : 0);
    if (*ret_full)
        return 0;
    rc = lease_new(core, conn, array, readonly, &lease, &new_hold, r);
    if (rc)
        return rc;
    if (new_hold)
        reply_add_block(core, reply, array->block);
    else if (array->block)
        reply->room.fds++; /* was reserved in vain */
    record.lease = lease->id;
    reply->leases[reply->n_arrays] = lease;
    reply->arrays[reply->n_arrays++] = record;
    return 0;
}

static int
open_all(struct core *core, struct conn *conn, const struct msg_open_params *p,
         struct reply *reply, struct refusal *r)
{
    struct pool *pool;
    struct array *array;
    bool readonly, full = false;
    int rc = open_mode(core, conn, p, &pool, &readonly, r);

    for (uint32_t i = 0; rc == 0 && !full && i < p->names.n; i++) {
        rc = open_find(pool, p->pool, p->names.v[i], &array, r);
        if (rc == 0)
            rc = open_one(core, conn, reply, array, readonly, &full, r);
    }
    if (rc)
        while (reply->n_arrays)
            lease_free(core, reply->leases[--reply->n_arrays]);
    return rc;
}

int
on_open(struct core *core, struct conn *conn, uint32_t id, const void *params,
        struct refusal *r)
{
    const struct msg_open_params *p = params;
    struct reply reply;
    int rc;

    if (reply_init(&reply, p->names.n) < 0)
        return -ENOMEM;
    rc = open_all(core, conn, p, &reply, r);
    if (rc == 0)
        reply_send(core, conn, id, MSG_OPEN, &reply);
    reply_deinit(&reply);
    return rc;
}

/* ---- close ---- */

int
on_close(struct core *core, struct conn *conn, uint32_t id, const void *params,
         struct refusal *r)
{
    const struct msg_close_params *p = params;

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
    return 0;
}
