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

const char *
core_kind_name(enum core_kind kind)
{
    static const char *const names[N_KINDS] = {
        [KIND_DEVICE] = "device",
        [KIND_LEGACY] = "legacy",
        [KIND_PINNED] = "pinned",
    };

    return names[kind];
}

const char *
core_handoff_name(enum core_handoff handoff)
{
    static const char *const names[N_HANDOFFS] = {
        [HANDOFF_MEMOPS] = "memops",
        [HANDOFF_HOST] = "host",
        [HANDOFF_EVENTS] = "events",
    };

    return names[handoff];
}

/* ---- life ---- */

static int
copy_config(struct core *core, const struct core_config *config)
{
    const char *texts[] = {config->server, config->driver_path};
    size_t n = config->n_devices;

    core->config = *config;
    core->config.n_devices = 0; /* until they are there */
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        core->strings[i] = strdup(texts[i] ? texts[i] : "");
        if (!core->strings[i])
            return -ENOMEM;
    }
    core->config.server = core->strings[0];
    core->config.driver_path = core->strings[1];
    core->config.driver = strcmp(config->driver, "soft") == 0 ? "soft" : "cuda";

    core->devices = calloc(n + 1, sizeof(*core->devices));
    if (!core->devices)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        device_init(&core->devices[i], &config->devices[i], &config->memory);
    core->config.n_devices = n;
    core->config.devices = NULL; /* devices and pools are objects from here on */
    core->config.pools = NULL;
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
    RB_INIT(&core->departed);
    RB_INIT(&core->jobs);
    RB_INIT(&core->watches);
    RB_INIT(&core->pages);
    RB_INIT(&core->timelines);
    RB_INIT(&core->deadlines);
    TAILQ_INIT(&core->ready);
    TAILQ_INIT(&core->lingering);
    TAILQ_INIT(&core->landed);
    TAILQ_INIT(&core->closing_pages);
    TAILQ_INIT(&core->hopeful);
    core->linger_at_ns = UINT64_MAX;
    core->turns_given.last_ns = UINT64_MAX;
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

/* ---- forgetting: memory ends with the process that has the handles ---- */

/* Those that have no range of their own; the others go with their blocks. */
static void
forget_names(struct pool *pool)
{
    struct array *array, *next;

    for (array = RB_MIN(names, &pool->names); array; array = next) {
        next = RB_NEXT(names, &pool->names, array);
        if (!array->range || array->is_part) {
            RB_REMOVE(names, &pool->names, array);
            entry_free(array->saved);
            array_free(array);
        }
    }
    for (array = RB_MIN(nameless, &pool->nameless); array; array = next) {
        next = RB_NEXT(nameless, &pool->nameless, array);
        if (!array->range || array->is_part) {
            RB_REMOVE(nameless, &pool->nameless, array);
            array_free(array);
        }
    }
}

static void
forget_block(struct block *block)
{
    while (block->state != BLOCK_RELEASING && !extent_is_empty(&block->extent)) {
        struct range *range = block->extent.first;
        struct array *array;
        if (range->is_free) /* its neighbour is not */
            range = range->next;
        array = range->userdata;
        if (!array->pending)
            entry_free(array->saved);
        array_free(array);
        space_free(range);
    }
    if (block->state != BLOCK_RELEASING)
        space_remove(&block->extent);
    space_deinit(&block->solo);
    free(block);
}

static void
forget_waiters(struct waiter_list *waiters)
{
    struct waiter *waiter;

    while ((waiter = TAILQ_FIRST(waiters))) {
        TAILQ_REMOVE(waiters, waiter, link);
        if (!waiter->array->named)
            array_free(waiter->array);
        free(waiter);
    }
}

static void
conn_free(struct conn *conn)
{
    free(conn->groups);
    free(conn);
}

/* What its brackets keep, and what others wait for in its pages: they are let go. */
static void
conn_drop_uses(struct core *core, struct conn *conn)
{
    struct page *page;

    brackets_free(core, conn);
    while ((page = LIST_FIRST(&conn->pages)))
        page_free(core, page);
}

static void
forget_departed(struct core *core)
{
    struct conn *conn;
    struct lease *lease;
    struct hold *hold;

    while ((conn = RB_MIN(conns, &core->departed))) {
        RB_REMOVE(conns, &core->departed, conn);
        conn_drop_uses(core, conn);
        while ((lease = RB_MIN(leases, &conn->leases))) {
            RB_REMOVE(leases, &conn->leases, lease);
            free(lease);
        }
        while ((hold = RB_MIN(holds, &conn->holds))) {
            RB_REMOVE(holds, &conn->holds, hold);
            free(hold);
        }
        conn_free(conn);
    }
}

static void
forget_all(struct core *core)
{
    struct pool *pool;
    struct block *block;

    forget_departed(core);
    linger_forget(core);
    for (size_t i = 0; i < core->config.n_devices; i++)
        forget_waiters(&core->devices[i].retries);
    forget_waiters(&core->hopeful);
    parts_forget(core);
    RB_FOREACH(pool, pools, &core->pools)
    forget_names(pool);
    while ((block = LIST_FIRST(&core->blocks))) {
        LIST_REMOVE(block, of_core);
        forget_block(block);
    }
    while ((pool = RB_MIN(pools, &core->pools))) {
        RB_REMOVE(pools, &core->pools, pool);
        free(pool);
    }
}

struct core *
core_free(struct core *core)
{
    struct user *user;

    if (!core)
        return NULL;
    assert(RB_EMPTY(&core->conns) && RB_EMPTY(&core->jobs));
    forget_all(core);
    entry_drop_all(core);
    while ((user = RB_MIN(users, &core->users))) {
        RB_REMOVE(users, &core->users, user);
        free(user);
    }
    msg_buf_deinit(&core->buf);
    free(core->devices);
    for (size_t i = 0; i < ARRAY_SIZE(core->strings); i++)
        free(core->strings[i]);
    free(core);
    return NULL;
}

/* ---- connections ---- */

static struct conn *
conn_find(struct conns *conns, uint64_t id)
{
    struct conn key = {.id = id};

    return RB_FIND(conns, conns, &key);
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
    RB_INIT(&conn->page_holds);
    RB_INIT(&conn->brackets);
    LIST_INIT(&conn->pages);
    RB_INIT(&conn->asking);
    RB_INIT(&conn->threads);
    LIST_INIT(&conn->jobs);
    LIST_INIT(&conn->waiters);
    LIST_INIT(&conn->flushes);
    LIST_INIT(&conn->watches);
    published_init(&conn->published);
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

/* Nothing is answered or carried out for it any more. */
static void
conn_drop_requests(struct core *core, struct conn *conn)
{
    struct waiter *waiter;
    struct flush *flush;
    struct watch *watch;
    struct job *job;

    while ((job = LIST_FIRST(&conn->jobs)))
        job_orphan(job); /* its result is given up when it comes */
    while ((waiter = LIST_FIRST(&conn->waiters)))
        waiter_orphan(waiter);
    while ((flush = LIST_FIRST(&conn->flushes)))
        flush_orphan(flush);
    while ((watch = LIST_FIRST(&conn->watches)))
        watch_free(core, watch);
    published_orphan(conn);
    brackets_orphan(core, conn);
    while (conn->deferring)
        reclaim_undefer(core, conn);
    if (!conn->greeted)
        TAILQ_REMOVE(&core->waiting, conn, waiting);
    entry_remove(core, &conn->close);
    entry_drop_sends(core, conn->id);
}

/* Ends every access; keeps what the GPU may still write to for the process, and what it may have
 * open that must not be freed under it. */
static void
conn_depart(struct core *core, struct conn *conn)
{
    struct lease *lease, *next;
    struct hold *hold, *after;
    struct page_hold *page_hold;
    struct page *page;

    while ((page_hold = RB_MIN(page_holds, &conn->page_holds)))
        page_hold_free(core, page_hold);
    LIST_FOREACH(page, &conn->pages, of_conn)
    if (page->timeline)
        timeline_free(core, page->timeline);
    for (lease = RB_MIN(leases, &conn->leases); lease; lease = next) {
        next = RB_NEXT(leases, &conn->leases, lease);
        if (!lease->hold)
            lease_free(core, lease);
    }
    for (hold = RB_MIN(holds, &conn->holds); hold; hold = after) {
        after = RB_NEXT(holds, &conn->holds, hold);
        if (!hold->n_leases && hold->block->kind == KIND_DEVICE)
            hold_free(core, hold);
    }
    conn->departed = true;
    brackets_depart(core, conn);
    RB_FOREACH(lease, leases, &conn->leases)
    lease_depart(core, lease);
}

static void
conn_destroy(struct core *core, struct conn *conn)
{
    struct lease *lease;
    struct hold *hold;

    conn_drop_uses(core, conn);
    while ((lease = RB_MIN(leases, &conn->leases)))
        lease_free(core, lease);
    while ((hold = RB_MIN(holds, &conn->holds)))
        hold_free(core, hold);
    user_uncharge(conn->user, RES_CONNECTIONS, 1);
    user_settle(core, conn->user);
    conn_free(conn);
}

/* Whether the exit of its process matters. */
static bool
conn_has_uses(const struct conn *conn)
{
    return !RB_EMPTY(&conn->leases) || !RB_EMPTY(&conn->holds) || !LIST_EMPTY(&conn->pages) ||
           !RB_EMPTY(&conn->brackets);
}

/* Where there is no memory to say so, it stays until the exit. */
void
conn_settle(struct core *core, struct conn *conn)
{
    struct entry *forget;

    if (!conn->departed || conn_has_uses(conn))
        return;
    forget = entry_new_conn(CORE_FORGET, conn->id);
    if (!forget)
        return;
    entry_push(core, forget);
    RB_REMOVE(conns, &core->departed, conn);
    core->n_departed--;
    conn_destroy(core, conn);
}

/* What an event leaves to be done at its end. Each may bring work for those before it, but a turn
 * changes nobody else's. */
static void
core_run(struct core *core)
{
    linger_run(core);
    bracket_run(core);
    reclaim_run(core);
}

bool
core_hangup(struct core *core, uint64_t id)
{
    struct conn *conn = conn_find(&core->conns, id);
    bool departed;

    if (!conn)
        return false;
    conn_drop_requests(core, conn);
    RB_REMOVE(conns, &core->conns, conn);
    core->n_conns--;
    conn_depart(core, conn);
    departed = conn_has_uses(conn);
    if (departed) {
        RB_INSERT(conns, &core->departed, conn);
        core->n_departed++;
    } else {
        conn_destroy(core, conn);
    }
    core_run(core);
    return departed;
}

void
core_exited(struct core *core, uint64_t id)
{
    struct conn *conn;

    core_hangup(core, id);
    conn = conn_find(&core->departed, id);
    if (!conn)
        return;
    RB_REMOVE(conns, &core->departed, conn);
    core->n_departed--;
    conn_destroy(core, conn);
    core_run(core);
}

void
core_receive(struct core *core, uint64_t id, const void *packet, size_t n, uint64_t now_ns)
{
    struct conn *conn = conn_find(&core->conns, id);

    core->now_ns = now_ns;
    if (conn && !conn->closing)
        request_handle(core, conn, packet, n);
    core_run(core);
}

/* ---- time ---- */

void
core_set_time(struct core *core, uint64_t now_ns)
{
    core->now_ns = now_ns;
}

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
    bracket_tick(core);
    reclaim_tick(core);
    core_run(core);
}

static uint64_t
min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* A connection that is closing already waits for its core_hangup(), not for the clock. */
uint64_t
core_deadline_ns(const struct core *core)
{
    uint64_t deadline = min_u64(reclaim_deadline_ns(core), bracket_deadline_ns(core));
    const struct conn *conn;

    deadline = min_u64(deadline, core->linger_at_ns);
    TAILQ_FOREACH(conn, &core->waiting, waiting)
    if (!conn->closing)
        return min_u64(conn->deadline_ns, deadline);
    return deadline;
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
