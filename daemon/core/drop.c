/* SPDX-License-Identifier: Apache-2.0 */
#include "drop.h"

#include "array.h"
#include "audit.h"
#include "device.h"
#include "linger.h"
#include "lost.h"
#include "publish.h"
#include "set.h"
#include "settle.h"
#include "state.h"

#define PASSED_MAX  1024 /* sets that are looked at for one */
#define IN_POOL_MAX 256  /* of them in a pool, where all pools are searched */
#define USES_MAX    64   /* uses that are looked at for a set; with more it is in use */

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

/* Whose sets, and where. */
struct wanted {
    uint32_t device;         /* or DROP_DEVICE_ANY */
    const struct user *user; /* NULL: anybody's */
    bool others;             /* those of others who keep their shares */
};

static bool
keeps_share(const struct core *core, const struct set *set, uint32_t device)
{
    const struct device *d = &core->devices[device];
    uint64_t left = set->user->devices[device].bytes - set->bytes;

    return left >= d->info.total / d->n_users;
}

static bool
is_wanted(const struct core *core, const struct set *set, const struct wanted *wanted)
{
    const struct array *array = set->whole->array;

    if (array->kind == KIND_PINNED ||
        (wanted->device != DROP_DEVICE_ANY && wanted->device != array->device))
        return false;
    if (!wanted->user)
        return true;
    if (set->user != array->charge.user || wanted->others == (set->user == wanted->user))
        return false;
    return !wanted->others || keeps_share(core, set, array->device);
}

static bool
is_mapped(const struct set *set)
{
    return !LIST_EMPTY(&array_block(set->whole->array)->holds);
}

/* The pool's first one. *left: how many may be passed yet. */
static enum drop
find(struct core *core, struct pool *pool, const struct wanted *wanted, uint32_t *left,
     struct set **ret)
{
    enum drop found = DROP_NONE;
    struct set *set, *next;

    for (set = RB_MIN(droppables, &pool->droppables); set && *left; set = next) {
        --*left;
        next = RB_NEXT(droppables, &pool->droppables, set);
        if (is_held(set)) {
            set_unlist(set);
        } else if (!is_wanted(core, set, wanted) || is_in_doubt(core, set) ||
                   has_fences(set->whole)) {
            continue;
        } else if (wanted->device == DROP_DEVICE_ANY || !is_mapped(set)) {
            *ret = set;
            return DROP_DONE;
        } else {
            found = DROP_SOON;
        }
    }
    return found;
}

/* The cheapest of the pools' first ones. The next search begins with the pools that are left. */
static enum drop
find_in_all(struct core *core, const struct wanted *wanted, struct set **ret)
{
    const struct pool *last = TAILQ_LAST(&core->droppers, pool_queue);
    uint32_t left = PASSED_MAX;
    enum drop found = DROP_NONE;
    bool is_last = !last;

    while (!is_last && left) {
        struct pool *pool = TAILQ_FIRST(&core->droppers);
        uint32_t here = left < IN_POOL_MAX ? left : IN_POOL_MAX;
        struct set *set = NULL;

        is_last = pool == last;
        left -= here;
        TAILQ_REMOVE(&core->droppers, pool, of_droppers);
        TAILQ_INSERT_TAIL(&core->droppers, pool, of_droppers);
        enum drop in_pool = find(core, pool, wanted, &here, &set);
        left += here;
        if (in_pool == DROP_DONE && (found != DROP_DONE || set_compare_cost(set, *ret) < 0))
            *ret = set;
        found = in_pool > found ? in_pool : found;
    }
    return found;
}

static enum drop
drop_set(struct core *core, const struct conn *conn, struct set *set)
{
    struct lost like = {.why = LOST_DROPPED, .is_set = true};
    struct pool *pool = set->array->pool;
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

enum drop
drop_in_pool(struct core *core, const struct conn *conn, struct pool *pool,
             const struct user *user)
{
    const struct wanted wanted = {.device = DROP_DEVICE_ANY, .user = user};
    uint32_t left = PASSED_MAX;
    struct set *set;
    enum drop found = find(core, pool, &wanted, &left, &set);

    return found == DROP_DONE ? drop_set(core, conn, set) : found;
}

enum drop
drop_on_device(struct core *core, const struct conn *conn, uint32_t device,
               const struct user *user)
{
    struct wanted wanted = {.device = device, .user = user};
    struct set *set;
    enum drop found = find_in_all(core, &wanted, &set);

    if (found != DROP_DONE) {
        wanted.others = true;
        enum drop of_others = find_in_all(core, &wanted, &set);
        found = of_others > found ? of_others : found;
    }
    return found == DROP_DONE ? drop_set(core, conn, set) : found;
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
