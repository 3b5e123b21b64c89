/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list, show, unnamed, ranges: what there is, in portions.
 */
#include "array.h"
#include "device.h"
#include "request.h"
#include "set.h"
#include "ticket.h"

#define HOLDERS_MAX     2048 /* holders in one show */
#define UNNAMED_MAX     128  /* arrays in one portion */
#define UNNAMED_HOLDERS 16   /* holders of each */
#define RANGES_MAX      2048 /* ranges of a block that are listed one by one */

/* Whether its contents are not whole: the last writer has died, whether or not that was noticed. */
static bool
is_abandoned(const struct array *array)
{
    const struct section *section;

    if (!array->use || array->abandoned)
        return array->abandoned;
    FOREACH_SECTION(section, array->use)
        if (section->write && fence_state(section->write) == FENCE_LOST)
            return true;
    return false;
}

static struct msg_entry
entry_record(const struct core *core, const struct array *array)
{
    uint64_t n_readers = 0, n_writers = 0, n_waiting = 0;

    if (array->use)
        use_count(array->use, &n_readers, &n_writers, &n_waiting);
    return (struct msg_entry){
        .pool = MSG_STR(array->pool->name),
        .name = {array->name, array->n_name},
        .generation = array->generation,
        .device = MSG_STR(core->devices[array->device].info.uuid),
        .typestr = MSG_STR(array_typestr(array)),
        .shape = {.v = array_shape(array), .n = array->ndim},
        .nbytes = array->nbytes,
        .uid = array->charge.user->uid,
        .leases = (uint64_t)array->n_leases + array->n_departed,
        .memory = MSG_STR(array_memory(array)),
        .readers = n_readers,
        .writers = n_writers,
        .waiting = n_waiting,
        .abandoned = is_abandoned(array),
        .parts = part_count(core, array),
        .ttl_ns = expiry_left_ns(core, array),
        .members = array->is_set ? array->set->n : 0,
        .sets = array->n_sets,
        .age_ns = stamp_age_ns(core, array->made),
        .published_ns = array->named ? stamp_age_ns(core, array->published) : 0,
        .opened_ns = stamp_age_ns(core, array->opened),
    };
}

/* The record of a set's member, under that name. */
static struct msg_entry
member_record(const struct core *core, const struct array *set, const struct array *array,
              struct msg_str name)
{
    struct msg_entry record = entry_record(core, array);

    record.name = name;
    record.generation = set->generation;
    record.of_set = true;
    record.published_ns = stamp_age_ns(core, set->published);
    return record;
}

/* Says where the member lies: to who has the set, and so may open it. */
static void
say_where(struct msg_entry *record, const struct array *array)
{
    const struct block *block = array_block(array);
    const int64_t *strides = array_strides(array);

    if (block) {
        record->block = block->id;
        record->offset = array_offset(array);
    }
    if (strides)
        record->strides = (struct msg_i64s){.v = strides, .n = array->ndim};
}

/* ---- list ---- */

struct list_portion {
    struct portion portion;
    char (*names)[PROTO_NAME_MAX]; /* full names of members, one for each record and one more */
};

static bool
has_prefix(struct msg_str name, struct msg_str prefix)
{
    return name.n >= prefix.n && (prefix.n == 0 || memcmp(name.p, prefix.p, prefix.n) == 0);
}

static bool
is_before(struct msg_str a, struct msg_str b)
{
    uint32_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.p, b.p, n) : 0;

    return c ? c < 0 : a.n < b.n;
}

/* The part of a name that is a key of the set; none if the name does not begin with the set's. */
static struct msg_str
key_part(const struct array *set, struct msg_str name)
{
    return has_prefix(name, array_name(set)) ? set_key(set, name) : (struct msg_str){0};
}

/* Lists the set's keys after that one; `under`: with the set's name before them. false: the portion
 * is full. */
static bool
list_members(const struct core *core, struct list_portion *l, const struct array *set,
             struct msg_str after, struct msg_str prefix, bool under)
{
    uint32_t n_name = under ? set->n_name : 0;
    struct member *member = set_next(set, after, prefix);

    for (; member && has_prefix((struct msg_str){member->key, member->n_key}, prefix);
         member = RB_NEXT(members, &set->set->members, member)) {
        char *name = l->names[l->portion.n];
        memcpy(name, set->name, n_name);
        memcpy(name + n_name, member->key, member->n_key);
        struct msg_entry record = member_record(core, set, member->array,
                                                (struct msg_str){name, n_name + member->n_key});
        if (!under)
            say_where(&record, member->array);
        if (!portion_add(&l->portion, &record, msg_entry_size(&record)))
            return false;
    }
    return true;
}

/* The set whose members the list goes on with, or NULL. */
static const struct array *
list_start(struct pool *pool, struct msg_str after, struct msg_str prefix)
{
    bool from_prefix = is_before(after, prefix);
    const struct array *set = from_prefix ? NULL : pool_find_array(pool, after);

    if (!set || !set->is_set)
        set = set_over(pool, from_prefix ? prefix : after);
    return set && (has_prefix(array_name(set), prefix) || has_prefix(prefix, array_name(set)))
               ? set
               : NULL;
}

/* Names with a prefix lie together, so that a request looks at no more names than it lists, but for
 * a few that are being created (I6). */
static void
list_pool(const struct core *core, struct portion *portion, struct pool *pool,
          const void *params, bool resumed)
{
    const struct msg_list_params *p = params;
    struct list_portion *l = container_of(portion, struct list_portion, portion);
    struct msg_str after = resumed ? p->after : (struct msg_str){0};
    const struct array *set = list_start(pool, after, p->prefix);
    struct array *array = pool_find_next(pool, after, p->prefix);

    if (set &&
        !list_members(core, l, set, key_part(set, after), key_part(set, p->prefix), true))
        return;
    for (; array && has_prefix(array_name(array), p->prefix);
         array = RB_NEXT(names, &pool->names, array)) {
        struct msg_entry record = entry_record(core, array);
        if (!array->creating && !portion_add(portion, &record, msg_entry_size(&record)))
            return;
        if (array->is_set && !list_members(core, l, array, (struct msg_str){0},
                                           key_part(array, p->prefix), true))
            return;
    }
}

static int
list_set(struct core *core, struct conn *conn, struct list_portion *l,
         const struct msg_list_params *p, struct refusal *r)
{
    struct lease *lease;

    if (p->pool.p || p->all)
        return refuse(r, PROTO_ERR_INVALID, "a lease says which set: no pool, not all");
    if (lease_get_set(conn, p->of, &lease, r))
        return REFUSED;
    list_members(core, l, lease->array, p->after, p->prefix, false);
    return 0;
}

HANDLER(on_list)
{
    const struct msg_list_params *p = params;
    _cleanup_free_ struct msg_entry *entries = calloc(PORTION_MAX, sizeof(*entries));
    _cleanup_free_ char(*names)[PROTO_NAME_MAX] = malloc((PORTION_MAX + 1) * sizeof(*names));
    struct list_portion l = {.portion = PORTION(core, entries, PORTION_MAX), .names = names};

    if (!entries || !names)
        return -ENOMEM;
    if (p->of ? list_set(core, conn, &l, p, r)
              : pools_list(core, conn, &l.portion, p->all, p->pool, list_pool, p, r))
        return REFUSED;
    SEND_PORTION(core, conn, id, LIST, list_result, entries, l.portion);
    return 0;
}

/* ---- show ---- */

static struct msg_holder
holder_record(const struct core *core, const struct lease *lease)
{
    const struct ticket *ticket = lease->conn ? NULL : ticket_of_lease(lease);
    const struct conn *conn = ticket ? ticket->conn : lease->conn;
    const struct claim *claim;
    struct msg_holder record = {
        .pid = (uint64_t)(ticket ? ticket->pid : conn->pid),
        .uid = lease->charge.user->uid,
        .client = msg_str_opt(conn && *conn->client ? conn->client : NULL),
        .readonly = lease->readonly,
        .hung_up = !conn || conn->departed,
        .sent = ticket,
        .age_ns = stamp_age_ns(core, lease->made),
    };

    LIST_FOREACH(claim, &lease->claims, of_lease) {
        if (claim->bracket->waiting)
            record.waiting++;
        else
            *(claim->write ? &record.writing : &record.reading) += 1;
    }
    return record;
}

/* Fills in as many as there is room for. */
static uint32_t
fill_holders(const struct core *core, const struct array *array, struct room *room,
             struct msg_holder *holders, uint32_t max)
{
    const struct lease *lease;
    uint32_t n = 0;

    LIST_FOREACH(lease, &array->leases, of_array) {
        struct msg_holder record = holder_record(core, lease);
        if (n == max || !room_take(room, msg_holder_size(&record), 0))
            break;
        holders[n++] = record;
    }
    return n;
}

static struct msg_details
show_record(const struct array *array, const struct msg_entry *entry)
{
    const struct block *block = array_block(array);
    const int64_t *strides = array_strides(array);
    struct msg_details result = {
        .entries = entry,
        .n_entries = 1,
        .descr = msg_str_opt(array_descr(array)),
        .array = array->id,
        .metadata = array_metadata(array),
        .companion = array->companion ? array->companion->id : 0,
    };

    if (block) {
        result.block = block->id;
        result.block_size = block->size;
        result.offset = array_offset(array);
        result.exported = block->exported;
    }
    if (strides)
        result.strides = (struct msg_i64s){.v = strides, .n = array->ndim};
    return result;
}

/* The most that a show takes without its holders: a number has 9 bytes, a key up to 16. */
static size_t
show_bytes(const struct msg_details *result)
{
    return msg_entry_size(result->entries) + result->strides.n * 9 + result->descr.n +
           result->metadata.n + 9 * (16 + 9);
}

HANDLER(on_show)
{
    _cleanup_free_ struct msg_holder *holders = calloc(HOLDERS_MAX, sizeof(*holders));
    struct room room = room_init(core);
    struct msg_details result;
    const struct msg_name_params *p = params;
    struct msg_entry entry;
    struct named named;

    if (!holders)
        return -ENOMEM;
    if (name_find(core, conn, p, MAY_READ, &named, r))
        return REFUSED;
    room.share = room.bytes; /* the client cannot ask for more */
    entry = named.set ? member_record(core, named.set, named.array, p->name)
                      : entry_record(core, named.array);
    result = show_record(named.array, &entry);
    if (room_take(&room, show_bytes(&result), 0))
        result.n_holders = fill_holders(core, named.array, &room, holders, HOLDERS_MAX);
    result.holders = holders;
    send_result(core, conn, id, MSG_SHOW, &result, NULL, 0);
    return 0;
}

/* ---- unnamed ---- */

struct unnamed_portion {
    struct portion portion;

    struct unnamed_storage {
        struct msg_entry entry;
        struct msg_holder holders[UNNAMED_HOLDERS];
    } * storage; /* of each */
};

static struct msg_details
unnamed_record(const struct core *core, const struct array *array, struct unnamed_storage *s)
{
    const struct block *block = array_block(array);
    struct room room = room_init(core);

    s->entry = entry_record(core, array);
    return (struct msg_details){
        .entries = &s->entry,
        .n_entries = 1,
        .array = array->id,
        .block = block ? block->id : 0,
        .block_size = block ? block->size : 0,
        .offset = block ? array_offset(array) : 0,
        .exported = block && block->exported,
        .companion_of = array->is_companion ? array->companion->id : 0,
        .holders = s->holders,
        .n_holders = fill_holders(core, array, &room, s->holders, UNNAMED_HOLDERS),
    };
}

static void
unnamed_pool(const struct core *core, struct portion *portion, struct pool *pool,
             const void *params, bool resumed)
{
    static const struct msg_unnamed_params from_start = {0};
    const struct msg_unnamed_params *after = resumed ? params : &from_start;
    struct unnamed_portion *l = container_of(portion, struct unnamed_portion, portion);
    uint64_t id = after->array == UINT64_MAX ? after->array : after->array + 1;
    struct array *array = pool_find_nameless(pool, after->name, after->generation, id);

    for (; array; array = RB_NEXT(nameless, &pool->nameless, array)) {
        struct msg_details record = unnamed_record(core, array, &l->storage[portion->n]);
        if (!portion_add(portion, &record, msg_details_size(&record)))
            return;
    }
}

/* A portion of `unnamed` or of `ranges`. */
static int
send_unnamed(struct core *core, struct conn *conn, uint32_t id,
             const struct msg_unnamed_params *p,
             void (*add)(const struct core *core, struct portion *portion, struct pool *pool,
                         const void *params, bool resumed),
             struct refusal *r)
{
    _cleanup_free_ struct msg_details *arrays = calloc(UNNAMED_MAX, sizeof(*arrays));
    _cleanup_free_ struct unnamed_storage *storage = calloc(UNNAMED_MAX + 1, sizeof(*storage));
    struct unnamed_portion l = {.portion = PORTION(core, arrays, UNNAMED_MAX),
                                .storage = storage};

    if (!arrays || !storage)
        return -ENOMEM;
    if (pools_list(core, conn, &l.portion, p->all, p->pool, add, p, r))
        return REFUSED;
    SEND_PORTION(core, conn, id, UNNAMED, unnamed_result, arrays, l.portion);
    return 0;
}

HANDLER(on_unnamed)
{
    return send_unnamed(core, conn, id, params, unnamed_pool, r);
}

/* ---- ranges ---- */

static const char *
range_state(const struct range *range)
{
    const struct array *array = range->is_free ? NULL : range->userdata;

    if (!array)
        return range->is_free ? "free" : "aside";
    if (array->creating)
        return "creating";
    if (array->pending)
        return "pending";
    bool kept = array->named || array->n_leases || array->is_whole || array->is_companion ||
                array->n_sets;
    return !kept && (array->lingering || array->n_departed) ? "dead" : "array";
}

/* array NULL: there is none, or none that the client may see. */
static struct msg_details
range_record(const struct core *core, const struct block *block, const struct array *array,
             struct unnamed_storage *s)
{
    struct msg_details record = {.entries = &s->entry, .n_entries = 1};

    if (!array) {
        s->entry = (struct msg_entry){.pool = MSG_STR(block->pool->name),
                                      .name = MSG_STR(""),
                                      .device = MSG_STR(core->devices[block->device].info.uuid),
                                      .typestr = MSG_STR(""),
                                      .memory = MSG_STR(core_kind_name(block->kind))};
    } else if (array->pending) { /* its leases and generation have gone: array.h */
        s->entry = entry_record(core, array);
        s->entry.generation = 0;
        record.held = array->entry.owner->deferred > 0;
    } else {
        record = unnamed_record(core, array, s);
    }
    record.block = block->id;
    record.block_size = block->size;
    return record;
}

/* Lists what lies behind an offset in the block. A range may have grown since the last portion. */
static void
ranges_block(const struct core *core, struct portion *portion, const struct block *block,
             uint64_t offset)
{
    struct unnamed_portion *l = container_of(portion, struct unnamed_portion, portion);
    const struct range *range = block->state == BLOCK_RELEASING ? NULL : block->extent.first;

    for (uint32_t i = 1; range; range = i++ < RANGES_MAX ? range->next : NULL) {
        bool many = i == RANGES_MAX && range->next;
        const struct array *array = range->is_free || many ? NULL : range->userdata;
        array = array && array->creating ? NULL : array;
        uint64_t end = many ? block->size : range_offset(range) + range_bytes(range);
        if (end <= offset)
            continue;
        struct msg_details record = range_record(core, block, array, &l->storage[portion->n]);
        record.offset = range_offset(range) > offset ? range_offset(range) : offset;
        record.bytes = end - record.offset;
        record.state = MSG_STR(many ? "many" : range_state(range));
        if (!portion_add(portion, &record, msg_details_size(&record)))
            return;
    }
}

static void
ranges_pool(const struct core *core, struct portion *portion, struct pool *pool,
            const void *params, bool resumed)
{
    const struct msg_unnamed_params *p = params;
    struct block key = {.id = resumed ? p->block : 0};
    struct block *block = RB_NFIND(blocks, &pool->blocks, &key);

    for (; block && !portion->more; block = RB_NEXT(blocks, &pool->blocks, block))
        ranges_block(core, portion, block, resumed && block->id == p->block ? p->offset : 0);
}

HANDLER(on_ranges)
{
    return send_unnamed(core, conn, id, params, ranges_pool, r);
}
