/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has to wait after an array was closed: a client's one thread. It waits until the GPU
 * work that may still use closed arrays has drained, then ends their leases and tells the
 * daemon, many at a time; and it unmaps blocks that have been idle for long enough (block.h),
 * and pages of timelines that nobody needs any more (page.h); looks at arenas (arena.h); and sends
 * what the socket did not take.
 *
 * Started by the first close that leaves it something to do, joined by caid_client_close()
 * after it has drained. It takes no signals. Where it cannot be started, or has been joined,
 * who closes does all of it himself.
 *
 * A closed array is itself the entry of the queue, so that closing needs no memory; it holds
 * the client, and its lease counts among those held. Between batches the thread naps for a
 * moment, in which nobody has to wake it, unless much memory comes together: closing in a loop
 * costs no system call.
 *
 * Everything here is under the client's lock. A child after fork() has not got the thread and
 * does not touch any of this.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

struct caid_array;
struct caid_client;

STAILQ_HEAD(array_queue, caid_array);

struct reaper {
    pthread_t thread;
    pthread_cond_t wake;    /* the thread's */
    pthread_cond_t drained; /* whoever waits in reaper_drain() */
    struct array_queue queue;
    uint64_t n_queued, n_done; /* arrays ever, in the order of the queue */
    bool started, stopping;
    uint64_t n_bytes;    /* in the queue */
    uint64_t n_freed;    /* arrays and blocks that have gone, ever */
    bool asleep;         /* has to be woken; else it looks at the queue before it sleeps */
    bool napping;        /* need not be woken for a little */
    uint64_t due;        /* asleep until then */
    bool relaxed;        /* the thread's own: it has told the driver so */
    bool stuck;          /* behind a thread that captures a graph, and may be one that drains */
    uint32_t n_draining; /* threads in reaper_drain(): no nap */
    bool forget_all;     /* unmap all idle blocks, now */
};

void reaper_init(struct reaper *reaper);

/* Leaves a closed array to the thread. False: there is none; nothing has been done. */
bool reaper_add(struct caid_client *client, struct caid_array *array);

/* Has idle blocks and what is unsent seen to in time. False: there is no thread. */
bool reaper_kick(struct caid_client *client);
void reaper_wake(struct caid_client *client);

/* Waits until what is in the queue has been told to the daemon, and idle blocks are forgotten.
 * Drops the lock meanwhile. */
void reaper_drain(struct caid_client *client);

/* Whether it may wait for what a thread of the program has to do first; not where that may be
 * the one that waits for it. Not under the lock. */
bool reaper_may_wait(struct caid_client *client);

/* Lets the thread finish what is in the queue and joins it. Drops the lock meanwhile. */
void reaper_stop(struct caid_client *client);
