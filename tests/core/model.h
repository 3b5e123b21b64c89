/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of several clients, and a model of what they may see: which names there are, what
 * lies under them, of which generation, who holds what. It knows only what the interface promises;
 * ranges, blocks and fds are the harness's books, sums are core_check()'s.
 *
 * A history is a short one, by its seed: the seed chooses the configuration, too. When it fails, the
 * steps so far are printed (model_report()).
 */
#pragma once

#include "harness.h"

#define M_SLOTS    7
#define M_POOLS    4
#define M_NAMES    3
#define M_LEASES   64
#define M_ARRAYS   128
#define M_REQUESTS 128
#define M_STEPS    64
#define M_NONE     -1
#define M_GHOST    -2 /* being created by a client that has gone: until its memory comes */

struct m_array {
    bool alive; /* has a name or a lease */
    int pool, name, last_name;
    uint64_t generation; /* of the name, or the last one */
    uint64_t label;      /* its metadata */
    uint64_t stamp, nbytes;
    int n_leases, n_departed;
};

struct m_lease {
    uint64_t lease;
    int array;
};

struct m_slot {    /* a client */
    uint64_t conn; /* 0: none */
    uid_t uid;
    gid_t gid;
    bool gone;     /* hung up, and has not exited */
    bool offended; /* is being closed */
    struct m_lease leases[M_LEASES];
    int n_leases;
    int deferring;
};

struct m_name {
    int array;        /* or M_NONE */
    int creating;     /* slot, M_NONE or M_GHOST */
    uint64_t highest; /* generation, ever */
};

struct m_request {
    uint32_t id;
    int slot, pool, name;
    enum msg_method method;
    uint64_t label, nbytes, seen;
    uint32_t may_fail; /* bits: with these errors */
    bool must_fail;
    bool was_ghost; /* the name that it creates */
};

struct model {
    struct harness h;
    uint64_t seed, random;
    bool running;
    bool blind; /* expects nothing but what books and sums say: allocations fail */
    bool stopped;
    int n_out_of_memory; /* connections that ended by it */
    struct m_slot slots[M_SLOTS];
    struct m_name names[M_POOLS][M_NAMES];
    struct m_array arrays[M_ARRAYS];
    int n_arrays;
    struct m_request requests[M_REQUESTS];
    int n_requests;

    struct { /* watches answered in this step */
        int pool, name;
        uint64_t seen, generation;
    } told[M_REQUESTS];

    int n_told;
    char steps[M_STEPS][96];
    int n_steps;
};

/* One history. blind: see above. */
void model_run(struct model *m, uint64_t seed, bool blind);
/* Prints what a history that did not come to its end has done. For .fini and signals. */
void model_report(const struct model *m);

/* model.c, for model_steps.c */
#define EXPECT(m, cond, ...)                \
    do {                                    \
        if (!(m)->blind)                    \
            cr_assert((cond), __VA_ARGS__); \
    } while (0)

uint32_t model_random(struct model *m, uint32_t below);
bool model_may(const struct m_slot *slot, int pool, int what); /* 4: read, 2: write */
const char *model_pool_name(int pool);
const char *model_name(int name);
/* The living one under the name, or NULL. */
struct m_array *model_find(struct model *m, int pool, int name);
void model_name_gone(struct model *m, int pool, int name);
void model_lease_gone(struct model *m, struct m_slot *slot, int i);
/* A request that is about to be sent; its reply is looked at when it comes. */
struct m_request *model_ask(struct model *m, int slot, enum msg_method method);
/* Its connection takes no answers any more. */
void model_drop_requests(struct model *m, int slot);

/* model_steps.c */
void model_step(struct model *m);
void model_leave(struct model *m, int slot, bool hangup, bool exits);
