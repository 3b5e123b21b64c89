/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Permission is checked for the whole pool, as for a directory: whoever may open one array of a
 * pool could reach all others in the same block.
 */
#include "pool.h"

#include <assert.h>
#include <stdio.h>

#include "array.h"
#include "state.h"
#include "utf8.h"

static int
pool_compare(const struct pool *a, const struct pool *b)
{
    return strcmp(a->name, b->name);
}

/* In the order of bytes; a prefix comes first. */
static int
name_compare(const struct array *a, const struct array *b)
{
    uint32_t n = a->n_name < b->n_name ? a->n_name : b->n_name;
    int c = memcmp(a->name, b->name, n);
    return c ? c : CMP(a->n_name, b->n_name);
}

static int
nameless_compare(const struct array *a, const struct array *b)
{
    int c = name_compare(a, b);

    if (!c)
        c = CMP(a->generation, b->generation);
    return c ? c : CMP(a->id, b->id);
}

RB_GENERATE(pools, pool, node, pool_compare)
RB_GENERATE(names, array, node, name_compare)
RB_GENERATE(nameless, array, node, nameless_compare)

int
pool_new(struct core *core, const struct core_pool_config *config, struct pool **ret)
{
    size_t n_zones = core->config.n_devices * N_KINDS;
    _cleanup_free_ struct pool *pool = calloc(1, sizeof(*pool) + n_zones * sizeof(struct zone));

    if (!pool)
        return -ENOMEM;
    snprintf(pool->name, sizeof(pool->name), "%s", config->name);
    pool_set(pool, config);
    TAILQ_INIT(&pool->reserved);
    for (size_t i = 0; i < n_zones; i++) {
        space_init(&pool->zones[i].space);
        TAILQ_INIT(&pool->zones[i].pendings);
    }
    RB_INSERT(pools, &core->pools, pool);
    pool->floor = core->floor;
    core->n_pools++;
    *ret = TAKE_PTR(pool);
    return 0;
}

void
pool_free(struct core *core, struct pool *pool)
{
    assert(RB_EMPTY(&pool->names) && RB_EMPTY(&pool->nameless) && RB_EMPTY(&pool->losts) &&
           pool->n_blocks == 0);
    if (pool->floor > core->floor)
        core->floor = pool->floor;
    pool_stay(core, pool);
    doubts_leave(&pool->doubts);
    RB_REMOVE(pools, &core->pools, pool);
    core->n_pools--;
    free(pool);
}

void
pool_set(struct pool *pool, const struct core_pool_config *config)
{
    pool->uid = config->uid;
    pool->gid = config->gid;
    pool->mode = config->mode;
    pool->quota = config->quota;
    pool->legacy = config->legacy;
}

bool
pool_is_used(const struct pool *pool)
{
    return pool->n_arrays || pool->n_timelines;
}

void
pool_leave(struct core *core, struct pool *pool)
{
    if (pool->leaving)
        return;
    pool->leaving = true;
    LIST_INSERT_HEAD(&core->leaving_pools, pool, of_leaving);
    core->n_pools--;
}

void
pool_stay(struct core *core, struct pool *pool)
{
    if (!pool->leaving)
        return;
    pool->leaving = false;
    LIST_REMOVE(pool, of_leaving);
    core->n_pools++;
}

void
pool_touch(struct pool *pool)
{
    if (pool->owner)
        user_touch(pool->owner);
}

bool
core_pool_name_valid(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._-";
    size_t n = name ? strlen(name) : 0;

    return n > 0 && n <= PROTO_POOL_MAX && strspn(name, letters) == n;
}

static bool
conn_in_group(const struct conn *conn, gid_t gid)
{
    if (conn->gid == gid)
        return true;
    for (size_t i = 0; i < conn->n_groups; i++)
        if (conn->groups[i] == gid)
            return true;
    return false;
}

bool
pool_may(const struct pool *pool, const struct conn *conn, int what)
{
    int bits;

    if (pool->leaving || pool->is_none)
        return false;
    if (conn->user->uid == 0)
        return true;
    if (conn->user->pool->is_none) /* its uid and group stand for anybody */
        bits = (int)pool->mode;
    else if (conn->user->uid == pool->uid)
        bits = (int)(pool->mode >> 6);
    else if (conn_in_group(conn, pool->gid))
        bits = (int)(pool->mode >> 3);
    else
        bits = (int)pool->mode;
    return (bits & what) == what;
}

static bool
user_may_resume(struct core *core, uid_t uid)
{
    const struct user *user = user_find(core, uid);

    return user && !TAILQ_EMPTY(&user->formers);
}

/* The groups of a client that has not resumed are not known. */
bool
pool_may_resume(struct core *core, const struct pool *pool)
{
    if (!core->n_formers || pool->mode & 077)
        return core->n_formers;
    return user_may_resume(core, pool->uid) || user_may_resume(core, 0);
}

bool
pool_is_landing(const struct core *core, const struct pool *pool)
{
    const struct conn *conn;

    TAILQ_FOREACH(conn, &core->landing, of_former)
        if (pool_may(pool, conn, MAY_READ))
            return true;
    return false;
}

struct pool *
pool_find_from(struct core *core, struct msg_str name)
{
    struct pool key;

    if (name.n > PROTO_POOL_MAX)
        return NULL;
    memcpy(key.name, name.p ? name.p : "", name.n);
    key.name[name.n] = '\0';
    return RB_NFIND(pools, &core->pools, &key);
}

struct pool *
pool_find(struct core *core, const struct conn *conn, struct msg_str name)
{
    struct pool *pool;

    if (!name.p)
        return conn->user->pool;
    pool = pool_find_from(core, name);
    return pool && msg_str_eq(name, pool->name) ? pool : NULL;
}

static int
refuse_pool(struct refusal *r, const struct conn *conn, struct msg_str name)
{
    if (!name.p && conn->user->pool->is_none)
        return refuse(r, PROTO_ERR_PERMISSION,
                      "uid %u stands for all users that are not mapped, and has no pool of its "
                      "own: name another (caid(8), CONTAINERS)",
                      (unsigned)conn->user->uid);
    return refuse(r, PROTO_ERR_NOT_FOUND, "no pool \"%.*s\"", STR_FMT(name));
}

void
refusal_fill_name(struct refusal *r, const char *what, struct msg_str pool, struct msg_str name)
{
    if (pool.p)
        refusal_fill(r, PROTO_ERR_NOT_FOUND, "no %s \"%.*s\" in pool \"%.*s\"", what,
                     STR_FMT(name), STR_FMT(pool));
    else
        refusal_fill(r, PROTO_ERR_NOT_FOUND, "no %s \"%.*s\"", what, STR_FMT(name));
}

int
pool_find_readable(struct core *core, const struct conn *conn, struct msg_str name,
                   struct pool **ret, struct refusal *r)
{
    *ret = pool_find(core, conn, name);
    return *ret && pool_may(*ret, conn, MAY_READ) ? 0 : refuse_pool(r, conn, name);
}

int
pool_check_writable(const struct pool *pool, const struct conn *conn, struct refusal *r)
{
    if (pool_may(pool, conn, MAY_WRITE))
        return 0;
    return refuse(r, PROTO_ERR_PERMISSION, "pool \"%s\" may be read, not written", pool->name);
}

int
pool_find_writable(struct core *core, const struct conn *conn, struct msg_str name,
                   struct pool **ret, struct refusal *r)
{
    struct pool *pool = pool_find(core, conn, name);

    if (!pool || (!pool_may(pool, conn, MAY_WRITE) && !pool_may(pool, conn, MAY_READ)))
        return refuse_pool(r, conn, name);
    *ret = pool;
    return pool_check_writable(pool, conn, r);
}

int
pools_list(struct core *core, const struct conn *conn, struct portion *portion, bool all,
           struct msg_str name,
           void (*add)(const struct core *core, struct portion *portion, struct pool *pool,
                       const void *params, bool resumed),
           const void *params, struct refusal *r)
{
    struct pool *pool;

    if (!all) {
        if (pool_find_readable(core, conn, name, &pool, r))
            return REFUSED;
        add(core, portion, pool, params, true);
        return 0;
    }
    for (pool = pool_find_from(core, name); pool && !portion->more;
         pool = RB_NEXT(pools, &core->pools, pool))
        if (pool_may(pool, conn, MAY_READ))
            add(core, portion, pool, params, msg_str_eq(name, pool->name));
    return 0;
}

struct zone *
pool_zone(const struct core *core, struct pool *pool, uint32_t device, enum core_kind kind)
{
    assert(device < core->config.n_devices);
    return &pool->zones[device * N_KINDS + kind];
}

int
pool_check(const struct core *core, const struct pool *pool, enum core_kind kind,
           uint64_t bytes, struct refusal *r)
{
    uint64_t left = UINT64_MAX;
    int rc = 0;

    if (pool->quota)
        left = pool->used < pool->quota ? pool->quota - pool->used : 0;
    if (kind != KIND_PINNED && bytes > left)
        rc = refuse_limit(COUNT_LIMIT_QUOTA, r, PROTO_ERR_QUOTA,
                          "pool \"%s\": quota of %s exceeded by %s (caidctl show --pool=%s)",
                          pool->name, SIZE_TEXT(pool->quota), SIZE_TEXT(bytes - left),
                          pool->name);
    else if (pool->n_blocks >= core->config.blocks)
        rc = refuse_limit(COUNT_LIMIT_BLOCKS, r, PROTO_ERR_LIMIT,
                          "pool \"%s\": limit of %u blocks reached", pool->name,
                          core->config.blocks);
    if (rc)
        snprintf(r->pool, sizeof(r->pool), "%s", pool->name);
    return rc;
}

/* A key for the tree only: the array is not written through it. */
static void
name_key(struct array *ret, struct msg_str name)
{
    const char *text = name.p ? name.p : "";

    assert(name.n <= UINT8_MAX);
    *ret = (struct array){.n_name = (uint8_t)name.n};
    memcpy(&ret->name, &text, sizeof(ret->name));
}

/* A name that is too long for an array. Clients may ask for any. */
static bool
name_is_long(struct msg_str name)
{
    return name.n > PROTO_NAME_MAX;
}

struct array *
pool_find_array(struct pool *pool, struct msg_str name)
{
    struct array key;

    if (name.n == 0 || name_is_long(name))
        return NULL;
    name_key(&key, name);
    return RB_FIND(names, &pool->names, &key);
}

struct array *
pool_find_before(struct pool *pool, struct msg_str name)
{
    struct array key, *array = RB_ROOT(&pool->names), *before = NULL;

    if (name_is_long(name)) /* what comes before its beginning comes before it */
        name.n = PROTO_NAME_MAX;
    name_key(&key, name);
    while (array) {
        bool is_before = name_compare(array, &key) < 0;
        if (is_before)
            before = array;
        array = is_before ? RB_RIGHT(array, node) : RB_LEFT(array, node);
    }
    return before;
}

struct array *
pool_find_next(struct pool *pool, struct msg_str after, struct msg_str prefix)
{
    struct array last, first, *array;

    if (name_is_long(prefix))
        return NULL;
    if (name_is_long(after)) /* what comes after it comes after its beginning, too */
        after.n = PROTO_NAME_MAX;
    name_key(&last, after);
    name_key(&first, prefix);
    if (name_compare(&last, &first) < 0)
        return RB_NFIND(names, &pool->names, &first);
    array = RB_NFIND(names, &pool->names, &last);
    if (array && name_compare(array, &last) == 0)
        array = RB_NEXT(names, &pool->names, array);
    return array;
}

struct array *
pool_find_nameless(struct pool *pool, struct msg_str name, uint64_t generation, uint64_t id)
{
    struct array key;

    if (name_is_long(name))
        return NULL;
    name_key(&key, name);
    key.generation = generation;
    key.id = id;
    return RB_NFIND(nameless, &pool->nameless, &key);
}

/* The validator has checked that it is UTF-8. U+0080 to U+009F are control characters, too. */
int
name_check(struct msg_str name, struct refusal *r)
{
    if (name.n == 0 || name.n > PROTO_NAME_MAX)
        return refuse(r, PROTO_ERR_INVALID_NAME, "a name has 1 to %d bytes, this one has %u",
                      PROTO_NAME_MAX, name.n);
    size_t plain = utf8_before_control(name.p, name.n);
    if (plain < name.n)
        return refuse(r, PROTO_ERR_INVALID_NAME,
                      "a name has no control characters, this one has one at byte %zu", plain);
    return 0;
}
