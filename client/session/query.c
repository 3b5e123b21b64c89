/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list comes in packets: each one is asked for from where the last one ended. The program's
 * callback runs with nothing locked and may use the client.
 */
#include "query.h"

#include <errno.h>
#include <string.h>

#include "client.h"
#include "options.h"
#include "text.h"

/* The most bytes of a name or a pool in a cursor, with the terminator. */
#define CURSOR_MAX 512

/* A record's position in the order of a list. Fields that the list does not use are 0. */
struct cursor {
    char pool[CURSOR_MAX], name[CURSOR_MAX];
    uint64_t generation, array;
};

/* A query under way, on the stack of the call that lists. */
struct run {
    struct caid_client *client;
    const struct query *query;
    struct cursor at; /* of the last record that the callback got */
    bool failed;      /* the error is from here, not from the program's callback */

    union {
        struct msg_list_params by_pool; /* some of the others begin with its fields */
        struct msg_unnamed_params unnamed;
        struct msg_timelines_params timelines;
        struct msg_channels_params channels;
        struct msg_lost_params lost;
        struct msg_users_params users;
        struct msg_tickets_params tickets;
        struct msg_connections_params connections;
        struct msg_metrics_params metrics;
        struct msg_pools_params pools;
    } params;

    union {
        struct msg_list_result list;
        struct msg_unnamed_result unnamed;
        struct msg_timelines_result timelines;
        struct msg_channels_result channels;
        struct msg_lost_result lost;
        struct msg_users_result users;
        struct msg_tickets_result tickets;
        struct msg_connections_result connections;
        struct msg_metrics_result metrics;
        struct msg_pools_result pools;
    } result;

    int (*fn)(const void *record, void *userdata);
    void *userdata;
};

struct query {
    const char *name;
    enum msg_method method;
    const struct answer *answer;
    size_t list, n, more; /* offsets in the result */
    bool by_pool;         /* the options' `pool` and `all` go into the request */
    struct msg_str *(*prefix)(struct run *run); /* where `prefix` does; NULL: nowhere */
    /* Makes the next request start after a record. false: the record is not behind the last. */
    bool (*next)(struct run *run, const void *from);
    /* Makes it start where the packet says, which may have no record for the caller. The same. */
    bool (*skip)(struct run *run);
};

static int
cursor_compare(const struct cursor *a, const struct cursor *b)
{
    int c = strcmp(a->pool, b->pool);

    if (c == 0)
        c = strcmp(a->name, b->name);
    if (c == 0)
        c = (a->generation > b->generation) - (a->generation < b->generation);
    return c ? c : (a->array > b->array) - (a->array < b->array);
}

/* Makes the list go on after that name and, if ret_pool is not NULL, in that pool. false: the name
 * is too long, or not behind the last record. All lists are in this order, and a list that does not
 * advance might not end. */
static bool
go_on(struct run *run, struct msg_str pool, struct msg_str name, uint64_t generation,
      uint64_t array, struct msg_str *ret_pool, struct msg_str *ret_after)
{
    struct cursor at = {.generation = generation, .array = array};

    if (pool.n >= CURSOR_MAX || name.n >= CURSOR_MAX)
        return false;
    text_copy(at.pool, CURSOR_MAX, pool);
    text_copy(at.name, CURSOR_MAX, name);
    if (cursor_compare(&at, &run->at) <= 0)
        return false;
    run->at = at;
    if (ret_pool)
        *ret_pool = MSG_STR(run->at.pool);
    *ret_after = MSG_STR(run->at.name);
    return true;
}

static bool
next_pool(struct run *run, const void *from)
{
    const struct msg_pool *pool = from;

    return go_on(run, pool->name, pool->name, 0, 0, NULL, &run->params.pools.after);
}

static bool
next_user(struct run *run, const void *from)
{
    const struct msg_user *user = from;
    bool goes_on = user->uid >= run->params.users.from;

    run->params.users.from = user->uid + 1;
    return goes_on;
}

static bool
next_ticket(struct run *run, const void *from)
{
    const struct msg_ticket *ticket = from;
    struct msg_tickets_params *at = &run->params.tickets;
    bool goes_on = ticket->uid > at->uid ||
                   (ticket->uid == at->uid && ticket->number > at->number);

    *at = (struct msg_tickets_params){.uid = ticket->uid, .number = ticket->number};
    return goes_on;
}

static bool
next_number(uint64_t *after, uint64_t number)
{
    bool goes_on = number > *after;

    *after = number;
    return goes_on;
}

static bool
skip_to(uint64_t *after, uint64_t number, uint32_t n_records)
{
    bool goes_on = number >= *after + (n_records == 0);

    *after = number;
    return goes_on;
}

static bool
next_connection(struct run *run, const void *from)
{
    const struct msg_connection *connection = from;

    return next_number(&run->params.connections.after, connection->conn);
}

static bool
skip_connections(struct run *run)
{
    const struct msg_connections_result *result = &run->result.connections;

    return skip_to(&run->params.connections.after, result->after, result->n_connections);
}

static bool
next_channel_entry(struct run *run, const void *from)
{
    const struct msg_channel_entry *entry = from;

    return next_number(&run->params.channels.after, entry->member);
}

static bool
skip_channels(struct run *run)
{
    const struct msg_channels_result *result = &run->result.channels;

    return skip_to(&run->params.channels.after, result->after, result->n_channels);
}

/* The daemon says where the next packet starts. */
static bool
next_metric(struct run *run, const void *from)
{
    const struct msg_metrics_result *result = &run->result.metrics;
    struct msg_str none;

    run->params.metrics.from = result->from;
    if (!result->more || from != &result->metrics[result->n_metrics - 1])
        return true;
    return go_on(run, result->pool, (struct msg_str){0}, result->from, 0,
                 &run->params.metrics.pool, &none);
}

static bool
next_name(struct run *run, struct msg_str pool, struct msg_str name)
{
    struct msg_list_params *at = &run->params.by_pool;

    return go_on(run, pool, name, 0, 0, at->all ? &at->pool : NULL, &at->after);
}

static bool
next_timeline_entry(struct run *run, const void *from)
{
    const struct msg_timeline_entry *entry = from;

    return next_name(run, entry->pool, entry->name);
}

static bool
next_lost(struct run *run, const void *from)
{
    const struct msg_lost *lost = from;

    return next_name(run, lost->pool, lost->name);
}

static bool
next_entry(struct run *run, const void *from)
{
    const struct msg_entry *entry = from;

    return next_name(run, entry->pool, entry->name);
}

/* The cursors of unnamed and ranges are both set; the daemon ignores the one that it does not use.
 * */
static void
pass_details(struct msg_unnamed_params *at, const struct msg_details *details)
{
    at->generation = details->entries[0].generation;
    at->array = details->array;
    at->block = details->block;
    at->offset = details->offset + details->bytes;
}

static bool
next_unnamed(struct run *run, const void *from)
{
    const struct msg_details *details = from;
    const struct msg_entry *entry = &details->entries[0];
    struct msg_unnamed_params *at = &run->params.unnamed;

    pass_details(at, details);
    return go_on(run, entry->pool, entry->name, at->generation, at->array,
                 at->all ? &at->pool : NULL, &at->name);
}

static bool
next_range(struct run *run, const void *from)
{
    const struct msg_details *details = from;
    struct msg_unnamed_params *at = &run->params.unnamed;

    pass_details(at, details);
    if (!details->state.p || details->bytes == 0 || at->offset < details->bytes ||
        at->offset > details->block_size)
        return false;
    return go_on(run, details->entries[0].pool, (struct msg_str){0}, at->block, at->offset,
                 at->all ? &at->pool : NULL, &at->name);
}

static struct msg_str *
prefix_by_pool(struct run *run)
{
    return &run->params.by_pool.prefix;
}

static struct msg_str *
prefix_of_channels(struct run *run)
{
    return &run->params.channels.prefix;
}

#define QUERY(method_, METHOD, result, r, records, cursor, ...)                      \
    {                                                                                \
        .name = #method_, .method = MSG_##METHOD, .answer = &answer_##r,             \
        .list = offsetof(struct msg_##result##_result, records),                     \
        .n = offsetof(struct msg_##result##_result, n_##records),                    \
        .more = offsetof(struct msg_##result##_result, more), .next = next_##cursor, \
        __VA_ARGS__                                                                  \
    }

static const struct query queries[] = {
    QUERY(channels, CHANNELS, channels, channel_entry, channels, channel_entry, .by_pool = true,
          .skip = skip_channels, .prefix = prefix_of_channels),
    QUERY(connections, CONNECTIONS, connections, connection, connections, connection,
          .skip = skip_connections),
    QUERY(list, LIST, list, entry, entries, entry, .by_pool = true, .prefix = prefix_by_pool),
    QUERY(lost, LOST, lost, lost, names, lost, .by_pool = true, .prefix = prefix_by_pool),
    QUERY(metrics, METRICS, metrics, metric, metrics, metric),
    QUERY(pools, POOLS, pools, pool, pools, pool),
    QUERY(ranges, RANGES, unnamed, details, arrays, range, .by_pool = true),
    QUERY(tickets, TICKETS, tickets, ticket, tickets, ticket),
    QUERY(timelines, TIMELINES, timelines, timeline_entry, timelines, timeline_entry,
          .by_pool = true),
    QUERY(unnamed, UNNAMED, unnamed, details, arrays, unnamed, .by_pool = true),
    QUERY(users, USERS, users, user, users, user),
};

static int
run_fail(struct run *run, int r)
{
    run->failed = true;
    return r;
}

static int
give_record(struct run *run, const struct reply *reply, const void *from)
{
    union any_answer record;

    int r = answer_fill(run->query->answer, run->client, reply, from, &record);
    if (r == 0 && !run->query->next(run, from))
        r = -EPROTO;
    return r < 0 ? run_fail(run, r) : run->fn(&record, run->userdata);
}

/* A packet without records that says there are more is an error: such a list might not end. */
static int
give_packet(struct run *run, const struct reply *reply, bool *ret_more)
{
    const char *result = (const char *)&run->result, *records;
    int r = 0;
    uint32_t n;

    memcpy(&records, result + run->query->list, sizeof(records));
    memcpy(&n, result + run->query->n, sizeof(n));
    memcpy(ret_more, result + run->query->more, sizeof(*ret_more));
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = give_record(run, reply, records + i * run->query->answer->from_size);
    if (r < 0 || !*ret_more || (run->query->skip ? run->query->skip(run) : n > 0))
        return r;
    return run_fail(run, -EPROTO);
}

static int
next_packet(struct run *run, bool *ret_more, struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    enum msg_method method = run->query->method;

    int r = reply_get(&reply, run->client, method, &run->params, &run->result, error);
    if (r < 0)
        return r;
    r = give_packet(run, &reply, ret_more);
    if (!run->failed)
        return r;
    return r == -EPROTO ? client_violated(run->client, msg_method_name(method), error)
                        : fail_errno(error, -r, "no memory for a list");
}

/* Calls back for all records. 0, the first result of the callback that is not 0, or an error. */
static int
run_all(struct run *run, struct caid_error *error)
{
    bool more = false;
    int r;

    do
        r = next_packet(run, &more, error);
    while (r == 0 && more);
    return r;
}

const struct query *
query_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(queries); i++)
        if (strcmp(queries[i].name, name) == 0)
            return &queries[i];
    return NULL;
}

const struct answer *
query_answer(const struct query *query)
{
    return query->answer;
}

static int
check_options(struct caid_client *client, bool has_fn, const struct caid_list_options *options,
              struct caid_list_options *ret, struct caid_error *error)
{
    int r = client_check_given(client, has_fn, "fn", error);
    if (r == 0)
        r = options_read(ret, sizeof(*ret), options, error);
    if (r == 0)
        r = check_pool(ret->pool, error);
    return r < 0 ? r : check_text("prefix", ret->prefix, false, error);
}

int
query_run(const struct query *query, struct caid_client *client,
          const struct caid_list_options *options,
          int (*fn)(const void *record, void *userdata), void *userdata,
          struct caid_error *error)
{
    struct run run = {.client = client, .query = query, .fn = fn, .userdata = userdata};
    struct caid_list_options opts;

    int r = check_options(client, fn, options, &opts, error);
    if (r < 0)
        return r;
    if (query->by_pool)
        run.params.by_pool =
            (struct msg_list_params){.pool = msg_str_opt(opts.all ? NULL : opts.pool),
                                     .all = opts.all};
    if (query->prefix)
        *query->prefix(&run) = msg_str_opt(opts.prefix);
    return run_all(&run, error);
}

int
query_show(struct caid_client *client, const char *name, const char *pool,
           int (*fn)(const void *record, void *userdata), void *userdata,
           struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct msg_details result;
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
    r = answer_fill(&answer_details, client, &reply, &result, &details);
    if (r == -ENOMEM)
        return fail_errno(error, ENOMEM, "no memory for what show tells");
    if (r < 0 || (details.strides && details.n_strides != details.entry->ndim))
        return client_violated(client, "show", error);
    return fn(&details, userdata);
}

/* ---- for programs ---- */

/* The program's callback, which gets the struct of its list. */
struct program {
    void (*fn)(void);
    void *userdata;
};

#define PROGRAM(fn, userdata) (&(struct program){(void (*)(void))fn, userdata})
#define GIVE(r)                                                                            \
    static int give_##r(const void *record, void *userdata)                                \
    {                                                                                      \
        const struct program *program = userdata;                                          \
        return ((int (*)(const struct caid_##r *, void *))program->fn)(record,             \
                                                                       program->userdata); \
    }

#define LIST(name, r)                                                                         \
    int caid_##name(struct caid_client *client,                                               \
                    int (*fn)(const struct caid_##r *record, void *userdata), void *userdata, \
                    struct caid_error *error)                                                 \
    {                                                                                         \
        return query_run(query_find(#name), client, NULL, fn ? give_##r : NULL,               \
                         PROGRAM(fn, userdata), error);                                       \
    }

#define LIST_BY_POOL(function, name, r)                                                    \
    int function(struct caid_client *client, const struct caid_list_options *options,      \
                 int (*fn)(const struct caid_##r *record, void *userdata), void *userdata, \
                 struct caid_error *error)                                                 \
    {                                                                                      \
        return query_run(query_find(#name), client, options, fn ? give_##r : NULL,         \
                         PROGRAM(fn, userdata), error);                                    \
    }

GIVE(channel_entry)
GIVE(connection)
GIVE(details)
GIVE(entry)
GIVE(lost)
GIVE(metric)
GIVE(pool)
GIVE(ticket)
GIVE(timeline_entry)
GIVE(user)

LIST(connections, connection)
LIST(metrics, metric)
LIST(pools, pool)
LIST(tickets, ticket)
LIST(users, user)
LIST_BY_POOL(caid_channels, channels, channel_entry)
LIST_BY_POOL(caid_list, list, entry)
LIST_BY_POOL(caid_list_lost, lost, lost)
LIST_BY_POOL(caid_ranges, ranges, details)
LIST_BY_POOL(caid_timelines, timelines, timeline_entry)
LIST_BY_POOL(caid_unnamed, unnamed, details)

int
caid_show(struct caid_client *client, const char *name, const char *pool,
          int (*fn)(const struct caid_details *details, void *userdata), void *userdata,
          struct caid_error *error)
{
    return query_show(client, name, pool, fn ? give_details : NULL, PROGRAM(fn, userdata),
                      error);
}

int
query_set(struct caid_client *client, uint64_t lease,
          int (*fn)(const struct caid_entry *entry, void *userdata), void *userdata,
          struct caid_error *error)
{
    struct run run = {.client = client,
                      .query = query_find("list"),
                      .params.by_pool = {.of = lease},
                      .fn = give_entry,
                      .userdata = PROGRAM(fn, userdata)};

    return run_all(&run, error);
}

/* ---- the daemon ---- */

int
caid_client_status(struct caid_client *client, struct caid_status *ret,
                   struct caid_error *error)
{
    _cleanup_reply_ struct reply reply = {0};
    struct msg_none params = {};
    struct msg_status result;
    struct caid_status status = {0};

    int r = reply_get(&reply, client, MSG_STATUS, &params, &result, error);
    if (r < 0)
        return r;
    if (answer_fill(&answer_status, client, &reply, &result, &status) < 0)
        return client_violated(client, "status", error);
    memcpy(status.socket, client->socket, sizeof(status.socket));
    memcpy(status.pool, client->pool, sizeof(status.pool));
    memcpy(status.machine_id, client->machine_id, sizeof(status.machine_id));
    memcpy(status.daemon_id, client->daemon_id, sizeof(status.daemon_id));
    status.set_max = client->set_max;
    return result_write(ret, &status, sizeof(status), error);
}
