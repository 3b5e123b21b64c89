/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names, and arrays that have none: what can be asked about without holding an array. Lists
 * come in packets; the callback runs with nothing locked and may use the client.
 */
#include <errno.h>
#include <string.h>

#include "session/client.h"
#include "session/text.h"

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

/* Scratch for the C strings of one callback: no more than the packet has bytes, and their ends.
 * */
static char *
scratch_new(const struct reply *reply, size_t n_strings)
{
    return malloc(reply->n + n_strings);
}

#define ENTRY_STRINGS 4

static bool
entry_fill(struct caid_entry *ret, const struct caid_client *client, const struct msg_entry *m,
           char **scratch)
{
    if (!text_is_plain(m->pool) || !text_is_plain(m->name) || !text_is_plain(m->typestr) ||
        !text_is_plain(m->memory) || m->shape.n > PROTO_NDIM_MAX || m->uid > UINT32_MAX)
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
        .memory = text_put(scratch, m->memory),
        .readers = m->readers,
        .writers = m->writers,
        .waiting = m->waiting,
        .abandoned = m->abandoned,
        .parts = m->parts,
    };
    return true;
}

/* What caid_list() and caid_unnamed() are given. */
static int
check_list(struct caid_client *client, bool has_fn, const struct caid_list_options *options,
           struct caid_list_options *ret, struct caid_error *error)
{
    int r = client_check(client, error);
    if (r == 0 && !has_fn)
        r = fail(error, CAID_ERR_INVALID, "fn is NULL");
    if (r == 0)
        r = options_read(ret, sizeof(*ret), options, error);
    if (r == 0)
        r = check_pool(ret->pool, error);
    if (r == 0)
        r = check_text("prefix", ret->prefix, false, error);
    return r;
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

    int r = check_list(client, fn, options, &opts, error);
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
holders_fill(struct caid_holder *ret, const struct msg_holder *holders, uint32_t n,
             char **scratch)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct msg_holder *holder = &holders[i];
        if (!text_is_plain(holder->client) || holder->uid > UINT32_MAX)
            return false;
        ret[i] = (struct caid_holder){
            .client = text_put(scratch, holder->client),
            .pid = holder->pid,
            .uid = (uint32_t)holder->uid,
            .readonly = holder->readonly,
            .hung_up = holder->hung_up,
            .reading = holder->reading,
            .writing = holder->writing,
            .waiting = holder->waiting,
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

    if (m->n_entries != 1 || !text_is_plain(m->descr) || !text_is_plain(m->metadata) ||
        !entry_fill(&details.entry, client, &m->entries[0], &scratch) ||
        !holders_fill(holders, m->holders, m->n_holders, &scratch))
        return false;
    if (m->strides.v && m->strides.n != details.entry.ndim)
        return false;
    details.descr = text_put(&scratch, m->descr);
    details.metadata = text_put(&scratch, m->metadata);
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
        scratch_new(&reply, ENTRY_STRINGS + 2 + (size_t)result.n_holders);
    if (!holders || !scratch)
        return fail_errno(error, ENOMEM, "no memory for %u holders", result.n_holders);
    if (!details_fill(&details, client, &result, holders, scratch))
        return client_violated(client, "show", error);
    return fn(&details, userdata);
}

/* ---- unnamed ---- */

struct unnamed {
    struct caid_client *client;
    struct msg_unnamed_params params;
    int (*fn)(const struct caid_details *details, void *userdata);
    void *userdata;
    char pool[CURSOR_MAX], name[CURSOR_MAX]; /* where the next packet starts */
};

/* Returns 0, what fn said, or -EPROTO, -ENOMEM. */
static int
unnamed_give_one(struct unnamed *unnamed, const struct reply *reply,
                 const struct msg_unnamed *m, bool *ret_stopped)
{
    _cleanup_free_ struct caid_holder *holders =
        calloc(m->n_holders ? m->n_holders : 1, sizeof(*holders));
    _cleanup_free_ char *scratch = scratch_new(reply, ENTRY_STRINGS + (size_t)m->n_holders);
    char *cursor = scratch;

    if (!holders || !scratch)
        return -ENOMEM;
    struct caid_details details = {
        .array = m->array,
        .block = m->block,
        .holders = holders,
        .n_holders = m->n_holders,
    };
    if (m->n_entries != 1 ||
        !entry_fill(&details.entry, unnamed->client, &m->entries[0], &cursor) ||
        !holders_fill(holders, m->holders, m->n_holders, &cursor))
        return -EPROTO;
    int r = unnamed->fn(&details, unnamed->userdata);
    *ret_stopped = r != 0;
    return r;
}

/* As list_advance(). */
static int
unnamed_advance(struct unnamed *unnamed, const struct msg_unnamed_result *result)
{
    if (result->n_arrays == 0)
        return -EPROTO;
    const struct msg_unnamed *last = &result->arrays[result->n_arrays - 1];
    const struct msg_entry *entry = &last->entries[0]; /* unnamed_give_one() has seen it */
    if (entry->pool.n >= CURSOR_MAX || entry->name.n >= CURSOR_MAX)
        return -EPROTO;
    if (unnamed->params.all) {
        text_copy(unnamed->pool, sizeof(unnamed->pool), entry->pool);
        unnamed->params.pool = MSG_STR(unnamed->pool);
    }
    text_copy(unnamed->name, sizeof(unnamed->name), entry->name);
    unnamed->params.name = MSG_STR(unnamed->name);
    unnamed->params.generation = entry->generation;
    unnamed->params.array = last->array;
    return 0;
}

static int
unnamed_next(struct unnamed *unnamed, bool *ret_end, struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct msg_unnamed_result result;
    bool stopped = false;

    int r = reply_get(&reply, unnamed->client, MSG_UNNAMED, &unnamed->params, &result, error);
    if (r < 0)
        return r;
    for (uint32_t i = 0; r == 0 && i < result.n_arrays; i++)
        r = unnamed_give_one(unnamed, &reply, &result.arrays[i], &stopped);
    *ret_end = stopped || !result.more;
    if (stopped)
        return r;
    if (r == 0 && result.more)
        r = unnamed_advance(unnamed, &result);
    if (r == -EPROTO)
        return client_violated(unnamed->client, "unnamed", error);
    return r < 0 ? fail_errno(error, -r, "no memory for a list") : 0;
}

int
caid_unnamed(struct caid_client *client, const struct caid_list_options *options,
             int (*fn)(const struct caid_details *details, void *userdata), void *userdata,
             struct caid_error *error)
{
    struct caid_list_options opts;
    bool end = false;

    int r = check_list(client, fn, options, &opts, error);
    if (r < 0)
        return r;
    struct unnamed unnamed = {
        .client = client,
        .params = {.pool = msg_str_opt(opts.all ? NULL : opts.pool), .all = opts.all},
        .fn = fn,
        .userdata = userdata,
    };
    while (r == 0 && !end)
        r = unnamed_next(&unnamed, &end, error);
    return r;
}
