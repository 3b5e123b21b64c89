/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays: their life from the request that creates them to the queue (state.h), and their names.
 */
#include <assert.h>
#include <stdio.h>

#include "state.h"

/* ---- what an array knows ---- */

static char *
array_text(const struct array *array)
{
    const int64_t *end = array->extents + (size_t)array->ndim * (array->has_strides ? 2 : 1);
    char *text;

    memcpy(&text, &end, sizeof(text)); /* the array's own memory, whatever the pointer says */
    return text;
}

const int64_t *
array_shape(const struct array *array)
{
    return array->extents;
}

const int64_t *
array_strides(const struct array *array)
{
    return array->has_strides ? array->extents + array->ndim : NULL;
}

const char *
array_typestr(const struct array *array)
{
    return array_text(array);
}

const char *
array_descr(const struct array *array)
{
    return array->n_descr ? array_text(array) + array->n_typestr + 1 : NULL;
}

const char *
array_memory(const struct array *array)
{
    return array->mapped ? "mapped" : core_kind_name(array->kind);
}

struct block *
array_block(const struct array *array)
{
    if (array->is_part)
        array = array->part->whole->array;
    return array->range ? container_of(array->range->extent, struct block, extent) : NULL;
}

uint64_t
array_offset(const struct array *array)
{
    if (array->is_part)
        return array_offset(array->part->whole->array) + array->part->offset;
    return array->range ? range_offset(array->range) : 0;
}

uint64_t
array_bytes(const struct core *core, const struct array *array)
{
    uint64_t unit = SPACE_UNIT;

    if (array->is_part)
        return 0;
    if (array->own)
        unit = core->devices[array->device].info.granularity;
    return ALIGN_UP(array->span, unit);
}

static struct msg_str
array_name(const struct array *array)
{
    return (struct msg_str){array->name, array->n_name};
}

/* ---- birth ---- */

/* What belongs to the array for life is allocated with it: shape, strides, typestr, descr, and the
 * name that it was created with. */
static struct array *
array_alloc(const struct array_request *req)
{
    const struct geometry *g = &req->geometry;
    size_t n_extents = (size_t)g->ndim * (g->strides ? 2 : 1) * sizeof(int64_t);
    size_t n_descr = req->descr.n ? req->descr.n + 1 : 0;
    size_t n =
        sizeof(struct array) + n_extents + req->typestr.n + 1 + n_descr + req->name.n + 1;
    struct array *array = calloc(1, n);
    char *p;

    if (!array)
        return NULL;
    array->n_host = (uint32_t)n;
    array->ndim = (uint8_t)g->ndim;
    array->has_strides = g->strides;
    array->n_typestr = (uint8_t)req->typestr.n;
    array->n_descr = (uint16_t)req->descr.n;
    array->n_name = (uint8_t)req->name.n;
    memcpy(array->extents, g->shape, g->ndim * sizeof(int64_t));
    if (g->strides)
        memcpy(array->extents + g->ndim, g->strides, g->ndim * sizeof(int64_t));
    p = array_text(array);
    memcpy(p, req->typestr.p, req->typestr.n);
    p += req->typestr.n + 1;
    if (n_descr)
        memcpy(p, req->descr.p, req->descr.n);
    array->name = p + n_descr;
    if (req->name.p)
        memcpy(array->name, req->name.p, req->name.n);
    return array;
}

static struct array *
array_make(const struct array_request *req, uint64_t shared_max)
{
    struct array *array = array_alloc(req);

    if (!array)
        return NULL;
    if (req->metadata.p) {
        array->metadata = strndup(req->metadata.p, req->metadata.n);
        if (!array->metadata) {
            free(array);
            return NULL;
        }
        array->n_metadata = (uint16_t)req->metadata.n;
        array->n_host += req->metadata.n + 1;
    }
    array->pool = req->pool;
    array->device = (uint16_t)req->device;
    array->kind = (uint8_t)req->kind;
    array->mapped = req->mapped;
    array->own = req->exclusive || req->geometry.span > shared_max;
    array->nbytes = req->geometry.nbytes;
    array->span = req->geometry.span;
    array->creating = true;
    LIST_INIT(&array->leases);
    return array;
}

static enum resource
array_resource(const struct array *array)
{
    return array->kind == KIND_PINNED ? RES_PINNED : RES_BYTES;
}

static int
array_charge(struct core *core, struct user *user, struct array *array, struct refusal *r)
{
    if (user_charge(core, user, RES_HOST, array->n_host, r))
        return REFUSED;
    if (user_charge(core, user, RES_ARRAYS, 1, r))
        goto undo_host;
    if (user_charge(core, user, array_resource(array), array_bytes(core, array), r))
        goto undo_array;
    array->user = user;
    array->id = ++core->next_array;
    array->pool->n_arrays++;
    core->devices[array->device].n_arrays++;
    core->n_arrays++;
    if (array->kind != KIND_PINNED) {
        array->pool->allocated += array_bytes(core, array);
        core->devices[array->device].allocated += array_bytes(core, array);
    }
    return 0;

undo_array:
    user_uncharge(user, RES_ARRAYS, 1);
undo_host:
    user_uncharge(user, RES_HOST, array->n_host);
    return REFUSED;
}

static void
array_uncharge(struct core *core, struct array *array)
{
    struct user *user = array->user;

    user_uncharge(user, RES_HOST, array->n_host);
    user_uncharge(user, RES_ARRAYS, 1);
    user_uncharge(user, array_resource(array), array_bytes(core, array));
    array->pool->n_arrays--;
    core->devices[array->device].n_arrays--;
    core->n_arrays--;
    if (array->kind != KIND_PINNED) {
        array->pool->allocated -= array_bytes(core, array);
        core->devices[array->device].allocated -= array_bytes(core, array);
    }
}

/* ---- names ---- */

static void
name_insert(struct core *core, struct array *array)
{
    RB_INSERT(names, &array->pool->names, array);
    array->named = true;
    array->pool->n_names++;
    core->n_names++;
}

/* Puts the name into the pool and charges it; the record is made here, where it may fail. */
static int
array_take_name(struct core *core, struct array *array, struct refusal *r)
{
    struct pool *pool = array->pool;

    if (pool_find_array(pool, array_name(array)))
        return refuse(r, PROTO_ERR_EXISTS, "\"%s\" exists in pool \"%s\"", array->name,
                      pool->name);
    array->saved = entry_new_name(RECORD_NAME, pool, array->name, array->n_name);
    if (!array->saved)
        return -ENOMEM;
    if (user_charge(core, array->user, RES_NAMES, 1, r))
        return REFUSED;
    array->generation = pool->floor + 1;
    name_insert(core, array);
    return 0;
}

static void
array_drop_name(struct core *core, struct array *array)
{
    struct pool *pool = array->pool;

    RB_REMOVE(names, &pool->names, array);
    array->named = false;
    pool->n_names--;
    core->n_names--;
    user_uncharge(array->user, RES_NAMES, 1);
    /* The generation of a name that nobody has seen was not used. */
    if (!array->creating && array->generation > pool->floor)
        pool->floor = array->generation;
}

static void
array_list(struct array *array)
{
    if (array->listed || array->named)
        return;
    RB_INSERT(nameless, &array->pool->nameless, array);
    array->listed = true;
}

static void
array_unlist(struct array *array)
{
    if (array->listed)
        RB_REMOVE(nameless, &array->pool->nameless, array);
    array->listed = false;
}

/* ---- death ---- */

void
array_free(struct array *array)
{
    if (array->name_is_own)
        free(array->name);
    free(array->metadata);
    free(array);
}

/* Nobody holds it any more: it is charged to nobody, and what it has of a block goes to the queue. */
static void
array_bury(struct core *core, struct array *array)
{
    struct user *user = array->user, *owner = array->pool->owner;

    assert(!array->named && !array->n_leases && !array->n_departed);
    array_unlist(array);
    array_uncharge(core, array);
    entry_free(TAKE_PTR(array->saved));
    users_ref(user, owner); /* a flush may end what kept them, this array included */
    if (array->is_part && array->part)
        part_end(core, array->part);
    if (array->range && !array->is_part)
        reclaim_add(core, array);
    else
        array_free(array);
    users_unref(core, user, owner);
}

void
array_settle(struct core *core, struct array *array)
{
    if (array->creating || array->named)
        return;
    if (array->n_leases || array->n_departed || array->is_whole || linger_array(core, array))
        array_list(array);
    else
        array_bury(core, array);
}

void
array_abandon(struct core *core, struct array *array)
{
    if (array->named)
        array_drop_name(core, array);
    array->creating = false;
    if (array->is_part)
        part_undo(core, TAKE_PTR(array->part));
    else if (array->range)
        block_put_range(core, array);
    array_bury(core, array);
}

void
array_unname(struct core *core, struct array *array)
{
    array_drop_name(core, array);
    watch_notify(core, array->pool, array->name, array->n_name, 0);
    array_settle(core, array);
}

/* ---- the first promise ---- */

int
array_new(struct core *core, struct conn *conn, const struct array_request *req,
          struct array **ret, struct refusal *r)
{
    const struct core_device *d = &core->devices[req->device].info;
    struct array *array;
    int rc;

    if (req->geometry.span > d->total && req->kind != KIND_PINNED)
        return refuse(r, PROTO_ERR_NO_MEMORY, "device %u has %s, %s were asked for",
                      req->device, SIZE_TEXT(d->total), SIZE_TEXT(req->geometry.span));
    if (req->geometry.span > SPACE_EXTENT_MAX - d->granularity)
        return refuse(r, PROTO_ERR_NO_MEMORY, "an array has less than %s, %s were asked for",
                      SIZE_TEXT(SPACE_EXTENT_MAX), SIZE_TEXT(req->geometry.span));
    array = array_make(req, core->config.memory.shared_max);
    if (!array)
        return -ENOMEM;
    if (array_charge(core, conn->user, array, r)) {
        array_free(array);
        return REFUSED;
    }
    rc = req->name.p ? array_take_name(core, array, r) : 0;
    if (rc) {
        array_abandon(core, array);
        return rc;
    }
    *ret = array;
    return 0;
}

int
array_new_part(struct core *core, struct part *part, const struct array_request *req,
               struct array **ret, struct refusal *r)
{
    struct array *array = array_make(req, UINT64_MAX);

    if (!array)
        return -ENOMEM;
    array->part = part;
    array->is_part = true;
    if (array_charge(core, part->user, array, r)) {
        array_free(array);
        return REFUSED;
    }
    part->array = array;
    part->id = array->id;
    *ret = array;
    return 0;
}

/* What is promised with the reply that follows is recorded first (I9). */
static void
array_promise(struct core *core, struct array *array)
{
    struct block *block = array_block(array);

    array->creating = false;
    if (block)
        block_promise(core, block);
    if (array->saved)
        entry_push(core, TAKE_PTR(array->saved));
    array_list(array);
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
    reply_created(core, conn, request, lease, new_hold);
    if (array->named)
        watch_notify(core, array->pool, array->name, array->n_name, array->generation);
}

/* ---- publishing ---- */

/* All that publishing may fail for, made beforehand. */
struct publication {
    char *name, *metadata;
    struct entry *saved, *gone; /* the new name's record, and the end of the old one */
};

static void
publication_deinit(struct publication *p)
{
    free(p->name);
    free(p->metadata);
    entry_free(p->saved);
    entry_free(p->gone);
}

static bool
has_name(const struct array *array, struct msg_str name)
{
    return array->named && array->n_name == name.n && memcmp(array->name, name.p, name.n) == 0;
}

static int
publication_init(struct publication *p, const struct array *array, struct msg_str name,
                 struct msg_str metadata)
{
    p->name = strndup(name.p, name.n);
    p->metadata = metadata.p ? strndup(metadata.p, metadata.n) : NULL;
    p->saved = entry_new_name(RECORD_NAME, array->pool, name.p, name.n);
    if (array->named && !has_name(array, name))
        p->gone = entry_new_name(RECORD_NAME_GONE, array->pool, array->name, array->n_name);
    if (!p->name || (metadata.p && !p->metadata) || !p->saved ||
        (array->named && !has_name(array, name) && !p->gone))
        return -ENOMEM;
    return 0;
}

/* Bytes of host memory that the array takes more, or less, from now on. */
static int64_t
publication_host(const struct array *array, struct msg_str name, struct msg_str metadata)
{
    int64_t delta = 0;

    if (!has_name(array, name))
        delta += (int64_t)name.n + 1;
    if (!has_name(array, name) && array->name_is_own)
        delta -= array->n_name + 1;
    if (metadata.p)
        delta += (int64_t)metadata.n + 1;
    if (metadata.p && array->metadata)
        delta -= array->n_metadata + 1;
    return delta;
}

/* One name more for the array's user; a user at its limit may publish in place of what is its own. */
static int
publication_charge_name(struct core *core, struct array *array, const struct array *old,
                        struct refusal *r)
{
    struct user *user = array->user;

    if (array->named)
        return 0;
    if (!old || old->user != user)
        return user_charge(core, user, RES_NAMES, 1, r);
    user->used[RES_NAMES]++; /* the commit takes one off */
    return 0;
}

static int
publication_charge(struct core *core, struct array *array, const struct array *old,
                   int64_t host, struct refusal *r)
{
    struct user *user = array->user;

    if (host > 0 && user_charge(core, user, RES_HOST, (uint64_t)host, r))
        return REFUSED;
    if (publication_charge_name(core, array, old, r)) {
        if (host > 0)
            user_uncharge(user, RES_HOST, (uint64_t)host);
        return REFUSED;
    }
    if (host < 0)
        user_uncharge(user, RES_HOST, (uint64_t)-host);
    array->n_host += (uint32_t)host;
    return 0;
}

/* Gives up the name that the array has, or has had; its charge is the new one's. */
static void
publication_rename(struct core *core, struct publication *p, struct array *array,
                   struct msg_str name)
{
    if (array->named) {
        array_drop_name(core, array);
        array->user->used[RES_NAMES]++;
        watch_notify(core, array->pool, array->name, array->n_name, 0);
    }
    array_unlist(array);
    if (array->name_is_own)
        free(array->name);
    array->name = TAKE_PTR(p->name);
    array->n_name = (uint8_t)name.n;
    array->name_is_own = true;
}

static void
publication_commit(struct core *core, struct publication *p, struct array *array,
                   struct msg_str name, struct msg_str metadata, struct array *old)
{
    uint64_t generation = old ? old->generation + 1 : array->pool->floor + 1;

    entry_push(core, TAKE_PTR(p->saved));
    if (p->gone)
        entry_push(core, TAKE_PTR(p->gone));
    if (old && old != array)
        array_drop_name(core, old);
    if (old != array)
        publication_rename(core, p, array, name);
    array->generation = generation;
    if (old != array)
        name_insert(core, array);
    if (p->metadata) {
        free(array->metadata);
        array->metadata = TAKE_PTR(p->metadata);
        array->n_metadata = (uint16_t)metadata.n;
    }
    if (old && old != array)
        array_settle(core, old);
}

int
array_publish(struct core *core, struct array *array, struct msg_str name,
              struct msg_str metadata, struct refusal *r)
{
    struct array *old = pool_find_array(array->pool, name);
    _cleanup_(publication_deinit) struct publication p = {0};
    int rc;

    if (old && old->creating)
        return refuse(r, PROTO_ERR_EXISTS, "\"%s\" is being created in pool \"%s\"", old->name,
                      array->pool->name);
    rc = publication_init(&p, array, name, metadata);
    if (rc == 0)
        rc = publication_charge(core, array, old, publication_host(array, name, metadata), r);
    if (rc)
        return rc;
    publication_commit(core, &p, array, name, metadata, old);
    watch_notify(core, array->pool, array->name, array->n_name, array->generation);
    return 0;
}
