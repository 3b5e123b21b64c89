/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has to wait after something was closed: a client's one thread. It has features wait
 * (feature.h) until the GPU work that may still use what is closed has drained, and end it, many at
 * a time; then it tells the daemon. It has them tidy up when that is due, and sends what the socket
 * did not take.
 *
 * Started by the first close that leaves it something to do, joined by caid_client_close()
 * after it has drained. It takes no signals. Where it cannot be started, or has been joined,
 * who closes does all of it himself.
 *
 * What is closed has its entry in itself, so that closing needs no memory. Between batches the
 * thread naps for a moment, in which nobody has to wake it, unless much memory comes together:
 * closing in a loop costs no system call.
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

#include "wake.h"

struct caid_client;

/* In what is closed. */
struct reaped {
    STAILQ_ENTRY(reaped) entry;
    uint64_t nbytes; /* of memory that it has, at most */
};

STAILQ_HEAD(reaped_queue, reaped);

struct reaper {
    pthread_t thread;
    struct wake wake;    /* the thread's */
    struct wake drained; /* whoever waits in reaper_drain() */
    struct reaped_queue queue;
    uint64_t n_queued, n_done; /* ever, in the order of the queue */
    bool started, stopping;
    uint64_t n_bytes;    /* in the queue */
    uint64_t n_freed;    /* what was given back, ever: the features count it */
    bool asleep;         /* has to be woken; else it looks at the queue before it sleeps */
    bool napping;        /* need not be woken for a little */
    uint64_t due;        /* asleep until then */
    bool relaxed;        /* the thread's own: it has told the driver so */
    bool stuck;          /* behind a thread that captures a graph, and may be one that drains */
    uint32_t n_draining; /* threads in reaper_drain(): no nap */
    bool forget_all;     /* also what may be given back before its time */
};

void reaper_init(struct reaper *reaper);

/* Leaves something closed to the thread. False: there is none; nothing has been done. */
bool reaper_add(struct caid_client *client, struct reaped *closed);

/* When a feature has something to do: a time, 0 for now, UINT64_MAX for never. */
uint64_t reaper_due(const struct caid_client *client);
/* Has that and what is unsent seen to in time. False: there is no thread. */
bool reaper_kick(struct caid_client *client);
void reaper_wake(struct caid_client *client);

/* Waits until what is in the queue has been told to the daemon, and all is given back that may
 * be before its time; idle: there is something of the latter. Drops the lock meanwhile.
 * CAID_ERR_INTERRUPTED. */
int reaper_drain(struct caid_client *client, bool idle, struct caid_error *error);

/* The thread's own: from now on its calls end no capture of a graph by another thread. */
void reaper_leave_captures_alone(struct caid_client *client);
/* Whether it may wait for what a thread of the program has to do first; not where that may be
 * the one that waits for it. Not under the lock. */
bool reaper_may_wait(struct caid_client *client);

/* Lets the thread finish what is in the queue and joins it. Drops the lock meanwhile. */
void reaper_stop(struct caid_client *client);
