/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core itself: its life, its connections and its time.
 */
#include "state.h"

#include <assert.h>
#include <stdio.h>

static int
conn_compare(const struct conn *a, const struct conn *b)
{
    return CMP(a->id, b->id);
}

RB_GENERATE(conns, conn, node, conn_compare)

/* ---- life ---- */

static int
copy_config(struct core *core, const struct core_config *config)
{
    const char *texts[] = {config->server, config->driver_path};
    size_t n = config->n_devices;

    core->config = *config;
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        core->strings[i] = strdup(texts[i] ? texts[i] : "");
        if (!core->strings[i])
            return -ENOMEM;
    }
    core->config.server = core->strings[0];
    core->config.driver_path = core->strings[1];
    core->config.driver = strcmp(config->driver, "soft") == 0 ? "soft" : "cuda";

    core->devices = calloc(n + 1, sizeof(*core->devices));
    core->device_used = calloc(n + 1, sizeof(*core->device_used));
    core->device_blocks = calloc(n + 1, sizeof(*core->device_blocks));
    core->device_arrays = calloc(n + 1, sizeof(*core->device_arrays));
    if (!core->devices || !core->device_used || !core->device_blocks || !core->device_arrays)
        return -ENOMEM;
    if (n)
        memcpy(core->devices, config->devices, n * sizeof(*core->devices));
    core->config.devices = core->devices;
    core->config.pools = NULL; /* pools are objects from here on */
    return 0;
}

static int
make_pools(struct core *core, const struct core_config *config)
{
    struct pool *pool;
    int r = 0;

    for (size_t i = 0; r == 0 && i < config->n_pools; i++)
        r = core_pool_name_valid(config->pools[i].name)
                ? pool_new(core, &config->pools[i], &pool)
                : -EINVAL;
    return r == -EEXIST ? -EINVAL : r;
}

int
core_new(struct core **ret, const struct core_config *config, uint64_t now_ns)
{
    struct core *core = calloc(1, sizeof(*core));
    int r;

    if (!core)
        return -ENOMEM;
    RB_INIT(&core->users);
    RB_INIT(&core->pools);
    RB_INIT(&core->conns);
    RB_INIT(&core->jobs);
    TAILQ_INIT(&core->waiting);
    TAILQ_INIT(&core->queue);
    TAILQ_INIT(&core->turns);
    core->started_ns = core->now_ns = now_ns;

    r = copy_config(core, config);
    if (r == 0)
        r = make_pools(core, config);
    if (r < 0) {
        core_free(core);
        return r;
    }
    *ret = core;
    return 0;
}

/* Forgets a pool's arrays: their memory ends with the process that holds the handles. */
static void
pool_forget(struct core *core, struct pool *pool)
{
    struct array *array;

    while ((array = RB_MIN(names, &pool->names))) {
        RB_REMOVE(names, &pool->names, array);
        if (array->block)
            entry_remove(core, &array->block->saved);
        free(array->block);
        entry_free(array->saved);
        free(array->name);
        free(array);
    }
    RB_REMOVE(pools, &core->pools, pool);
    free(pool);
}

struct core *
core_free(struct core *core)
{
    struct pool *pool;
    struct user *user;

    if (!core)
        return NULL;
    assert(RB_EMPTY(&core->conns) && RB_EMPTY(&core->jobs));
    entry_drop_all(core);
    while ((pool = RB_MIN(pools, &core->pools)))
        pool_forget(core, pool);
    while ((user = RB_MIN(users, &core->users))) {
        RB_REMOVE(users, &core->users, user);
        free(user);
    }
    msg_buf_deinit(&core->buf);
    free(core->devices);
    free(core->device_used);
    free(core->device_blocks);
    free(core->device_arrays);
    for (size_t i = 0; i < ARRAY_SIZE(core->strings); i++)
        free(core->strings[i]);
    free(core);
    return NULL;
}

/* ---- connections ---- */

static struct conn *
conn_find(struct core *core, uint64_t id)
{
    struct conn key = {.id = id};

    return RB_FIND(conns, &core->conns, &key);
}

static struct conn *
conn_new(uint64_t id, const struct core_peer *peer)
{
    struct conn *conn = calloc(1, sizeof(*conn));

    if (!conn)
        return NULL;
    if (peer->n_groups) {
        conn->groups = malloc(peer->n_groups * sizeof(*conn->groups));
        if (!conn->groups) {
            free(conn);
            return NULL;
        }
        memcpy(conn->groups, peer->groups, peer->n_groups * sizeof(*conn->groups));
        conn->n_groups = peer->n_groups;
    }
    conn->id = id;
    conn->gid = peer->gid;
    conn->pid = peer->pid;
    RB_INIT(&conn->leases);
    RB_INIT(&conn->holds);
    LIST_INIT(&conn->jobs);
    return conn;
}

int
core_connect(struct core *core, uint64_t id, const struct core_peer *peer, uint64_t now_ns)
{
    struct refusal r;
    struct user *user;
    struct conn *conn;

    core->now_ns = now_ns;
    if (user_get(core, peer->uid, peer->gid, &user) < 0)
        return -ENOMEM;
    if (user_charge(core, user, RES_CONNECTIONS, 1, &r)) {
        user_settle(core, user); /* where the limit is none at all */
        return -EDQUOT;
    }
    conn = conn_new(id, peer);
    if (!conn) {
        user_uncharge(user, RES_CONNECTIONS, 1);
        user_settle(core, user);
        return -ENOMEM;
    }
    conn->user = user;
    conn->deadline_ns = now_ns + core->config.hello_timeout_ns;
    TAILQ_INSERT_TAIL(&core->waiting, conn, waiting);
    RB_INSERT(conns, &core->conns, conn);
    core->n_conns++;
    return 0;
}

void
core_disconnect(struct core *core, uint64_t id)
{
    struct conn *conn = conn_find(core, id);
    struct lease *lease;
    struct job *job;

    if (!conn)
        return;
    while ((lease = RB_MIN(leases, &conn->leases)))
        lease_free(core, lease);
    while ((job = LIST_FIRST(&conn->jobs)))
        job_orphan(job); /* its result is given up when it comes */
    if (!conn->greeted)
        TAILQ_REMOVE(&core->waiting, conn, waiting);
    entry_remove(core, &conn->close);
    entry_drop_sends(core, id);
    RB_REMOVE(conns, &core->conns, conn);
    core->n_conns--;
    user_uncharge(conn->user, RES_CONNECTIONS, 1);
    user_settle(core, conn->user);
    free(conn->groups);
    free(conn);
}

void
core_receive(struct core *core, uint64_t id, const void *packet, size_t n, uint64_t now_ns)
{
    struct conn *conn = conn_find(core, id);

    core->now_ns = now_ns;
    if (conn && !conn->closing)
        request_handle(core, conn, packet, n);
}

/* ---- time ---- */

void
core_tick(struct core *core, uint64_t now_ns)
{
    struct conn *conn;

    core->now_ns = now_ns;
    TAILQ_FOREACH(conn, &core->waiting, waiting)
    {
        if (conn->deadline_ns > now_ns)
            break;
        conn_end(core, conn, "no hello in time");
    }
}

/* A connection that is closing already waits for its core_disconnect(), not for the clock. */
uint64_t
core_deadline_ns(const struct core *core)
{
    const struct conn *conn;

    TAILQ_FOREACH(conn, &core->waiting, waiting)
    if (!conn->closing)
        return conn->deadline_ns;
    return UINT64_MAX;
}

void
core_stop(struct core *core)
{
    core->stopping = true;
}

size_t
core_jobs(const struct core *core)
{
    return core->n_jobs;
}

void
core_memory_done(struct core *core, uint64_t id, const struct core_memory_result *results,
                 size_t n)
{
    struct job *job = job_find(core, id, JOB_MEMORY);
    struct user *user = job->user;

    if (job->conn)
        reply_memory(core, job->conn, job, results, n);
    job_end(core, job);
    free(job);
    user_settle(core, user);
}
