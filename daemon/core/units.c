/* SPDX-License-Identifier: Apache-2.0 */
#include "units.h"

#include <errno.h>
#include <stdlib.h>

#include "array.h"
#include "found.h"
#include "lost.h"
#include "set.h"
#include "state.h"

#define NOBODY     ((uid_t)-1)
#define MILLION    UINT64_C(1000000)
#define UNIT_SHIFT 32 /* in a place */

static const enum record_type types[] = {RECORD_BLOCK,  RECORD_ARRAY, RECORD_MEMBER,
                                         RECORD_HOLD,   RECORD_LOST,  RECORD_TICKET,
                                         RECORD_CHANNEL};

/* ---- what a record is of ---- */

struct of { /* a record's unit, and who is charged for what it tells of, bytes */
    uint32_t unit;
    uid_t uid;
    size_t host;
};

static uint32_t
unit_of_pool(const struct units *u, uint32_t number)
{
    const struct record_pool **found = restore_find(u->records, RECORD_POOL, number);

    return found ? u->of_pool[found - u->records->pools] : 0;
}

static uid_t
uid_of_conn(const struct units *u, uint64_t number)
{
    const struct restore_conn *conn = restore_find(u->records, RECORD_CONN, number);

    return conn ? conn->record->uid : NOBODY;
}

static struct of
of_block(const struct units *u, const struct record_block *record)
{
    return record ? (struct of){unit_of_pool(u, record->pool), record->uid, BLOCK_HOST}
                  : (struct of){.uid = NOBODY};
}

static struct of
of_array(const struct units *u, const struct restore_array *a)
{
    if (!a)
        return (struct of){.uid = NOBODY};

    const struct record_array *r = a->record;
    size_t n_extents = (size_t)r->ndim * (r->flags & ARRAY_STRIDES ? 2 : 1) * sizeof(int64_t);
    size_t host = array_host(n_extents, r->n_typestr, r->n_descr, r->n_name);
    if (r->flags & ARRAY_TEXT)
        host += TEXT_BYTES(r->n_metadata);
    if (r->flags & ARRAY_EXPIRES)
        host += EXPIRY_HOST;
    if (r->whole)
        host += PART_HOST;
    return (struct of){unit_of_pool(u, r->pool), r->uid, host};
}

/* Who is writing it, or whose streams are: what he has stays until then. */
static struct of
of_writer(const struct units *u, const struct restore_array *a, uint32_t unit)
{
    uint64_t id = a->mark >> MARK_ID_SHIFT;
    const struct restore_page *page;

    if (a->mark & MARK_WRITING)
        return (struct of){.unit = unit, .uid = uid_of_conn(u, id)};
    page = a->mark & MARK_PENDING ? restore_find(u->records, RECORD_PAGE, id) : NULL;
    return (struct of){.unit = unit, .uid = page ? uid_of_conn(u, page->record->conn) : NOBODY};
}

/* Many ask for the same, those of several users in turn. */
static struct of
of_array_id(struct units *u, uint64_t id)
{
    const struct restore_array **last = &u->last[id % ARRAY_SIZE(u->last)];

    if (!*last || (*last)->record->key.id != id)
        *last = restore_find(u->records, RECORD_ARRAY, id);
    return of_array(u, *last);
}

static struct of
of_member(struct units *u, const struct record_member *m)
{
    struct of of = of_array_id(u, m->key.id);

    of.host = member_host(m->n_name);
    return of;
}

static struct of
of_hold(const struct units *u, const struct record_hold *hold)
{
    const struct restore_block *b = restore_find(u->records, RECORD_BLOCK, hold->key.id);
    struct of of = of_block(u, b ? b->record : NULL);

    of.uid = uid_of_conn(u, hold->key.of);
    of.host = HOLD_HOST;
    return of;
}

static struct of
of_ticket(struct units *u, const struct record_ticket *t)
{
    struct of of = of_array_id(u, t->array);

    of.uid = t->lease ? uid_of_conn(u, t->conn) : t->uid;
    of.host = TICKET_HOST;
    return of;
}

static struct of
of_channel(struct units *u, const struct record_channel *channel)
{
    struct of of = of_array_id(u, channel->key.id);

    of.host = CHANNEL_HOST(channel->n_slots);
    return of;
}

/* One that find_places() has found. */
static struct of
of_found(struct units *u, enum record_type type, const struct found *found)
{
    const struct restore *r = u->records;
    size_t i = found->place;

    switch (type) {
    case RECORD_BLOCK: return of_block(u, r->blocks[i].record);
    case RECORD_ARRAY: return of_array(u, &r->arrays[i]);
    case RECORD_MEMBER: return of_member(u, r->members[i]);
    case RECORD_HOLD: return of_hold(u, r->holds[i]);
    case RECORD_CHANNEL: return of_channel(u, r->channels[i]);
    case RECORD_TICKET: return of_ticket(u, (const void *)(uintptr_t)found->key.id);
    default:
        return (
            struct of){unit_of_pool(u, r->losts[i]->pool), r->losts[i]->uid,
                       lost_host(r->losts[i]->n_name, restore_dropped(r->losts[i]).metadata.n)};
    }
}

/* ---- whom it concerns ---- */

static int
compare_concerns(const void *a, const void *b)
{
    const struct concern *x = a, *y = b;
    int c = CMP(x->uid, y->uid);

    return c ? c : CMP(x->unit, y->unit);
}

/* Each once. */
static void
sort_concerns(struct units *u)
{
    size_t n = 0;

    if (!u->n_concerns)
        return;
    qsort(u->concerns, u->n_concerns, sizeof(*u->concerns), compare_concerns);
    for (size_t i = 0; i < u->n_concerns; i++)
        if (n == 0 || compare_concerns(&u->concerns[n - 1], &u->concerns[i]) != 0)
            u->concerns[n++] = u->concerns[i];
    u->n_concerns = n;
}

/* Most of what a unit has is of one uid. -ENOMEM. */
static int
add_concern(struct units *u, const struct of *of)
{
    struct unit *unit = &u->v[of->unit];
    struct concern *v;

    if (of->uid == NOBODY || (unit->has_uid && unit->uid == of->uid))
        return 0;
    if (u->n_concerns == u->n_room) {
        sort_concerns(u);
        size_t room = u->n_concerns < u->n_room / 2 ? u->n_room : 2 * u->n_room + 64;
        v = reallocarray(u->concerns, room, sizeof(*v));
        if (!v)
            return -ENOMEM;
        u->concerns = v;
        u->n_room = room;
    }
    u->concerns[u->n_concerns++] = (struct concern){of->unit, of->uid};
    unit->has_uid = true;
    unit->uid = of->uid;
    return 0;
}

/* ---- order ---- */

/* Each that the type has. Tickets, whose keys are random, by their place in the journal, which is
 * the address of the record: where these are read in another order, most of the time goes into
 * waiting for memory. -ENOMEM. */
static int
find_places(const struct units *u, enum record_type type, struct founds *ret)
{
    const struct restore *r = u->records;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < r->lists[type].n; i++) {
        uint64_t id = type == RECORD_TICKET ? (uintptr_t)r->tickets[i] : 0;
        rc = founds_add(ret, (struct record_key){id, 0}, i);
    }
    return rc ? rc : founds_sort(ret);
}

/* By unit; those of one stay in their order. The upper half of each place is its unit. */
static int
order(struct units *u, enum record_type type, const struct founds *founds)
{
    uint32_t *places = reallocarray(NULL, founds->n + 1, sizeof(*places));
    size_t at = 0;

    if (!places)
        return -ENOMEM;
    u->order[type] = places;
    for (size_t i = 0; i < u->n; i++) {
        u->v[i].first[type] = at;
        at += u->v[i].n[type];
        u->v[i].n[type] = 0;
    }
    for (size_t i = 0; i < founds->n; i++) {
        struct unit *unit = &u->v[founds->v[i].place >> UNIT_SHIFT];
        places[unit->first[type] + unit->n[type]++] = (uint32_t)founds->v[i].place;
    }
    return 0;
}

static void
add_due(struct core *core, struct unit *unit, enum resource res, uint64_t amount)
{
    unit->due[res] += amount;
    core->due[res] += amount;
}

/* -ENOMEM. */
static int
add_record(struct units *u, struct core *core, enum record_type type, struct found *found)
{
    const size_t i = found->place;
    const struct of of = of_found(u, type, found);
    struct unit *unit = &u->v[of.unit];
    int r = add_concern(u, &of);

    unit->n[type]++;
    unit->n_records++;
    add_due(core, unit, RES_HOST, of.host);
    add_due(core, unit, RES_FDS, type == RECORD_BLOCK);
    found->place |= (uint64_t)of.unit << UNIT_SHIFT;
    if (type != RECORD_ARRAY || r < 0)
        return r;
    const struct restore_array *a = &u->records->arrays[i];
    const struct of writer = of_writer(u, a, of.unit);
    found->key = (struct record_key){a->record->block, a->record->offset};
    return add_concern(u, &writer);
}

/* Arrays in the order of their places in their blocks. Each record is read once. -ENOMEM. */
static int
add_type(struct units *u, struct core *core, enum record_type type)
{
    struct founds founds = {0};
    int r = find_places(u, type, &founds);

    for (size_t i = 0; r == 0 && i < founds.n; i++)
        r = add_record(u, core, type, &founds.v[i]);
    if (r == 0 && type == RECORD_ARRAY)
        r = founds_sort(&founds);
    if (r == 0)
        r = order(u, type, &founds);
    founds_deinit(&founds);
    return r;
}

/* ---- life ---- */

/* Pools may have had several numbers. The first unit is that of what has no pool. */
static int
find_pools(struct units *u, struct core *core, units_pool_fn *get_pool)
{
    const struct restore *r = u->records;

    u->n = 1;
    for (size_t i = 0; i < r->n_pools; i++) {
        struct pool *pool;
        if (get_pool(core, r->pools[i], &pool) < 0)
            return -ENOMEM;
        if (!pool)
            continue;
        pool->number = (uint32_t)r->pools[i]->key.id;
        if (!pool->unit) {
            pool->unit = &u->v[u->n++];
            pool->unit->pool = pool;
        }
        u->of_pool[i] = (uint32_t)(pool->unit - u->v);
    }
    return 0;
}

int
units_new(struct units **ret, struct core *core, struct restore *records,
          units_pool_fn *get_pool)
{
    struct units *u = calloc(1, sizeof(*u));
    int r = 0;

    if (!u)
        return -ENOMEM;
    u->records = records;
    u->v = calloc(records->n_pools + 1, sizeof(*u->v));
    u->of_pool = calloc(records->n_pools + 1, sizeof(*u->of_pool));
    if (!u->v || !u->of_pool) {
        units_free(u);
        return -ENOMEM;
    }
    r = find_pools(u, core, get_pool);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(types); i++)
        r = add_type(u, core, types[i]);
    if (r < 0) {
        units_free(u);
        return r;
    }
    sort_concerns(u);
    *ret = u;
    return 0;
}

void
units_free(struct units *u)
{
    if (!u)
        return;
    for (size_t i = 0; u->v && i < u->n; i++)
        if (u->v[i].pool)
            u->v[i].pool->unit = NULL;
    for (size_t i = 0; i < N_RECORDS; i++)
        free(u->order[i]);
    free(u->concerns);
    free(u->of_pool);
    free(u->v);
    free(u);
}

/* ---- which one ---- */

struct pool *
units_pool(const struct units *u, uint32_t number)
{
    return u->v[unit_of_pool(u, number)].pool;
}

static bool
comes_before(const struct unit *a, const struct unit *b)
{
    return !b || a->is_wanted > b->is_wanted ||
           (a->is_wanted == b->is_wanted && a->n_records < b->n_records);
}

struct unit *
units_next(struct units *u)
{
    if (u->next && !u->next->is_whole)
        return u->next;
    u->next = NULL;
    for (size_t i = 0; i < u->n; i++)
        if (!u->v[i].is_whole && comes_before(&u->v[i], u->next))
            u->next = &u->v[i];
    return u->next;
}

void
units_charged(struct core *core, struct unit *unit, enum resource res, uint64_t amount)
{
    amount = min_u64(amount, unit->due[res]);
    unit->due[res] -= amount;
    core->due[res] -= amount;
}

void
units_end(struct core *core, struct unit *unit)
{
    unit->is_whole = true;
    core->units->has_news |= unit->is_wanted;
    for (enum resource res = 0; res < N_RESOURCES; res++)
        units_charged(core, unit, res, UINT64_MAX);
    if (unit->pool)
        unit->pool->unit = NULL;
}

uint64_t
units_left(const struct units *u)
{
    return 1 + (MILLION - 1) * u->n_left / (u->n_steps + 1);
}

/* ---- who waits ---- */

bool
units_lack(struct units *u, struct unit *unit)
{
    if (!u || !unit || unit->is_whole)
        return false;
    if (!unit->is_wanted) {
        unit->is_wanted = true;
        u->next = NULL; /* another one may be that now */
    }
    return true;
}

bool
units_lack_user(struct units *u, uid_t uid)
{
    size_t i = 0, n = u ? u->n_concerns : 0;
    bool lacks = false;

    while (i < n) { /* the first one of the uid */
        size_t middle = i + (n - i) / 2;
        if (u->concerns[middle].uid < uid)
            i = middle + 1;
        else
            n = middle;
    }
    for (; u && i < u->n_concerns && u->concerns[i].uid == uid; i++)
        lacks |= units_lack(u, &u->v[u->concerns[i].unit]);
    return lacks;
}

bool
units_lack_array(struct units *u, uint64_t id)
{
    const struct restore_array *a = u ? restore_find(u->records, RECORD_ARRAY, id) : NULL;

    return a && units_lack(u, &u->v[unit_of_pool(u, a->record->pool)]);
}

bool
units_lack_ticket(struct units *u, struct record_key secret)
{
    const struct record_ticket *t = u ? restore_find_ticket(u->records, secret) : NULL;

    return t && units_lack(u, &u->v[of_ticket(u, t).unit]);
}
