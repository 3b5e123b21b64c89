/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names, pools and figures: what can be asked about without holding an array. Lists come in
 * packets; the callback runs with nothing locked and may use the client.
 */
#include <errno.h>
#include <string.h>

#include "client.h"
#include "text.h"

/* Bytes of a name or a pool that a list goes on after, and the terminator. */
#define CURSOR_MAX 512

int
caid_unlink(struct caid_client *client, const char *name, const char *pool,
            struct caid_error *error)
{
    int r = client_check(client, error);
    if (r == 0)
        r = check_name(name, error);
    if (r == 0)
        r = check_pool(pool, error);
    if (r == 0)
        r = client_enter(client, error);
    if (r < 0)
        return r;

    struct msg_name_params params = {.name = MSG_STR(name), .pool = msg_str_opt(pool)};
    struct call call = {.method = MSG_UNLINK, .params = &params};
    r = call_run(client, &call, error);
    client_leave(client);
    return r;
}

/* ---- entries ---- */

/* Scratch for the C strings of one callback: no more than the packet has bytes, and their ends. */
static char *
scratch_new(const struct reply *reply, size_t n_strings)
{
    return malloc(reply->n + n_strings);
}

#define ENTRY_STRINGS 3

static bool
entry_fill(struct caid_entry *ret, const struct caid_client *client, const struct msg_entry *m,
           char **scratch)
{
    if (!text_is_plain(m->pool) || !text_is_plain(m->name) || !text_is_plain(m->typestr) ||
        m->shape.n > PROTO_NDIM_MAX || m->uid > UINT32_MAX)
        return false;
    *ret = (struct caid_entry){
        .pool = text_put(scratch, m->pool),
        .name = text_put(scratch, m->name),
        .typestr = text_put(scratch, m->typestr),
        .shape = m->shape.v,
        .ndim = m->shape.n,
        .device = client_find_device(client, m->device),
        .generation = m->generation,
        .nbytes = m->nbytes,
        .leases = m->leases,
        .uid = (uint32_t)m->uid,
    };
    return true;
}

/* ---- list ---- */

struct list {
    struct caid_client *client;
    struct msg_list_params params;
    int (*fn)(const struct caid_entry *entry, void *userdata);
    void *userdata;
    char pool[CURSOR_MAX], after[CURSOR_MAX]; /* where the next packet starts */
};

/* Returns 0, what fn said, or -EPROTO, -ENOMEM. */
static int
list_give(struct list *list, const struct reply *reply, const struct msg_list_result *result,
          bool *ret_stopped)
{
    _cleanup_free_ char *scratch = scratch_new(reply, ENTRY_STRINGS);
    struct caid_entry entry;

    if (!scratch)
        return -ENOMEM;
    for (uint32_t i = 0; i < result->n_entries; i++) {
        char *cursor = scratch;
        if (!entry_fill(&entry, list->client, &result->entries[i], &cursor))
            return -EPROTO;
        int r = list->fn(&entry, list->userdata);
        if (r != 0) {
            *ret_stopped = true;
            return r;
        }
    }
    return 0;
}

/* Makes the last entry the cursor. A daemon that has more but gives nothing would have us ask
 * for ever. */
static int
list_advance(struct list *list, const struct msg_list_result *result)
{
    if (result->n_entries == 0)
        return -EPROTO;
    const struct msg_entry *last = &result->entries[result->n_entries - 1];
    if (last->pool.n >= CURSOR_MAX || last->name.n >= CURSOR_MAX)
        return -EPROTO;
    if (list->params.all) {
        text_copy(list->pool, sizeof(list->pool), last->pool);
        list->params.pool = MSG_STR(list->pool);
    }
    text_copy(list->after, sizeof(list->after), last->name);
    list->params.after = MSG_STR(list->after);
    return 0;
}

static int
list_next(struct list *list, bool *ret_end, struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct msg_list_result result;
    bool stopped = false;

    int r = reply_get(&reply, list->client, MSG_LIST, &list->params, &result, error);
    if (r < 0)
        return r;
    r = list_give(list, &reply, &result, &stopped);
    *ret_end = stopped || !result.more;
    if (stopped)
        return r;
    if (r == 0 && result.more)
        r = list_advance(list, &result);
    if (r == -EPROTO)
        return client_violated(list->client, "list", error);
    return r < 0 ? fail_errno(error, -r, "no memory for a list") : 0;
}

int
caid_list(struct caid_client *client, const struct caid_list_options *options,
          int (*fn)(const struct caid_entry *entry, void *userdata), void *userdata,
          struct caid_error *error)
{
    struct caid_list_options opts;
    bool end = false;

    int r = client_check(client, error);
    if (r == 0 && !fn)
        r = fail(error, CAID_ERR_INVALID, "fn is NULL");
    if (r == 0)
        r = options_read(&opts, sizeof(opts), options, error);
    if (r == 0)
        r = check_pool(opts.pool, error);
    if (r == 0)
        r = check_text("prefix", opts.prefix, false, error);
    if (r < 0)
        return r;

    struct list list = {
        .client = client,
        .params = {.pool = msg_str_opt(opts.all ? NULL : opts.pool),
                   .all = opts.all,
                   .prefix = msg_str_opt(opts.prefix)},
        .fn = fn,
        .userdata = userdata,
    };
    while (r == 0 && !end)
        r = list_next(&list, &end, error);
    return r;
}

/* ---- show ---- */

static bool
holders_fill(struct caid_holder *ret, const struct msg_show_result *m, char **scratch)
{
    for (uint32_t i = 0; i < m->n_holders; i++) {
        const struct msg_holder *holder = &m->holders[i];
        if (!text_is_plain(holder->client) || holder->uid > UINT32_MAX)
            return false;
        ret[i] = (struct caid_holder){
            .client = text_put(scratch, holder->client),
            .pid = holder->pid,
            .uid = (uint32_t)holder->uid,
            .readonly = holder->readonly,
        };
    }
    return true;
}

static bool
details_fill(struct caid_details *ret, const struct caid_client *client,
             const struct msg_show_result *m, struct caid_holder *holders, char *scratch)
{
    struct caid_details details = {
        .strides = m->strides.v,
        .array = m->array,
        .block = m->block,
        .block_size = m->block_size,
        .offset = m->offset,
        .holders = holders,
        .n_holders = m->n_holders,
    };

    if (m->n_entries != 1 || !text_is_plain(m->descr) ||
        !entry_fill(&details.entry, client, &m->entries[0], &scratch) ||
        !holders_fill(holders, m, &scratch))
        return false;
    if (m->strides.v && m->strides.n != details.entry.ndim)
        return false;
    details.descr = text_put(&scratch, m->descr);
    *ret = details;
    return true;
}

int
caid_show(struct caid_client *client, const char *name, const char *pool,
          int (*fn)(const struct caid_details *details, void *userdata), void *userdata,
          struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct msg_show_result result;
    struct caid_details details;

    int r = client_check(client, error);
    if (r == 0 && !fn)
        r = fail(error, CAID_ERR_INVALID, "fn is NULL");
    if (r == 0)
        r = check_name(name, error);
    if (r == 0)
        r = check_pool(pool, error);
    if (r < 0)
        return r;

    struct msg_name_params params = {.name = MSG_STR(name), .pool = msg_str_opt(pool)};
    r = reply_get(&reply, client, MSG_SHOW, &params, &result, error);
    if (r < 0)
        return r;
    _cleanup_free_ struct caid_holder *holders =
        calloc(result.n_holders ? result.n_holders : 1, sizeof(*holders));
    _cleanup_free_ char *scratch =
        scratch_new(&reply, ENTRY_STRINGS + 1 + (size_t)result.n_holders);
    if (!holders || !scratch)
        return fail_errno(error, ENOMEM, "no memory for %u holders", result.n_holders);
    if (!details_fill(&details, client, &result, holders, scratch))
        return client_violated(client, "show", error);
    return fn(&details, userdata);
}

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

/* ---- memory ---- */

int
caid_memory_info(struct caid_client *client, int32_t device, struct caid_memory_info *ret,
                 struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
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

    const struct msg_memory *memory = &result.devices[0];
    struct caid_memory_info info = {
        .free = memory->free,
        .total = memory->total,
        .used = memory->used,
        .blocks = memory->blocks,
        .arrays = memory->arrays,
    };
    return result_write(ret, &info, sizeof(info), error);
}
