/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking for packets without sleeping while a bracket waits for its turn, if the last ones have
 * waited for a short time only. Asleep, the daemon is woken some 10 to 20 us after the packet that
 * ends a bracket, and whoever waits for that is told so much later; under MPS that is as long as
 * all the rest of a hand-off (docs/PERFORMANCE.md). The loop gives way to others by sched_yield(2),
 * and sleeps again when the limit is over that is counted from the last bracket that has begun to
 * wait.
 *
 * Looking pays when a bracket is let in meanwhile. What does not pay is bounded by a budget, a
 * tenth of the time: clients that begin to wait and cancel that, over and over, do not keep the
 * daemon awake.
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
    uint64_t budget_ns;  /* that may be looked for nothing */
    uint64_t unpaid_ns;  /* that was, since it began to look or a bracket was let in */
    uint64_t settled_ns; /* when these were right */
    uint64_t last_ns;    /* of core_turns */
};

/* With a limit of 0. */
void spin_init(struct spin *spin, uv_loop_t *loop);
void spin_set_limit(struct spin *spin, uint64_t limit_ns);
/* After each event: whether to look, or not. */
void spin_look(struct spin *spin, const struct core *core);
