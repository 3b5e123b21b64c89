/* SPDX-License-Identifier: Apache-2.0 */
/* What other files know of inter-process events. */
#pragma once

#include <pthread.h>
#include <sys/queue.h>

/* Part of struct soft. The lock is inside all but soft->share.lock. */
struct ipc_events {
    pthread_mutex_t lock;
    LIST_HEAD(, ipc_event) all;
};

/* Wakes all who wait for an event, to look whether the device is faulted. */
void event_ipc_interrupt(void);

/* After fork(2), with the lock: the child has none. */
void event_ipc_in_child(void);
