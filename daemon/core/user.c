/* SPDX-License-Identifier: Apache-2.0 */
#include "user.h"

#include <assert.h>
#include <inttypes.h>

#include "device.h"
#include "state.h"

RB_GENERATE_BY(users, user, node, uid)

static const struct {
    const char *text;
    bool is_bytes;
} resources[N_RESOURCES] = {

#define RESOURCE(NAME, figure, limit, bytes, text) [RES_##NAME] = {text, bytes},
    RESOURCES(RESOURCE)
#undef RESOURCE
};

struct user *
user_find(struct core *core, uid_t uid)
{
    struct user key = {.uid = uid};

    return RB_FIND(users, &core->users, &key);
}

struct user *
user_new(struct core *core, uid_t uid)
{
    size_t n = core->config.n_devices;
    struct user *user = calloc(1, sizeof(*user) + n * sizeof(user->devices[0]));

    if (!user)
        return NULL;
    user->uid = uid;
    user->core = core;
    TAILQ_INIT(&user->waiting);
    TAILQ_INIT(&user->ready);
    TAILQ_INIT(&user->due);
    TAILQ_INIT(&user->done);
    TAILQ_INIT(&user->ending);
    TAILQ_INIT(&user->formers);
    TAILQ_INIT(&user->ended);
    for (size_t i = 0; i < n; i++)
        dealloc_owner_init(&user->devices[i].queue);
    RB_INSERT(users, &core->users, user);
    core->n_users++;
    return user;
}

void
user_free(struct core *core, struct user *user)
{
    if (user->touched)
        TAILQ_REMOVE(&core->touched_users, user, of_touched);
    if (user->busy)
        TAILQ_REMOVE(&core->busy, user, of_busy);
    RB_REMOVE(users, &core->users, user);
    core->n_users--;
    free(user);
}

void
user_touch(struct user *user)
{
    if (user->touched)
        return;
    user->touched = true;
    TAILQ_INSERT_TAIL(&user->core->touched_users, user, of_touched);
}

void
user_wake(struct user *user)
{
    if (user->busy)
        return;
    user->busy = true;
    TAILQ_INSERT_TAIL(&user->core->busy, user, of_busy);
}

bool
user_is_idle(const struct user *user)
{
    const struct pool *pool = user->pool;

    for (size_t i = 0; i < N_RESOURCES; i++)
        if (user->used[i])
            return false;
    return !user->n_pending && !user->n_refs && !pool->n_arrays && !pool->n_blocks &&
           !pool->n_watches && !pool->n_timelines && RB_EMPTY(&pool->losts);
}

uint64_t
user_limit(const struct core *core, enum resource res)
{
    const struct core_limits *l = &core->config.limits;

    switch (res) {
#define RESOURCE(NAME, figure, limit, bytes, text) \
    case RES_##NAME: return l->limit || !bytes ? l->limit : UINT64_MAX;
        RESOURCES(RESOURCE)
#undef RESOURCE
    case N_RESOURCES: break;
    }
    abort();
}

static uint64_t
total(const struct core *core, enum resource res)
{
    switch (res) {
    case RES_HOST: return core->config.totals.host_bytes;
    case RES_FDS: return core->config.totals.fds;
    default: return 0;
    }
}

uint64_t
user_share(const struct user *user, enum resource res)
{
    uint64_t all = total(user->core, res);
    uint64_t others = user->core->used[res] + user->core->due[res] - user->used[res];

    if (all == 0)
        return UINT64_MAX;
    if (user->uid != 0)
        all -= all / 16;
    all = all > others ? all - others : 0;
    return user->uid != 0 ? all / 2 : all;
}

static uint64_t
room(const struct user *user, enum resource res)
{
    return min_u64(user_limit(user->core, res), user_share(user, res));
}

int
user_check(const struct user *user, enum resource res, uint64_t amount, struct refusal *r)
{
    uint64_t limit = room(user, res), used = user->used[res];
    /* counts and resources are in the same order */
    uint32_t reached = COUNT_LIMIT_CONNECTIONS + res;

    if (!r || amount == 0 || (used <= limit && amount <= limit - used))
        return 0;
    if (resources[res].is_bytes)
        return refuse_limit(reached, r, PROTO_ERR_QUOTA,
                            "uid %" PRIuMAX ": limit of %s %s exceeded by %s (caidctl show)",
                            (uintmax_t)user->uid, SIZE_TEXT(limit), resources[res].text,
                            SIZE_TEXT(used + amount - limit));
    return refuse_limit(reached, r, PROTO_ERR_LIMIT,
                        "uid %" PRIuMAX ": limit of %" PRIu64 " %s reached (caidctl show)",
                        (uintmax_t)user->uid, limit, resources[res].text);
}

int
user_charge(struct user *user, enum resource res, uint64_t amount, struct refusal *r)
{
    if (user_check(user, res, amount, r))
        return REFUSED;
    user_charge_anyway(user, res, amount);
    return 0;
}

void
user_charge_anyway(struct user *user, enum resource res, uint64_t amount)
{
    user->used[res] += amount;
    user->core->used[res] += amount;
}

void
user_uncharge(struct user *user, enum resource res, uint64_t amount)
{
    assert(user->used[res] >= amount);
    user->used[res] -= amount;
    user->core->used[res] -= amount;
    user_touch(user);
}

void
user_count(struct user *user, uint32_t device, uint64_t bytes, bool there)
{
    uint64_t was = user->devices[device].bytes, is = there ? was + bytes : was - bytes;

    assert(there || was >= bytes);
    user->devices[device].bytes = is;
    user->core->devices[device].n_users += (uint64_t)(is > 0) - (uint64_t)(was > 0);
}

/* ---- charges ---- */

int
charge_init(struct charge *ret, struct user *user, enum resource res, uint32_t n, size_t host,
            struct refusal *r)
{
    assert(n <= UINT16_MAX && host <= UINT32_MAX);
    if (user_charge(user, res, n, r))
        return REFUSED;
    if (user_charge(user, RES_HOST, host, r)) {
        user_uncharge(user, res, n);
        return REFUSED;
    }
    *ret = (struct charge){.user = user,
                           .host = (uint32_t)host,
                           .n = (uint16_t)n,
                           .resource = (uint8_t)res};
    return 0;
}

void
charge_deinit(struct charge *charge)
{
    struct charge was = *charge;

    *charge = (struct charge){.user = was.user};
    if (!was.user)
        return;
    user_uncharge(was.user, was.resource, was.n);
    user_uncharge(was.user, RES_HOST, was.host);
}

void
charge_split(struct charge *charge, struct charge *ret, uint32_t n, size_t host)
{
    assert(n <= charge->n && host <= charge->host);
    *ret = *charge;
    ret->n = (uint16_t)n;
    ret->host = (uint32_t)host;
    charge->n = (uint16_t)(charge->n - n);
    charge->host -= (uint32_t)host;
}
