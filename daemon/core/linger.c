/* SPDX-License-Identifier: Apache-2.0 */
#include "linger.h"

#include <assert.h>

#include "array.h"
#include "device.h"
#include "state.h"

#define MAX_ARRAYS 1024 /* looked at in one turn: a tenth of a millisecond */

void
linger_later(struct core *core, uint64_t ns)
{
    uint64_t at = core->now_ns + ns;

    if (core->linger_at_ns > at)
        core->linger_at_ns = at;
}

/* Waiters may get the array's memory, or that of the whole that it is a part of. */
static void
count(struct core *core, const struct array *array, bool there)
{
    struct lingering *of[] = {&core->devices[array->device].lingering, &array->pool->lingering};

    for (size_t i = 0; i < ARRAY_SIZE(of) && array->range; i++) {
        of[i]->n += there ? 1 : UINT64_MAX;
        of[i]->n_over += !there;
    }
}

bool
linger_array(struct core *core, struct array *array)
{
    struct use *use = array->use;

    if (!use || array->lingering)
        return array->lingering;
    assert(!use->whole.n_claims);
    use_sweep_dead(use);
    if (!use_has_fences(use)) {
        use_settle(use);
        return false;
    }
    array->lingering = true;
    TAILQ_INSERT_TAIL(&core->lingering, use, of_lingering);
    count(core, array, true);
    linger_later(core, LINGER_TURN_NS);
    return true;
}

void
linger_drop(struct core *core, const struct array *array, bool there)
{
    core->devices[array->device].lingering.n_dropped += there ? 1 : UINT64_MAX;
    array->pool->lingering.n_dropped += there ? 1 : UINT64_MAX;
    count(core, array, there);
    if (!there)
        linger_later(core, 0);
}

/* Settled at the end of the event, since callers may be in the middle of something. */
void
linger_end(struct core *core, struct use *use)
{
    TAILQ_REMOVE(&core->lingering, use, of_lingering);
    TAILQ_INSERT_TAIL(&core->landed, use, of_lingering);
}

void
linger_stop(struct core *core, struct use_list *list)
{
    struct use *use = TAILQ_FIRST(list);

    TAILQ_REMOVE(list, use, of_lingering);
    count(core, use->array, false);
    use->array->lingering = false;
    use_settle(use);
}

void
linger_forget(struct core *core)
{
    while (!TAILQ_EMPTY(&core->landed))
        linger_stop(core, &core->landed);
    while (!TAILQ_EMPTY(&core->lingering))
        linger_stop(core, &core->lingering);
}

bool
linger_look(struct core *core)
{
    struct use *last = TAILQ_LAST(&core->lingering, use_list), *use = NULL;

    for (size_t i = 0; use != last && i < MAX_ARRAYS; i++) {
        use = TAILQ_FIRST(&core->lingering);
        TAILQ_REMOVE(&core->lingering, use, of_lingering);
        TAILQ_INSERT_TAIL(&core->lingering, use, of_lingering);
        use_sweep_dead(use);
        if (!use_has_fences(use))
            linger_end(core, use);
    }
    return use != last;
}
