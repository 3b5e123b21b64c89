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

#define PASSED_MAX 1024 /* sets and users that are looked at in a search */
#define DROPS_MAX  256  /* sets that are dropped in one event */
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

bool
drop_is_held(const struct set *set)
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

/* ---- the search ---- */

enum short_of {
    SHORT_OF_CHARGES,
    SHORT_OF_QUOTA,
    SHORT_OF_MEMORY,
};

struct search {
    struct core *core;
    enum short_of of;
    uint64_t wanted;         /* bytes */
    uint64_t there, later;   /* of sets that may go, and that may when nobody has them mapped */
    struct set *first;       /* that goes first */
    struct set *planned;     /* the same, of those that add up to `there` */
    struct set *alone;       /* the cheapest that is enough without others */
    const struct set *taken; /* it is in `there` from the start, and goes before all */
    uint32_t left;           /* how many may be looked at yet */
};

static bool
is_enough(const struct search *s)
{
    return s->there >= s->wanted;
}

/* Whether a mapping keeps what is wanted of it. */
static bool
is_mapped(const struct search *s, const struct set *set)
{
    const struct block *block = array_block(set->whole->array);

    return !LIST_EMPTY(&block->holds) &&
           (s->of == SHORT_OF_MEMORY ||
            (s->of == SHORT_OF_QUOTA && block->kind == KIND_LEGACY));
}

/* The most that comes of it: the last one in a block that arrays share frees that. */
static uint64_t
room_of(const struct search *s, const struct set *set)
{
    return s->of == SHORT_OF_CHARGES ? set->bytes : array_block(set->whole->array)->size;
}

/* Whether the set may go. */
static bool
look(struct search *s, struct set *set)
{
    s->left--;
    if (drop_is_held(set)) {
        set_unlist(set);
        return false;
    }
    if (is_in_doubt(s->core, set) || has_fences(set->whole))
        return false;
    bool mapped = is_mapped(s, set);
    *(mapped ? &s->later : &s->there) += room_of(s, set);
    return !mapped;
}

/* Where the next search begins: it goes on only where this one had to stop. */
static struct set *
next_of(const struct search *s, struct set *next)
{
    return s->left ? NULL : next;
}

static void
search_pool(struct search *s, struct pool *pool)
{
    struct set *set = pool->drop_next, *next;

    if (!set)
        set = RB_MIN(droppables, &pool->droppables);
    for (; set && s->left && !is_enough(s); set = next) {
        next = RB_NEXT(droppables, &pool->droppables, set);
        if (look(s, set) && !s->first)
            s->first = set;
    }
    pool->drop_next = next_of(s, set);
}

/* The next one: where one of the same pool has been found, and there are enough, of another pool.
 */
static struct set *
next_own(const struct search *s, struct user_device *own, struct set *set,
         const struct pool *found)
{
    struct set last = {.pool = set->pool,
                       .priority = UINT64_MAX,
                       .bytes = UINT64_MAX,
                       .reload_ns = UINT64_MAX,
                       .idle_ns = UINT64_MAX};

    return found == set->pool && is_enough(s)
               ? RB_NFIND(own_droppables, &own->droppables, &last)
               : RB_NEXT(own_droppables, &own->droppables, set);
}

/* The cheapest of the pools' first ones. */
static void
choose(struct set **first, struct set *set, const struct pool **found)
{
    if (set->pool != *found && (!*first || set_compare_cost(set, *first) < 0))
        *first = set;
    *found = set->pool;
}

/* The user keeps that many bytes on the device: sets are planned as long as these are left. */
static void
search_user(struct search *s, struct user *user, uint32_t device, uint64_t keeps)
{
    struct user_device *own = &user->devices[device];
    struct set *set = own->drop_next, *next;
    const struct pool *found = NULL, *planned = NULL;
    uint64_t bytes = own->bytes;

    if (s->taken && s->taken->user == user)
        bytes -= s->taken->bytes;
    if (!set)
        set = RB_MIN(own_droppables, &own->droppables);
    for (; set && s->left; set = next) {
        next = next_own(s, own, set, planned);
        if (set == s->taken || own->bytes - set->bytes < keeps) {
            s->left--;
        } else if (look(s, set)) {
            choose(&s->first, set, &found);
            if (room_of(s, set) >= s->wanted)
                choose(&s->alone, set, &(const struct pool *){NULL});
            if (bytes - set->bytes < keeps) {
                s->there -= room_of(s, set);
                continue;
            }
            bytes -= set->bytes;
            choose(&s->planned, set, &planned);
        }
    }
    own->drop_next = next_of(s, set);
}

static uint64_t
share_of(const struct device *device)
{
    return device->n_users ? device->info.total / device->n_users : device->info.total;
}

/* Those of others who keep their shares. */
static void
search_others(struct search *s, const struct user *user, uint32_t device)
{
    struct core *core = s->core;
    uint64_t share = share_of(&core->devices[device]);
    struct user key = {.uid = core->drop_next};
    struct user *from = RB_NFIND(users, &core->users, &key), *other;

    if (!from)
        from = RB_MIN(users, &core->users);
    for (other = from; s->left > 0;) {
        s->left--;
        if (other != user && other->devices[device].bytes > share)
            search_user(s, other, device, share);
        other = RB_NEXT(users, &core->users, other);
        if (!other)
            other = RB_MIN(users, &core->users);
        if (other == from)
            break;
    }
    core->drop_next = other->uid;
}

/* ---- the drop ---- */

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
    /* a name with a time to live ends with the set: nobody would take it away */
    if (!array->expires && lost_new(pool, set->user, array_name(array), &like) < 0)
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

/* Nothing goes unless it makes the room that is wanted, as far as the search has come. */
static enum drop
drop_found(const struct search *s, const struct conn *conn, struct set *first)
{
    if (first && (is_enough(s) || !s->left))
        return drop_set(s->core, conn, first);
    if (!s->left)
        return DROP_MORE;
    return s->later && s->there + s->later >= s->wanted ? DROP_SOON : DROP_NONE;
}

enum drop
drop_in_pool(struct core *core, const struct conn *conn, struct pool *pool, uint64_t wanted)
{
    struct search s = {.core = core,
                       .of = SHORT_OF_QUOTA,
                       .wanted = wanted,
                       .left = PASSED_MAX};

    search_pool(&s, pool);
    return drop_found(&s, conn, s.first);
}

bool
drop_of_user(struct core *core, const struct conn *conn, uint64_t wanted)
{
    const uint64_t *used = &conn->user->used[RES_BYTES], most = *used - wanted;
    enum drop drop = DROP_DONE;
    uint32_t left = PASSED_MAX;

    for (uint32_t n = 0; n < DROPS_MAX && drop == DROP_DONE && *used > most; n++) {
        struct search s = {.core = core, .left = left, .wanted = n ? 1 : wanted};
        for (uint32_t i = 0; i < core->config.n_devices; i++)
            search_user(&s, conn->user, i, 0);
        drop = drop_found(&s, conn, s.first);
        left = n ? s.left : left;
    }
    return *used <= most;
}

/* Of others' sets the first one, where the others are enough after it; else one of those that are
 * planned: these are enough whichever of them goes first. If they are not, one may be that none of
 * these leaves room for. */
static struct set *
choose_of_others(struct search *s, const struct user *user, uint32_t device)
{
    struct search after = {.core = s->core,
                           .of = s->of,
                           .wanted = s->wanted,
                           .left = PASSED_MAX,
                           .taken = s->first};

    if (!s->left || !s->first)
        return s->first;
    if (!is_enough(s) && s->alone) {
        s->there = s->wanted;
        return s->alone;
    }
    after.there = room_of(s, s->first);
    search_others(&after, user, device);
    return is_enough(&after) ? s->first : s->planned;
}

enum drop
drop_on_device(struct core *core, const struct conn *conn, uint32_t device, uint64_t wanted,
               bool patient)
{
    struct search s = {.core = core,
                       .of = SHORT_OF_MEMORY,
                       .wanted = wanted,
                       .left = PASSED_MAX};

    search_user(&s, conn->user, device, 0);
    struct set *first = s.first;
    if (!is_enough(&s) && !(patient && s.there + s.later >= wanted)) {
        s.left = PASSED_MAX;
        s.first = s.planned = s.alone = NULL;
        search_others(&s, conn->user, device);
        first = first ? first : choose_of_others(&s, conn->user, device);
    }
    return drop_found(&s, conn, first);
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
