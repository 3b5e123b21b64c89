/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ordering, as a list of steps that several processes take: each waits for what came before it,
 * works on a stream, and says when that is done. Whatever the streams do, the outcome has to be
 * that of the steps one after the other; that is all that is checked. It is run in rounds, each
 * with another delay of the streams.
 *
 * Each step that `waits` is left without its wait once, by a fault of the driver where there is a
 * call that waits, else by not making the call; the outcome then has to be wrong.
 */
#pragma once

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pthread.h>

#include "program.h"

#define ORDER_ROLES   3
#define ORDER_ARRAYS  18
#define ORDER_STREAMS 18
#define ORDER_STEPS   20

enum order_kind {
    ORDER_BRACKETS,
    ORDER_TIMELINES, /* a step waits for all before it, of other processes */
    ORDER_AHEAD,     /* the same by CAID_TIMELINE_AHEAD, and the last step is enqueued first */
};

struct order_step {
    uint8_t role;   /* the process that takes it */
    uint8_t stream; /* of the role's own */
    bool host;      /* no stream: the host waits, before and after the work */
    bool waits;     /* without its wait the outcome is wrong, */
    bool by_stream; /* but not where the host waits: others wait for the same then */
    bool
        by_call; /* its wait is a call of caid's, even where streams can wait: what it waits for is
                     * over when that call returns */
    uint32_t reads,
        writes; /* arrays, a bit each; what reads and writes copies the one to the other */
};

struct order_scenario {
    const char *name;
    enum order_kind kind;
    int n_roles, n_steps;
    struct order_step steps[ORDER_STEPS];
};

extern const struct order_scenario order_scenarios[];
extern const size_t n_order_scenarios;

/* What the processes of a run share. */
struct order_shared {
    pthread_barrier_t barrier;
    sem_t turns[ORDER_STEPS]; /* steps begin in their order */
    _Atomic uint32_t n_wrong; /* arrays that did not hold what they should, in all rounds */
};

/* One process of a run. */
struct order {
    const struct order_scenario *scenario;
    struct order_shared *shared;
    const char *mode; /* how streams wait: "memops", "host", "events" */
    int role;
    int without; /* the step without its wait, or -1 */

    struct drv *drv;
    struct caid_client *client;
    struct caid_array *arrays[ORDER_ARRAYS];
    CUstream streams[ORDER_STREAMS];
    CUdeviceptr snapshots[ORDER_STEPS][ORDER_ARRAYS];
    struct caid_timeline *timelines[ORDER_STEPS];

    uint32_t expected[ORDER_STEPS][ORDER_ARRAYS]; /* what a step reads */
    uint32_t contents[ORDER_ARRAYS];              /* after the steps so far */
};

/* A failure ends the process. */
void order_open(struct order *o, const char *socket);
void order_close(struct order *o);
void order_round(struct order *o, uint32_t round);
