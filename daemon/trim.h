/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives host memory back to the kernel when most of what the core had is gone. free(3) keeps what
 * lies between things that live on: after a million arrays the daemon would stay as large as it was
 * with them. malloc_trim(3) takes up to 100 ms then, and whoever allocates waits for it (I5): so it
 * runs on the thread pool, and when nothing has happened for a while.
 *
 * Embedded in the server; the loop has to run until no trim is under way, as it does at the end.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

struct trim {
    uv_loop_t *loop;
    uv_timer_t timer; /* active: most is gone */
    uv_work_t work;
    bool running;
    uint64_t seen_ms; /* the last event */
    uint64_t n;       /* objects now */
    uint64_t peak;    /* objects, since the last trim */
};

void trim_init(struct trim *t, uv_loop_t *loop);
/* n: arrays and leases that there are now. Cheap: for after every event. */
void trim_look(struct trim *t, uint64_t n);
