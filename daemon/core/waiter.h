/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A create that wants memory: where its array gets its range. Small arrays share the blocks of
 * their zone (pool, device, kind); large and exclusive ones have one of their own. A waiter lives
 * until the create is answered, or its client has gone.
 *
 * It may wait for a block's allocation; for what is doomed on its device, when memory or quota was
 * short; and for arrays that linger there, whose memory it may hope for.
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
    struct charge charge; /* one job, and itself */
    uint32_t request;
    struct array *array;
    uint64_t alignment;
    uint64_t until;       /* in device->retries: the last doom that it waits for */
    uint32_t quota_waits; /* how often it has waited for its pool's quota */
    bool minimal;         /* a block that was grown could not be had for it */
    bool retried;         /* memory was flushed for it: the next refusal is final */
    const struct lingering *lingering; /* in core->hopeful: what it waits for */
    uint64_t n_over;                   /* of those, when it began to */
    uint64_t patience_ns;              /* until when it may wait there; 0: it has not */
    bool refused;                      /* in user->done: by the refusal; else it has a range */
    struct refusal refusal;
};

/* A create of conn that may have to wait; -ENOMEM or REFUSED. */
int waiter_new(struct conn *conn, uint32_t request, struct array *array,
               const struct array_request *req, struct waiter **ret, struct refusal *r);
void waiter_free(struct waiter *waiter);
/* Its client has gone: so do its array, and the driver call that nobody else waits for. */
void waiter_drop(struct core *core, struct waiter *waiter);
/* Gives the array a range: now (0), or WAITS: when memory has come the creator is answered, and
 * the waiter is not the caller's any more. -ENOMEM or REFUSED. */
#define WAITS 2
int waiter_place(struct core *core, struct waiter *waiter, struct refusal *r);
/* Places a create that has waited, and answers it if it need not wait on. */
void waiter_retry(struct core *core, struct waiter *waiter);
/* Answers one that is to be, and frees it. */
void waiter_answer(struct core *core, struct waiter *waiter);
/* Those who hoped for memory of arrays that linger, and may have it now, try again: some of them,
 * the others when arrays that linger are looked at next. */
void waiters_run(struct core *core);
/* The driver's answer to the allocation of a block: everyone who waited for it is to be answered,
 * or waits for something else. */
void waiters_alloc_done(struct core *core, struct block *block,
                        const struct core_alloc_result *result);
