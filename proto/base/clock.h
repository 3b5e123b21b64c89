/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>
#include <time.h>

#define NSEC_PER_SEC  UINT64_C(1000000000)
#define NSEC_PER_MSEC UINT64_C(1000000)
#define NSEC_PER_USEC UINT64_C(1000)

/* CLOCK_MONOTONIC in nanoseconds; wall time is never used for a deadline. */
static inline uint64_t
clock_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* CLOCK_BOOTTIME: the same plus the time that the machine has slept, for deadlines that hold also
 * while it sleeps. */
static inline uint64_t
clock_boot_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* Sleeps that long, or until a signal is handled. */
static inline void
clock_pause_ns(uint64_t ns)
{
    struct timespec ts = {(time_t)(ns / NSEC_PER_SEC), (long)(ns % NSEC_PER_SEC)};
    if (ns > 0)
        clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
}
