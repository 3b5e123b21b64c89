/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A create that needs memory: how its array gets its range. Small arrays share the blocks of their
 * zone (pool, device, kind); large and exclusive ones have blocks of their own. A waiter lives
 * until the create is answered or its client has gone.
 *
 * It may wait for the allocation of a block; when memory or quota is short, for doomed blocks of
 * its device; and for lingering arrays whose memory it may get.
 */
#pragma once

#include "block.h"
#include "refusal.h"

struct array_request;

/* A create that waits for memory. */
struct waiter {
    TAILQ_ENTRY(waiter) link;
    struct waiter_list *in; /* block->waiters, device->retries, core->hopeful, or user->done */
    LIST_ENTRY(waiter) of_conn;
    struct conn *conn;
    struct charge charge; /* one job, and the struct */
    uint32_t request;
    struct array *array;
    uint64_t alignment;
    uint64_t until;       /* in device->retries: the last doom that it waits for */
    uint32_t quota_waits; /* how often it has waited for quota */
    bool minimal;         /* there was no memory for a block larger than the array */
    bool retried;         /* all has been flushed for it: the next refusal is final */
    /* in core->hopeful: the lingering arrays that it waits for */
    const struct lingering *lingering;
    uint64_t n_over;      /* their count when it began to wait */
    bool again;           /* it does not wait for that: sets are left to be looked at */
    uint64_t patience_ns; /* until when it may wait for them; 0: it has not */
    bool refused;         /* in user->done: with a refusal; else with a range */
    struct refusal refusal;
};

/* A waiter for a create of conn. -ENOMEM or REFUSED. */
int waiter_new(struct conn *conn, uint32_t request, struct array *array,
               const struct array_request *req, struct waiter **ret, struct refusal *r);
void waiter_free(struct waiter *waiter);
/* The client has gone: so does the array, and a driver call that nobody else waits for. */
void waiter_drop(struct core *core, struct waiter *waiter);
/* Gives the array a range. 0: at once; WAITS: later, with the answer, and the waiter frees itself.
 * -ENOMEM or REFUSED. */
#define WAITS 2
int waiter_place(struct core *core, struct waiter *waiter, struct refusal *r);
/* Tries to place a waiting create, and answers it unless it waits on. */
void waiter_retry(struct core *core, struct waiter *waiter);
/* Answers a create in user->done, and frees the waiter. */
void waiter_answer(struct core *core, struct waiter *waiter);
/* Tries creates again that wait for lingering arrays and may get memory now: some of them; the
 * others after the next look at lingering arrays. */
void waiters_run(struct core *core);
/* The driver has answered the allocation of a block: the creates that waited for it are to be
 * answered, or wait for something else. */
void waiters_alloc_done(struct core *core, struct block *block,
                        const struct core_alloc_result *result);
