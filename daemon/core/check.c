/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold between any two events, recomputed from the objects themselves. Models call it
 * after each step; it aborts at the first sum or reference that is wrong.
 */
#include "state.h"

#include <stdio.h>

#define CHECK(cond)                                                                \
    do {                                                                           \
        if (!(cond)) {                                                             \
            fprintf(stderr, "core_check: %s:%d: %s\n", __FILE__, __LINE__, #cond); \
            abort();                                                               \
        }                                                                          \
    } while (0)

static void
check_array(const struct array *array, uint64_t *ret_bytes)
{
    const struct lease *lease;
    uint64_t n = 0;

    LIST_FOREACH(lease, &array->leases, of_array)
    {
        CHECK(lease->array == array);
        n++;
    }
    CHECK(n == array->n_leases);
    CHECK(array->name || array->n_leases || array->pending);
    CHECK(array->user->used[RES_HOST] >= array->n_host);
    CHECK(!array->block == !array->geometry.span);
    if (array->block) {
        CHECK(array->block->array == array);
        CHECK(array->block->pool == array->pool); /* I1 */
        CHECK(array->pending || array->block->fd >= 0);
        CHECK(array->offset + array->geometry.span <= array->block->size);
        *ret_bytes += array->block->size;
    }
}

static void
check_pool(struct pool *pool, uint64_t *ret_names, uint64_t *ret_arrays)
{
    struct array *array;
    uint64_t n = 0, bytes = 0;

    CHECK(!pool->quota || pool->used <= pool->quota);
    RB_FOREACH(array, names, &pool->names)
    {
        CHECK(array->pool == pool && array->name);
        check_array(array, &bytes);
        n++;
    }
    CHECK(n == pool->n_names && n <= pool->n_arrays);
    CHECK(bytes <= pool->used);
    *ret_names += n;
    *ret_arrays += pool->n_arrays;
}

static void
check_conn(struct conn *conn, uint64_t *ret_leases)
{
    struct lease *lease;
    struct hold *hold;
    struct job *job;
    uint64_t n = 0, held = 0, in_holds = 0, bytes = 0;

    RB_FOREACH(lease, leases, &conn->leases)
    {
        CHECK(lease->conn == conn && !lease->array->pending);
        CHECK(!lease->hold == !lease->array->block);
        CHECK(!lease->hold || lease->hold->block == lease->array->block);
        check_array(lease->array, &bytes);
        held += lease->hold != NULL;
        n++;
    }
    RB_FOREACH(hold, holds, &conn->holds)
    {
        CHECK(hold->n_leases > 0 && hold->block->array); /* I2: not being released */
        in_holds += hold->n_leases;
    }
    LIST_FOREACH(job, &conn->jobs, of_conn)
    CHECK(job->conn == conn);
    CHECK(held == in_holds);
    *ret_leases += n;
}

/* What runs, what waits, and with whom. */
static void
check_jobs(struct core *core)
{
    uint64_t n = 0, n_waiting = 0, n_charged = 0, charged = 0, n_turns = 0;
    struct user *user;
    struct job *job;

    RB_FOREACH(job, jobs, &core->jobs)
    {
        n++;
        n_charged += job->type != JOB_RELEASE;
        CHECK(!job->conn || job->conn->user == job->user);
        if (job->type == JOB_MEMORY)
            continue;
        const struct block *block = container_of(job, struct block, job);
        CHECK(block->user == job->user);
        CHECK((job->type == JOB_ALLOC) == (block->fd < 0));
        CHECK(!block->array == (job->type == JOB_RELEASE)); /* I2 */
        CHECK(!block->array || block->array->pending);
    }
    RB_FOREACH(user, users, &core->users)
    {
        charged += user->used[RES_JOBS];
        n_turns += !TAILQ_EMPTY(&user->waiting);
        TAILQ_FOREACH(job, &user->waiting, of_user)
        {
            CHECK(job->user == user && !job->entry.queued);
            n_waiting++;
        }
    }
    TAILQ_FOREACH(user, &core->turns, turn)
    n_turns--;
    CHECK(n_turns == 0);
    CHECK(n == core->n_jobs && n == n_waiting + core->n_running && charged == n_charged);
    /* Nobody waits while there is a thread to spare. */
    CHECK(core->n_running <= core->config.threads);
    CHECK(!n_waiting || core->n_running == core->config.threads);
}

static void
check_conns(struct core *core, uint64_t *ret_leases)
{
    struct conn *conn;
    uint64_t n = 0, n_silent = 0, n_waiting = 0;

    RB_FOREACH(conn, conns, &core->conns)
    {
        check_conn(conn, ret_leases);
        n++;
        n_silent += !conn->greeted;
    }
    TAILQ_FOREACH(conn, &core->waiting, waiting)
    {
        CHECK(!conn->greeted);
        n_waiting++;
    }
    CHECK(n == core->n_conns && n_silent == n_waiting);
}

/* What devices are said to have adds up, too. */
static void
check_arrays(const struct core *core, uint64_t in_pools)
{
    uint64_t n = 0, n_blocks = 0;

    for (size_t i = 0; i < core->config.n_devices; i++) {
        n += core->device_arrays[i];
        n_blocks += core->device_blocks[i];
    }
    CHECK(n == core->n_arrays && in_pools == core->n_arrays);
    CHECK(n_blocks == core->n_blocks);
}

/* I4: what users are charged adds up to what there is. */
static void
check_users(struct core *core)
{
    uint64_t sum[N_RESOURCES] = {0}, bytes = 0, in_pools = 0;
    struct user *user;
    struct pool *pool;

    RB_FOREACH(user, users, &core->users)
    {
        uint64_t all = user->pool->n_arrays + user->pool->used;
        for (size_t i = 0; i < N_RESOURCES; i++) {
            CHECK(user->used[i] <= user_limit(core, (enum resource)i));
            sum[i] += user->used[i];
            all += user->used[i];
        }
        CHECK(all > 0); /* nobody is kept for nothing */
        CHECK(user->pool->owner == user);
    }
    RB_FOREACH(pool, pools, &core->pools)
    in_pools += pool->used;
    for (size_t i = 0; i < core->config.n_devices; i++)
        bytes += core->device_used[i];
    CHECK(sum[RES_CONNECTIONS] == core->n_conns);
    CHECK(sum[RES_NAMES] == core->n_names);
    CHECK(sum[RES_LEASES] == core->n_leases);
    CHECK(sum[RES_BLOCKS] == core->n_blocks);
    CHECK(sum[RES_BYTES] == bytes && in_pools == bytes);
}

void
core_check(const struct core *const_core)
{
    struct core *core;
    uint64_t names = 0, leases = 0, arrays = 0;
    struct pool *pool;

    memcpy(&core, &const_core, sizeof(core)); /* the tree macros take no const */
    RB_FOREACH(pool, pools, &core->pools)
    check_pool(pool, &names, &arrays);
    check_conns(core, &leases);
    CHECK(names == core->n_names && leases == core->n_leases);
    check_arrays(core, arrays);
    check_jobs(core);
    check_users(core);
}

void
core_get_counts(const struct core *const_core, struct core_counts *ret)
{
    struct core_counts counts = {
        .connections = const_core->n_conns,
        .blocks = const_core->n_blocks,
        .arrays = const_core->n_arrays,
        .names = const_core->n_names,
        .leases = const_core->n_leases,
        .jobs = const_core->n_jobs,
    };
    struct core *core;
    struct pool *pool;
    struct user *user;

    memcpy(&core, &const_core, sizeof(core));
    RB_FOREACH(pool, pools, &core->pools)
    counts.pools++;
    RB_FOREACH(user, users, &core->users)
    counts.users++;
    for (size_t i = 0; i < core->config.n_devices; i++)
        counts.bytes += core->device_used[i];
    *ret = counts;
}
