/* SPDX-License-Identifier: Apache-2.0 */
#include "drop.h"

#include "array.h"
#include "audit.h"
#include "linger.h"
#include "lost.h"
#include "publish.h"
#include "set.h"
#include "settle.h"
#include "state.h"

#define PASSED_MAX 1024 /* sets that are looked at for one */
#define USES_MAX   64   /* uses that are looked at for a set; with more it is in use */

static uint64_t
leases_on(const struct array *array)
{
    return (uint64_t)array->n_leases + array->n_departed;
}

/* Whether an array of that memory can be reached without a lease, but by the set's name. */
static bool
is_public(const struct whole *whole, const struct set *set)
{
    const struct array *array = whole->array;

    return array->named || array->is_companion || array->n_sets || array->companion ||
           set->array->companion || set->array->n_sets || whole->n_named ||
           whole->n_members != set->n;
}

static bool
has_fences(struct whole *whole)
{
    struct use *use, *next;

    if (whole->array->use && use_is_pending(whole->array->use))
        return true;
    if (whole->n_uses > USES_MAX)
        return true;
    for (use = TAILQ_FIRST(&whole->uses); use; use = next) {
        next = TAILQ_NEXT(use, of_whole);
        if (use_is_pending(use))
            return true;
    }
    return false;
}

/* Whether it is used by somebody who says when not any more. */
static bool
is_held(const struct set *set)
{
    return leases_on(set->array) + leases_on(set->whole->array) + set->whole->n_leases ||
           is_public(set->whole, set);
}

static bool
is_in_doubt(struct core *core, const struct set *set)
{
    const struct block *block = array_block(set->whole->array);

    return pool_may_resume(core, set->array->pool) || !block || block->n_before;
}

static bool
is_wanted(const struct set *set, uint32_t device, const struct user *user)
{
    const struct array *array = set->whole->array;

    return array->kind != KIND_PINNED &&
           (device == DROP_DEVICE_ANY || device == array->device) &&
           (!user || (user == array->charge.user && user == set->user));
}

static bool
is_mapped(const struct set *set)
{
    return !LIST_EMPTY(&array_block(set->whole->array)->holds);
}

static enum drop
find(struct core *core, struct pool *pool, uint32_t device, const struct user *user,
     struct set **ret)
{
    enum drop found = DROP_NONE;
    struct set *set, *next;
    uint32_t n = 0;

    for (set = RB_MIN(droppables, &pool->droppables); set && n++ < PASSED_MAX; set = next) {
        next = RB_NEXT(droppables, &pool->droppables, set);
        if (is_held(set)) {
            set_unlist(set);
        } else if (!is_wanted(set, device, user) || is_in_doubt(core, set) ||
                   has_fences(set->whole)) {
            continue;
        } else if (device == DROP_DEVICE_ANY || !is_mapped(set)) {
            *ret = set;
            return DROP_DONE;
        } else {
            found = DROP_SOON;
        }
    }
    return found;
}

enum drop
drop_one(struct core *core, const struct conn *conn, struct pool *pool, uint32_t device,
         const struct user *user)
{
    struct lost like = {.why = LOST_DROPPED, .is_set = true};
    struct set *set;
    enum drop found = find(core, pool, device, user, &set);

    if (found != DROP_DONE)
        return found;
    struct array *array = set->array;
    like.id = array->id;
    like.generation = array->generation;
    like.metadata = array_metadata(array);
    like.more = (struct lost_more){set->priority, set->reload_ns, set->bytes};
    if (lost_new(pool, set->user, array_name(array), &like) < 0)
        return DROP_NONE;
    audit_drop(core, conn, array, set->bytes);
    metrics_count(set->user, COUNT_DROPS, 1);
    pool->n_drops++;
    set->whole->dropped = true;
    array_uncharge_bytes(core, set->whole->array);
    linger_drop(core, set->whole->array, true);
    array_unlink(core, array);
    return DROP_DONE;
}

int
drop_check(const struct array *array, const struct user *user, struct refusal *r)
{
    const struct whole *whole = array->is_set && set_layout(array) ? array->set->whole : NULL;

    if (!whole || is_public(whole, array->set) || array->set->user != whole->array->charge.user)
        return refuse(r, PROTO_ERR_INVALID,
                      "only a set is droppable whose members are all parts of one array, which "
                      "have no names and are in no other set, all of one creator");
    if (array->set->user != user)
        return refuse(r, PROTO_ERR_PERMISSION, "a set is made droppable by its creator, uid %u",
                      (unsigned int)array->set->user->uid);
    return 0;
}
