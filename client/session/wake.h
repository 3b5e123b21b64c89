/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A condition whose waits a signal ends; pthread_cond_wait(3) would wait on. Zeroed at first; it
 * needs no destructor. All calls are made under one lock, which a wait drops meanwhile.
 */
#pragma once

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

struct wake {
    _Atomic uint32_t n; /* how often all were woken */
    uint32_t n_waiting;
};

static inline void
wake_all(struct wake *wake)
{
    atomic_fetch_add_explicit(&wake->n, 1, memory_order_relaxed);
    if (wake->n_waiting > 0)
        syscall(SYS_futex, &wake->n, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* deadline_ns UINT64_MAX: for ever. 0, -ETIMEDOUT, -EINTR. */
static inline int
wake_wait(struct wake *wake, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    uint32_t was = atomic_load_explicit(&wake->n, memory_order_relaxed);
    const struct timespec at = {.tv_sec = (time_t)(deadline_ns / NSEC_PER_SEC),
                                .tv_nsec = (long)(deadline_ns % NSEC_PER_SEC)};

    wake->n_waiting++;
    pthread_mutex_unlock(lock);
    long r = syscall(SYS_futex, &wake->n, FUTEX_WAIT_BITSET_PRIVATE, was,
                     deadline_ns == UINT64_MAX ? NULL : &at, NULL, FUTEX_BITSET_MATCH_ANY);
    int err = r < 0 ? errno : 0;
    pthread_mutex_lock(lock);
    wake->n_waiting--;
    return err == ETIMEDOUT || err == EINTR ? -err : 0;
}
