/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core itself: its life, its events and its time.
 */
#include "state.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "array.h"
#include "base/macros.h"
#include "device.h"
#include "former.h"
#include "linger.h"
#include "lost.h"
#include "publish.h"
#include "reclaim.h"
#include "release.h"
#include "request.h"
#include "restore.h"
#include "set.h"
#include "settle.h"
#include "units.h"
#include "waiter.h"
#include "work.h"

/* ---- life ---- */

static int
copy_config(struct core *core, const struct core_config *config)
{
    const char *texts[] = {config->server, config->driver_path};
    size_t n = config->n_devices;

    core->config = *config;
    /* until core->devices has them */
    core->config.n_devices = 0;
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
    core->config.devices = NULL; /* the core has objects for these */
    core->config.pools = NULL;
    return 0;
}

static const struct core_pool_config *
config_pool(const struct core_config *config, const char *name)
{
    for (size_t i = 0; i < config->n_pools; i++)
        if (strcmp(config->pools[i].name, name) == 0)
            return &config->pools[i];
    return NULL;
}

static bool
pools_are_valid(const struct core_config *config)
{
    for (size_t i = 0; i < config->n_pools; i++) {
        const struct core_pool_config *pool = &config->pools[i];
        if (!core_pool_name_valid(pool->name) || config_pool(config, pool->name) != pool)
            return false;
    }
    return true;
}

static struct pool *
find_configured(const struct core *core, const char *name)
{
    struct core *c = (struct core *)(uintptr_t)core; /* the tree macros take no const */
    struct pool *pool = pool_find_from(c, MSG_STR(name));

    return pool && strcmp(pool->name, name) == 0 ? pool : NULL;
}

/* Makes the configured pools that do not exist. They are leaving until set_pools() keeps them. */
static int
make_pools(struct core *core, const struct core_config *config)
{
    struct pool *pool;
    int r = 0;

    for (size_t i = 0; r == 0 && i < config->n_pools; i++) {
        if (find_configured(core, config->pools[i].name))
            continue;
        r = pool_new(core, &config->pools[i], &pool);
        if (r == 0)
            pool_leave(core, pool);
    }
    return r;
}

/* Entries in the queues are freed in their time; blocks that become empty go at once. */
static void
drop_pool(struct core *core, struct pool *pool)
{
    pool_leave(core, pool);
    watches_end(core, pool);
    blocks_doom(core, pool, 0);
}

static void
set_pools(struct core *core, const struct core_config *config)
{
    const struct core_pool_config *c;
    struct pool *pool;

    RB_FOREACH(pool, pools, &core->pools) {
        if (pool->owner)
            continue;
        c = config_pool(config, pool->name);
        if (c) {
            pool_set(pool, c);
            pool_stay(core, pool);
        } else {
            drop_pool(core, pool);
        }
    }
}

int
core_new(struct core **ret, const struct core_config *config, uint64_t now_ns)
{
    struct core *core = calloc(1, sizeof(*core));
    int r;

    if (!core)
        return -ENOMEM;
    TAILQ_INIT(&core->landing);
    TAILQ_INIT(&core->busy); /* trees and LISTs are initialised by calloc() */
    TAILQ_INIT(&core->lingering);
    TAILQ_INIT(&core->landed);
    vacates_init(&core->vacates);
    TAILQ_INIT(&core->closing_pages);
    TAILQ_INIT(&core->sets);
    TAILQ_INIT(&core->hopeful);
    core->pieces = 16;
    core->reply_max = PROTO_PACKET_MAX;
    core->linger_at_ns = UINT64_MAX;
    core->turns_given.last_ns = UINT64_MAX;
    TAILQ_INIT(&core->waiting);
    TAILQ_INIT(&core->queue);
    TAILQ_INIT(&core->turns);
    TAILQ_INIT(&core->touched_users);
    core->started_ns = core->now_ns = now_ns;

    r = pools_are_valid(config) ? copy_config(core, config) : -EINVAL;
    if (r == 0)
        r = make_pools(core, config);
    if (r < 0) {
        core_free(core);
        return r;
    }
    set_pools(core, config);
    *ret = core;
    return 0;
}

/* ---- the core ends: memory ends with the process that has the handles ---- */

/* Frees arrays without a range; the others are freed with their blocks. */
static void
forget_names(struct pool *pool)
{
    struct array *array, *next;

    for (array = RB_MIN(names, &pool->names); array; array = next) {
        next = RB_NEXT(names, &pool->names, array);
        use_forget(array);
        if (!array_range(array)) {
            RB_REMOVE(names, &pool->names, array);
            array_free(array);
        }
    }
    for (array = RB_MIN(nameless, &pool->nameless); array; array = next) {
        next = RB_NEXT(nameless, &pool->nameless, array);
        use_forget(array);
        if (!array_range(array)) {
            RB_REMOVE(nameless, &pool->nameless, array);
            array_free(array);
        }
    }
}

static void
forget_block(struct block *block)
{
    struct range *aside;

    while ((aside = block->aside)) {
        block->aside = aside->link;
        space_free(aside);
    }
    while (block->state != BLOCK_RELEASING && !extent_is_empty(&block->extent)) {
        struct range *range = block->extent.first;
        struct array *array;
        if (range->is_free) /* free ranges are never neighbours */
            range = range->next;
        array = range->userdata;
        array_free(array);
        space_free(range);
    }
    if (block->state != BLOCK_RELEASING)
        space_remove(&block->extent);
    space_deinit(&block->solo);
    free(block);
}

static void
forget_all(struct core *core)
{
    struct pool *pool;
    struct block *block;

    conns_forget_departed(core);
    formers_forget(core);
    linger_forget(core);
    expiries_forget(core);
    tickets_forget(core);
    channels_forget(core);
    parts_forget(core);
    RB_FOREACH(pool, pools, &core->pools)
        forget_names(pool);
    while ((block = LIST_FIRST(&core->blocks))) {
        LIST_REMOVE(block, of_core);
        forget_block(block);
    }
    while ((pool = RB_MIN(pools, &core->pools))) {
        RB_REMOVE(pools, &core->pools, pool);
        losts_forget(pool);
        free(pool);
    }
}

struct core *
core_free(struct core *core)
{
    struct user *user;
    struct set *set;

    if (!core)
        return NULL;
    assert(RB_EMPTY(&core->conns) && core->n_running == 0);
    units_free(TAKE_PTR(core->units));
    forget_all(core);
    entry_drop_all(core);
    while ((user = RB_MIN(users, &core->users))) {
        RB_REMOVE(users, &core->users, user);
        while ((set = TAILQ_FIRST(&user->ended))) {
            TAILQ_REMOVE(&user->ended, set, of_user);
            set_forget(set);
        }
        free(user);
    }
    msg_buf_deinit(&core->buf);
    free(core->devices);
    for (size_t i = 0; i < ARRAY_SIZE(core->strings); i++)
        free(core->strings[i]);
    free(core);
    return NULL;
}

/* ---- the end of an event ---- */

/* Looks at what waits for values in timelines. */
static void
look(struct core *core)
{
    bool is_time = core->linger_at_ns <= core->now_ns, more = false;

    if (!is_time && TAILQ_EMPTY(&core->landed))
        return;
    if (is_time) {
        more = pages_look(core);
        more |= linger_look(core);
        core->linger_at_ns = UINT64_MAX;
        formers_look(core);
        vacates_look(core);
        channels_look(core);
    }
    arrays_settle_landed(core);
    waiters_run(core);
    if (!TAILQ_EMPTY(&core->closing_pages) || !TAILQ_EMPTY(&core->lingering) ||
        !TAILQ_EMPTY(&core->hopeful))
        linger_later(core, more ? LINGER_REST_NS : LINGER_TURN_NS);
}

static void
end_pool(struct core *core, struct pool *pool)
{
    while (!RB_EMPTY(&pool->losts))
        lost_free(RB_ROOT(&pool->losts));
    pool_free(core, pool);
}

/* Frees users and pools that have nothing left. Not before all is restored. */
static void
pools_run(struct core *core)
{
    struct pool *pool, *next;

    for (pool = LIST_FIRST(&core->leaving_pools); pool && !core->units; pool = next) {
        next = LIST_NEXT(pool, of_leaving);
        if (!pool->n_blocks && !pool->n_watches)
            end_pool(core, pool);
    }
}

static void
users_run(struct core *core)
{
    struct user *user;

    while (!core->units && (user = TAILQ_FIRST(&core->touched_users))) {
        TAILQ_REMOVE(&core->touched_users, user, of_touched);
        user->touched = false;
        if (!user_is_idle(user))
            continue;
        end_pool(core, user->pool);
        user_free(core, user);
    }
}

/* Frees memory that was set aside for clients of the earlier core, once they have gone. */
static void
put_back(struct core *core)
{
    struct block *block = LIST_FIRST(&core->aside);

    if (!block)
        return;
    block_put_back(core, block, core->pieces);
    if (!block->aside)
        LIST_REMOVE(block, of_aside);
}

/* Work that events have left, or some of it. A step may make work for a step before it: that is
 * done in the next event, which is due at once (core->behind). */
static void
core_run(struct core *core, bool briefly)
{
    bool more, in_doubt, is_due;

    look(core);
    put_back(core);
    renewal_run(core);
    work_run(core, briefly);
    in_doubt = doubts_settle(core);
    is_due = vacates_run(core);
    more = release_run(core);
    users_run(core);
    pools_run(core);
    core->behind = more || in_doubt || is_due || !LIST_EMPTY(&core->aside) ||
                   renewal_is_behind(core) || !TAILQ_EMPTY(&core->busy) ||
                   !TAILQ_EMPTY(&core->landed);
}

/* ---- connections ---- */

static struct core_pool_config
own_pool(const struct core *core, uid_t uid, gid_t gid)
{
    return (struct core_pool_config){
        .uid = uid,
        .gid = gid,
        .mode = core->config.user_mode,
        .quota = core->config.user_quota,
        .legacy = core->config.user_legacy,
    };
}

/* A uid's own pool lives as long as its user. */
int
core_get_user(struct core *core, uid_t uid, gid_t gid, struct user **ret)
{
    char name[PROTO_POOL_MAX + 1];
    struct core_pool_config config = own_pool(core, uid, gid);
    struct user *user = user_find(core, uid);
    int r;

    *ret = user;
    if (user && user->pool->gid == (gid_t)-1)
        user->pool->gid = gid;
    if (user)
        return 0;
    user = user_new(core, uid);
    if (!user)
        return -ENOMEM;
    snprintf(name, sizeof(name), "uid:%" PRIuMAX, (uintmax_t)uid);
    config.name = name;
    r = pool_new(core, &config, &user->pool);
    if (r < 0) {
        user_free(core, user);
        return r;
    }
    user->pool->owner = user;
    user->pool->is_none = uid && uid == core->config.overflow_uid;
    *ret = user;
    return 0;
}

int
core_connect(struct core *core, uint64_t id, const struct core_peer *peer, uint64_t now_ns)
{
    struct refusal refused;
    struct user *user;
    struct conn *conn;
    int r;

    core->now_ns = now_ns;
    if (core_get_user(core, peer->uid, peer->gid, &user) < 0)
        return -ENOMEM;
    r = conn_open(core, id, peer, user, &refused, &conn);
    if ((r == -EDQUOT || r == -EMFILE) && former_keeps_place(core, user, peer->pid)) {
        r = conn_open(core, id, peer, user, NULL, &conn);
        if (r == 0)
            conn->lacks_place = true;
    }
    if (r == 0)
        metrics_count(user, COUNT_CONNECTIONS, 1);
    else if (r != -ENOMEM)
        metrics_count(user, refused.limit, 1);
    user_touch(user); /* the user may have been made for this connection */
    users_run(core);
    return r;
}

bool
core_hangup(struct core *core, uint64_t id)
{
    struct conn *conn = conn_find(&core->conns, id);

    if (!conn)
        return false;
    conn_hangup(core, conn);
    core_run(core, core->behind);
    conn = conn_find(&core->departed, id);
    if (conn)
        conn->reported = true;
    return conn;
}

void
core_exited(struct core *core, uint64_t id)
{
    struct conn *conn;

    core_hangup(core, id);
    conn = conn_find(&core->departed, id);
    if (!conn)
        return;
    conn->exited = true;
    former_exit(conn);
    if (core->units)
        core->units->has_exits |= conn->is_held_back;
    conn_wake(conn);
    core_run(core, core->behind);
}

void
core_receive(struct core *core, uint64_t id, const void *packet, size_t n, uint64_t now_ns)
{
    struct conn *conn = conn_find(&core->conns, id);

    core->now_ns = now_ns;
    if (conn && !conn->closing)
        request_handle(core, conn, packet, n);
    core_run(core, core->behind);
}

void
core_process_kept(struct core *core, uint64_t id, uint32_t kept)
{
    struct conn *conn = conn_find(&core->conns, id);

    conn->kept = kept;
    persist_process(core, conn);
}

/* ---- other settings ---- */

bool
core_pool_is_used(const struct core *core, const char *name)
{
    const struct pool *pool = find_configured(core, name);

    return pool && pool_is_used(pool);
}

static bool
lacks_used_pool(struct core *core, const struct core_config *config)
{
    struct pool *pool;

    RB_FOREACH(pool, pools, &core->pools)
        if (!pool->owner && pool_is_used(pool) && !config_pool(config, pool->name))
            return true;
    return false;
}

static void
set_config(struct core *core, const struct core_config *config)
{
    struct core_config *c = &core->config;
    struct user *user;
    struct conn *conn;

    c->hello_timeout_ns = config->hello_timeout_ns;
    c->ticket_ttl_ns = config->ticket_ttl_ns;
    c->ticket_age_ns = config->ticket_age_ns;
    c->limits = config->limits;
    c->totals = config->totals;
    c->memory = config->memory;
    c->blocks = config->blocks;
    c->user_quota = config->user_quota;
    c->user_mode = config->user_mode;
    c->user_legacy = config->user_legacy;
    for (size_t i = 0; i < c->n_devices; i++)
        device_set_memory(&core->devices[i], &c->memory);
    RB_FOREACH(user, users, &core->users) {
        struct core_pool_config own = own_pool(core, user->pool->uid, user->pool->gid);
        pool_set(user->pool, &own);
    }
    TAILQ_FOREACH(conn, &core->waiting, waiting) /* the list stays sorted by deadline */
        conn->deadline_ns = min_u64(conn->deadline_ns, core->now_ns + c->hello_timeout_ns);
}

int
core_reconfigure(struct core *core, const struct core_config *config, uint64_t now_ns)
{
    int r;

    if (!pools_are_valid(config))
        return -EINVAL;
    if (lacks_used_pool(core, config))
        return -EBUSY;
    core->now_ns = now_ns;
    r = make_pools(core, config);
    if (r == 0) { /* from here on nothing can fail */
        set_config(core, config);
        set_pools(core, config);
    }
    core_run(core, core->behind);
    return r;
}

/* ---- driver calls ---- */

void
core_alloc_done(struct core *core, uint64_t id, const struct core_alloc_result *result)
{
    struct job *job = job_find(core, id, JOB_ALLOC);
    struct block *block = container_of(job, struct block, job);

    job_end(core, job);
    waiters_alloc_done(core, block, result);
    core_run(core, core->behind);
}

void
core_release_done(struct core *core, uint64_t id, int error, int cuda, const char *text)
{
    struct job *job = job_find(core, id, JOB_RELEASE);
    struct block *block = container_of(job, struct block, job);

    job_end(core, job);
    release_done(core, block, error, cuda, text);
    core_run(core, core->behind);
}

void
core_memory_done(struct core *core, uint64_t id, const struct core_memory_result *results,
                 size_t n)
{
    struct job *job = job_find(core, id, JOB_MEMORY);

    if (job->conn)
        reply_memory(core, job->conn, job, results, n);
    job_end(core, job);
    user_touch(job->user);
    free(job);
    users_run(core);
}

/* ---- time ---- */

void
core_set_reply_max(struct core *core, size_t bytes)
{
    core->reply_max = bytes;
}

void
core_set_time(struct core *core, uint64_t now_ns)
{
    core->now_ns = now_ns;
}

void
core_set_boottime(struct core *core, uint64_t boot_ns)
{
    core->boot_ns = boot_ns;
}

#define SILENT_MAX 8 /* connections whose HELLO is late, ended in one event */

void
core_tick(struct core *core, uint64_t now_ns)
{
    struct conn *conn;
    int n = 0;

    core->now_ns = now_ns;
    if (core->units && !core->units->error)
        restore_run(core);
    TAILQ_FOREACH(conn, &core->waiting, waiting) {
        if (conn->deadline_ns > now_ns || n == SILENT_MAX || core->units)
            break; /* its HELLO may wait for a restore */
        n += !conn->closing;
        conn_end(core, conn, "no hello in time");
    }
    bracket_tick(core);
    vacates_tick(core);
    reclaim_tick(core);
    names_expire(core);
    tickets_run_out(core);
    core_run(core, false);
}

uint64_t
core_expiry_ns(const struct core *core)
{
    return min_u64(expiry_next_ns(core), tickets_end_ns(core));
}

/* When core_tick() is to be called next. A connection that is closing waits for core_hangup(), not
 * for a time. */
uint64_t
core_deadline_ns(const struct core *core)
{
    uint64_t deadline = min_u64(reclaim_deadline_ns(core), bracket_deadline_ns(core));
    const struct conn *conn;

    if (core->behind || (core->units && !core->units->error))
        return 0;
    deadline = min_u64(min_u64(deadline, core->linger_at_ns), vacates_end_ns(core));
    TAILQ_FOREACH(conn, &core->waiting, waiting)
        if (!conn->closing)
            return min_u64(conn->deadline_ns, deadline);
    return deadline;
}

void
core_spent(struct core *core, uid_t uid, uint64_t ns)
{
    struct user *user = user_find(core, uid);

    if (user)
        metrics_count(user, COUNT_TIME_NS, ns);
}

void
core_set_figures(struct core *core, void (*figures)(void *userdata, struct core_figures *ret),
                 void *userdata)
{
    core->figures = figures;
    core->figures_userdata = userdata;
}

void
core_stop(struct core *core)
{
    core->stopping = true;
}

size_t
core_jobs(const struct core *core)
{
    return core->n_running;
}

uint64_t
core_objects(const struct core *core)
{
    return core->n_arrays + core->n_leases;
}
