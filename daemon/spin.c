/* SPDX-License-Identifier: Apache-2.0 */
#include "spin.h"

#include <sched.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macros.h"
#include "core.h"

#define BUDGET_PART   10 /* the budget grows by this part of the time of not looking */
#define BUDGET_LIMITS 10 /* the largest budget, in multiples of the limit */

void
spin_init(struct spin *spin, uv_loop_t *loop)
{
    uv_idle_init(loop, &spin->idle);
    spin->idle.data = spin;
}

static bool
is_looking(const struct spin *spin)
{
    return uv_is_active((const uv_handle_t *)&spin->idle);
}

static void
earn(struct spin *spin, uint64_t ns)
{
    spin->budget_ns = min_u64(spin->budget_ns + ns, BUDGET_LIMITS * spin->limit_ns);
}

/* Adds the time since the last call to the budget, or takes it from there. */
static void
spin_settle(struct spin *spin, uint64_t now)
{
    uint64_t passed = now - spin->settled_ns, spent = min_u64(passed, spin->budget_ns);

    spin->settled_ns = now;
    if (!is_looking(spin)) {
        earn(spin, passed / BUDGET_PART);
        return;
    }
    spin->budget_ns -= spent;
    spin->unpaid_ns += spent;
}

static void
stop(struct spin *spin)
{
    uv_idle_stop(&spin->idle);
    spin->unpaid_ns = 0;
}

void
spin_set_limit(struct spin *spin, uint64_t limit_ns)
{
    stop(spin);
    spin->limit_ns = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? limit_ns : 0;
    spin->budget_ns = BUDGET_LIMITS * spin->limit_ns;
    spin->settled_ns = clock_now_ns();
}

static void
on_idle(uv_idle_t *idle)
{
    struct spin *spin = idle->data;
    uint64_t now = clock_now_ns();

    if (now < spin->until_ns) {
        sched_yield();
        return;
    }
    spin_settle(spin, now);
    stop(spin);
}

void
spin_look(struct spin *spin, const struct core *core)
{
    struct core_turns turns;
    uint64_t now;

    core_get_turns(core, &turns);
    if (spin->limit_ns == 0 || (turns.n_waiting == 0 && !is_looking(spin)))
        return;
    now = clock_now_ns();
    spin_settle(spin, now);
    if (turns.last_ns != spin->last_ns && turns.last_ns <= spin->limit_ns) {
        earn(spin, spin->unpaid_ns);
        spin->unpaid_ns = 0;
    }
    spin->last_ns = turns.last_ns;
    spin->until_ns = min_u64(turns.since_ns + spin->limit_ns, now + spin->budget_ns);
    if (turns.n_waiting == 0 || turns.last_ns > spin->limit_ns || now >= spin->until_ns)
        stop(spin);
    else if (spin->budget_ns >= spin->limit_ns) /* less may run out too soon */
        uv_idle_start(&spin->idle, on_idle);
}
