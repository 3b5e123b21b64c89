/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New configurations: other limits, and the administrator's pools with other modes and quotas, or
 * without them.
 */
#include "caid_test.h"
#include "model.h"

#define ONE_OF(...)                                                                           \
    ((uint64_t[]){__VA_ARGS__}[model_random(m, (uint32_t)(sizeof((uint64_t[]){__VA_ARGS__}) / \
                                                          sizeof(uint64_t)))])

void
model_choose(struct model *m, struct core_config *config)
{
    config->memory = (struct core_memory){
        .block_size = ONE_OF(4 << 20, 16 << 20),
        .shared_max = ONE_OF(0, 1 << 20, 4 << 20),
        .reserve = ONE_OF(0, 4 << 20, 64 << 20),
        .pending_count = (uint32_t)ONE_OF(0, 2, 10),
        .pending_ratio = ONE_OF(0, 1, 5) / 5.0,
        .pending_age_ns = H_AGE_NS,
    };
    config->limits.names = (uint32_t)ONE_OF(3, 100);
    config->limits.leases = (uint32_t)ONE_OF(8, 40);
    config->limits.bytes = ONE_OF(0, 8 << 20);
    config->limits.host_bytes = ONE_OF(0, 0, 24 << 10, 48 << 10);
    config->limits.watches = (uint32_t)ONE_OF(2, 20);
    config->limits.jobs = (uint32_t)ONE_OF(2, 8);
    config->limits.brackets = (uint32_t)ONE_OF(3, 40);
    config->limits.pages = (uint32_t)ONE_OF(2, 20);
    config->blocks = (uint32_t)ONE_OF(3, 50);
    config->user_quota = ONE_OF(0, 8 << 20);
    config->ticket_ttl_ns = ONE_OF(1, H_AGE_NS / 2, H_AGE_NS);
    config->ticket_age_ns = ONE_OF(UINT64_MAX, UINT64_MAX, H_AGE_NS, 3 * H_AGE_NS);
}

static const struct core_pool_config *
find_pool(const struct core_config *config, const char *name)
{
    for (size_t i = 0; i < config->n_pools; i++)
        if (strcmp(config->pools[i].name, name) == 0)
            return &config->pools[i];
    return NULL;
}

const struct core_pool_config *
model_pool(const struct model *m, int pool)
{
    return find_pool(&m->h.config, model_pool_name(pool));
}

static bool
is_used(const struct model *m, int pool)
{
    for (int i = 0; i < m->n_arrays; i++)
        if (m->arrays[i].alive && m->arrays[i].pool == pool)
            return true;
    for (int i = 0; i < m->n_requests; i++)
        if (m->requests[i].method == MSG_CREATE && m->requests[i].pool == pool)
            return true;
    for (int n = 0; n < M_NAMES; n++)
        if (m->timelines[pool][n])
            return true;
    return false;
}

/* By what lingers, or clients that are going have left. */
static bool
may_be_used(const struct model *m, int pool)
{
    for (int i = 0; i < m->n_arrays; i++)
        if (m->arrays[i].fenced && m->arrays[i].pool == pool)
            return true;
    for (int n = 0; n < M_NAMES; n++)
        if (m->names[pool][n].creating != M_NONE)
            return true;
    for (int i = 0; i < M_SLOTS; i++)
        if (m->slots[i].offended)
            return true;
    return m->n_orphans || is_used(m, pool);
}

/* Who watches a name in a pool that goes is told so, and nobody else. */
static void
expect_watches(struct model *m, int pool, bool goes)
{
    for (int i = 0; i < m->n_requests; i++) {
        struct m_request *r = &m->requests[i];
        if (r->method != MSG_WATCH || r->pool != pool)
            continue;
        r->must_fail = goes;
        r->may_fail = goes ? UINT32_C(1) << PROTO_ERR_NOT_FOUND : 0;
    }
}

static bool
is_watched(const struct model *m, int pool)
{
    for (int i = 0; i < m->n_requests; i++)
        if (m->requests[i].method == MSG_WATCH && m->requests[i].pool == pool)
            return true;
    return false;
}

static size_t
choose_pools(struct model *m, struct core_pool_config *ret)
{
    size_t n = 0;

    for (int pool = 2; pool < M_POOLS; pool++)
        if (model_random(m, 3))
            ret[n++] =
                (struct core_pool_config){.name = model_pool_name(pool),
                                          .uid = 1,
                                          .gid = 10,
                                          .mode = (mode_t)ONE_OF(0666, 0666, 0640, 0606, 0600),
                                          .quota = ONE_OF(0, 4 << 20, 16 << 20),
                                          .legacy = true};
    return n;
}

void
model_step_reconfigure(struct model *m)
{
    struct core_pool_config pools[H_CONFIGURED];
    struct core_config config = m->h.config;
    bool used = false, may_be = false;

    model_choose(m, &config);
    config.pools = pools;
    config.n_pools = choose_pools(m, pools);
    model_note(m, "another configuration, with %zu pools", config.n_pools);
    for (int p = 2; p < M_POOLS; p++) {
        bool goes = model_pool(m, p) && !find_pool(&config, model_pool_name(p));
        used |= goes && is_used(m, p);
        may_be |= goes && may_be_used(m, p);
        expect_watches(m, p, goes);
    }
    int r = h_reconfigure(&m->h, &config);
    cr_assert(r == 0 || r == -EBUSY || (m->blind && r == -ENOMEM), "reconfigured: %d", r);
    EXPECT(m, r == -EBUSY || !used, "a pool that is used was taken away");
    EXPECT(m, r == 0 || may_be, "a pool that nobody uses was kept");
    for (int p = 2; p < M_POOLS; p++) {
        EXPECT(m, model_pool(m, p) || !is_watched(m, p), "a watch of nothing is kept");
        expect_watches(m, p, false);
    }
}
