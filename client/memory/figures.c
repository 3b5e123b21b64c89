/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Figures and what moves them: pools, users, devices, the deallocation queues. Lists come in
 * packets; the callback runs with nothing locked and may use the client.
 */
#include <errno.h>

#include "block.h"
#include "session/client.h"
#include "session/text.h"

/* Bytes of a pool's name that a list goes on after, and the terminator. */
#define CURSOR_MAX 512

/* ---- pools ---- */

struct pools {
    struct caid_client *client;
    struct msg_pools_params params;
    int (*fn)(const struct caid_pool *pool, void *userdata);
    void *userdata;
    char after[CURSOR_MAX];
};

static bool
pool_fill(struct caid_pool *ret, const struct msg_pool *m, char *name, size_t size)
{
    if (m->name.n >= size || !text_is_plain(m->name) || m->uid > UINT32_MAX ||
        m->gid > UINT32_MAX || m->mode > UINT32_MAX)
        return false;
    text_copy(name, size, m->name);
    *ret = (struct caid_pool){
        .name = name,
        .uid = (uint32_t)m->uid,
        .gid = (uint32_t)m->gid,
        .mode = (uint32_t)m->mode,
        .quota = m->quota,
        .used = m->used,
        .names = m->names,
        .arrays = m->arrays,
        .blocks = m->blocks,
        .allocated = m->allocated,
        .pending = m->pending,
        .reserve = m->reserve,
        .holes = m->holes,
        .largest = m->largest,
        .pinned = m->pinned,
    };
    return true;
}

/* The cursor is the name of the pool that was given last. */
static int
pools_give(struct pools *pools, const struct msg_pools_result *result, bool *ret_stopped)
{
    struct caid_pool pool;

    for (uint32_t i = 0; i < result->n_pools; i++) {
        if (!pool_fill(&pool, &result->pools[i], pools->after, sizeof(pools->after)))
            return -EPROTO;
        int r = pools->fn(&pool, pools->userdata);
        if (r != 0) {
            *ret_stopped = true;
            return r;
        }
    }
    pools->params.after = MSG_STR(pools->after);
    return result->more && result->n_pools == 0 ? -EPROTO : 0;
}

static int
pools_next(struct pools *pools, bool *ret_end, struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct msg_pools_result result;
    bool stopped = false;

    int r = reply_get(&reply, pools->client, MSG_POOLS, &pools->params, &result, error);
    if (r < 0)
        return r;
    r = pools_give(pools, &result, &stopped);
    *ret_end = stopped || !result.more;
    if (r == -EPROTO && !stopped)
        return client_violated(pools->client, "pools", error);
    return r;
}

int
caid_pools(struct caid_client *client, int (*fn)(const struct caid_pool *pool, void *userdata),
           void *userdata, struct caid_error *error)
{
    struct pools pools = {.client = client, .fn = fn, .userdata = userdata};
    bool end = false;

    int r = client_check(client, error);
    if (r == 0 && !fn)
        r = fail(error, CAID_ERR_INVALID, "fn is NULL");
    while (r == 0 && !end)
        r = pools_next(&pools, &end, error);
    return r;
}

/* ---- users ---- */

static bool
user_fill(struct caid_user *ret, const struct msg_user *m)
{
    if (m->uid > UINT32_MAX)
        return false;
    *ret = (struct caid_user){
        .uid = (uint32_t)m->uid,
        .connections = m->connections,
        .arrays = m->arrays,
        .names = m->names,
        .leases = m->leases,
        .watches = m->watches,
        .jobs = m->jobs,
        .bytes = m->bytes,
        .pinned = m->pinned,
        .host = m->host,
        .pending = m->pending,
        .deferred = m->deferred,
        .brackets = m->brackets,
        .pages = m->pages,
    };
    return true;
}

/* Gives one packet of users, in the order of their uids; *from becomes where the next starts,
 * or more than a uid at the end. */
static int
users_next(struct caid_client *client, uint64_t *from,
           int (*fn)(const struct caid_user *user, void *userdata), void *userdata,
           struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct msg_users_params params = {.from = *from};
    struct msg_users_result result;
    struct caid_user user;

    int r = reply_get(&reply, client, MSG_USERS, &params, &result, error);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < result.n_users; i++) {
        if (!user_fill(&user, &result.users[i]) || user.uid < *from)
            return client_violated(client, "users", error);
        *from = (uint64_t)user.uid + 1;
        r = fn(&user, userdata);
        if (r != 0)
            return r;
    }
    if (result.more && result.n_users == 0)
        return client_violated(client, "users", error);
    if (!result.more)
        *from = UINT64_MAX;
    return 0;
}

int
caid_users(struct caid_client *client, int (*fn)(const struct caid_user *user, void *userdata),
           void *userdata, struct caid_error *error)
{
    uint64_t from = 0;

    int r = client_check(client, error);
    if (r == 0 && !fn)
        r = fail(error, CAID_ERR_INVALID, "fn is NULL");
    while (r == 0 && from <= UINT32_MAX)
        r = users_next(client, &from, fn, userdata, error);
    return r;
}

/* ---- memory ---- */

static void
memory_fill(struct caid_memory_info *info, const struct msg_memory *m)
{
    info->free = m->free;
    info->total = m->total;
    info->used = m->used;
    info->blocks = m->blocks;
    info->arrays = m->arrays;
    info->allocated = m->allocated;
    info->reserve = m->reserve;
    info->available = m->available;
    info->pending = m->pending;
    info->pending_bytes = m->pending_bytes;
    info->pinned = m->pinned;
    info->flushes = m->flushes;
    info->releases = m->releases;
    info->quarantined = m->quarantined;
    info->quarantined_bytes = m->quarantined_bytes;
    info->context = m->context;
}

int
caid_memory_info(struct caid_client *client, int32_t device, struct caid_memory_info *ret,
                 struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct caid_memory_info info = {0};
    struct msg_memory_result result;
    const char *uuid;

    int r = client_check(client, error);
    if (r == 0)
        r = client_device_uuid(client, device, &uuid, error);
    if (r < 0)
        return r;
    struct msg_memory_params params = {.device = MSG_STR(uuid)};
    r = reply_get(&reply, client, MSG_MEMORY_INFO, &params, &result, error);
    if (r < 0)
        return r;
    if (result.n_devices != 1 || !msg_str_eq(result.devices[0].uuid, uuid))
        return client_violated(client, "memory_info", error);
    memory_fill(&info, &result.devices[0]);
    return result_write(ret, &info, sizeof(info), error);
}

/* ---- the deallocation queues ---- */

/* What this client has closed is to be among what is flushed. */
static int
finish_closes(struct caid_client *client, struct caid_error *error)
{
    int r = client_enter(client, error);
    if (r < 0)
        return r;
    block_drain(client);
    client_leave(client);
    return 0;
}

int
caid_flush(struct caid_client *client, int32_t device, struct caid_flushed *ret,
           struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct msg_flush_params params = {0};
    struct msg_flush_result result;
    const char *uuid;

    int r = client_check(client, error);
    if (r == 0 && device != -1) {
        r = client_device_uuid(client, device, &uuid, error);
        if (r == 0)
            params.device = MSG_STR(uuid);
    }
    if (r == 0)
        r = finish_closes(client, error);
    if (r == 0)
        r = reply_get(&reply, client, MSG_FLUSH, &params, &result, error);
    if (r < 0 || !ret)
        return r;
    struct caid_flushed flushed = {
        .entries = result.entries,
        .blocks = result.blocks,
        .bytes = result.bytes,
    };
    return result_write(ret, &flushed, sizeof(flushed), error);
}

static int
defer(struct caid_client *client, bool begin, struct caid_error *error)
{
    struct msg_defer_params params = {.begin = begin};
    struct call call = {.method = MSG_DEFER, .params = &params};

    int r = client_enter(client, error);
    if (r < 0)
        return r;
    r = call_run(client, &call, error);
    client_leave(client);
    return r;
}

int
caid_defer_begin(struct caid_client *client, struct caid_error *error)
{
    return defer(client, true, error);
}

int
caid_defer_end(struct caid_client *client, struct caid_error *error)
{
    return defer(client, false, error);
}
