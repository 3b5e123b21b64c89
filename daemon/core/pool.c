/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool: a sharing domain, the trust boundary (I1), and a name space. Permission is checked
 * here, on the whole pool, like a directory's: whoever may open one array of a pool could reach
 * all that lies in the same block.
 */
#include <assert.h>
#include <stdio.h>

#include "state.h"

static int
pool_compare(const struct pool *a, const struct pool *b)
{
    return strcmp(a->name, b->name);
}

/* Byte order, a prefix first. */
static int
name_compare(const struct array *a, const struct array *b)
{
    uint32_t n = a->n_name < b->n_name ? a->n_name : b->n_name;
    int c = memcmp(a->name, b->name, n);
    return c ? c : CMP(a->n_name, b->n_name);
}

RB_GENERATE(pools, pool, node, pool_compare)
RB_GENERATE(names, array, by_name, name_compare)

int
pool_new(struct core *core, const struct core_pool_config *config, struct pool **ret)
{
    _cleanup_free_ struct pool *pool = calloc(1, sizeof(*pool));

    if (!pool)
        return -ENOMEM;
    snprintf(pool->name, sizeof(pool->name), "%s", config->name);
    pool->uid = config->uid;
    pool->gid = config->gid;
    pool->mode = config->mode;
    pool->quota = config->quota;
    RB_INIT(&pool->names);
    if (RB_INSERT(pools, &core->pools, pool))
        return -EEXIST;
    *ret = TAKE_PTR(pool);
    return 0;
}

void
pool_free(struct core *core, struct pool *pool)
{
    assert(RB_EMPTY(&pool->names) && pool->used == 0);
    RB_REMOVE(pools, &core->pools, pool);
    free(pool);
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

    if (conn->user->uid == 0)
        return true;
    if (conn->user->uid == pool->uid)
        bits = (int)(pool->mode >> 6);
    else if (conn_in_group(conn, pool->gid))
        bits = (int)(pool->mode >> 3);
    else
        bits = (int)pool->mode;
    return (bits & what) == what;
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

int
pool_charge(struct pool *pool, uint64_t bytes, struct refusal *r)
{
    uint64_t left = pool->quota ? pool->quota - pool->used : UINT64_MAX - pool->used;

    if (bytes > left)
        return refuse(r, PROTO_ERR_QUOTA,
                      "pool \"%s\": quota of %s exceeded by %s (caidctl show --pool=%s)",
                      pool->name, SIZE_TEXT(pool->quota), SIZE_TEXT(bytes - left), pool->name);
    pool->used += bytes;
    return 0;
}

void
pool_uncharge(struct pool *pool, uint64_t bytes)
{
    assert(pool->used >= bytes);
    pool->used -= bytes;
}

/* A key for the tree only: the array is not written through it. */
static struct array
name_key(struct msg_str name)
{
    struct array key = {.n_name = name.n};
    const char *text = name.p ? name.p : "";

    memcpy(&key.name, &text, sizeof(key.name));
    return key;
}

struct array *
pool_find_array(struct pool *pool, struct msg_str name)
{
    struct array key = name_key(name);

    return name.n ? RB_FIND(names, &pool->names, &key) : NULL;
}

struct array *
pool_find_next(struct pool *pool, struct msg_str after, struct msg_str prefix)
{
    struct array last = name_key(after), first = name_key(prefix), *array;

    if (name_compare(&last, &first) < 0)
        return RB_NFIND(names, &pool->names, &first);
    array = RB_NFIND(names, &pool->names, &last);
    if (array && name_compare(array, &last) == 0)
        array = RB_NEXT(names, &pool->names, array);
    return array;
}

/* The validator has seen to UTF-8; U+0080 to U+009F are control characters, too. */
int
name_check(struct msg_str name, struct refusal *r)
{
    if (name.n == 0 || name.n > PROTO_NAME_MAX)
        return refuse(r, PROTO_ERR_INVALID_NAME, "a name has 1 to %d bytes, this one has %u",
                      PROTO_NAME_MAX, name.n);
    for (uint32_t i = 0; i < name.n; i++) {
        unsigned char c = (unsigned char)name.p[i];
        bool c1 = c == 0xc2 && i + 1 < name.n && (unsigned char)name.p[i + 1] < 0xa0;
        if (c < 0x20 || c == 0x7f || c1)
            return refuse(r, PROTO_ERR_INVALID_NAME,
                          "a name has no control characters, this one has one at byte %u", i);
    }
    return 0;
}
