/* SPDX-License-Identifier: Apache-2.0 */
#include "spin.h"

#include <sched.h>
#include <unistd.h>

#include "base/clock.h"
#include "core.h"

void
spin_init(struct spin *spin, uv_loop_t *loop, uint64_t limit_ns)
{
    uv_idle_init(loop, &spin->idle);
    spin->idle.data = spin;
    spin->limit_ns = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? limit_ns : 0;
}

static void
on_idle(uv_idle_t *idle)
{
    struct spin *spin = idle->data;

    if (clock_now_ns() >= spin->until_ns)
        uv_idle_stop(idle);
    else
        sched_yield();
}

void
spin_look(struct spin *spin, const struct core *core)
{
    struct core_turns turns;

    if (spin->limit_ns == 0)
        return;
    core_get_turns(core, &turns);
    spin->until_ns = turns.since_ns + spin->limit_ns;
    if (turns.n_waiting > 0 && turns.last_ns <= spin->limit_ns)
        uv_idle_start(&spin->idle, on_idle);
    else
        uv_idle_stop(&spin->idle);
}
