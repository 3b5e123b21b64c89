/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unlink, list, show, unnamed.
 */
#include "array.h"
#include "block.h"
#include "device.h"
#include "pool.h"
#include "publish.h"
#include "request.h"

#define HOLDERS_MAX     2048 /* in one show */
#define UNNAMED_MAX     128  /* in one page */
#define UNNAMED_HOLDERS 16   /* of each */

/* An array that conn may do `what` to; the same answer for absent and forbidden. */
static int
name_find(struct core *core, struct conn *conn, const struct msg_name_params *p, int what,
          struct array **ret, struct refusal *r)
{
    struct pool *pool = pool_find(core, conn, p->pool);
    struct array *array;

    if (name_check(p->name, r))
        return REFUSED;
    if (pool && what == MAY_WRITE && !pool_may(pool, conn, what) &&
        pool_may(pool, conn, MAY_READ))
        return refuse(r, PROTO_ERR_PERMISSION, "pool \"%s\" may be read, not written",
                      pool->name);
    array = pool && pool_may(pool, conn, what) ? pool_find_array(pool, p->name) : NULL;
    if (!array || array->creating)
        return p->pool.p
                   ? refuse(r, PROTO_ERR_NOT_FOUND, "no array \"%.*s\" in pool \"%.*s\"",
                            STR_FMT(p->name), STR_FMT(p->pool))
                   : refuse(r, PROTO_ERR_NOT_FOUND, "no array \"%.*s\"", STR_FMT(p->name));
    *ret = array;
    return 0;
}

int
on_unlink(struct core *core, struct conn *conn, uint32_t id, const void *params,
          struct refusal *r)
{
    struct array *array;
    struct entry *gone;

    if (name_find(core, conn, params, MAY_WRITE, &array, r))
        return REFUSED;
    gone = entry_new_name(RECORD_NAME_GONE, array->pool, array->name, array->n_name);
    if (!gone)
        return -ENOMEM;
    entry_push(core, gone);
    array_unname(core, array);
    send_result(core, conn, id, MSG_UNLINK, &(struct msg_none){}, NULL, 0);
    return 0;
}

/* Whether its contents are not whole: the last writer is dead, noticed or not. */
static bool
is_abandoned(const struct array *array)
{
    const struct fence *fence = array->access ? array->access->write : NULL;

    return array->abandoned || (fence && timeline_state(&fence->page->slots[fence->slot],
                                                        fence->value) == FENCE_LOST);
}

static struct msg_entry
entry_record(const struct core *core, const struct array *array)
{
    const struct access *access = array->access;

    return (struct msg_entry){
        .pool = MSG_STR(array->pool->name),
        .name = {array->name, array->n_name},
        .generation = array->generation,
        .device = MSG_STR(core->devices[array->device].info.uuid),
        .typestr = MSG_STR(array_typestr(array)),
        .shape = {.v = array_shape(array), .n = array->ndim},
        .nbytes = array->nbytes,
        .uid = array->charge.user->uid,
        .leases = (uint64_t)array->n_leases + array->n_departed,
        .memory = MSG_STR(array_memory(array)),
        .readers = access ? access->n_readers : 0,
        .writers = access ? access->n_writers : 0,
        .waiting = access ? access->n_waiting : 0,
        .abandoned = is_abandoned(array),
        .parts = part_count(core, array),
    };
}

/* ---- list ---- */

struct listing {
    struct room room;
    struct msg_entry *entries;
    uint32_t n;
    bool more;
};

static bool
has_prefix(const struct array *array, struct msg_str prefix)
{
    return array->n_name >= prefix.n &&
           (prefix.n == 0 || memcmp(array->name, prefix.p, prefix.n) == 0);
}

/* Adds the names of one pool that come after `after`. Those with a prefix lie together, so that
 * a request never looks at more names than it lists, but for a few that are being created (I6). */
static void
list_add_pool(const struct core *core, struct listing *list, struct pool *pool,
              struct msg_str after, struct msg_str prefix)
{
    struct array *array = pool_find_next(pool, after, prefix);

    for (; array && has_prefix(array, prefix) && !list->more;
         array = RB_NEXT(names, &pool->names, array)) {
        if (array->creating)
            continue;
        struct msg_entry record = entry_record(core, array);
        list->more = list->n == PAGE_MAX || !room_take(&list->room, msg_entry_size(&record), 0);
        if (!list->more)
            list->entries[list->n++] = record;
    }
}

static void
list_add_all(struct core *core, const struct conn *conn, struct listing *list,
             const struct msg_list_params *p)
{
    struct pool *pool = pool_find_from(core, p->pool);

    for (; pool && !list->more; pool = RB_NEXT(pools, &core->pools, pool)) {
        bool resumed = msg_str_eq(p->pool, pool->name);
        if (pool_may(pool, conn, MAY_READ))
            list_add_pool(core, list, pool, resumed ? p->after : (struct msg_str){0},
                          p->prefix);
    }
}

int
on_list(struct core *core, struct conn *conn, uint32_t id, const void *params,
        struct refusal *r)
{
    const struct msg_list_params *p = params;
    _cleanup_free_ struct msg_entry *entries = calloc(PAGE_MAX, sizeof(*entries));
    struct listing list = {.room = ROOM_INIT, .entries = entries};
    struct pool *pool;

    if (!entries)
        return -ENOMEM;
    if (p->all) {
        list_add_all(core, conn, &list, p);
    } else {
        pool = pool_find(core, conn, p->pool);
        if (!pool || !pool_may(pool, conn, MAY_READ))
            return refuse(r, PROTO_ERR_NOT_FOUND, "no pool \"%.*s\"", STR_FMT(p->pool));
        list_add_pool(core, &list, pool, p->after, p->prefix);
    }
    send_result(core, conn, id, MSG_LIST,
                &(struct msg_list_result){.entries = entries,
                                          .n_entries = list.n,
                                          .more = list.more},
                NULL, 0);
    return 0;
}

/* ---- show ---- */

static struct msg_holder
holder_record(const struct lease *lease)
{
    const struct conn *conn = lease->conn;
    const struct claim *claim;
    struct msg_holder record = {
        .pid = (uint64_t)conn->pid,
        .uid = conn->user->uid,
        .client = msg_str_opt(*conn->client ? conn->client : NULL),
        .readonly = lease->readonly,
        .hung_up = conn->departed,
    };

    LIST_FOREACH(claim, &lease->claims, of_lease)
    {
        if (claim->bracket->waiting)
            record.waiting++;
        else
            *(claim->write ? &record.writing : &record.reading) += 1;
    }
    return record;
}

/* As many as there is room for. */
static uint32_t
fill_holders(const struct array *array, struct room *room, struct msg_holder *holders,
             uint32_t max)
{
    const struct lease *lease;
    uint32_t n = 0;

    LIST_FOREACH(lease, &array->leases, of_array)
    {
        struct msg_holder record = holder_record(lease);
        if (n == max || !room_take(room, msg_holder_size(&record), 0))
            break;
        holders[n++] = record;
    }
    return n;
}

static struct msg_show_result
show_record(const struct array *array, const struct msg_entry *entry)
{
    const struct block *block = array_block(array);
    const int64_t *strides = array_strides(array);
    struct msg_show_result result = {
        .entries = entry,
        .n_entries = 1,
        .descr = msg_str_opt(array_descr(array)),
        .array = array->id,
        .metadata = {array->metadata, array->n_metadata},
    };

    if (block) {
        result.block = block->id;
        result.block_size = block->size;
        result.offset = array_offset(array);
    }
    if (strides)
        result.strides = (struct msg_i64s){.v = strides, .n = array->ndim};
    return result;
}

/* What a show takes without its holders, at most: a number has 9 bytes, a key up to 16. */
static size_t
show_bytes(const struct msg_show_result *result)
{
    return msg_entry_size(result->entries) + result->strides.n * 9 + result->descr.n +
           result->metadata.n + 8 * (16 + 9);
}

int
on_show(struct core *core, struct conn *conn, uint32_t id, const void *params,
        struct refusal *r)
{
    _cleanup_free_ struct msg_holder *holders = calloc(HOLDERS_MAX, sizeof(*holders));
    struct room room = ROOM_INIT;
    struct msg_show_result result;
    struct msg_entry entry;
    struct array *array;

    if (!holders)
        return -ENOMEM;
    if (name_find(core, conn, params, MAY_READ, &array, r))
        return REFUSED;
    entry = entry_record(core, array);
    result = show_record(array, &entry);
    if (room_take(&room, show_bytes(&result), 0))
        result.n_holders = fill_holders(array, &room, holders, HOLDERS_MAX);
    result.holders = holders;
    send_result(core, conn, id, MSG_SHOW, &result, NULL, 0);
    return 0;
}

/* ---- unnamed ---- */

struct unnamed_page {
    struct room room;
    struct msg_unnamed *arrays;
    uint32_t n;
    bool more;

    struct unnamed_storage {
        struct msg_entry entry;
        struct msg_holder holders[UNNAMED_HOLDERS];
    } * storage;
};

static struct msg_unnamed
unnamed_record(const struct core *core, const struct array *array, struct unnamed_storage *s)
{
    const struct block *block = array_block(array);
    struct room room = ROOM_INIT;

    s->entry = entry_record(core, array);
    return (struct msg_unnamed){
        .entries = &s->entry,
        .n_entries = 1,
        .array = array->id,
        .block = block ? block->id : 0,
        .holders = s->holders,
        .n_holders = fill_holders(array, &room, s->holders, UNNAMED_HOLDERS),
    };
}

static void
unnamed_add_pool(const struct core *core, struct unnamed_page *page, struct pool *pool,
                 const struct msg_unnamed_params *after)
{
    uint64_t id = after->array == UINT64_MAX ? after->array : after->array + 1;
    struct array *array = pool_find_nameless(pool, after->name, after->generation, id);

    for (; array && !page->more; array = RB_NEXT(nameless, &pool->nameless, array)) {
        struct msg_unnamed record;
        if (page->n < UNNAMED_MAX)
            record = unnamed_record(core, array, &page->storage[page->n]);
        page->more = page->n == UNNAMED_MAX ||
                     !room_take(&page->room, msg_unnamed_size(&record), 0);
        if (!page->more)
            page->arrays[page->n++] = record;
    }
}

static void
unnamed_add_all(struct core *core, const struct conn *conn, struct unnamed_page *page,
                const struct msg_unnamed_params *p)
{
    static const struct msg_unnamed_params from_start = {0};
    struct pool *pool = pool_find_from(core, p->pool);

    for (; pool && !page->more; pool = RB_NEXT(pools, &core->pools, pool))
        if (pool_may(pool, conn, MAY_READ))
            unnamed_add_pool(core, page, pool,
                             msg_str_eq(p->pool, pool->name) ? p : &from_start);
}

int
on_unnamed(struct core *core, struct conn *conn, uint32_t id, const void *params,
           struct refusal *r)
{
    const struct msg_unnamed_params *p = params;
    _cleanup_free_ struct msg_unnamed *arrays = calloc(UNNAMED_MAX, sizeof(*arrays));
    _cleanup_free_ struct unnamed_storage *storage = calloc(UNNAMED_MAX, sizeof(*storage));
    struct unnamed_page page = {.room = ROOM_INIT, .arrays = arrays, .storage = storage};
    struct pool *pool;

    if (!arrays || !storage)
        return -ENOMEM;
    if (p->all) {
        unnamed_add_all(core, conn, &page, p);
    } else {
        pool = pool_find(core, conn, p->pool);
        if (!pool || !pool_may(pool, conn, MAY_READ))
            return refuse(r, PROTO_ERR_NOT_FOUND, "no pool \"%.*s\"", STR_FMT(p->pool));
        unnamed_add_pool(core, &page, pool, p);
    }
    send_result(core, conn, id, MSG_UNNAMED,
                &(struct msg_unnamed_result){.arrays = arrays,
                                             .n_arrays = page.n,
                                             .more = page.more},
                NULL, 0);
    return 0;
}
