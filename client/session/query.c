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
        struct msg_pools_params pools;
    } params;

    union {
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

#define QUERY(method_, METHOD, r, records)                                      \
    {                                                                           \
        .name = #method_, .method = MSG_##METHOD, .answer = &answer_##r,        \
        .list = offsetof(struct msg_##method_##_result, records),               \
        .n = offsetof(struct msg_##method_##_result, n_##records),              \
        .more = offsetof(struct msg_##method_##_result, more), .next = next_##r \
    }

static const struct query queries[] = {
    QUERY(pools, POOLS, pool, pools),
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

#define LIST(name, r)                                                                         \
    static int give_##r(const void *record, void *userdata)                                   \
    {                                                                                         \
        const struct program *program = userdata;                                             \
        return ((int (*)(const struct caid_##r *, void *))program->fn)(record,                \
                                                                       program->userdata);    \
    }                                                                                         \
                                                                                              \
    int caid_##name(struct caid_client *client,                                               \
                    int (*fn)(const struct caid_##r *record, void *userdata), void *userdata, \
                    struct caid_error *error)                                                 \
    {                                                                                         \
        struct program program = {(void (*)(void))fn, userdata};                              \
        return query_run(query_find(#name), client, NULL, fn ? give_##r : NULL, &program,     \
                         error);                                                              \
    }

LIST(pools, pool)
