/* SPDX-License-Identifier: Apache-2.0 */
/* The inter-process events of a process, as far as others have to know of them. */
#pragma once

#include <pthread.h>
#include <sys/queue.h>

/* Part of struct soft. The lock is inside all but soft->share.lock. */
struct ipc_events {
    pthread_mutex_t lock;
    LIST_HEAD(, ipc_event) all;
};

/* Makes who waits for one look whether the device is faulted. */
void event_ipc_interrupt(void);

/* After fork(2), with the lock: the child has none. */
void event_ipc_in_child(void);
