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

/* ---- one record ---- */

/* NULL: there is no journal, or it is full. */
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

/* Returns the record's place in the journal whose marks are set: the new one, if there is one. */
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
put(uint8_t **p, const void *bytes, size_t n)
{
    if (n)
        memcpy(*p, bytes, n);
    *p += n;
}

/* A fixed part, then a name, if any. */
static void
record(struct core *core, enum record_type type, const void *fixed, size_t n, const char *name,
       size_t n_name, size_t n_all)
{
    char *payload = record_begin(core, type, n_all);

    if (!payload)
        return;
    memcpy(payload, fixed, n);
    if (n_name)
        memcpy(payload + n, name, n_name);
    record_end(core, 0);
}

#define RECORD_NAMED(core, type, r, text, n) \
    record(core, type, &(r), offsetof(__typeof__(r), name), text, n, sizeof(r) + (n))
#define RECORD(core, type, r) record(core, type, &(r), sizeof(r), NULL, 0, sizeof(r))

static void
record_gone(struct core *core, enum record_type type, uint64_t id, uint64_t of)
{
    struct record_gone r = {.key = {id, of}, .type = type};

    RECORD(core, RECORD_GONE, r);
}

void
persist_gone(struct core *core, enum record_type type, struct record_key key)
{
    record_gone(core, type, key.id, key.of);
}

/* ---- pools, blocks, processes ---- */

void
persist_pool(struct core *core, const struct pool *pool)
{
    struct record_pool r = {
        .key = {.id = pool->number},
        .uid = pool->uid,
        .gid = pool->gid,
        .is_own = pool->owner != NULL,
        .n_name = (uint8_t)strlen(pool->name),
    };

    RECORD_NAMED(core, RECORD_POOL, r, pool->name, r.n_name);
}

static uint32_t
pool_number(struct core *core, struct pool *pool)
{
    if (!pool->number) {
        pool->number = ++core->persist.n_pools;
        persist_pool(core, pool);
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
        .marks = block->exported ? BLOCK_EXPORTED : 0,
    };

    if (!block->kept)
        return;
    memcpy(r.device, core->devices[block->device].info.uuid, sizeof(r.device));
    r.pool = pool_number(core, block->pool);
    RECORD(core, RECORD_BLOCK, r);
}

void
persist_block_gone(struct core *core, const struct block *block)
{
    if (block->kept)
        record_gone(core, RECORD_BLOCK, block->id, 0);
}

void
persist_process(struct core *core, const struct conn *conn)
{
    struct record_conn r = {
        .key = {.id = conn->number},
        .kept = conn->kept,
        .uid = conn->user->uid,
        .gid = conn->gid,
        .pid = (uint32_t)conn->pid,
        .token = {conn->token[0], conn->token[1]},
        .old_token = {conn->old_token[0], conn->old_token[1]},
        .resumes = conn->resumes && (!conn->departed || former_may_resume(conn)),
    };

    if (conn->number)
        RECORD(core, RECORD_CONN, r);
}

/* Its pidfd is given to the keeper before the client hears of anything, and recorded anew then. By
 * now its pid does: what is recorded of it counts with who it is. */
void
persist_conn_needed(struct core *core, struct conn *conn)
{
    if (conn->number || !core->persist.journal)
        return;
    conn->number = ++core->persist.n_numbers;
    persist_process(core, conn);
    conn->keep.action = (struct core_action){.type = CORE_KEEP, .conn = conn->id, .fd = -1};
    entry_push(core, &conn->keep);
}

void
persist_hold(struct core *core, const struct hold *hold)
{
    persist_conn_needed(core, hold->conn);

    struct record_hold r = {.key = {.id = hold->id, .of = hold->conn->number}};
    RECORD(core, RECORD_HOLD, r);
}

void
persist_hold_gone(struct core *core, const struct hold *hold)
{
    record_gone(core, RECORD_HOLD, hold->id, hold->conn->number);
}

void
persist_page(struct core *core, const struct page *page)
{
    const struct timeline *timeline = page->timeline;

    if (!page->kept)
        return;
    persist_conn_needed(core, page->conn);

    struct record_page r = {
        .key = {.id = page->id},
        .conn = page->conn->number,
        .kept = page->kept,
        .pool = timeline ? pool_number(core, timeline->pool) : 0,
        .n_name = timeline ? timeline->n_name : 0,
    };
    RECORD_NAMED(core, RECORD_PAGE, r, timeline ? timeline->name : NULL, r.n_name);
}

/* Whoever was not answered asks again after a restart. */
void
persist_channel(struct core *core, const struct channel *channel)
{
    struct record_channel r = {
        .key = {.id = channel->array->id},
        .sequence = channel->sequence,
        .former = channel->former,
        .producer = channel->producer ? channel->producer->id : 0,
        .producer_page = channel->producer ? channel->producer->page->id : 0,
        .has_mode = channel->has_mode,
        .latest = channel->latest,
        .n_slots = channel->n_slots,
    };
    const struct participant *p;
    uint8_t *at;

    for (uint32_t i = 0; i < channel->n_slots; i++)
        r.n_kept = (uint8_t)(r.n_kept + (channel->kept[i].sequence != 0));
    TAILQ_FOREACH(p, &channel->participants, of_channel)
        r.n_participants = (uint8_t)(r.n_participants + p->joined);
    at = record_begin(core, RECORD_CHANNEL, channel_record_size(&r));
    if (!at)
        return;
    put(&at, &r, sizeof(r));
    for (uint32_t i = 0; i < channel->n_slots; i++)
        if (channel->kept[i].sequence)
            put(&at, &channel->kept[i], sizeof(channel->kept[i]));
    TAILQ_FOREACH(p, &channel->participants, of_channel) {
        const struct record_participant of_this = {
            .id = p->id,
            .page = p->page->id,
            .sequence = p->sequence,
            .depth = p->depth,
            .latest = p->latest,
            .admitted = p->admitted,
        };
        if (p->joined)
            put(&at, &of_this, sizeof(of_this));
    }
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
    persist_conn_needed(core, conn);

    struct record_done r = {.key = {.id = conn->number, .of = place},
                            .done = conn->done[place]};
    RECORD(core, RECORD_DONE, r);
}

void
persist_conn_anew(struct core *core, struct conn *conn)
{
    if (!conn->number)
        return;
    persist_process(core, conn);
    for (uint32_t i = 0; i < DONE_MAX; i++)
        if (conn->done[i].method)
            persist_done(core, conn, i);
}

void
persist_conn_gone(struct core *core, const struct conn *conn)
{
    if (conn->number)
        record_gone(core, RECORD_CONN, conn->number, 0);
}

/* Of a sender that does not come back it is as of one that has gone. */
void
persist_ticket(struct core *core, const struct ticket *ticket)
{
    struct conn *conn = ticket->conn && ticket->conn->resumes ? ticket->conn : NULL;

    if (conn)
        persist_conn_needed(core, conn);

    struct record_ticket r = {
        .key = {ticket->secret[0], ticket->secret[1]},
        .conn = conn ? conn->number : 0,
        .array = ticket->lease.array->id,
        .readonly = ticket->lease.readonly,
        .made_ns = ticket->made_ns,
        .ends_ns = ticket->ends_ns,
        .uid = ticket->lease.charge.user->uid,
        .pid = (uint32_t)ticket->pid,
        .kind = ticket->kind,
    };
    RECORD(core, RECORD_TICKET, r);
}

void
persist_ticket_gone(struct core *core, const struct ticket *ticket)
{
    record_gone(core, RECORD_TICKET, ticket->secret[0], ticket->secret[1]);
}

void
persist_suspect(struct core *core, uint32_t place)
{
    struct record_suspect r = {.key = {.id = place}, .suspect = core->suspects.v[place]};

    RECORD(core, RECORD_SUSPECT, r);
}

void
persist_suspects(struct core *core)
{
    for (uint32_t i = 0; i < SUSPECTS_MAX; i++)
        if (core->suspects.v[i].deaths)
            persist_suspect(core, i);
}

/* The keeper may have either journal. */
void
persist_take(struct core *core, uint64_t token, uint64_t request)
{
    const struct persist *p = &core->persist;

    if (p->journal)
        journal_take(p->journal, token, request);
    if (p->next)
        journal_take(p->next, token, request);
}

void
persist_put(struct core *core)
{
    const struct persist *p = &core->persist;

    if (p->journal)
        journal_put(p->journal);
    if (p->next)
        journal_put(p->next);
}

void
persist_numbers(struct core *core)
{
    struct record_floor r = {.generation = core->persist.floor, .ids = core->persist.ids};

    RECORD(core, RECORD_FLOOR, r);
}

void
persist_floor(struct core *core, uint64_t generation)
{
    if (generation <= core->persist.floor)
        return;
    core->persist.floor = generation;
    persist_numbers(core);
}

/* One record reserves many numbers. */
void
persist_id(struct core *core, uint64_t id)
{
    if (id < core->persist.ids)
        return;
    core->persist.ids = id + IDS_AHEAD;
    persist_numbers(core);
}

void
persist_lost(struct core *core, const struct lost *lost)
{
    struct record_lost r = {
        .key = {.id = lost->id},
        .generation = lost->generation,
        .pool = pool_number(core, lost->pool),
        .uid = lost->charge.user->uid,
        .why = lost->why,
        .is_set = (lost->is_set ? LOST_SET : 0) | (lost->why == LOST_DROPPED ? LOST_MORE : 0),
        .n_name = lost->n_name,
    };
    struct record_dropped more = {
        .priority = lost->more.priority,
        .reload_ns = lost->more.reload_ns,
        .bytes = lost->more.bytes,
        .n_metadata = (uint16_t)lost->metadata.n,
        .has_metadata = lost->metadata.p != NULL,
    };
    size_t n_fixed = offsetof(struct record_lost, name),
           n_more = r.is_set & LOST_MORE
                        ? offsetof(struct record_dropped, metadata) + lost->metadata.n
                        : 0;
    uint8_t *p = record_begin(core, RECORD_LOST, sizeof(r) + r.n_name + n_more);

    if (!p)
        return;
    put(&p, &r, n_fixed);
    put(&p, lost->name, r.n_name);
    if (n_more) {
        put(&p, &more, offsetof(struct record_dropped, metadata));
        put(&p, lost->metadata.p, lost->metadata.n);
    }
    record_end(core, 0);
}

void
persist_lost_gone(struct core *core, const struct lost *lost)
{
    record_gone(core, RECORD_LOST, lost->id, 0);
}

/* ---- arrays ---- */

/* Where a part lies is its publisher's again when the part is gone: so its array lasts as long as
 * anybody may use it. */
static bool
lasts(const struct array *array)
{
    return !array->creating &&
           (array->named || array->n_leases || array->is_companion || array->is_whole ||
            array->is_set || array->n_sets ||
            (array->is_part && (array->n_departed || array->lingering)) ||
            (array->use && (array->use->kept || array->use->writer || array->use->writers)));
}

static const struct conn *
writer_of(const struct section *section)
{
    return LIST_FIRST(&section->open)->bracket->conn;
}

static uint64_t
mark_of_fence(const struct fence *fence)
{
    return MARK_PENDING | (uint64_t)fence->slot << MARK_SLOT_SHIFT |
           fence->page->id << MARK_ID_SHIFT;
}

/* Who writes the array, and whose writes have not passed, where that is said of ranges, too; else
 * 0. One fence alone is said as of the whole. */
static uint64_t
mark_of_ranges(struct use *use)
{
    const struct fence *fence = NULL;
    const struct section *section;
    uint64_t writers = 0;
    size_t n = 0, n_ranges = 0;

    FOREACH_SECTION(section, use) {
        size_t of_this = 2 * section->n_writers + (section->write != NULL);
        if (section->n_writers)
            writers |= former_bit(writer_of(section)->number);
        if (section->write)
            writers |= former_bit(section->write->page->conn->number);
        n += of_this;
        n_ranges += section == &use->whole ? 0 : of_this;
        fence = section->write ? section->write : fence;
    }
    if (n_ranges == 0)
        return 0;
    return n == 1 ? mark_of_fence(fence)
                  : MARK_WRITING | MARK_SEVERAL | writers << MARK_ID_SHIFT;
}

/* There is no room for the fence of an earlier write beside who writes now. Where it has not
 * passed, and this one ends undone after a restart, nobody could say any more that it has: the
 * array is abandoned, and the restart after that one does not know of the earlier write. Nor is
 * there room for who of several has come back since a restart: the next one takes the array for
 * abandoned. */
uint64_t
persist_get_mark(const struct array *array)
{
    struct use *use = array->use;
    uint64_t mark = array->abandoned ? MARK_ABANDONED : 0, ranges;

    if (use && use->writers)
        return MARK_ABANDONED | MARK_WRITING | MARK_SEVERAL | use->writers << MARK_ID_SHIFT;
    ranges = use && !LIST_EMPTY(&use->sections) ? mark_of_ranges(use) : 0;
    if (ranges)
        return mark | ranges;
    if (use && use->whole.n_writers)
        return mark | MARK_WRITING | (use->whole.write ? MARK_ABANDONED : 0) |
               writer_of(&use->whole)->number << MARK_ID_SHIFT;
    if (use && use->writer)
        return mark | MARK_WRITING | use->writer << MARK_ID_SHIFT;
    if (use && use->whole.write)
        mark |= mark_of_fence(use->whole.write);
    return mark;
}

static size_t
array_record_size(const struct array *array, bool expires)
{
    size_t n_extents = (size_t)array->ndim * (array->has_strides ? 2 : 1) + expires;

    return sizeof(struct record_array) + n_extents * sizeof(int64_t) + array->n_typestr +
           array->n_descr + array->n_name + array_metadata(array).n +
           (array->droppable ? 2 * sizeof(uint64_t) : 0);
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
                           (expires ? ARRAY_EXPIRES : 0) | (array->metadata ? ARRAY_TEXT : 0) |
                           (array->droppable ? ARRAY_DROPPABLE : 0)),
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
    if (array->droppable) {
        put(&p, &array->set->priority, sizeof(uint64_t));
        put(&p, &array->set->reload_ns, sizeof(uint64_t));
    }
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
    array->record = (uint32_t)(record_end(core, persist_get_mark(array)) / 8);
    array->record_turn = persist_turn(core);
    array->record_named = array->named;
}

void
persist_member_anew(struct core *core, const struct array *set, const struct member *member)
{
    struct record_member r = {
        .key = {.id = set->id, .of = ++set->set->n_records},
        .array = member->array->id,
        .n_name = member->n_key,
    };

    RECORD_NAMED(core, RECORD_MEMBER, r, member->key, r.n_name);
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

    if (!member->array->record)
        persist_array(member->array);
    if (!set->record)
        persist_array(set);
    persist_member_anew(core, set, member);
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
persist_array_anew(struct array *array)
{
    struct core *core = array->charge.user->core;
    bool turn = core->persist.turn;

    if (!lasts(array))
        array->record = 0;
    else if (!array->record || array->record_turn == turn) {
        record_array(core, array);
        array->record_turn = !turn;
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
        journal_mark(p->journal, (uint64_t)array->record * 8, persist_get_mark(array));
}
