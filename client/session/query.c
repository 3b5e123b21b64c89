/* SPDX-License-Identifier: Apache-2.0 */
#include "query.h"

#include <errno.h>
#include <string.h>

#include "client.h"
#include "pager.h"

/* A query under way. */
struct run {
    struct pager pager;
    const struct query *query;

    union {
        struct msg_list_params by_pool; /* the others of these begin as it does */
        struct msg_timelines_params timelines;
        struct msg_lost_params lost;
        struct msg_users_params users;
        struct msg_tickets_params tickets;
        struct msg_metrics_params metrics;
        struct msg_pools_params pools;
    } params;

    union {
        struct msg_timelines_result timelines;
        struct msg_lost_result lost;
        struct msg_users_result users;
        struct msg_tickets_result tickets;
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
    size_t list, n, more; /* places in the result */
    bool by_pool;         /* it is asked for by the options */
    /* Has the next packet start after a record. False: that does not come after the one before. */
    bool (*next)(struct run *run, const void *from);
};

static bool
next_pool(struct run *run, const void *from)
{
    const struct msg_pool *pool = from;

    return pager_go_on(&run->pager, pool->name, pool->name, 0, 0, NULL,
                       &run->params.pools.after);
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

/* The daemon says where the next packet starts. */
static bool
next_metric(struct run *run, const void *from)
{
    const struct msg_metrics_result *result = &run->result.metrics;
    struct msg_str none;

    run->params.metrics.from = result->from;
    if (!result->more || from != &result->metrics[result->n_metrics - 1])
        return true;
    return pager_go_on(&run->pager, result->pool, (struct msg_str){0}, result->from, 0,
                       &run->params.metrics.pool, &none);
}

static bool
next_name(struct run *run, struct msg_str pool, struct msg_str name)
{
    struct msg_list_params *at = &run->params.by_pool;

    return pager_go_on(&run->pager, pool, name, 0, 0, at->all ? &at->pool : NULL, &at->after);
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

#define QUERY(method_, METHOD, r, records, ...)                                              \
    {                                                                                        \
        .name = #method_, .method = MSG_##METHOD, .answer = &answer_##r,                     \
        .list = offsetof(struct msg_##method_##_result, records),                            \
        .n = offsetof(struct msg_##method_##_result, n_##records),                           \
        .more = offsetof(struct msg_##method_##_result, more), .next = next_##r, __VA_ARGS__ \
    }

static const struct query queries[] = {
    QUERY(lost, LOST, lost, names, .by_pool = true),
    QUERY(metrics, METRICS, metric, metrics),
    QUERY(pools, POOLS, pool, pools),
    QUERY(tickets, TICKETS, ticket, tickets),
    QUERY(timelines, TIMELINES, timeline_entry, timelines, .by_pool = true),
    QUERY(users, USERS, user, users),
};

static int
run_give(struct pager *pager, uint32_t i)
{
    struct run *run = container_of(pager, struct run, pager);
    const struct answer *answer = run->query->answer;
    union any_answer record;
    const char *list;

    memcpy(&list, (const char *)&run->result + run->query->list, sizeof(list));
    const void *from = list + i * answer->from_size;
    int r = answer_fill(answer, pager->reply, from, &record);
    if (r == 0 && !run->query->next(run, from))
        r = -EPROTO;
    return r < 0 ? pager_fail(pager, r) : run->fn(&record, run->userdata);
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

int
query_run(const struct query *query, struct caid_client *client,
          const struct caid_list_options *options,
          int (*fn)(const void *record, void *userdata), void *userdata,
          struct caid_error *error)
{
    struct run run = {.query = query, .fn = fn, .userdata = userdata};
    struct caid_list_options opts;
    char *result = (char *)&run.result;

    int r = pager_check(client, fn, options, &opts, error);
    if (r < 0)
        return r;
    if (query->by_pool) {
        run.params.by_pool =
            (struct msg_list_params){.pool = msg_str_opt(opts.all ? NULL : opts.pool),
                                     .all = opts.all,
                                     .prefix = msg_str_opt(opts.prefix)};
    }
    run.pager = (struct pager){
        .client = client,
        .method = query->method,
        .params = &run.params,
        .result = result,
        .n = (const uint32_t *)(const void *)(result + query->n),
        .more = (const bool *)(result + query->more),
        .give = run_give,
    };
    return pager_run(&run.pager, error);
}

/* ---- for programs ---- */

/* Their callback, which gets the struct of its list. */
struct program {
    void (*fn)(void);
    void *userdata;
};

#define GIVE(r)                                                                            \
    static int give_##r(const void *record, void *userdata)                                \
    {                                                                                      \
        const struct program *program = userdata;                                          \
        return ((int (*)(const struct caid_##r *, void *))program->fn)(record,             \
                                                                       program->userdata); \
    }

#define RUN(name, options, r)                                           \
    query_run(query_find(#name), client, options, fn ? give_##r : NULL, \
              &(struct program){(void (*)(void))fn, userdata}, error)

#define LIST(name, r)                                                                         \
    GIVE(r)                                                                                   \
    int caid_##name(struct caid_client *client,                                               \
                    int (*fn)(const struct caid_##r *record, void *userdata), void *userdata, \
                    struct caid_error *error)                                                 \
    {                                                                                         \
        return RUN(name, NULL, r);                                                            \
    }

#define LIST_BY_POOL(function, name, r)                                                    \
    GIVE(r)                                                                                \
    int function(struct caid_client *client, const struct caid_list_options *options,      \
                 int (*fn)(const struct caid_##r *record, void *userdata), void *userdata, \
                 struct caid_error *error)                                                 \
    {                                                                                      \
        return RUN(name, options, r);                                                      \
    }

LIST(metrics, metric)
LIST(pools, pool)
LIST(tickets, ticket)
LIST(users, user)
LIST_BY_POOL(caid_list_lost, lost, lost)
LIST_BY_POOL(caid_timelines, timelines, timeline_entry)
