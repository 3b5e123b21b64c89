/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories against a model. The model knows only what the interface promises: which
 * names exist, and how much memory is held. Three uids, a shared pool, driver jobs that finish in
 * any order and sometimes fail, connections that vanish at any moment. The harness checks the
 * core's own sums after each step; h_deinit() that nothing is left.
 */
#include "harness.h"

#include "caid_test.h"

#define N_NAMES 6
#define N_CONNS 5
#define STEPS   2000

struct model {
    struct harness h;
    uint64_t random;
    uint64_t conns[N_CONNS]; /* 0: none */
    uid_t uids[N_CONNS];
    /* Names in pool "open", which everyone may use. A create that waits for memory leaves its
     * name undecided until the reply. */
    bool exists[N_NAMES];
    int creating[N_NAMES]; /* 1 + place of the connection that waits, or 0 */
    uint64_t leases[N_CONNS][256];
    size_t n_leases[N_CONNS];
};

/* xorshift64*: seeds make histories repeatable */
static uint32_t
rnd(struct model *m, uint32_t below)
{
    m->random ^= m->random >> 12;
    m->random ^= m->random << 25;
    m->random ^= m->random >> 27;
    return (uint32_t)((m->random * UINT64_C(0x2545f4914f6cdd1d)) >> 33) % below;
}

static const char *
name_of(uint32_t i)
{
    static const char *const names[N_NAMES] = {"a", "ab", "b", "c/d", "ü", "z"};

    return names[i];
}

static void
step_connect(struct model *m, uint32_t c)
{
    if (m->conns[c] || m->h.next_conn + 2 >= H_CONNS)
        return;
    m->uids[c] = 1000 + rnd(m, 3);
    m->conns[c] = h_connect(&m->h, m->uids[c], 1000);
    m->n_leases[c] = 0;
}

static void
step_disconnect(struct model *m, uint32_t c)
{
    if (!m->conns[c] || rnd(m, 30))
        return;
    h_disconnect(&m->h, m->conns[c]);
    m->conns[c] = 0;
}

/* One create at a time per connection, so that the reply tells whose it is. */
static bool
is_waiting(const struct model *m, uint32_t c)
{
    for (uint32_t i = 0; i < N_NAMES; i++)
        if (m->creating[i] == (int)c + 1)
            return true;
    return false;
}

static void
step_create(struct model *m, uint32_t c)
{
    uint32_t i = rnd(m, N_NAMES);
    int64_t bytes = rnd(m, 4) ? 1 + rnd(m, 6 << 20) : 0;
    struct h_reply *reply;

    if (!m->conns[c] || is_waiting(m, c) || m->n_leases[c] > 200)
        return;
    reply = h_create(&m->h, m->conns[c], name_of(i), "open", bytes);
    if (m->exists[i] || m->creating[i]) {
        cr_assert(reply->seen && reply->error == PROTO_ERR_EXISTS);
    } else if (reply->seen && !reply->error) {
        cr_assert_eq(bytes, 0);
        m->exists[i] = true;
        m->leases[c][m->n_leases[c]++] = reply->lease;
    } else if (reply->seen) {
        cr_assert(reply->error == PROTO_ERR_LIMIT || reply->error == PROTO_ERR_QUOTA);
    } else {
        m->creating[i] = (int)c + 1;
    }
}

static void
step_open(struct model *m, uint32_t c)
{
    uint32_t i = rnd(m, N_NAMES);
    struct h_reply *reply;

    if (!m->conns[c] || is_waiting(m, c) || m->n_leases[c] > 200)
        return;
    reply = h_open(&m->h, m->conns[c], name_of(i), "open", rnd(m, 2) ? "r" : "rw");
    cr_assert(reply->seen);
    if (!m->exists[i])
        cr_assert_eq(reply->error, PROTO_ERR_NOT_FOUND);
    else if (reply->error)
        cr_assert_eq(reply->error, PROTO_ERR_LIMIT);
    else
        m->leases[c][m->n_leases[c]++] = reply->lease;
}

static void
step_close(struct model *m, uint32_t c)
{
    if (!m->conns[c] || !m->n_leases[c])
        return;
    size_t i = rnd(m, (uint32_t)m->n_leases[c]);
    h_close(&m->h, m->conns[c], m->leases[c][i]);
    m->leases[c][i] = m->leases[c][--m->n_leases[c]];
    cr_assert_not(m->h.closed[m->conns[c]]);
}

static void
step_unlink(struct model *m, uint32_t c)
{
    uint32_t i = rnd(m, N_NAMES);
    struct h_reply *reply;

    if (!m->conns[c] || is_waiting(m, c))
        return;
    reply = h_unlink(&m->h, m->conns[c], name_of(i), "open");
    cr_assert_eq(reply->error, m->exists[i] ? 0 : PROTO_ERR_NOT_FOUND);
    m->exists[i] = false;
}

/* A create is decided when its reply comes, or when its connection has gone by then. */
static void
settle_creates(struct model *m)
{
    for (uint32_t i = 0; i < N_NAMES; i++) {
        if (!m->creating[i])
            continue;
        uint32_t c = (uint32_t)m->creating[i] - 1;
        struct h_reply *reply = &m->h.replies[m->conns[c]];
        if (!m->conns[c] || !reply->seen)
            continue;
        m->creating[i] = 0;
        m->exists[i] = reply->error == 0;
        if (reply->error == 0)
            m->leases[c][m->n_leases[c]++] = reply->lease;
    }
}

static void
step_finish(struct model *m)
{
    if (!m->h.n_jobs)
        return;
    h_finish(&m->h, rnd(m, (uint32_t)m->h.n_jobs),
             rnd(m, 8) ? 0 : (int[]){-ENOMEM, -EIO}[rnd(m, 2)]);
    settle_creates(m);
}

/* Names that a vanished connection was creating are free once its jobs are done. */
static void
forget_creates(struct model *m, uint32_t c)
{
    h_finish_all(&m->h);
    settle_creates(m);
    for (uint32_t i = 0; i < N_NAMES; i++)
        if (m->creating[i] == (int)c + 1)
            m->creating[i] = 0;
}

static void
step(struct model *m)
{
    uint32_t c = rnd(m, N_CONNS);
    bool had = m->conns[c] != 0;

    switch (rnd(m, 12)) {
    case 0: step_connect(m, c); break;
    case 1:
        step_disconnect(m, c);
        if (had && !m->conns[c])
            forget_creates(m, c);
        break;
    case 2:
    case 3:
    case 4: step_create(m, c); break;
    case 5:
    case 6: step_open(m, c); break;
    case 7:
    case 8: step_close(m, c); break;
    case 9: step_unlink(m, c); break;
    default: step_finish(m); break;
    }
}

static void
three_threads(struct core_config *config)
{
    config->threads = 3;
}

CAID_TEST_WITH(model, random_histories, .timeout = 120)
{
    static struct model m;

    for (uint64_t seed = 1; seed <= 40; seed++) {
        memset(&m, 0, sizeof(m));
        m.random = seed * UINT64_C(0x9e3779b97f4a7c15);
        h_init(&m.h, three_threads);
        for (int i = 0; i < STEPS; i++)
            step(&m);
        uint64_t names = 0;
        for (uint32_t c = 0; c < N_CONNS; c++)
            if (m.conns[c])
                h_disconnect(&m.h, m.conns[c]);
        h_finish_all(&m.h);
        struct core_counts counts;
        core_get_counts(m.h.core, &counts);
        for (uint32_t i = 0; i < N_NAMES; i++)
            names += m.exists[i];
        cr_assert_eq(counts.names, names, "seed %llu", (unsigned long long)seed);
        h_deinit(&m.h);
    }
}
