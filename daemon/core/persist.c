/* SPDX-License-Identifier: Apache-2.0 */
#include "persist.h"

#include <string.h>

#include "array.h"
#include "device.h"
#include "former.h"
#include "journal.h"
#include "lost.h"
#include "set.h"
#include "state.h"

#define IDS_AHEAD (UINT64_C(1) << 20)
#define SOME      64 /* arrays, or connections, that the new journal gets in one event */

#define ARRAY_RECORD(array) ((uint64_t)(array)->record * 8)

/* ---- one record ---- */

/* NULL: there is no journal, or no room. */
static void *
record_begin(struct core *core, enum record_type type, size_t n)
{
    struct persist *p = &core->persist;

    p->to[0] = p->journal;
    p->to[1] = p->next;
    p->n = n;
    for (int i = 0; i < 2; i++)
        p->payload[i] = p->to[i] ? journal_begin(p->to[i], (uint8_t)type, n) : NULL;
    return p->payload[0] ? p->payload[0] : p->payload[1];
}

/* Returns its place in the one where marks are set: the new one, where there is one. */
static uint64_t
record_end(struct core *core, uint64_t mark)
{
    struct persist *p = &core->persist;
    uint64_t place = 0;

    if (p->payload[0] && p->payload[1])
        memcpy(p->payload[1], p->payload[0], p->n);
    for (int i = 0; i < 2; i++)
        if (p->payload[i])
            place = journal_end(p->to[i], mark);
    return place;
}

static void
record(struct core *core, enum record_type type, const void *payload, size_t n)
{
    void *at = record_begin(core, type, n);

    if (!at)
        return;
    memcpy(at, payload, n);
    record_end(core, 0);
}

static void
record_gone(struct core *core, enum record_type type, uint64_t id, uint64_t of)
{
    struct record_gone gone = {.key = {id, of}, .type = type};

    if (core->persist.journal)
        record(core, RECORD_GONE, &gone, sizeof(gone));
}

/* ---- pools, blocks, processes ---- */

static void
record_pool(struct core *core, const struct pool *pool)
{
    uint8_t n_name = (uint8_t)strlen(pool->name);
    struct record_pool *r =
        record_begin(core, RECORD_POOL, sizeof(struct record_pool) + n_name);

    if (!r)
        return;
    *r = (struct record_pool){
        .key = {.id = pool->number},
        .uid = pool->uid,
        .gid = pool->gid,
        .is_own = pool->owner != NULL,
        .n_name = n_name,
    };
    memcpy(r->name, pool->name, n_name);
    record_end(core, 0);
}

static uint32_t
pool_number(struct core *core, struct pool *pool)
{
    if (!pool->number) {
        pool->number = ++core->persist.n_pools;
        record_pool(core, pool);
    }
    return pool->number;
}

void
persist_block(struct core *core, const struct block *block)
{
    struct record_block r = {
        .key = {.id = block->id},
        .size = block->size,
        .kept = block->kept,
        .uid = block->charge.user->uid,
        .kind = (uint8_t)block->kind,
        .is_own = block->own,
    };

    if (!core->persist.journal || !block->kept)
        return;
    memcpy(r.device, core->devices[block->device].info.uuid, sizeof(r.device));
    r.pool = pool_number(core, block->pool);
    record(core, RECORD_BLOCK, &r, sizeof(r));
}

void
persist_block_gone(struct core *core, const struct block *block)
{
    if (block->kept)
        record_gone(core, RECORD_BLOCK, block->id, 0);
}

static void
record_conn(struct core *core, const struct conn *conn)
{
    struct record_conn r = {
        .key = {.id = conn->id},
        .kept = conn->kept,
        .uid = conn->user->uid,
        .gid = conn->gid,
        .pid = (uint32_t)conn->pid,
        .token = {conn->token[0], conn->token[1]},
        .old_token = {conn->old_token[0], conn->old_token[1]},
        .number = conn->number,
        .resumes = conn->resumes && (!conn->departed || former_is_awaited(conn)),
    };

    record(core, RECORD_CONN, &r, sizeof(r));
}

/* Its pidfd is given to the keeper before the client hears of anything; its record says under which
 * number. */
void
persist_conn_needed(struct core *core, struct conn *conn)
{
    if (conn->recorded || !core->persist.journal)
        return;
    conn->recorded = true;
    conn->number = ++core->persist.n_numbers;
    conn->keep.action = (struct core_action){.type = CORE_KEEP, .conn = conn->id, .fd = -1};
    entry_push(core, &conn->keep);
}

void
core_process_kept(struct core *core, uint64_t id, uint32_t kept)
{
    struct conn *conn = conn_find(&core->conns, id);

    conn->kept = kept;
    record_conn(core, conn);
}

void
persist_hold(struct core *core, const struct hold *hold)
{
    struct record_hold r = {.key = {.id = hold->id, .of = hold->conn->id}};

    if (!core->persist.journal)
        return;
    persist_conn_needed(core, hold->conn);
    record(core, RECORD_HOLD, &r, sizeof(r));
}

void
persist_hold_gone(struct core *core, const struct hold *hold)
{
    record_gone(core, RECORD_HOLD, hold->id, hold->conn->id);
}

void
persist_page(struct core *core, const struct page *page)
{
    const struct timeline *timeline = page->timeline;
    uint8_t n_name = timeline ? timeline->n_name : 0;
    struct record_page *r;
    uint32_t pool;

    if (!core->persist.journal || !page->kept)
        return;
    persist_conn_needed(core, page->conn);
    pool = timeline ? pool_number(core, timeline->pool) : 0;
    r = record_begin(core, RECORD_PAGE, sizeof(*r) + n_name);
    if (!r)
        return;
    *r = (struct record_page){
        .key = {.id = page->id},
        .conn = page->conn->id,
        .kept = page->kept,
        .pool = pool,
        .n_name = n_name,
    };
    if (timeline)
        memcpy(r->name, timeline->name, n_name);
    record_end(core, 0);
}

void
persist_page_gone(struct core *core, const struct page *page)
{
    if (page->kept)
        record_gone(core, RECORD_PAGE, page->id, 0);
}

void
persist_done(struct core *core, struct conn *conn, uint32_t place)
{
    struct record_done r = {.key = {.id = conn->id, .of = place}, .done = conn->done[place]};

    if (!core->persist.journal)
        return;
    persist_conn_needed(core, conn);
    record(core, RECORD_DONE, &r, sizeof(r));
}

void
persist_conn_gone(struct core *core, const struct conn *conn)
{
    if (conn->recorded)
        record_gone(core, RECORD_CONN, conn->id, 0);
}

static void
record_floor(struct core *core)
{
    struct record_floor r = {.generation = core->persist.floor, .ids = core->persist.ids};

    if (core->persist.journal)
        record(core, RECORD_FLOOR, &r, sizeof(r));
}

void
persist_floor(struct core *core, uint64_t generation)
{
    if (generation <= core->persist.floor)
        return;
    core->persist.floor = generation;
    record_floor(core);
}

/* A record for so many. */
void
persist_id(struct core *core, uint64_t id)
{
    if (id < core->persist.ids)
        return;
    core->persist.ids = id + IDS_AHEAD;
    record_floor(core);
}

void
persist_lost(struct core *core, const struct lost *lost)
{
    uint32_t pool = core->persist.journal ? pool_number(core, lost->pool) : 0;
    struct record_lost *r =
        record_begin(core, RECORD_LOST, sizeof(struct record_lost) + lost->n_name);

    if (!r)
        return;
    *r = (struct record_lost){
        .key = {.id = lost->id},
        .generation = lost->generation,
        .pool = pool,
        .uid = lost->charge.user->uid,
        .why = lost->why,
        .is_set = lost->is_set,
        .n_name = lost->n_name,
    };
    memcpy(r->name, lost->name, lost->n_name);
    record_end(core, 0);
}

void
persist_lost_gone(struct core *core, const struct lost *lost)
{
    record_gone(core, RECORD_LOST, lost->id, 0);
}

/* ---- arrays ---- */

static bool
lasts(const struct array *array)
{
    return !array->creating && (array->named || array->n_leases || array->is_companion ||
                                array->is_whole || array->is_set || array->n_sets ||
                                (array->use && (array->use->awaited || array->use->writer)));
}

static uint64_t
mark_of(const struct array *array)
{
    const struct use *use = array->use;
    uint64_t mark = array->abandoned ? MARK_ABANDONED : 0;

    if (use && use->n_writers)
        return mark | MARK_WRITING |
               LIST_FIRST(&use->held)->bracket->conn->number << MARK_ID_SHIFT;
    if (use && use->writer)
        return mark | MARK_WRITING | use->writer << MARK_ID_SHIFT;
    if (use && use->write)
        mark |= MARK_PENDING | (uint64_t)use->write->slot << MARK_SLOT_SHIFT |
                use->write->page->id << MARK_ID_SHIFT;
    return mark;
}

static size_t
array_record_size(const struct array *array, bool expires)
{
    size_t n_extents = (size_t)array->ndim * (array->has_strides ? 2 : 1) + expires;

    return sizeof(struct record_array) + n_extents * sizeof(int64_t) + array->n_typestr +
           array->n_descr + array->n_name + array_metadata(array).n;
}

static void
put(uint8_t **p, const void *bytes, size_t n)
{
    if (n)
        memcpy(*p, bytes, n);
    *p += n;
}

static void
fill_array(struct record_array *r, const struct array *array, uint32_t pool, uint64_t expires)
{
    const struct block *block = array->is_part ? NULL : array_block(array);
    struct msg_str metadata = array_metadata(array);
    uint8_t *p = (uint8_t *)(r + 1);

    *r = (struct record_array){
        .key = {.id = array->id},
        .block = block ? block->id : 0,
        .offset = array->is_part ? array->part->offset : array_offset(array),
        .generation = array->generation,
        .whole = array->is_part ? array->part->whole->array->id : 0,
        .companion = array->companion && !array->is_companion ? array->companion->id : 0,
        .pool = pool,
        .uid = array->charge.user->uid,
        .n_descr = array->n_descr,
        .n_metadata = (uint16_t)metadata.n,
        .device = (uint8_t)array->device,
        .kind = array->kind,
        .flags = (uint8_t)((array->mapped ? ARRAY_MAPPED : 0) |
                           (array->has_strides ? ARRAY_STRIDES : 0) |
                           (array->own ? ARRAY_OWN : 0) | (array->named ? ARRAY_NAMED : 0) |
                           (expires ? ARRAY_EXPIRES : 0) | (array->metadata ? ARRAY_TEXT : 0)),
        .ndim = array->ndim,
        .n_name = array->n_name,
        .n_typestr = array->n_typestr,
    };
    put(&p, array->extents,
        (size_t)array->ndim * (array->has_strides ? 2 : 1) * sizeof(int64_t));
    put(&p, &expires, expires ? sizeof(expires) : 0);
    put(&p, array_typestr(array), array->n_typestr);
    put(&p, array_descr(array), array->n_descr);
    put(&p, array->name, array->n_name);
    put(&p, metadata.p, metadata.n);
}

static void
record_array(struct core *core, struct array *array)
{
    uint64_t expires = expiry_at_ns(core, array);
    uint32_t pool = pool_number(core, array->pool);
    struct record_array *r =
        record_begin(core, RECORD_ARRAY, array_record_size(array, expires));

    if (!r)
        return;
    fill_array(r, array, pool, expires);
    array->record = (uint32_t)(record_end(core, mark_of(array)) / 8);
    array->record_turn = persist_turn(core);
    array->record_named = array->named;
}

static void
record_member(struct core *core, const struct array *set, const struct member *member)
{
    struct record_member *r = record_begin(core, RECORD_MEMBER, sizeof(*r) + member->n_key);

    if (!r)
        return;
    *r = (struct record_member){
        .key = {.id = set->id, .of = ++set->set->n_records},
        .array = member->array->id,
        .n_name = member->n_key,
    };
    memcpy(r->name, member->key, member->n_key);
    record_end(core, 0);
}

bool
persist_turn(const struct core *core)
{
    return core->persist.next ? !core->persist.turn : core->persist.turn;
}

void
persist_member(struct array *set, const struct member *member)
{
    struct core *core = set->charge.user->core;

    if (!core->persist.journal)
        return;
    persist_array(member->array);
    if (!set->record)
        persist_array(set);
    record_member(core, set, member);
}

void
persist_array(struct array *array)
{
    struct core *core = array->charge.user->core;

    if (!core->persist.journal)
        return;
    if (lasts(array)) {
        record_array(core, array);
    } else if (array->record) {
        record_gone(core, RECORD_ARRAY, array->id, 0);
        array->record = 0;
    }
}

void
persist_nameless(struct array *array)
{
    if (array->record_named || !lasts(array))
        persist_array(array);
}

/* Of one that the new journal has got already, the old one has its record elsewhere: it gets
 * another one. */
void
persist_mark(struct array *array)
{
    struct core *core = array->charge.user->core;
    struct persist *p = &core->persist;

    if (!array->record || !p->journal)
        return;
    if (array->record_turn != p->turn)
        record_array(core, array);
    else
        journal_mark(p->journal, ARRAY_RECORD(array), mark_of(array));
}

/* ---- a new journal ---- */

/* What is recorded goes into the new journal alone, until it is told to go on. */
static struct journal *
turn_to_next(struct persist *p)
{
    struct journal *journal = p->journal;

    p->journal = TAKE_PTR(p->next);
    return journal;
}

static void
turn_back(struct persist *p, struct journal *journal)
{
    p->next = p->journal;
    p->journal = journal;
}

static void
persist_begin(struct core *core, struct journal *next)
{
    struct persist *p = &core->persist;
    struct journal *journal;
    struct pool *pool;
    struct block *block;

    p->next = next;
    memset(&p->done, 0, sizeof(p->done));
    journal = turn_to_next(p);
    record_floor(core);
    RB_FOREACH(pool, pools, &core->pools)
        if (pool->number)
            record_pool(core, pool);
    LIST_FOREACH(block, &core->blocks, of_core)
        if (block->promised && block->state == BLOCK_LIVE)
            persist_block(core, block);
    turn_back(p, journal);
}

void
persist_conn(struct core *core, struct conn *conn)
{
    struct hold *hold;
    struct page *page;

    if (!conn->recorded || !core->persist.journal)
        return;
    record_conn(core, conn);
    RB_FOREACH(hold, holds, &conn->holds)
        persist_hold(core, hold);
    LIST_FOREACH(page, &conn->pages, of_conn)
        if (page->made)
            persist_page(core, page);
    for (uint32_t i = 0; i < DONE_MAX; i++)
        if (conn->done[i].method)
            persist_done(core, conn, i);
}

/* The next one, here or departed. */
static bool
conns_anew(struct core *core)
{
    struct conn key = {.id = core->persist.done.conn + 1};
    struct conn *here = RB_NFIND(conns, &core->conns, &key);
    struct conn *departed = RB_NFIND(conns, &core->departed, &key);
    struct conn *conn = here && (!departed || here->id < departed->id) ? here : departed;

    if (!conn)
        return false;
    persist_conn(core, conn);
    core->persist.done.conn = conn->id;
    return true;
}

static struct array *
array_after(struct persist *p, struct pool *pool)
{
    struct msg_str name = {p->done.name, p->done.n_name};

    return p->done.stage == PERSIST_NAMES
               ? pool_find_next(pool, name, (struct msg_str){0})
               : pool_find_nameless(pool, name, p->done.generation, p->done.array + 1);
}

/* The pool is done: on to the next. */
static bool
next_pool(struct core *core, const struct pool *pool)
{
    struct persist *p = &core->persist;
    const struct pool *next = RB_NEXT(pools, &core->pools, (struct pool *)(uintptr_t)pool);

    p->done.n_name = 0;
    p->done.generation = p->done.array = 0;
    if (next)
        memcpy(p->done.pool, next->name, sizeof(p->done.pool));
    return next;
}

/* The next member of the first set that the new journal has not got yet: those lie before the
 * others. */
static bool
sets_anew(struct core *core)
{
    struct persist *p = &core->persist;
    struct set *set = TAILQ_FIRST(&core->sets);
    const struct member *member;

    if (!set || set->record_turn != p->turn)
        return false;
    if (p->done.set != set->array->id)
        p->done.n_key = 0;
    member =
        set_next(set->array, (struct msg_str){p->done.key, p->done.n_key}, (struct msg_str){0});
    if (!member) {
        set->record_turn = !p->turn;
        TAILQ_REMOVE(&core->sets, set, of_core);
        TAILQ_INSERT_TAIL(&core->sets, set, of_core);
        return true;
    }
    record_member(core, set->array, member);
    p->done.set = set->array->id;
    memcpy(p->done.key, member->key, member->n_key);
    p->done.n_key = member->n_key;
    return true;
}

static bool
arrays_anew(struct core *core)
{
    struct persist *p = &core->persist;
    struct pool *pool = pool_find_from(core, MSG_STR(p->done.pool));
    struct array *array;

    if (!pool)
        return false;
    if (strcmp(pool->name, p->done.pool) != 0) { /* that one has gone */
        p->done.n_name = 0;
        p->done.generation = p->done.array = 0;
    }
    array = array_after(p, pool);
    if (!array)
        return next_pool(core, pool);
    memcpy(p->done.pool, pool->name, sizeof(p->done.pool)); /* it may be a later one */
    memcpy(p->done.name, array->name, array->n_name);
    p->done.n_name = array->n_name;
    p->done.generation = array->generation;
    p->done.array = array->id;
    if (lasts(array) && (!array->record || array->record_turn == p->turn)) {
        record_array(core, array);
        array->record_turn = !p->turn;
    }
    if (!lasts(array))
        array->record = 0;
    return true;
}

static bool
lost_anew(struct core *core)
{
    struct persist *p = &core->persist;
    struct pool *pool = pool_find_from(core, MSG_STR(p->done.pool));
    const struct lost *lost;

    if (!pool)
        return false;
    if (strcmp(pool->name, p->done.pool) != 0) /* that one has gone */
        p->done.n_name = 0;
    lost = lost_find_next(pool, (struct msg_str){p->done.name, p->done.n_name},
                          (struct msg_str){0});
    if (!lost)
        return next_pool(core, pool);
    memcpy(p->done.pool, pool->name, sizeof(p->done.pool)); /* it may be a later one */
    memcpy(p->done.name, lost->name, lost->n_name);
    p->done.n_name = lost->n_name;
    persist_lost(core, lost);
    return true;
}

void
persist_some(struct core *core)
{
    struct persist *p = &core->persist;

    if (!p->next || p->done.stage == PERSIST_ALL)
        return;
    struct journal *journal = turn_to_next(p);
    for (int i = 0; i < SOME && p->done.stage < PERSIST_ALL; i++) {
        if (p->done.stage == PERSIST_CONNS  ? conns_anew(core)
            : p->done.stage == PERSIST_SETS ? sets_anew(core)
            : p->done.stage == PERSIST_LOST ? lost_anew(core)
                                            : arrays_anew(core))
            continue;
        p->done.stage++;
        p->done.pool[0] = '\0';
        p->done.n_name = 0;
        p->done.generation = p->done.array = 0;
    }
    turn_back(p, journal);
}

bool
persist_is_behind(const struct core *core)
{
    return core->persist.next && core->persist.done.stage < PERSIST_ALL;
}

void
persist_commit(struct core *core)
{
    if (core->persist.journal)
        journal_commit(core->persist.journal);
}

/* ---- for the shell ---- */

void
core_set_journal(struct core *core, struct journal *journal)
{
    core_renew_journal(core, journal);
    while (persist_is_behind(core))
        persist_some(core);
    core_switch_journal(core);
}

void
core_renew_journal(struct core *core, struct journal *next)
{
    persist_begin(core, next);
}

bool
core_journal_is_renewed(const struct core *core)
{
    return core->persist.next && !persist_is_behind(core);
}

void
core_switch_journal(struct core *core)
{
    struct persist *p = &core->persist;

    p->journal = TAKE_PTR(p->next);
    p->turn = !p->turn;
    journal_commit(p->journal);
}

void
core_drop_journal(struct core *core)
{
    core->persist.journal = core->persist.next = NULL;
}
