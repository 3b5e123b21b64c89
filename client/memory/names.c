/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names, and arrays that have none: what can be asked about without holding an array.
 * Nothing is kept of them here.
 */
#include <errno.h>
#include <stdlib.h>

#include "array.h"
#include "session/client.h"
#include "session/pager.h"

int
caid_unlink(struct caid_client *client, const char *name, const char *pool,
            struct caid_error *error)
{
    int r = client_check_name(client, name, pool, error);
    if (r < 0)
        return r;
    struct msg_name_params params = {.name = MSG_STR(name), .pool = msg_str_opt(pool)};
    return call_ask(client, MSG_UNLINK, &params, error);
}

/* ---- rename, expire ---- */

struct naming {
    struct call call;
    uint64_t generation;
};

static int
take_generation(struct caid_client *client UNUSED, struct call *call, const void *reply,
                struct call_fds *fds UNUSED)
{
    const struct msg_publish_result *result = reply;

    container_of(call, struct naming, call)->generation = result->generation;
    return result->generation ? 0 : -EPROTO;
}

static int
ask_generation(struct caid_client *client, enum msg_method method, const void *params,
               uint64_t *ret_generation, struct caid_error *error)
{
    struct naming naming = {
        .call = {.method = method, .params = params, .take = take_generation},
    };

    int r = call_make(client, &naming.call, error);
    if (r == 0 && ret_generation)
        *ret_generation = naming.generation;
    return r;
}

int
caid_rename(struct caid_client *client, const char *name, const char *to, const char *pool,
            bool replace, uint64_t *ret_generation, struct caid_error *error)
{
    int r = client_check_name(client, name, pool, error);
    if (r == 0)
        r = check_name(to, error);
    if (r < 0)
        return r;
    struct msg_rename_params params = {.name = MSG_STR(name),
                                       .pool = msg_str_opt(pool),
                                       .to = MSG_STR(to),
                                       .replace = replace};
    return ask_generation(client, MSG_RENAME, &params, ret_generation, error);
}

int
caid_expire(struct caid_client *client, const char *name, const char *pool, uint64_t generation,
            uint64_t ttl_ns, uint64_t *ret_generation, struct caid_error *error)
{
    int r = client_check_name(client, name, pool, error);
    if (r < 0)
        return r;
    struct msg_expire_params params = {.name = MSG_STR(name),
                                       .pool = msg_str_opt(pool),
                                       .generation = generation,
                                       .ttl_ns = ttl_ns};
    return ask_generation(client, MSG_EXPIRE, &params, ret_generation, error);
}

/* ---- entries ---- */

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
        .ttl_ns = m->ttl_ns,
        .members = m->members,
        .of_set = m->of_set,
        .sets = m->sets,
    };
    return true;
}

/* ---- list ---- */

PAGED_LIST(list, caid_entry);

static int
list_give(struct pager *pager, uint32_t i)
{
    struct list *list = container_of(pager, struct list, pager);
    const struct msg_entry *m = &list->result.entries[i];
    struct caid_entry entry;

    if (!entry_fill(&entry, pager->client, m, &pager->text) ||
        !pager_go_on(pager, m->pool, m->name, 0, 0,
                     list->params.all ? &list->params.pool : NULL, &list->params.after))
        return pager_fail(pager, -EPROTO);
    return list->fn(&entry, list->userdata);
}

int
caid_list(struct caid_client *client, const struct caid_list_options *options,
          int (*fn)(const struct caid_entry *entry, void *userdata), void *userdata,
          struct caid_error *error)
{
    struct caid_list_options opts;

    int r = pager_check(client, fn, options, &opts, error);
    if (r < 0)
        return r;
    struct list list = {
        PAGED(list, client, MSG_LIST, entries, fn, userdata),
        .params = {.pool = msg_str_opt(opts.all ? NULL : opts.pool),
                   .all = opts.all,
                   .prefix = msg_str_opt(opts.prefix)},
    };
    return pager_run(&list.pager, error);
}

int
caid_set_list(struct caid_array *set, int (*fn)(const struct caid_entry *entry, void *userdata),
              void *userdata, struct caid_error *error)
{
    int r = CHECK_GIVEN_OF(set, fn, error);
    if (r == 0 && set->managed)
        r = fail(error, CAID_ERR_INVALID, "managed memory is no set");
    if (r < 0)
        return r;
    struct list list = {
        PAGED(list, set->client, MSG_LIST, entries, fn, userdata),
        .params = {.of = set->lease},
    };
    return pager_run(&list.pager, error);
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
            .sent = holder->sent,
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
        .companion = m->companion,
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

    int r = client_check_given(client, fn, "fn", error);
    if (r == 0)
        r = client_check_name(client, name, pool, error);
    if (r < 0)
        return r;

    struct msg_name_params params = {.name = MSG_STR(name), .pool = msg_str_opt(pool)};
    r = reply_get(&reply, client, MSG_SHOW, &params, &result, error);
    if (r < 0)
        return r;
    _cleanup_free_ struct caid_holder *holders =
        calloc(result.n_holders ? result.n_holders : 1, sizeof(*holders));
    _cleanup_free_ char *scratch = pager_scratch(&reply);
    if (!holders || !scratch)
        return fail_errno(error, ENOMEM, "no memory for %u holders", result.n_holders);
    if (!details_fill(&details, client, &result, holders, scratch))
        return client_violated(client, "show", error);
    return fn(&details, userdata);
}

/* ---- unnamed, ranges ---- */

PAGED_LIST(unnamed, caid_details);

/* Each of both has the other one's cursor, too, which the daemon does not look at. */
static bool
unnamed_go_on(struct unnamed *unnamed, const struct msg_unnamed *m)
{
    struct msg_unnamed_params *params = &unnamed->params;
    bool ranges = unnamed->pager.method == MSG_RANGES;
    struct msg_str name = ranges ? (struct msg_str){0} : m->entries[0].name;

    params->generation = m->entries[0].generation;
    params->array = m->array;
    params->block = m->block;
    params->offset = m->offset + m->bytes;
    if (ranges && (!m->state.p || m->bytes == 0 || params->offset < m->bytes ||
                   params->offset > m->block_size))
        return false;
    return pager_go_on(&unnamed->pager, m->entries[0].pool, name,
                       ranges ? params->block : params->generation,
                       ranges ? params->offset : params->array,
                       params->all ? &params->pool : NULL, &params->name);
}

static int
unnamed_give(struct pager *pager, uint32_t i)
{
    struct unnamed *unnamed = container_of(pager, struct unnamed, pager);
    const struct msg_unnamed *m = &unnamed->result.arrays[i];
    _cleanup_free_ struct caid_holder *holders =
        calloc(m->n_holders ? m->n_holders : 1, sizeof(*holders));

    if (!holders)
        return pager_fail(pager, -ENOMEM);
    struct caid_details details = {
        .array = m->array,
        .block = m->block,
        .block_size = m->block_size,
        .offset = m->offset,
        .companion = m->companion_of,
        .holders = holders,
        .n_holders = m->n_holders,
        .bytes = m->bytes,
        .held = m->held,
    };
    if (m->n_entries != 1 || !text_is_plain(m->state) ||
        !entry_fill(&details.entry, pager->client, &m->entries[0], &pager->text) ||
        !holders_fill(holders, m->holders, m->n_holders, &pager->text) ||
        !unnamed_go_on(unnamed, m))
        return pager_fail(pager, -EPROTO);
    details.state = text_put(&pager->text, m->state);
    return unnamed->fn(&details, unnamed->userdata);
}

static int
list_unnamed(struct caid_client *client, enum msg_method method,
             const struct caid_list_options *options,
             int (*fn)(const struct caid_details *details, void *userdata), void *userdata,
             struct caid_error *error)
{
    struct caid_list_options opts;

    int r = pager_check(client, fn, options, &opts, error);
    if (r < 0)
        return r;
    struct unnamed unnamed = {
        PAGED(unnamed, client, method, arrays, fn, userdata),
        .params = {.pool = msg_str_opt(opts.all ? NULL : opts.pool), .all = opts.all},
    };
    return pager_run(&unnamed.pager, error);
}

int
caid_unnamed(struct caid_client *client, const struct caid_list_options *options,
             int (*fn)(const struct caid_details *details, void *userdata), void *userdata,
             struct caid_error *error)
{
    return list_unnamed(client, MSG_UNNAMED, options, fn, userdata, error);
}

int
caid_ranges(struct caid_client *client, const struct caid_list_options *options,
            int (*fn)(const struct caid_details *details, void *userdata), void *userdata,
            struct caid_error *error)
{
    return list_unnamed(client, MSG_RANGES, options, fn, userdata, error);
}
