/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's one thread, for work that has to wait after a close, or before a publication. It
 * calls the features' hooks (feature.h): reap, which waits until the GPU work that may use closed
 * objects has drained, and ends these, many at a time; and tidy, when that is due. It tells the
 * daemon, and sends what the socket did not take.
 *
 * The first close that leaves it something to do starts it. caid_client_close() joins it after it
 * has drained. It takes no signals. Where it cannot be started, or has been joined, the thread that
 * closes does the work.
 *
 * A closed object includes its entry in the queue, so that closing needs no memory. Between batches
 * the thread naps for a moment. Nobody wakes it then, unless there is much memory in the queue: so
 * closing in a loop makes no system call.
 *
 * Everything here is under the client's lock. A child after fork() does not have the thread, and
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

/* Embedded in a closed object. */
struct reaped {
    STAILQ_ENTRY(reaped) entry;
    uint64_t nbytes; /* the most memory that it may have */
};

STAILQ_HEAD(reaped_queue, reaped);

struct reaper {
    pthread_t thread;
    struct wake wake;    /* the thread's */
    struct wake drained; /* for threads in reaper_drain() */
    struct reaped_queue queue;
    uint64_t n_queued, n_done; /* objects ever, in the order of the queue */
    bool started, stopping;
    uint64_t n_bytes;    /* in the queue */
    uint64_t n_freed;    /* objects given back ever, counted by the features */
    bool asleep;         /* it has to be woken; else it looks at the queue before it sleeps */
    bool looks;          /* asleep: it looks for late replies (call.h) */
    bool polls;          /* it does, and is woken by wake_fd */
    int wake_fd;         /* an eventfd; -1: not made yet */
    bool napping;        /* it need not be woken for little */
    uint64_t due;        /* it sleeps until then */
    bool relaxed;        /* the thread's own: its capture mode is relaxed */
    bool stuck;          /* it waits for a thread that captures, which may be one that drains */
    uint32_t n_draining; /* threads in reaper_drain(): it does not nap */
    bool forget_all;     /* the next tidy gives back all that it can */
};

void reaper_init(struct reaper *reaper);

/* Leaves a closed object to the thread. false: there is no thread; nothing has been done. */
bool reaper_add(struct caid_client *client, struct reaped *closed);

/* When a feature has something to do: a time, 0 for now, UINT64_MAX for never. */
uint64_t reaper_due(const struct caid_client *client);
/* Makes sure that the thread does that, and sends what is unsent, in time. false: there is no
 * thread. */
bool reaper_kick(struct caid_client *client);
void reaper_wake(struct caid_client *client);

/* Waits until the daemon has been told of all objects in the queue, and all idle memory has been
 * given back. idle: there is idle memory. Drops the lock meanwhile. CAID_ERR_INTERRUPTED. */
int reaper_drain(struct caid_client *client, bool idle, struct caid_error *error);

/* For the thread itself: from now on its driver calls do not end captures of other threads. */
void reaper_leave_captures_alone(struct caid_client *client);
/* Whether the thread may wait until a thread of the program has ended a capture. It may not if that
 * thread may be waiting for this one. Not under the lock. */
bool reaper_may_wait(struct caid_client *client);

/* Lets the thread finish the queue, and joins it. Drops the lock meanwhile. */
void reaper_stop(struct caid_client *client);
