/* SPDX-License-Identifier: Apache-2.0 */
#include "settle.h"

#include <assert.h>

#include "array.h"
#include "linger.h"
#include "participant.h"
#include "reclaim.h"
#include "set.h"
#include "state.h"

static void
set_aside(struct array *array)
{
    struct range *range = array_range(array);

    block_keep_aside(block_of(range), range);
    array_free(array);
}

/* Nobody holds the array any more: it is charged to nobody, and its range goes into the queue. */
static void
array_bury(struct core *core, struct array *array)
{
    struct array *whole = NULL, *companion = TAKE_PTR(array->companion);

    assert(!array->named && !array->n_leases && !array->n_departed && !array->is_companion &&
           !array->n_sets && !array->use);
    array_index_forget(core->former_arrays, array->id);
    array_unlist(array);
    if (array->is_channel)
        channel_end(core, array);
    array_uncharge(core, array);
    if (array->is_part && array->part)
        whole = part_end(core, array->part);
    if (array->is_set)
        set_end(array);
    if (array_range(array) && block_of(array_range(array))->n_before)
        set_aside(array); /* connections of an earlier core may have it mapped */
    else if (array_range(array))
        reclaim_add(core, array);
    else
        array_free(array);
    if (whole)
        array_settle(core, whole);
    if (companion) {
        companion->is_companion = false;
        companion->companion = NULL;
        array_settle(core, companion);
    }
}

static bool
is_kept(const struct array *array)
{
    return array->n_leases || array->n_departed || array->is_whole || array->is_companion ||
           array->n_sets ||
           (array->use && (array->use->kept || array->use->writer || array->use->writers));
}

/* Whether a former connection may have the array, or use the place of a part. The part's publisher
 * uses that place as soon as the part is gone: former.h. */
static bool
may_be_resumed(struct core *core, struct array *array)
{
    bool is_old = array_index_find(core->former_arrays, array->id) == array;
    struct use *use;
    bool unresumed;

    if (!is_old && !array->is_old_part)
        return false;
    if (use_get(array, &use) < 0)
        return array->is_old_part && doubt_of(array);
    unresumed = use->kept = use->doubt == DOUBT_HOLDERS || (use->doubt && array->is_old_part);
    use_settle(use);
    return unresumed;
}

void
array_settle(struct core *core, struct array *array)
{
    whole_touch(core, array);
    if (array->creating || array->named)
        return;
    bool kept = may_be_resumed(core, array); /* first: is_kept() reads what it decides */
    kept = kept || is_kept(array) || linger_array(core, array);
    persist_nameless(array);
    if (kept)
        array_list(array);
    else
        array_bury(core, array);
}

void
array_abandon(struct core *core, struct array *array)
{
    expiry_set(core, array, NULL);
    if (array->named)
        array_drop_name(core, array);
    array->creating = false;
    if (array->is_part)
        part_undo(core, TAKE_PTR(array->part));
    else if (array->range)
        block_put_range(core, TAKE_PTR(array->range));
    array_bury(core, array);
}

void
set_settle_one(struct core *core, struct set *set)
{
    array_settle(core, set_take(set));
}

void
arrays_settle_landed(struct core *core)
{
    struct use *use;

    for (uint32_t i = 0; i < core->pieces && (use = TAILQ_FIRST(&core->landed)); i++) {
        struct array *array = use->array;
        linger_stop(core, &core->landed);
        array_settle(core, array);
    }
}
