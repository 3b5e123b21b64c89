/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Polls for packets without sleeping ("looks") while a bracket waits for its turn, if the last
 * brackets have waited for a short time only. A daemon that sleeps wakes some 10 to 20 us after the
 * packet that ends a bracket, so that the next bracket begins so much later. Under MPS that is as
 * long as all the rest of a hand-off (docs/PERFORMANCE.md). The loop yields to others by
 * sched_yield(2). It sleeps again when the limit has passed since the last bracket began to wait.
 *
 * Looking pays if a bracket is let in meanwhile. Looking that does not pay is bounded by a budget,
 * a tenth of the time: clients that begin to wait and cancel, over and over, do not keep the daemon
 * awake.
 *
 * Where the machine has one CPU, or the limit is 0, it does nothing.
 */
#pragma once

#include <stdint.h>

#include <uv.h>

struct core;

struct spin {
    uv_idle_t idle; /* active while the loop looks: it does not block then */
    uint64_t limit_ns, until_ns;
    uint64_t budget_ns; /* how long it may still look in vain */
    uint64_t
        unpaid_ns; /* how long it has looked since it began, or since a bracket was let in */
    uint64_t settled_ns; /* up to when the two are counted */
    uint64_t last_ns;    /* last_ns of struct core_turns, as seen last */
};

/* The limit is 0 at first. */
void spin_init(struct spin *spin, uv_loop_t *loop);
void spin_set_limit(struct spin *spin, uint64_t limit_ns);
/* After each event: begins to look, or stops. */
void spin_look(struct spin *spin, const struct core *core);
