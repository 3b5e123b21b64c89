/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives host memory back to the kernel when most of the core's objects are gone. free(3) keeps free
 * memory that lies between living objects: after a million arrays the daemon would stay as large as
 * it was with them. malloc_trim(3) takes up to 100 ms then, and every allocation waits for it (I5):
 * so it runs on the thread pool, when there was no event for a while.
 *
 * Embedded in the server. The loop has to run until no trim is under way, as it does at the end.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

struct trim {
    uv_loop_t *loop;
    uv_timer_t timer; /* active: a trim is due when it is quiet */
    uv_work_t work;
    bool running;
    uint64_t seen_ms; /* when the last event was */
    uint64_t n;       /* objects now */
    uint64_t peak;    /* the most objects since the last trim */
};

void trim_init(struct trim *t, uv_loop_t *loop);
/* n: the number of arrays and leases now. It is cheap: call it after every event. */
void trim_look(struct trim *t, uint64_t n);
