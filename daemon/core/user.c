/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A uid and what it is charged. Charges are undone with the object that they were made for (I4),
 * so a user that holds nothing is at zero everywhere, which user_settle() relies on.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "state.h"

static int
user_compare(const struct user *a, const struct user *b)
{
    return CMP(a->uid, b->uid);
}

RB_GENERATE(users, user, node, user_compare)

static const char *const resource_names[N_RESOURCES] = {
    [RES_CONNECTIONS] = "connections",
    [RES_ARRAYS] = "arrays",
    [RES_NAMES] = "names",
    [RES_LEASES] = "leases",
    [RES_WATCHES] = "watches",
    [RES_BYTES] = "of device memory",
    [RES_PINNED] = "of pinned memory",
    [RES_HOST] = "of the daemon's memory",
    [RES_JOBS] = "driver calls under way",
    [RES_BRACKETS] = "brackets",
    [RES_PAGES] = "pages of timelines",
};

int
user_get(struct core *core, uid_t uid, gid_t gid, struct user **ret)
{
    struct user key = {.uid = uid};
    _cleanup_free_ struct user *user = NULL;
    struct core_pool_config pool = {
        .uid = uid,
        .gid = gid,
        .mode = core->config.user_mode,
        .quota = core->config.user_quota,
    };
    char name[PROTO_POOL_MAX + 1];
    int r;

    *ret = RB_FIND(users, &core->users, &key);
    if (*ret)
        return 0;
    user = calloc(1, sizeof(*user) + core->config.n_devices * sizeof(user->owners[0]));
    if (!user)
        return -ENOMEM;
    user->uid = uid;
    TAILQ_INIT(&user->waiting);
    for (size_t i = 0; i < core->config.n_devices; i++)
        dealloc_owner_init(&user->owners[i]);
    snprintf(name, sizeof(name), "uid:%" PRIuMAX, (uintmax_t)uid);
    pool.name = name;
    r = pool_new(core, &pool, &user->pool);
    if (r < 0)
        return r;
    user->pool->owner = user;
    RB_INSERT(users, &core->users, user);
    core->n_users++;
    *ret = TAKE_PTR(user);
    return 0;
}

void
user_settle(struct core *core, struct user *user)
{
    for (size_t i = 0; i < N_RESOURCES; i++)
        if (user->used[i])
            return;

    if (user->n_pending || user->n_refs || user->pool->n_arrays || user->pool->n_blocks ||
        user->pool->n_watches || user->pool->n_timelines)
        return;
    RB_REMOVE(users, &core->users, user);
    core->n_users--;
    pool_free(core, user->pool);
    free(user);
}

void
users_ref(struct user *user, struct user *owner)
{
    user->n_refs++;
    if (owner)
        owner->n_refs++;
}

void
users_unref(struct core *core, struct user *user, struct user *owner)
{
    user->n_refs--;
    if (owner)
        owner->n_refs--;
    user_settle(core, user);
    if (owner && owner != user)
        user_settle(core, owner);
}

void
users_settle(struct core *core, struct user *user, struct pool *pool)
{
    struct user *owner = pool->owner; /* the pool may go with user */

    user_settle(core, user);
    if (owner && owner != user)
        user_settle(core, owner);
}

uint64_t
user_limit(const struct core *core, enum resource res)
{
    const struct core_limits *l = &core->config.limits;

    switch (res) {
    case RES_CONNECTIONS: return l->connections;
    case RES_ARRAYS: return l->arrays;
    case RES_NAMES: return l->names;
    case RES_LEASES: return l->leases;
    case RES_WATCHES: return l->watches;
    case RES_BYTES: return l->bytes ? l->bytes : UINT64_MAX;
    case RES_PINNED: return l->pinned_bytes ? l->pinned_bytes : UINT64_MAX;
    case RES_HOST: return l->host_bytes ? l->host_bytes : UINT64_MAX;
    case RES_JOBS: return l->jobs;
    case RES_BRACKETS: return l->brackets;
    case RES_PAGES: return l->pages;
    case N_RESOURCES: break;
    }
    abort();
}

int
user_check(const struct core *core, const struct user *user, enum resource res, uint64_t amount,
           struct refusal *r)
{
    uint64_t limit = user_limit(core, res), used = user->used[res];

    assert(used <= limit);
    if (amount <= limit - used)
        return 0;
    if (res == RES_BYTES || res == RES_PINNED || res == RES_HOST)
        return refuse(r, PROTO_ERR_QUOTA,
                      "uid %" PRIuMAX ": limit of %s %s exceeded by %s (caidctl show)",
                      (uintmax_t)user->uid, SIZE_TEXT(limit), resource_names[res],
                      SIZE_TEXT(amount - (limit - used)));
    return refuse(r, PROTO_ERR_LIMIT,
                  "uid %" PRIuMAX ": limit of %" PRIu64 " %s reached (caidctl show)",
                  (uintmax_t)user->uid, limit, resource_names[res]);
}

int
user_charge(const struct core *core, struct user *user, enum resource res, uint64_t amount,
            struct refusal *r)
{
    if (user_check(core, user, res, amount, r))
        return REFUSED;
    user->used[res] += amount;
    return 0;
}

void
user_uncharge(struct user *user, enum resource res, uint64_t amount)
{
    assert(user->used[res] >= amount);
    user->used[res] -= amount;
}
