/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Figures have a fixed order, so that a portion begins where the one before it ended: those of
 * all, those of each user, those of each pool. The place of a figure is its number among those of
 * all, of its user or of its pool. Above UID_SHIFT it has the user's uid plus one; the pool's name
 * is beside it.
 */
#include "device.h"
#include "request.h"

#define UID_SHIFT 16

struct listing {
    struct core *core;
    struct portion portion;
    uint64_t at, from; /* the next figure; those before `from` are in other portions */
    uint64_t who;      /* above UID_SHIFT */
    bool of_all;
    struct msg_metric metric; /* whose it is, and of what, while that is the same */
    struct msg_metrics_result result;
};

static void
put(struct listing *l, const char *name, const char *kind, uint64_t value)
{
    uint64_t at = l->at++;

    l->metric.name = MSG_STR(name);
    l->metric.kind = msg_str_opt(kind);
    l->metric.value = value;
    if (at < l->from || l->portion.more ||
        portion_add(&l->portion, &l->metric, msg_metric_size(&l->metric)))
        return;
    l->result.from = l->who | at;
    l->result.pool = l->metric.pool;
}

/* What is everybody's has the name without "user_" or "pool_". */
static void
put_of(struct listing *l, const char *name, const char *kind, uint64_t value)
{
    put(l, l->of_all ? name + strlen("user_") : name, kind, value);
}

static void
put_counts(struct listing *l, const uint64_t counts[static N_COUNTS])
{
#define COUNT(NAME, name) put_of(l, "user_" name, NULL, counts[COUNT_##NAME]);
#define RESOURCE(NAME, figure, limit, bytes, text) \
    put_of(l, "user_refusals_total", #figure, counts[COUNT_LIMIT_##NAME]);
    COUNTS(COUNT)
    RESOURCES(RESOURCE)
    put_of(l, "user_refusals_total", "pool_quota", counts[COUNT_LIMIT_QUOTA]);
    put_of(l, "user_refusals_total", "pool_blocks", counts[COUNT_LIMIT_BLOCKS]);
}

/* The figures of answers.def, below: of a user, of all users, of a pool. */
#define SUFFIX_COUNT ""
#define SUFFIX_BYTES "_bytes"
#define SUFFIX_QUOTA "_bytes"

static void
put_user(struct listing *l, const struct msg_user *user)
{
#define FIGURE(r, name, presence, unit, text) FIGURE_##r(name, SUFFIX_##unit)
#define FIGURE_pool(...)
#define FIGURE_user(name, suffix) put_of(l, "user_charged" suffix, #name, user->name);
#include "answers.def"
#undef FIGURE_user
}

static struct msg_user
sum_users(struct core *core)
{
    struct msg_user sum = {0};
    struct user *user;

    RB_FOREACH(user, users, &core->users) {
        const struct msg_user record = user_record(user);
#define FIGURE(r, name, ...) FIGURE_##r(name)
#define FIGURE_user(name)    sum.name += record.name;
#include "answers.def"
#undef FIGURE_user
#undef FIGURE_pool
    }
    return sum;
}

static void
put_pool(struct listing *l, const struct msg_pool *pool)
{
#define FIGURE(r, name, presence, unit, text) FIGURE_##r(name, SUFFIX_##unit)
#define FIGURE_user(...)
#define FIGURE_pool(name, suffix) put(l, "pool_" #name suffix, NULL, pool->name);
#include "answers.def"
}

/* Bytes of blocks, and what arrays take of them: a pool's, or all; with that, the devices'. */
static void
put_memory(struct listing *l, struct pool *pool)
{
    for (uint32_t i = 0; i < l->core->config.n_devices; i++) {
        const struct device *d = &l->core->devices[i];
        l->metric.device = MSG_STR(d->info.uuid);
        for (enum core_kind k = 0; k < N_KINDS; k++) {
            const struct zone *zone = pool ? pool_zone(l->core, pool, i, k) : NULL;
            put_of(l, "pool_memory_bytes", core_kind_name(k),
                   zone ? zone->used : d->used_of[k]);
            put_of(l, "pool_memory_allocated_bytes", core_kind_name(k),
                   zone ? zone->allocated : d->allocated_of[k]);
        }
        if (pool)
            continue;
        put(l, "device_bytes", NULL, d->info.total);
        put(l, "device_reserve_bytes", NULL, d->reserve);
        put(l, "device_pending_bytes", NULL, d->queue.bytes);
        put(l, "device_quarantined_bytes", NULL, d->bytes_quarantined);
    }
    l->metric.device = (struct msg_str){0};
}

/* Most methods never have most of the outcomes: those are left out. */
static void
put_outcomes(struct listing *l)
{
    for (uint32_t i = 0; i < N_OUTCOMES * (MSG_N_METHODS + 1); i++) {
        uint32_t method = i / N_OUTCOMES, outcome = i % N_OUTCOMES;
        uint64_t n = l->core->outcomes[method][outcome];
        l->at = i;
        l->metric.outcome = MSG_STR(outcome && n ? proto_error_name(outcome) : "OK");
        if (n)
            put(l, "requests_total", method < MSG_UNKNOWN ? msg_method_name(method) : "unknown",
                n);
    }
    l->metric.outcome = (struct msg_str){0};
    l->at = N_OUTCOMES * (MSG_N_METHODS + 1);
}

static void
put_turns(struct listing *l, const struct core_figures *f)
{
    for (uint32_t i = 0; i < f->n_turns; i++) {
        l->metric.le_ns = i + 1 < f->n_turns ? UINT64_C(1000) << i : 0;
        put(l, "turns", NULL, f->turns[i]);
    }
    put(l, "turn_ns_sum", NULL, f->turn_sum_ns);
}

static void
list_all(struct listing *l, uint64_t from)
{
    const struct msg_user sum = sum_users(l->core);
    struct core_figures f = {0};

    if (l->core->figures)
        l->core->figures(l->core->figures_userdata, &f);
    l->of_all = true;
    l->from = from;
    put_outcomes(l);
    put_counts(l, l->core->counts);
    put_user(l, &sum);
    put_turns(l, &f);
    put(l, "restarts_total", NULL, f.restarts);
    put_memory(l, NULL);
    l->of_all = false;
}

/* All of them for administrators; for others, themselves. */
static void
list_users(struct listing *l, struct user *user, uint64_t from)
{
    bool all = is_administrator(l->core, user);
    struct user key = {.uid = from >> UID_SHIFT ? (uid_t)((from >> UID_SHIFT) - 1) : 0};

    if (all)
        user = RB_NFIND(users, &l->core->users, &key);
    for (; user && !l->portion.more;
         user = all ? RB_NEXT(users, &l->core->users, user) : NULL) {
        l->who = ((uint64_t)user->uid + 1) << UID_SHIFT;
        l->at = 0;
        l->from = from > l->who ? from - l->who : 0;
        l->metric.uid = user->uid;
        const struct msg_user record = user_record(user);
        put_counts(l, user->counts);
        put_user(l, &record);
    }
    l->metric.uid = l->who = 0;
}

static void
list_pools(struct listing *l, const struct conn *conn, const struct msg_metrics_params *p)
{
    struct pool *pool = pool_find_from(l->core, p->pool);

    for (; pool && !l->portion.more; pool = RB_NEXT(pools, &l->core->pools, pool)) {
        if (!pool_may(pool, conn, MAY_READ))
            continue;
        l->metric.pool = MSG_STR(pool->name);
        l->at = 0;
        l->from = msg_str_eq(p->pool, pool->name) ? p->from : 0;
        const struct msg_pool record = pool_record(l->core, pool);
        put_pool(l, &record);
        put(l, "pool_drops_total", NULL, record.drops);
        put_memory(l, pool);
    }
}

HANDLER(on_metrics)
{
    const struct msg_metrics_params *p = params;
    _cleanup_free_ struct msg_metric *metrics = calloc(PORTION_MAX, sizeof(*metrics));
    struct listing l = {.core = core,
                        .portion = PORTION(core, metrics, PORTION_MAX),
                        .result.metrics = metrics};

    if (!metrics)
        return -ENOMEM;
    if (p->pool.n == 0 && p->from >> UID_SHIFT == 0)
        list_all(&l, p->from);
    if (p->pool.n == 0 && !l.portion.more)
        list_users(&l, conn->user, p->from);
    if (!l.portion.more)
        list_pools(&l, conn, p);
    l.result.n_metrics = l.portion.n;
    l.result.more = l.portion.more;
    send_result(core, conn, id, MSG_METRICS, &l.result, NULL, 0);
    return 0;
}
