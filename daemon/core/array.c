/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

#include <assert.h>

#include "device.h"
#include "lost.h"
#include "restore.h"
#include "set.h"
#include "state.h"
#include "utf8.h"

/* ---- checks ---- */

/* The validator has checked that the text is UTF-8. */
int
metadata_check(struct msg_str metadata, struct refusal *r)
{
    if (metadata.n > PROTO_METADATA_MAX)
        return refuse(r, PROTO_ERR_INVALID, "metadata has at most %d bytes, this has %u",
                      PROTO_METADATA_MAX, metadata.n);
    if (metadata.n && memchr(metadata.p, '\0', metadata.n))
        return refuse(r, PROTO_ERR_INVALID, "metadata is text, and has no NUL byte");
    return 0;
}

int
geometry_check(struct msg_str name, struct msg_str typestr, struct msg_i64s shape,
               struct msg_i64s strides, struct msg_str descr, struct geometry *ret,
               struct refusal *r)
{
    char why[GEOMETRY_WHY_MAX];

    if (geometry_init(ret, typestr, shape, strides, why) < 0)
        return name.p ? refuse(r, PROTO_ERR_INVALID, "array \"%.*s\": %s", STR_FMT(name), why)
                      : refuse(r, PROTO_ERR_INVALID, "unnamed array: %s", why);
    if (descr.n > PROTO_DESCR_MAX)
        return refuse(r, PROTO_ERR_INVALID, "a descr has at most %d bytes, this one %u",
                      PROTO_DESCR_MAX, descr.n);
    if (descr.p && typestr.p[1] != 'V')
        return refuse(r, PROTO_ERR_INVALID, "a descr goes with a typestr of kind V");
    if (descr.p && utf8_before_control(descr.p, descr.n) < descr.n)
        return refuse(r, PROTO_ERR_INVALID, "a descr has no control characters");
    return 0;
}

/* ---- texts ---- */

int
text_new(struct text **ret, struct user *user, struct msg_str s, struct refusal *r)
{
    struct text *text = calloc(1, sizeof(*text) + s.n + 1);

    if (!text)
        return -ENOMEM;
    if (charge_init(&text->charge, user, RES_HOST, 0, TEXT_BYTES(s.n), r)) {
        free(text);
        return REFUSED;
    }
    text->n = s.n;
    if (s.n)
        memcpy(text->s, s.p, s.n);
    *ret = text;
    return 0;
}

void
text_free(struct text *text)
{
    if (text)
        charge_deinit(&text->charge);
    free(text);
}

/* ---- birth ---- */

size_t
array_host(size_t n_extents, size_t n_typestr, size_t n_descr, size_t n_name)
{
    size_t n_texts = n_typestr + n_descr + n_name;

    return sizeof(struct array) + sizeof(struct range) + n_extents + n_texts + 2 +
           (n_descr > 0) + RECORD_HOST(sizeof(struct record_array) + n_extents + n_texts);
}

/* Shape, strides, typestr, descr and the first name live as long as the array, and are allocated
 * with it. */
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
    array->charge.host =
        (uint32_t)array_host(n_extents, req->typestr.n, req->descr.n, req->name.n);
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
array_make(const struct array_request *req, bool own)
{
    struct array *array = array_alloc(req);

    if (!array)
        return NULL;
    array->pool = req->pool;
    array->device = (uint16_t)req->device;
    array->kind = (uint8_t)req->kind;
    array->mapped = req->mapped;
    array->own = own;
    array->nbytes = req->geometry.nbytes;
    array->span = req->geometry.span;
    array->creating = true;
    return array;
}

static enum resource
array_resource(const struct array *array)
{
    return array->kind == KIND_PINNED ? RES_PINNED : RES_BYTES;
}

/* Counts the array in its pool and its device, or takes it out. */
static void
array_count(struct core *core, struct array *array, bool there)
{
    struct device *device = &core->devices[array->device];
    uint64_t one = there ? 1 : UINT64_MAX, bytes = one * array_bytes(core, array);

    array->pool->n_arrays += one;
    device->n_arrays += one;
    core->n_arrays += one;
    device->allocated_of[array->kind] += bytes;
    pool_zone(core, array->pool, array->device, array->kind)->allocated += bytes;
    if (array->kind == KIND_PINNED)
        return;
    array->pool->allocated += bytes;
    device->allocated += bytes;
}

/* The bytes of its range may be more than a struct charge holds: they are charged apart. */
static int
array_charge(struct core *core, struct user *user, struct array *array,
             const struct array_request *req, struct refusal *r)
{
    int rc = 0;

    if (charge_init(&array->charge, user, RES_ARRAYS, 1, array->charge.host, r))
        return REFUSED;
    if (req->metadata.p)
        rc = text_new(&array->metadata, user, req->metadata, r);
    if (rc == 0)
        rc = user_charge(user, array_resource(array), array_bytes(core, array), r);
    if (rc) {
        charge_deinit(&array->charge);
        return rc;
    }
    if (array->kind != KIND_PINNED)
        user_count(user, array->device, array_bytes(core, array), true);
    array->id = ++core->next_array;
    array->made = stamp_now(core);
    persist_id(core, array->id);
    array_count(core, array, true);
    return 0;
}

void
array_uncharge_bytes(struct core *core, struct array *array)
{
    uint64_t bytes = array_bytes(core, array);

    if (array->uncharged)
        return;
    array->uncharged = true;
    user_uncharge(array->charge.user, array_resource(array), bytes);
    if (array->kind != KIND_PINNED)
        user_count(array->charge.user, array->device, bytes, false);
}

void
array_uncharge(struct core *core, struct array *array)
{
    text_free(TAKE_PTR(array->metadata));
    array_set_name(array, NULL);
    charge_deinit(&array->charge);
    array_uncharge_bytes(core, array);
    array_count(core, array, false);
    pool_touch(array->pool);
}

/* ---- names ---- */

void
array_set_name(struct array *array, struct text *name_consume)
{
    if (array->name_is_own)
        text_free(container_of(array->name, struct text, s[0]));
    array->name_is_own = name_consume;
    array->name = name_consume ? name_consume->s : array_text(array) + array->n_typestr;
    array->n_name = name_consume ? (uint8_t)name_consume->n : 0;
}

static void
count_name(struct array *array, bool there)
{
    if (array->is_part && array->part)
        array->part->whole->n_named += there ? 1 : UINT32_MAX;
}

void
array_insert_name(struct core *core, struct array *array)
{
    RB_INSERT(names, &array->pool->names, array);
    array->named = true;
    count_name(array, true);
    array->published = stamp_now(core);
    array->pool->n_names++;
    core->n_names++;
}

/* Puts the name into the pool and charges it. */
static int
array_take_name(struct core *core, struct array *array, struct refusal *r)
{
    struct pool *pool = array->pool;

    if (pool_find_array(pool, array_name(array)))
        return refuse(r, PROTO_ERR_EXISTS, "\"%s\" exists in pool \"%s\"", array->name,
                      pool->name);
    if (set_check_name(array, array_name(array), r) ||
        user_charge(array->charge.user, RES_NAMES, 1, r))
        return REFUSED;
    array->generation = pool->floor + 1;
    array_insert_name(core, array);
    return 0;
}

void
array_drop_name(struct core *core, struct array *array)
{
    struct pool *pool = array->pool;

    set_stays(array);
    RB_REMOVE(names, &pool->names, array);
    array->named = false;
    count_name(array, false);
    pool->n_names--;
    core->n_names--;
    user_uncharge(array->charge.user, RES_NAMES, 1);
    /* No client has seen the name while the array was being created: its generation is free
     * again. */
    if (array->creating || array->generation <= pool->floor)
        return;
    pool->floor = array->generation;
    persist_floor(core, pool->floor);
}

void
array_list(struct array *array)
{
    if (array->listed || array->named)
        return;
    RB_INSERT(nameless, &array->pool->nameless, array);
    array->listed = true;
}

void
array_unlist(struct array *array)
{
    if (array->listed)
        RB_REMOVE(nameless, &array->pool->nameless, array);
    array->listed = false;
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
    array = array_make(req, array_request_is_own(core, req));
    if (!array)
        return -ENOMEM;
    rc = array_charge(core, conn->user, array, req, r);
    if (rc) {
        array_free(array);
        return rc;
    }
    rc = req->name.p ? array_take_name(core, array, r) : 0;
    if (rc) {
        array_uncharge(core, array);
        array_free(array);
        return rc;
    }
    *ret = array;
    return 0;
}

int
array_new_part(struct core *core, struct part *part, const struct array_request *req,
               struct array **ret, struct refusal *r)
{
    struct array *array = array_make(req, req->exclusive);
    int rc;

    if (!array)
        return -ENOMEM;
    array->part = part;
    array->is_part = true;
    rc = array_charge(core, part->charge.user, array, req, r);
    if (rc) {
        array_free(array);
        return rc;
    }
    part->array = array;
    part->id = array->id;
    *ret = array;
    return 0;
}

int
array_restore(struct core *core, struct user *user, const struct array_request *req,
              struct array **ret)
{
    struct array *array = array_make(req, req->exclusive);

    if (!array)
        return -ENOMEM;
    if (array_charge(core, user, array, req, NULL)) {
        array_free(array);
        return -ENOMEM;
    }
    *ret = array;
    return 0;
}

void
array_restore_name(struct core *core, struct array *array)
{
    user_charge_anyway(array->charge.user, RES_NAMES, 1);
    array_insert_name(core, array);
}

void
array_promise(struct core *core, struct array *array)
{
    struct block *block = array_block(array);

    array->creating = false;
    if (block)
        block_promise(core, block);
    if (array->named)
        lost_forget(array->pool, array_name(array));
    persist_array(array);
    array_list(array);
}

void
array_free(struct array *array)
{
    array_set_name(array, NULL);
    text_free(array->metadata);
    if (array->is_set)
        set_forget(array->set);
    free(array);
}

/* ---- by the numbers of an earlier core ---- */

struct array_index {
    size_t n;

    struct array_place {
        uint64_t id;
        struct array *array; /* NULL: it is gone, or not restored yet */
    } places[];              /* sorted by id, as the records are */
};

struct array_index *
array_index_new(const struct restore_array *arrays, size_t n)
{
    struct array_index *index = malloc(sizeof(*index) + n * sizeof(index->places[0]));

    if (!index)
        return NULL;
    index->n = n;
    for (size_t i = 0; i < n; i++)
        index->places[i] = (struct array_place){.id = arrays[i].record->key.id};
    return index;
}

static int
array_index_compare(const void *key, const void *place)
{
    uint64_t a = *(const uint64_t *)key, b = ((const struct array_place *)place)->id;

    return (a > b) - (a < b);
}

static struct array_place *
array_index_place(const struct array_index *index, uint64_t id)
{
    return index ? bsearch(&id, index->places, index->n, sizeof(struct array_place),
                           array_index_compare)
                 : NULL;
}

struct array *
array_index_find(const struct array_index *index, uint64_t id)
{
    const struct array_place *place = array_index_place(index, id);

    return place ? place->array : NULL;
}

void
array_index_set(struct array_index *index, size_t place, struct array *array)
{
    index->places[place].array = array;
}

void
array_index_forget(struct array_index *index, uint64_t id)
{
    struct array_place *place = array_index_place(index, id);

    if (place)
        place->array = NULL;
}
