/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unlink, list, show, pools.
 */
#include "request.h"

#define PAGE_MAX    512 /* records in one page */
#define HOLDERS_MAX 400 /* in one show */
#define POOL_BYTES  256 /* that a pool's record takes at most */

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
    if (!array || array->pending)
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

static struct msg_entry
entry_record(const struct core *core, const struct array *array)
{
    return (struct msg_entry){
        .pool = MSG_STR(array->pool->name),
        .name = {array->name, array->n_name},
        .generation = array->generation,
        .device = MSG_STR(core->devices[array->device].uuid),
        .typestr = MSG_STR(array->typestr),
        .shape = {.v = array->geometry.shape, .n = array->geometry.ndim},
        .nbytes = array->geometry.nbytes,
        .uid = array->user->uid,
        .leases = array->n_leases,
    };
}

/* ---- list ---- */

struct page {
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
 * a request never looks at more names than it lists, but for a few pending ones (I6). */
static void
page_add_pool(const struct core *core, struct page *page, struct pool *pool,
              struct msg_str after, struct msg_str prefix)
{
    struct array *array = pool_find_next(pool, after, prefix);

    for (; array && has_prefix(array, prefix) && !page->more;
         array = RB_NEXT(names, &pool->names, array)) {
        if (array->pending)
            continue;
        struct msg_entry record = entry_record(core, array);
        page->more = page->n == PAGE_MAX || !room_take(&page->room, msg_entry_size(&record), 0);
        if (!page->more)
            page->entries[page->n++] = record;
    }
}

static void
page_add_all(struct core *core, const struct conn *conn, struct page *page,
             const struct msg_list_params *p)
{
    struct pool *pool = pool_find_from(core, p->pool);

    for (; pool && !page->more; pool = RB_NEXT(pools, &core->pools, pool)) {
        bool resumed = msg_str_eq(p->pool, pool->name);
        if (pool_may(pool, conn, MAY_READ))
            page_add_pool(core, page, pool, resumed ? p->after : (struct msg_str){0},
                          p->prefix);
    }
}

int
on_list(struct core *core, struct conn *conn, uint32_t id, const void *params,
        struct refusal *r)
{
    const struct msg_list_params *p = params;
    _cleanup_free_ struct msg_entry *entries = calloc(PAGE_MAX, sizeof(*entries));
    struct page page = {.room = ROOM_INIT, .entries = entries};
    struct pool *pool;

    if (!entries)
        return -ENOMEM;
    if (p->all) {
        page_add_all(core, conn, &page, p);
    } else {
        pool = pool_find(core, conn, p->pool);
        if (!pool || !pool_may(pool, conn, MAY_READ))
            return refuse(r, PROTO_ERR_NOT_FOUND, "no pool \"%.*s\"", STR_FMT(p->pool));
        page_add_pool(core, &page, pool, p->after, p->prefix);
    }
    send_result(core, conn, id, MSG_LIST,
                &(struct msg_list_result){.entries = entries,
                                          .n_entries = page.n,
                                          .more = page.more},
                NULL, 0);
    return 0;
}

/* ---- show ---- */

static uint32_t
fill_holders(const struct array *array, struct msg_holder *holders)
{
    const struct lease *lease;
    uint32_t n = 0;

    LIST_FOREACH(lease, &array->leases, of_array)
    {
        if (n == HOLDERS_MAX)
            break;
        holders[n++] = (struct msg_holder){
            .pid = (uint64_t)lease->conn->pid,
            .uid = lease->conn->user->uid,
            .client = msg_str_opt(*lease->conn->client ? lease->conn->client : NULL),
            .readonly = lease->readonly,
        };
    }
    return n;
}

int
on_show(struct core *core, struct conn *conn, uint32_t id, const void *params,
        struct refusal *r)
{
    _cleanup_free_ struct msg_holder *holders = calloc(HOLDERS_MAX, sizeof(*holders));
    struct msg_show_result result;
    struct msg_entry entry;
    struct array *array;

    if (!holders)
        return -ENOMEM;
    if (name_find(core, conn, params, MAY_READ, &array, r))
        return REFUSED;
    entry = entry_record(core, array);
    result = (struct msg_show_result){
        .entries = &entry,
        .n_entries = 1,
        .descr = msg_str_opt(array->descr),
        .array = array->id,
        .block = array->block ? array->block->id : 0,
        .block_size = array->block ? array->block->size : 0,
        .offset = array->offset,
        .holders = holders,
        .n_holders = fill_holders(array, holders),
    };
    if (array->geometry.strides)
        result.strides =
            (struct msg_i64s){.v = array->geometry.strides, .n = array->geometry.ndim};
    send_result(core, conn, id, MSG_SHOW, &result, NULL, 0);
    return 0;
}

/* ---- pools ---- */

static struct msg_pool
pool_record(const struct pool *pool)
{
    return (struct msg_pool){
        .name = MSG_STR(pool->name),
        .uid = pool->uid,
        .gid = pool->gid,
        .mode = pool->mode,
        .quota = pool->quota,
        .used = pool->used,
        .names = pool->n_names,
        .arrays = pool->n_arrays,
    };
}

int
on_pools(struct core *core, struct conn *conn, uint32_t id, const void *params,
         struct refusal *r)
{
    const struct msg_pools_params *p = params;
    _cleanup_free_ struct msg_pool *records = calloc(PAGE_MAX, sizeof(*records));
    struct msg_pools_result result = {.pools = records};
    struct room room = ROOM_INIT;
    struct pool *pool = pool_find_from(core, p->after);

    (void)r;
    if (!records)
        return -ENOMEM;
    for (; pool && !result.more; pool = RB_NEXT(pools, &core->pools, pool)) {
        if (msg_str_eq(p->after, pool->name) || !pool_may(pool, conn, MAY_READ))
            continue;
        result.more = result.n_pools == PAGE_MAX || !room_take(&room, POOL_BYTES, 0);
        if (!result.more)
            records[result.n_pools++] = pool_record(pool);
    }
    send_result(core, conn, id, MSG_POOLS, &result, NULL, 0);
    return 0;
}
