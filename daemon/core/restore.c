/* SPDX-License-Identifier: Apache-2.0 */
#include "restore.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "device.h"
#include "former.h"
#include "journal.h"
#include "lost.h"
#include "participant.h"
#include "set.h"
#include "settle.h"
#include "state.h"
#include "units.h"
#include "utf8.h"

struct restoring {
    struct core *core;
    struct restore *r;
    struct unit *unit;
};

/* ---- pools and blocks ---- */

static int
find_pool(struct core *core, const struct record_pool *record, struct pool **ret)
{
    const struct msg_str name = {record->name, record->n_name};
    struct pool *pool = pool_find_from(core, name);
    struct user *user;

    *ret = pool && !pool->owner && msg_str_eq(name, pool->name) ? pool : NULL;
    if (!record->is_own)
        return 0;
    if (core_get_user(core, record->uid, record->gid, &user) < 0)
        return -ENOMEM;
    *ret = user->pool->is_none ? NULL : user->pool;
    return 0;
}

static int
restore_block(const struct restoring *to, uint32_t i)
{
    struct restore_block *b = &to->r->blocks[i];
    const struct record_block *record = b->record;
    struct pool *pool = to->unit->pool;
    struct user *user;
    uint32_t device;
    struct refusal refusal;
    int r;

    if (!pool || record->device[sizeof(record->device) - 1] ||
        device_find(to->core, MSG_STR(record->device), &device, &refusal) ||
        record->kind >= N_KINDS || record->kind == KIND_LEGACY)
        return 0;
    if (core_get_user(to->core, record->uid, (gid_t)-1, &user) < 0)
        return -ENOMEM;
    r = to->r->ops->import(to->r->userdata, b);
    if (r < 0)
        return r == -EINVAL || r == -EBADF ? 0 : r;
    return block_restore(to->core, pool, user, device, b, &b->block);
}

/* ---- arrays ---- */

/* What lies behind a record's fixed part. */
struct texts {
    const int64_t *extents;
    uint64_t expires;
    struct msg_str typestr, descr, name, metadata;
    uint64_t droppable[2]; /* priority, reload_ns */
};

static struct msg_str
cut(const uint8_t **p, size_t n)
{
    struct msg_str s = {(const char *)*p, (uint32_t)n};

    *p += n;
    return s;
}

static bool
texts_init(struct texts *ret, const struct restore_array *a)
{
    const struct record_array *record = a->record;
    size_t n_extents = (size_t)record->ndim * (record->flags & ARRAY_STRIDES ? 2 : 1);
    bool expires = record->flags & ARRAY_EXPIRES;
    const uint8_t *p = (const uint8_t *)(record + 1) + (n_extents + expires) * sizeof(int64_t);

    *ret = (struct texts){.extents = (const int64_t *)(const void *)(record + 1)};
    if (record->ndim > PROTO_NDIM_MAX ||
        sizeof(*record) + (n_extents + expires) * sizeof(int64_t) + record->n_typestr +
                record->n_descr + record->n_name + record->n_metadata +
                (record->flags & ARRAY_DROPPABLE ? sizeof(ret->droppable) : 0) !=
            a->n)
        return false;
    if (expires)
        memcpy(&ret->expires, p - sizeof(int64_t), sizeof(int64_t));
    ret->typestr = cut(&p, record->n_typestr);
    ret->descr = cut(&p, record->n_descr);
    ret->name = cut(&p, record->n_name);
    ret->metadata = cut(&p, record->n_metadata);
    if (record->flags & ARRAY_DROPPABLE)
        memcpy(ret->droppable, p, sizeof(ret->droppable));
    if (!(record->flags & ARRAY_TEXT))
        ret->metadata.p = NULL;
    return true;
}

/* One that is there, of the same pool. */
static struct block *
find_block(const struct restoring *to, uint64_t id)
{
    const struct restore_block *b = restore_find(to->r, RECORD_BLOCK, id);

    return b && units_pool(to->core->units, b->record->pool) == to->unit->pool ? b->block
                                                                               : NULL;
}

static struct restore_array *
find_array(const struct restoring *to, uint64_t id)
{
    struct restore_array *a = id ? restore_find(to->r, RECORD_ARRAY, id) : NULL;

    return a && units_pool(to->core->units, a->record->pool) == to->unit->pool ? a : NULL;
}

static bool
request_init(const struct restoring *to, struct array_request *req,
             const struct record_array *record, const struct texts *texts)
{
    char why[GEOMETRY_WHY_MAX];
    struct msg_i64s shape = {.v = texts->extents, .n = record->ndim};
    struct msg_i64s strides = {0};
    const struct block *block = find_block(to, record->block);

    if (record->flags & ARRAY_STRIDES)
        strides = (struct msg_i64s){.v = texts->extents + record->ndim, .n = record->ndim};
    *req = (struct array_request){
        .pool = to->unit->pool,
        .device = record->device,
        .kind = record->kind,
        .mapped = record->flags & ARRAY_MAPPED,
        .exclusive = record->flags & ARRAY_OWN,
        .name = texts->name,
        .typestr = texts->typestr,
        .descr = texts->descr,
        .metadata = texts->metadata,
    };
    if (block)
        req->device = block->device;
    else if (req->device >= to->core->config.n_devices)
        req->device = 0;
    return req->pool && req->kind < N_KINDS &&
           geometry_init(&req->geometry, texts->typestr, shape, strides, why) == 0;
}

/* Where the next array of that block may lie. */
static struct range *
range_in(const struct restoring *to, uint64_t id)
{
    struct unit *unit = to->unit;
    const struct block *block;

    if (id == unit->block)
        return unit->range;
    block = find_block(to, id);
    unit->block = id;
    unit->range = block ? block->extent.first : NULL;
    return unit->range;
}

/* Its place in its block; those of a block come in the order of their offsets. */
static int
place(const struct restoring *to, struct restore_array *a)
{
    struct range **at = &to->unit->range;
    struct array *array = a->array;
    int r = range_take_at(*at, a->record->offset, array_bytes(to->core, array), &array->range);

    if (r)
        return r;
    array->range->userdata = array;
    *at = array->range->next ? array->range->next : array->range;
    return 0;
}

/* -ENOMEM. */
static int
add_lost(const struct restoring *to, uint32_t uid, struct msg_str name, const struct lost *like)
{
    struct user *user;

    if (!to->unit->pool)
        return 0; /* nobody can ask for it */
    if (core_get_user(to->core, uid, (gid_t)-1, &user) < 0)
        return -ENOMEM;
    return lost_new(to->unit->pool, user, name, like);
}

/* Where there is no memory, the log has it. */
static void
keep_lost(const struct restoring *to, const struct record_array *record, struct msg_str name,
          enum lost_why why)
{
    const struct lost like = {.id = record->key.id,
                              .generation = record->generation,
                              .why = (uint8_t)why,
                              .is_set = why == LOST_MEMBER};

    add_lost(to, record->uid, name, &like);
}

static void
tell_lost(const struct restoring *to, const char *pool, const char *name, const char *why)
{
    to->r->ops->lost(to->r->userdata, pool, name, why);
}

static void
lose(const struct restoring *to, const struct restore_array *a, const struct texts *texts,
     enum lost_why why)
{
    const struct record_pool **pool = restore_find(to->r, RECORD_POOL, a->record->pool);
    char name[PROTO_NAME_MAX + 1], in[PROTO_POOL_MAX + 1] = "";

    if (!(a->record->flags & ARRAY_NAMED))
        return;
    snprintf(name, sizeof(name), "%.*s", STR_FMT(texts->name));
    if (pool)
        snprintf(in, sizeof(in), "%.*s", (int)(*pool)->n_name, (*pool)->name);
    tell_lost(to, in, name,
              to->unit->pool ? lost_reason(why) : "its pool is not configured any more");
    keep_lost(to, a->record, texts->name, why);
}

/* What earlier daemons have lost. */
static int
restore_lost(const struct restoring *to, uint32_t i)
{
    const struct record_lost *record = to->r->losts[i];
    const struct msg_str name = {record->name, record->n_name};
    const struct restore_dropped more = restore_dropped(record);
    const struct lost like = {.id = record->key.id,
                              .generation = record->generation,
                              .why = record->why,
                              .is_set = record->is_set & LOST_SET,
                              .metadata = more.metadata,
                              .more = {more.priority, more.reload_ns, more.bytes}};

    return record->why > 0 && record->why < N_LOST ? add_lost(to, record->uid, name, &like) : 0;
}

static int
make_array(const struct restoring *to, struct restore_array *a, struct array_request *req)
{
    const struct record_array *record = a->record;
    struct user *user;
    int r = core_get_user(to->core, record->uid, (gid_t)-1, &user);

    if (r == 0 && record->whole)
        r = part_restore(to->core, user, find_array(to, record->whole)->array, record->offset,
                         req, &a->array);
    else if (r == 0)
        r = array_restore(to->core, user, req, &a->array);
    return r;
}

/* -ENOMEM; else it is there, or left out. */
static int
restore_array(const struct restoring *to, struct restore_array *a, bool has_range)
{
    const struct record_array *record = a->record;
    bool has_place = has_range || record->whole || !record->block;
    struct array_request req;
    struct texts texts;

    if (!texts_init(&texts, a)) {
        tell_lost(to, "", "(unknown)", "its record is damaged");
        return 0;
    }
    if (!request_init(to, &req, record, &texts)) {
        lose(to, a, &texts, LOST_RECORD);
        return 0;
    }
    if (!has_place) {
        lose(to, a, &texts, record->kind == KIND_LEGACY ? LOST_LEGACY : LOST_MEMORY);
        return 0;
    }
    int r = make_array(to, a, &req);
    if (r == 0 && has_range)
        r = place(to, a);
    if (r && a->array)
        array_abandon(to->core, TAKE_PTR(a->array));
    if (r == SPACE_FULL || r == -EFBIG) {
        lose(to, a, &texts, LOST_RECORD);
        return 0;
    }
    if (r < 0)
        return -ENOMEM;
    struct array *array = a->array;
    array->id = record->key.id;
    if (array->is_part)
        array->part->id = array->id;
    array->generation = record->generation;
    array->abandoned = a->mark & MARK_ABANDONED;
    array->creating = false;
    array_index_set(to->core->former_arrays, (size_t)(a - to->r->arrays), array);
    if (record->flags & ARRAY_NAMED && !pool_find_array(array->pool, texts.name))
        array_restore_name(to->core, array);
    array_list(array);
    return 0;
}

static int
restore_placed(const struct restoring *to, uint32_t i)
{
    struct restore_array *a = &to->r->arrays[i];

    return a->record->whole ? 0 : restore_array(to, a, range_in(to, a->record->block));
}

static int
restore_part(const struct restoring *to, uint32_t i)
{
    struct restore_array *a = &to->r->arrays[i];
    const struct restore_array *whole = find_array(to, a->record->whole);
    struct texts texts;

    if (whole && whole->array && !whole->array->is_part)
        return restore_array(to, a, false);
    if (a->record->whole && texts_init(&texts, a))
        lose(to, a, &texts, LOST_MEMORY);
    return 0;
}

/* It is not what it was: it goes as a whole, in its time, as what has no name does. */
static void
lose_whole(const struct restoring *to, struct restore_array *a, enum lost_why why)
{
    struct array *array = a->array;

    if (!array->named)
        return;
    a->array = NULL;
    tell_lost(to, array->pool->name, array->name, lost_reason(why));
    keep_lost(to, a->record, array_name(array), why);
    array_drop_name(to->core, array);
}

static int
restore_companion(const struct restoring *to, uint32_t i)
{
    struct restore_array *a = &to->r->arrays[i], *c;

    if (!a->array || !a->record->companion)
        return 0;
    c = find_array(to, a->record->companion);
    if (!c || !c->array || c->array->named || c->array->companion || c == a) {
        lose_whole(to, a, LOST_COMPANION);
        return 0;
    }
    a->array->companion = c->array;
    c->array->companion = a->array;
    c->array->is_companion = true;
    return 0;
}

static int
restore_member(const struct restoring *to, uint32_t i)
{
    const struct record_member *m = to->r->members[i];
    struct restore_array *set = find_array(to, m->key.id), *member = find_array(to, m->array);
    const struct msg_str key = {m->name, m->n_name};
    int r = 0;

    if (!set || !set->array || set->array->span || set_get(set->array, key))
        return 0; /* it has ended; or it was recorded twice, when the journal was renewed */
    if (member && member->array && !member->array->is_set)
        r = set_restore(set->array, key, member->array, (uint32_t)m->key.of);
    else
        lose_whole(to, set, LOST_MEMBER);
    return r == -ENOMEM ? r : 0;
}

/* ---- who had it ---- */

/* NULL: its process has exited. */
static struct conn *
get_conn(const struct restoring *to, uint64_t number)
{
    const struct restore_conn *c = restore_find(to->r, RECORD_CONN, number);

    return c && c->conn ? conn_find(&to->core->departed, c->conn) : NULL;
}

static int
restore_hold(const struct restoring *to, uint32_t i)
{
    const struct record_hold *record = to->r->holds[i];
    struct block *block = find_block(to, record->key.id);
    struct conn *conn = get_conn(to, record->key.of);
    struct hold *hold;
    bool is_new;

    if (!conn || !block)
        return 0;
    if (hold_get(conn, &conn->holds, block->id, &block->holds, &hold, &is_new, NULL))
        return -ENOMEM;
    hold->block = block;
    hold->before = true;
    hold->unresumed = conn->former;
    block->n_unresumed += hold->unresumed;
    if (conn->loses)
        block->lost_writers |= former_bit(conn->number);
    if (block->n_before++ > 0)
        return 0;
    return block_set_aside(block);
}

/* What was written is there when that value is, which a stream is yet to store, or has stored. */
static int
restore_write(const struct restoring *to, struct array *array, uint64_t mark)
{
    const struct restore_page *page = restore_find(to->r, RECORD_PAGE, mark >> MARK_ID_SHIFT);
    uint32_t slot = mark >> MARK_SLOT_SHIFT & (TIMELINE_SLOTS - 1);
    uint64_t value = page && page->made.slots ? timeline_submitted(&page->made.slots[slot]) : 0;
    enum fence_state state = value ? timeline_state(&page->made.slots[slot], value)
                                   : FENCE_LOST;

    array->abandoned |= state == FENCE_LOST || (state == FENCE_PENDING && page->is_dead);
    if (state != FENCE_PENDING || page->is_dead)
        return 0;
    return use_restore_write(array, page_find(to->core, page->record->key.id), slot, value);
}

/* Whoever was writing may come back and say that it is whole. */
static int
restore_writer(const struct restoring *to, struct array *array, uint64_t mark)
{
    const struct conn *conn = get_conn(to, mark >> MARK_ID_SHIFT);

    if (mark & MARK_SEVERAL)
        return former_doubt_several(array, (mark & ~MARK_SEVERAL) >> MARK_ID_SHIFT);
    if (conn && conn->former)
        return former_doubt(array, conn->number);
    array->abandoned = true;
    return 0;
}

static int
restore_use(const struct restoring *to, uint32_t i)
{
    const struct restore_array *a = &to->r->arrays[i];
    int r = 0;

    if (!a->array)
        return 0;
    if (a->mark & MARK_WRITING)
        r = restore_writer(to, a->array, a->mark);
    else if (a->mark & MARK_PENDING)
        r = restore_write(to, a->array, a->mark);
    if (r == 0 && !a->array->named)
        r = former_doubt(a->array, 0);
    return r;
}

/* -ENOMEM. *ret NULL: it has ended with its sender, as one of 0.1.0's does. */
static int
make_ticket(const struct restoring *to, const struct record_ticket *t, struct array *array,
            struct ticket **ret)
{
    struct conn *conn = get_conn(to, t->conn);
    struct ticket like = {.secret = {t->key.id, t->key.of}, .made_ns = to->core->boot_ns};
    struct user *user;

    *ret = NULL;
    like.conn = conn && conn->former ? conn : NULL;
    if (t->lease) {
        if (!like.conn)
            return 0;
        user = conn->user;
        like.pid = conn->pid;
    } else {
        if (core_get_user(to->core, t->uid, (gid_t)-1, &user) < 0)
            return -ENOMEM;
        like.made_ns = t->made_ns;
        like.ends_ns = t->ends_ns;
        like.pid = (pid_t)t->pid;
        like.kind = (enum ticket_kind)t->kind;
    }
    return ticket_restore(to->core, user, array, t->readonly, &like, ret);
}

/* Where its time begins now, that has to last. */
static int
restore_ticket(const struct restoring *to, uint32_t i)
{
    const struct record_ticket *t = to->r->tickets[i];
    const struct restore_array *a = find_array(to, t->array);
    struct ticket *ticket = NULL;
    int r = a && a->array ? make_ticket(to, t, a->array, &ticket) : 0;

    if (r == 0 && !ticket)
        persist_gone(to->core, RECORD_TICKET, t->key);
    else if (r == 0 && (t->lease || t->ends_ns != ticket->ends_ns))
        persist_ticket(to->core, ticket);
    return r;
}

/* A producer's page that is not killed yet says what its process had done, which has exited. */
static int
restore_channel(const struct restoring *to, uint32_t i)
{
    const struct record_channel *record = to->r->channels[i];
    const struct restore_array *a = find_array(to, record->key.id);
    const struct restore_page *page = restore_find(to->r, RECORD_PAGE, record->producer_page);
    bool is_dead = page && page->is_dead && page->made.slots;

    if (a && a->array && !a->array->is_set && a->array->ndim &&
        array_shape(a->array)[0] == record->n_slots)
        return channel_restore(to->core, a->array, record, is_dead ? &page->made : NULL);
    persist_gone(to->core, RECORD_CHANNEL, record->key);
    return 0;
}

/* ---- the end of a unit ---- */

/* All is in it that was: from here on it may go. What has not come back is not looked for again:
 * the keeper gives its number to others. */
static int
end_block(const struct restoring *to, uint32_t i)
{
    struct block *block = TAKE_PTR(to->r->blocks[i].block);

    if (!block) {
        persist_gone(to->core, RECORD_BLOCK, to->r->blocks[i].record->key);
        return 0;
    }
    block->state = BLOCK_LIVE;
    block_settle(to->core, block);
    return 0;
}

/* The record that it was read from is its own from here on, unless it has another one by now. */
static void
take_record(const struct restore_array *a, struct array *array)
{
    if (array->record)
        return;
    array->record = a->place;
    array->record_named = a->record->flags & ARRAY_NAMED;
}

/* Late, since it may go at once, which is recorded before the end of its block is; and before
 * another array of the unit has it recorded. */
static int
restore_expiry(const struct restoring *to, uint32_t i)
{
    const struct restore_array *a = &to->r->arrays[i];
    struct array *array;
    struct texts texts;

    if (!(a->record->flags & ARRAY_EXPIRES) || !texts_init(&texts, a))
        return 0;
    array = array_index_find(to->core->former_arrays, a->record->key.id);
    if (!array || !array->named)
        return 0;
    take_record(a, array);
    return expiry_restore(to->core, array, texts.expires);
}

/* Before what says that it is gone. */
static void
record_lost(const struct restoring *to, const struct restore_array *a)
{
    const struct lost *lost;
    struct texts texts;

    if (!to->unit->pool || !(a->record->flags & ARRAY_NAMED) || !texts_init(&texts, a))
        return;
    lost = lost_find(to->unit->pool, texts.name);
    if (lost && lost->id == a->record->key.id)
        persist_lost(to->core, lost);
}

/* All members of the set are back, or it has lost its name. */
static void
restore_droppable(const struct restoring *to, const struct restore_array *a,
                  struct array *array)
{
    struct texts texts;

    if (a->record->flags & ARRAY_DROPPABLE && array->named && array->is_set &&
        set_layout(array) && texts_init(&texts, a))
        set_may_go(to->core, array, texts.droppable[0], texts.droppable[1]);
}

/* What is not as it was is recorded: a mark, a name that is lost. Then it goes, where nobody keeps
 * it, since who kept it is lost, or is not waited for; and others of the unit with it. -ENOMEM. */
static int
end_array(const struct restoring *to, uint32_t i)
{
    const struct restore_array *a = &to->r->arrays[i];
    const struct record_array *record = a->record;
    struct array *array = array_index_find(to->core->former_arrays, record->key.id);
    struct use *use;

    if (!array || !array->named)
        record_lost(to, a);
    if (!array) {
        persist_gone(to->core, RECORD_ARRAY, record->key);
        return 0;
    }
    take_record(a, array);
    if (array->record_named != array->named)
        persist_array(array);
    else if (a->mark)
        persist_mark(array);
    restore_droppable(to, a, array);
    if (!array->named && use_get(array, &use) < 0) /* it would stay, or go, whoever has it */
        return -ENOMEM;
    array_settle(to->core, array);
    return 0;
}

static void
end_unit(const struct restoring *to)
{
    struct core *core = to->core;
    struct pool *pool = to->unit->pool;

    units_end(core, to->unit);
    if (pool)
        doubts_know(&core->known, &pool->doubts); /* of who has come back meanwhile */
}

/* ---- a piece at a time ---- */

/* Each for all records of that type, before the next; and whether what it changes is recorded. */
static const struct phase {
    enum record_type type;
    int (*run)(const struct restoring *to, uint32_t i);
    bool is_recorded;
} phases[] = {
    {RECORD_BLOCK, restore_block, false},     {RECORD_LOST, restore_lost, false},
    {RECORD_ARRAY, restore_placed, false},    {RECORD_ARRAY, restore_part, false},
    {RECORD_HOLD, restore_hold, false},       {RECORD_ARRAY, restore_use, false},
    {RECORD_TICKET, restore_ticket, true},    {RECORD_CHANNEL, restore_channel, true},
    {RECORD_BLOCK, end_block, true},          {RECORD_MEMBER, restore_member, false},
    {RECORD_ARRAY, restore_companion, false}, {RECORD_ARRAY, restore_expiry, false},
    {RECORD_ARRAY, end_array, true},
};

static void
count_steps(struct units *units)
{
    for (size_t i = 0; i < units->n; i++)
        for (size_t k = 0; k < ARRAY_SIZE(phases); k++)
            units->n_left += units->v[i].n[phases[k].type];
    units->n_steps = units->n_left;
}

static int
run_one(const struct restoring *to, const struct phase *phase, uint32_t i)
{
    struct core *core = to->core;
    uint64_t host = core->used[RES_HOST], fds = core->used[RES_FDS];
    int r = phase->run(to, i);

    if (core->used[RES_HOST] > host)
        units_charged(core, to->unit, RES_HOST, core->used[RES_HOST] - host);
    if (core->used[RES_FDS] > fds)
        units_charged(core, to->unit, RES_FDS, core->used[RES_FDS] - fds);
    return r;
}

/* Some of its phase. Returns what of the budget it took, or -errno. */
static int
run_phase(const struct restoring *to, uint32_t budget)
{
    struct unit *unit = to->unit;
    struct units *units = to->core->units;
    const struct phase *phase = &phases[unit->phase];
    const uint32_t *order = units->order[phase->type] + unit->first[phase->type];
    struct persist *persist = &to->core->persist;
    struct journal *journal = persist->journal;
    uint64_t ids = persist->ids, floor = persist->floor;
    bool imports = phase->run == restore_block; /* one takes as long as many others */
    uint32_t n = 0;
    int r = 0;

    if (!phase->is_recorded)
        persist->journal = NULL;
    for (; r == 0 && unit->at < unit->n[phase->type] && n < (imports ? 1 : budget); n++)
        r = run_one(to, phase, order[unit->at++]);
    persist->journal = journal;
    if (persist->ids != ids || persist->floor != floor)
        persist_numbers(to->core); /* others get and raise them before the unit is whole */
    units->n_left -= n;
    if (unit->at == unit->n[phase->type]) {
        unit->phase++;
        unit->at = 0;
    }
    return r < 0 ? r : (int)(imports && n ? budget : n);
}

/* ---- the start: who was connected, and what they signal in ---- */

/* -ENOMEM; else it has its name, or there is no such pool. */
static int
restore_timeline(const struct restoring *to, struct conn *conn,
                 const struct record_page *record)
{
    struct pool *pool = units_pool(to->core->units, record->pool);
    struct msg_str name = {record->name, record->n_name};

    if (!pool || timeline_find(to->core, pool, name))
        return 0;
    return timeline_new(to->core, conn, pool, name, page_find(to->core, record->key.id), NULL);
}

static int
restore_page(const struct restoring *to, const struct restore_page *page)
{
    struct conn *conn = get_conn(to, page->record->conn);
    int r;

    if (conn && (!page->made.slots || page->is_dead))
        block_lose_writes(conn);
    if (!conn || !page->made.slots || page->is_dead)
        return 0;
    r = page_restore(to->core, conn, page->record->key.id, &page->made);
    if (r == 0 && page->record->n_name && conn->former)
        r = restore_timeline(to, conn, page->record);
    return r;
}

/* It is what conn_hangup() leaves of one with memory, and gives nothing up before all is back: it
 * may have more than is there yet. */
static int
restore_conn(const struct restoring *to, const struct restore_conn *c)
{
    const struct record_conn *record = c->record;
    const struct core_peer peer = {.uid = record->uid,
                                   .gid = record->gid,
                                   .pid = (pid_t)record->pid};
    struct core *core = to->core;
    struct user *user;
    struct conn *conn;

    if (!c->conn)
        return 0;
    if (core_get_user(core, peer.uid, peer.gid, &user) < 0 ||
        conn_open(core, c->conn, &peer, user, NULL, &conn) < 0)
        return -ENOMEM;
    conn->kept = c->kept;
    conn->reported = conn->is_held_back = true;
    conn->resumes = record->resumes;
    conn->number = record->key.id;
    memcpy(conn->token, record->token, sizeof(conn->token));
    memcpy(conn->old_token, record->old_token, sizeof(conn->old_token));
    if (conn->resumes)
        former_new(core, conn);
    conn_hangup(core, conn);
    return 0;
}

static void
restore_done(const struct restoring *to, const struct record_done *record)
{
    struct conn *conn = get_conn(to, record->key.id);

    if (conn && record->key.of < DONE_MAX)
        conn->done[record->key.of] = record->done;
}

static struct restore_block *
block_of_array(const struct restore *r, const struct restore_array *array)
{
    const struct restore_array *whole =
        array->record->whole ? restore_find(r, RECORD_ARRAY, array->record->whole) : array;

    return whole ? restore_find(r, RECORD_BLOCK, whole->record->block) : NULL;
}

static void
note_lost_writers(const struct restoring *to)
{
    const struct restore *r = to->r;

    for (size_t i = 0; i < r->n_holds; i++) {
        const struct record_key *key = &r->holds[i]->key;
        const struct conn *conn = get_conn(to, key->of);
        struct restore_block *block = restore_find(r, RECORD_BLOCK, key->id);
        if (block && (!conn || !conn->former || conn->loses))
            block->lost |= former_bit(key->of);
    }
}

/* Arrays that those who do not come back were writing with others are abandoned at once: the
 * records of these connections and pages go before the arrays are restored. */
static void
restore_lost_writers(const struct restoring *to)
{
    const struct restore *r = to->r;
    bool noted = false;

    for (size_t i = 0; i < r->n_arrays; i++) {
        struct restore_array *a = &r->arrays[i];
        const struct restore_block *block;
        if (!(a->mark & MARK_WRITING && a->mark & MARK_SEVERAL))
            continue;
        if (!noted)
            note_lost_writers(to);
        noted = true;
        block = block_of_array(r, a);
        if (block && !((a->mark & ~MARK_SEVERAL) >> MARK_ID_SHIFT & block->lost))
            continue;
        a->mark |= MARK_ABANDONED;
        journal_mark(r->journal, (uint64_t)a->place * 8, a->mark);
    }
}

static int
restore_processes(const struct restoring *to)
{
    const struct restore *r = to->r;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < r->n_conns; i++)
        rc = restore_conn(to, &r->conns[i]);
    for (size_t i = 0; i < r->n_dones; i++)
        restore_done(to, r->dones[i]);
    for (size_t i = 0; rc == 0 && i < r->n_pages; i++)
        rc = restore_page(to, &r->pages[i]);
    restore_lost_writers(to);
    return rc;
}

/* With that which it has died of last. */
static void
restore_suspects(const struct restoring *to)
{
    struct suspects *suspects = &to->core->suspects;

    for (size_t i = 0; i < to->r->n_suspects; i++) {
        const struct record_suspect *record = to->r->suspects[i];
        if (record->key.id >= SUSPECTS_MAX || !record->suspect.deaths)
            continue;
        suspects->v[record->key.id] = record->suspect;
        suspects->n++;
        suspects->next = (uint32_t)record->key.id + 1;
    }
    if (to->r->in_hand[1])
        suspects_add(suspects, to->r->in_hand);
}

/* Clients know arrays, blocks and pages by their numbers. */
static void
restore_numbers(const struct restoring *to)
{
    struct core *core = to->core;
    struct pool *pool;

    core->persist.n_numbers = to->r->n_numbers;
    if (to->r->n_pools)
        core->persist.n_pools = (uint32_t)to->r->pools[to->r->n_pools - 1]->key.id;
    if (!to->r->n_floors)
        return;
    core->next_array = core->next_block = core->next_page = core->persist.ids =
        to->r->floors[0]->ids;
    core->floor = core->persist.floor = to->r->floors[0]->generation;
    RB_FOREACH(pool, pools, &core->pools)
        pool->floor = core->floor;
}

static void
take_conn(struct core *core, const struct restore_conn *c)
{
    if (!c->conn)
        persist_gone(core, RECORD_CONN, c->record->key);
    else if (c->kept != c->record->kept)
        persist_process(core, conn_find(&core->departed, c->conn));
}

/* What is not as it was. */
static void
take_journal(const struct restoring *to)
{
    const struct restore *r = to->r;
    struct core *core = to->core;

    core->persist.journal = r->journal;
    persist_numbers(core);
    persist_suspects(core);
    for (size_t i = 0; i < r->n_conns; i++)
        take_conn(core, &r->conns[i]);
    for (size_t i = 0; i < r->n_pages; i++)
        if (!page_find(core, r->pages[i].record->key.id))
            persist_gone(core, RECORD_PAGE, r->pages[i].record->key);
}

int
core_restore(struct core *core, struct restore *restore)
{
    const struct restoring to = {core, restore, NULL};
    int r;

    restore_numbers(&to);
    restore_suspects(&to);
    r = formers_begin(core, restore->arrays, restore->n_arrays);
    if (r == 0)
        r = units_new(&core->units, core, restore, find_pool);
    if (r == 0)
        r = restore_processes(&to);
    if (r < 0)
        return r;
    core->units->since_ns = core->now_ns;
    core->units->boot_ns = core->boot_ns;
    count_steps(core->units);
    take_journal(&to);
    return 0;
}

/* ---- the end ---- */

static void
end_restore(struct core *core)
{
    size_t n_arrays = core->units->records->n_arrays;
    struct conn *conn;
    struct user *user;

    units_free(TAKE_PTR(core->units));
    formers_wait(core, n_arrays);
    TAILQ_FOREACH(conn, &core->waiting, waiting) /* whose hello may have waited */
        conn->deadline_ns = core->now_ns + core->config.hello_timeout_ns;
    RB_FOREACH(conn, conns, &core->departed) {
        bool has_left = conn->is_held_back && (!conn->former || conn->exited);
        conn->is_held_back = false;
        if (has_left)
            conn_wake(conn);
    }
    RB_FOREACH(user, users, &core->users)
        user_touch(user);
}

void
restore_run(struct core *core)
{
    struct restoring to = {.core = core, .r = core->units->records};
    uint32_t budget = core->pieces;
    int n = 0;

    while (n >= 0 && budget > 0 && (to.unit = units_next(core->units))) {
        if (to.unit->phase < ARRAY_SIZE(phases)) {
            n = run_phase(&to, budget);
        } else {
            end_unit(&to);
            n = 1;
        }
        budget -= n > 0 ? (uint32_t)n : 0;
    }
    if (n < 0)
        core->units->error = n;
    else if (!to.unit)
        end_restore(core);
}

bool
core_is_whole(const struct core *core)
{
    return !core->units;
}

int
core_restore_error(const struct core *core)
{
    return core->units ? core->units->error : 0;
}
