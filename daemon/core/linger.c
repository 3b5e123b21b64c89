/* SPDX-License-Identifier: Apache-2.0 */
#include "linger.h"

#include <assert.h>

#include "array.h"
#include "device.h"
#include "state.h"

#define MAX_ARRAYS 1024 /* in one turn: a tenth of a millisecond */

void
linger_later(struct core *core, uint64_t ns)
{
    uint64_t at = core->now_ns + ns;

    if (core->linger_at_ns > at)
        core->linger_at_ns = at;
}

/* Creates may hope for its memory, or for that of the whole that it is a part of. */
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
    struct access *access = array->access;

    if (!access || array->lingering)
        return array->lingering;
    assert(!access->n_waiting && LIST_EMPTY(&access->held));
    access_sweep_dead(access);
    if (!access_has_fences(access)) {
        access_settle(access);
        return false;
    }
    array->lingering = true;
    TAILQ_INSERT_TAIL(&core->lingering, access, of_lingering);
    count(core, array, true);
    linger_later(core, LINGER_TURN_NS);
    return true;
}

/* Settled at the end of the event: who comes here may be amid something. */
void
linger_end(struct core *core, struct access *access)
{
    TAILQ_REMOVE(&core->lingering, access, of_lingering);
    TAILQ_INSERT_TAIL(&core->landed, access, of_lingering);
}

void
linger_stop(struct core *core, struct access_list *list)
{
    struct access *access = TAILQ_FIRST(list);

    TAILQ_REMOVE(list, access, of_lingering);
    count(core, access->array, false);
    access->array->lingering = false;
    access_settle(access);
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
    struct access *last = TAILQ_LAST(&core->lingering, access_list), *access = NULL;

    for (size_t i = 0; access != last && i < MAX_ARRAYS; i++) {
        access = TAILQ_FIRST(&core->lingering);
        TAILQ_REMOVE(&core->lingering, access, of_lingering);
        TAILQ_INSERT_TAIL(&core->lingering, access, of_lingering);
        access_sweep_dead(access);
        if (!access_has_fences(access))
            linger_end(core, access);
    }
    return access != last;
}
