/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking for packets without sleeping while a bracket waits for its turn, if the last ones have waited for
 * a short time only. Asleep, the daemon is woken some 10 to 20 us after the packet that ends a bracket,
 * and whoever waits for that is told so much later; under MPS that is as long as all the rest of a hand-off
 * (docs/PERFORMANCE.md). The loop gives way to others by sched_yield(2), and sleeps again when the limit is
 * over that is counted from the last bracket that has begun to wait.
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
};

void spin_init(struct spin *spin, uv_loop_t *loop, uint64_t limit_ns);
/* After each event: whether to look, or not. */
void spin_look(struct spin *spin, const struct core *core);
