/* SPDX-License-Identifier: Apache-2.0 */
#include "restore.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "array_index.h"
#include "device.h"
#include "former.h"
#include "journal.h"
#include "lost.h"
#include "publish.h"
#include "set.h"
#include "settle.h"
#include "state.h"
#include "utf8.h"

/* ---- reading ---- */

struct found { /* a record of one type, in the order of what it is of, then of time */
    struct record_key key;
    uint64_t place; /* a multiple of 8; | IS_GONE: of the record that says so */
};

#define IS_GONE 1

struct founds {
    struct found *v;
    size_t n;
};

static int
found_compare(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    int c = CMP(x->key.id, y->key.id);

    if (!c)
        c = CMP(x->key.of, y->key.of);
    return c ? c : CMP(x->place, y->place);
}

static const struct kind {
    size_t min;  /* bytes of a record */
    size_t item; /* of its list; 0: it has none */
    size_t name; /* where that begins, behind a byte that says how long it is; 0: it has none */
} kinds[N_RECORDS] = {
    [RECORD_POOL] = {sizeof(struct record_pool), sizeof(void *),
                     offsetof(struct record_pool, name)},
    [RECORD_BLOCK] = {sizeof(struct record_block), sizeof(struct restore_block)},
    [RECORD_ARRAY] = {sizeof(struct record_array), sizeof(struct restore_array)},
    [RECORD_MEMBER] = {sizeof(struct record_member), sizeof(void *),
                       offsetof(struct record_member, name)},
    [RECORD_CONN] = {sizeof(struct record_conn), sizeof(struct restore_conn)},
    [RECORD_HOLD] = {sizeof(struct record_hold), sizeof(void *)},
    [RECORD_PAGE] = {sizeof(struct record_page), sizeof(struct restore_page),
                     offsetof(struct record_page, name)},
    [RECORD_FLOOR] = {sizeof(struct record_floor), sizeof(void *)},
    [RECORD_DONE] = {sizeof(struct record_done), sizeof(void *)},
    [RECORD_GONE] = {sizeof(struct record_gone), 0},
    [RECORD_LOST] = {sizeof(struct record_lost), sizeof(void *),
                     offsetof(struct record_lost, name)},
    [RECORD_TICKET] = {offsetof(struct record_ticket, made_ns), sizeof(void *)},
    [RECORD_SUSPECT] = {sizeof(struct record_suspect), sizeof(void *)},
};

/* What says more than it has is damaged, whatever its checksum. */
static bool
is_whole(const struct journal_record *record)
{
    const struct kind *kind = &kinds[record->type];
    const uint8_t *p = record->payload;

    return record->n >= kind->min &&
           (!kind->name || record->n >= kind->name + p[kind->name - 1]);
}

/* -ENOMEM. */
static int
founds_add(struct founds *to, const struct record_key *key, uint64_t place)
{
    bool is_full = to->n == 0 || (to->n >= 64 && (to->n & (to->n - 1)) == 0);
    size_t room = to->n ? 2 * to->n : 64;
    struct found *v = is_full ? reallocarray(to->v, room, sizeof(*v)) : to->v;

    if (!v)
        return -ENOMEM;
    to->v = v;
    to->v[to->n++] = (struct found){.key = *key, .place = place};
    return 0;
}

/* One of a type that is not known, or too short, is left out. -ENOMEM. */
static int
read_record(struct founds all[static N_RECORDS], const struct journal_record *record)
{
    const struct record_gone *gone = record->payload;
    bool is_gone = record->type == RECORD_GONE;

    if (record->type >= N_RECORDS || !kinds[record->type].min || !is_whole(record))
        return 0;
    if (is_gone && (gone->type >= N_RECORDS || !kinds[gone->type].item))
        return 0;
    return founds_add(&all[is_gone ? gone->type : record->type], &gone->key,
                      record->place | (is_gone ? IS_GONE : 0));
}

/* Most are in order as they are. */
static void
founds_sort(struct founds *founds)
{
    size_t i = 1;

    while (i < founds->n && found_compare(&founds->v[i - 1], &founds->v[i]) < 0)
        i++;
    if (i < founds->n)
        qsort(founds->v, founds->n, sizeof(*founds->v), found_compare);
}

/* The last one of its object, which is there. */
static bool
is_last(const struct founds *founds, size_t i)
{
    const struct found *f = &founds->v[i];
    bool is_same = i + 1 < founds->n && f[1].key.id == f->key.id && f[1].key.of == f->key.of;

    return !is_same && !(f->place & IS_GONE);
}

/* -ENOMEM. */
static int
take_kind(struct restore_list *list, enum record_type type, const struct founds *founds,
          const struct journal *journal)
{
    size_t item = kinds[type].item;
    char *p = list->items = calloc(founds->n + 1, item ? item : 1);
    struct journal_record record;

    if (!p)
        return -ENOMEM;
    for (size_t i = 0; i < founds->n; i++) {
        if (!is_last(founds, i))
            continue;
        record = journal_get(journal, founds->v[i].place);
        memcpy(p, &record.payload, sizeof(record.payload)); /* what each begins with */
        if (type == RECORD_ARRAY) {
            struct restore_array *a = (struct restore_array *)(void *)p;
            a->n = record.n;
            a->place = (uint32_t)(record.place / 8);
            a->mark = record.mark;
        }
        p += item;
        list->n++;
    }
    return 0;
}

/* The highest number of a connection that these know; 0: none. */
static uint64_t
last_number(enum record_type type, const struct founds *founds)
{
    uint64_t last = 0;

    if ((type == RECORD_CONN || type == RECORD_DONE) && founds->n)
        last = founds->v[founds->n - 1].key.id;
    for (size_t i = 0; type == RECORD_HOLD && i < founds->n; i++)
        if (founds->v[i].key.of > last)
            last = founds->v[i].key.of;
    return last;
}

int
restore_read(struct restore *ret, struct journal *journal)
{
    struct founds all[N_RECORDS] = {0};
    struct journal_record record;
    uint64_t place = JOURNAL_START, last;
    int r = 0;

    *ret = (struct restore){.in_hand = {journal->in_hand[0], journal->in_hand[1]}};
    while (r == 0 && journal_next(journal, &place, &record))
        r = read_record(all, &record);
    for (enum record_type type = 0; type < N_RECORDS; type++) {
        founds_sort(&all[type]);
        if (r == 0)
            r = take_kind(&ret->lists[type], type, &all[type], journal);
        last = last_number(type, &all[type]);
        if (last > ret->n_numbers)
            ret->n_numbers = last;
        free(all[type].v);
    }
    if (r < 0)
        restore_deinit(ret);
    return r;
}

void
restore_deinit(struct restore *r)
{
    for (size_t i = 0; i < N_RECORDS; i++)
        free(r->lists[i].items);
    *r = (struct restore){0};
}

static int
id_compare(const void *id, const void *item)
{
    const struct record_key *key;

    memcpy(&key, item, sizeof(key));
    return CMP(*(const uint64_t *)id, key->id);
}

/* An item of the type's list. */
static void *
find(const struct restore *r, enum record_type type, uint64_t id)
{
    const struct restore_list *list = &r->lists[type];

    return list->n ? bsearch(&id, list->items, list->n, kinds[type].item, id_compare) : NULL;
}

struct restore_conn *
restore_find_conn(const struct restore *r, uint64_t number)
{
    return find(r, RECORD_CONN, number);
}

/* ---- pools and blocks ---- */

struct restoring {
    struct core *core;
    struct restore *r;
    restore_lost_fn *lost;
    void *userdata;
};

/* NULL: it is not configured any more, or the record is damaged. */
static struct pool *
find_pool(const struct restoring *to, uint32_t number)
{
    const struct record_pool **found = find(to->r, RECORD_POOL, number);
    struct pool *pool;
    struct user *user;

    if (!found)
        return NULL;
    if ((*found)->is_own)
        return core_get_user(to->core, (*found)->uid, (*found)->gid, &user) < 0 ||
                       user->pool->is_none
                   ? NULL
                   : user->pool;
    struct msg_str name = {(*found)->name, (*found)->n_name};
    pool = pool_find_from(to->core, name);
    return pool && !pool->owner && msg_str_eq(name, pool->name) ? pool : NULL;
}

static struct pool *
get_pool(const struct restoring *to, uint32_t number)
{
    struct pool *pool = find_pool(to, number);

    if (pool)
        pool->number = number;
    return pool;
}

static int
restore_block(const struct restoring *to, struct restore_block *b)
{
    const struct record_block *record = b->record;
    struct pool *pool = b->lost ? NULL : get_pool(to, record->pool);
    struct user *user;
    uint32_t device;
    struct refusal r;

    if (!pool || record->device[sizeof(record->device) - 1] ||
        device_find(to->core, MSG_STR(record->device), &device, &r) ||
        record->kind >= N_KINDS || record->kind == KIND_LEGACY)
        return 0;
    if (core_get_user(to->core, record->uid, (gid_t)-1, &user) < 0)
        return -ENOMEM;
    return block_restore(to->core, pool, user, device, b, &b->block);
}

static int
restore_blocks(const struct restoring *to)
{
    int r = 0;

    for (size_t i = 0; i < to->r->n_pools; i++)
        get_pool(to, (uint32_t)to->r->pools[i]->key.id);
    for (size_t i = 0; r == 0 && i < to->r->n_blocks; i++)
        r = restore_block(to, &to->r->blocks[i]);
    return r;
}

/* ---- arrays ---- */

/* What lies behind a record's fixed part. */
struct texts {
    const int64_t *extents;
    uint64_t expires;
    struct msg_str typestr, descr, name, metadata;
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
                record->n_descr + record->n_name + record->n_metadata !=
            a->n)
        return false;
    if (expires)
        memcpy(&ret->expires, p - sizeof(int64_t), sizeof(int64_t));
    ret->typestr = cut(&p, record->n_typestr);
    ret->descr = cut(&p, record->n_descr);
    ret->name = cut(&p, record->n_name);
    ret->metadata = cut(&p, record->n_metadata);
    if (!(record->flags & ARRAY_TEXT))
        ret->metadata.p = NULL;
    return true;
}

static bool
request_init(const struct restoring *to, struct array_request *req,
             const struct record_array *record, const struct texts *texts)
{
    char why[GEOMETRY_WHY_MAX];
    struct msg_i64s shape = {.v = texts->extents, .n = record->ndim};
    struct msg_i64s strides = {0};
    const struct restore_block *block = find(to->r, RECORD_BLOCK, record->block);

    if (block && !block->block)
        block = NULL;
    if (record->flags & ARRAY_STRIDES)
        strides = (struct msg_i64s){.v = texts->extents + record->ndim, .n = record->ndim};
    *req = (struct array_request){
        .pool = get_pool(to, record->pool),
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
        req->device = block->block->device;
    else if (req->device >= to->core->config.n_devices)
        req->device = 0;
    return req->pool && req->kind < N_KINDS &&
           geometry_init(&req->geometry, texts->typestr, shape, strides, why) == 0;
}

/* Its place in its block; those of a block come in the order of their offsets. */
static int
place(const struct restoring *to, struct restore_array *a, struct range **at)
{
    const struct record_array *record = a->record;
    struct array *array = a->array;
    int r = range_take_at(*at, record->offset, array_bytes(to->core, array), &array->range);

    if (r)
        return r;
    array->range->userdata = array;
    *at = array->range->next ? array->range->next : array->range;
    return 0;
}

/* Where its pool is not there, nobody can ask for it. -ENOMEM. */
static int
add_lost(const struct restoring *to, uint32_t in, uint32_t uid, struct msg_str name,
         const struct lost *like)
{
    struct pool *pool = get_pool(to, in);
    struct user *user;

    if (!pool)
        return 0;
    if (core_get_user(to->core, uid, (gid_t)-1, &user) < 0)
        return -ENOMEM;
    return lost_new(pool, user, name, like);
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

    add_lost(to, record->pool, record->uid, name, &like);
}

static void
lose(const struct restoring *to, const struct restore_array *a, const struct texts *texts,
     enum lost_why why)
{
    const struct record_pool **pool = find(to->r, RECORD_POOL, a->record->pool);
    bool is_there = get_pool(to, a->record->pool);
    char name[PROTO_NAME_MAX + 1], in[PROTO_POOL_MAX + 1] = "";

    if (!(a->record->flags & ARRAY_NAMED))
        return;
    snprintf(name, sizeof(name), "%.*s", STR_FMT(texts->name));
    if (pool)
        snprintf(in, sizeof(in), "%.*s", (int)(*pool)->n_name, (*pool)->name);
    to->lost(to->userdata, in, name,
             is_there ? lost_reason(why) : "its pool is not configured any more");
    keep_lost(to, a->record, texts->name, why);
}

/* What earlier daemons have lost. */
static int
restore_losts(const struct restoring *to)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < to->r->n_losts; i++) {
        const struct record_lost *record = to->r->losts[i];
        const struct lost like = {.id = record->key.id,
                                  .generation = record->generation,
                                  .why = record->why,
                                  .is_set = record->is_set};
        if (record->why > 0 && record->why < N_LOST)
            r = add_lost(to, record->pool, record->uid,
                         (struct msg_str){record->name, record->n_name}, &like);
    }
    return r;
}

static int
make_array(const struct restoring *to, struct restore_array *a, struct array_request *req)
{
    const struct record_array *record = a->record;
    struct restore_array *whole = record->whole ? find(to->r, RECORD_ARRAY, record->whole)
                                                : NULL;
    struct user *user;
    int r = core_get_user(to->core, record->uid, (gid_t)-1, &user);

    if (r == 0 && record->whole)
        r = part_restore(to->core, user, whole->array, record->offset, req, &a->array);
    else if (r == 0)
        r = array_restore(to->core, user, req, &a->array);
    return r;
}

/* -ENOMEM; else it is there, or left out. `at`: the free range of its block, where it has one. */
static int
restore_array(const struct restoring *to, struct restore_array *a, struct range **at)
{
    const struct record_array *record = a->record;
    bool has_place = *at || record->whole || !record->block;
    struct array_request req;
    struct texts texts;

    if (!texts_init(&texts, a)) {
        to->lost(to->userdata, "", "(unknown)", "its record is damaged");
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
    if (r == 0 && *at)
        r = place(to, a, at);
    if (r == SPACE_FULL || r == -EFBIG) {
        lose(to, a, &texts, LOST_RECORD);
        array_abandon(to->core, TAKE_PTR(a->array));
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
    if (record->flags & ARRAY_NAMED && !pool_find_array(array->pool, texts.name))
        array_restore_name(to->core, array);
    array_list(array);
    if (texts.expires)
        return expiry_restore(to->core, array, texts.expires);
    return 0;
}

static int
place_compare(const void *a, const void *b)
{
    const struct record_array *x = (*(struct restore_array *const *)a)->record;
    const struct record_array *y = (*(struct restore_array *const *)b)->record;
    int c = CMP(x->block, y->block);

    return c ? c : CMP(x->offset, y->offset);
}

static struct range *
start_of(const struct restore *r, uint64_t block)
{
    const struct restore_block *b = find(r, RECORD_BLOCK, block);

    return b && b->block ? b->block->extent.first : NULL;
}

static int
restore_placed(const struct restoring *to)
{
    _cleanup_free_ struct restore_array **sorted =
        calloc(to->r->n_arrays + 1, sizeof(struct restore_array *));
    struct range *at = NULL;
    uint64_t block = 0;
    size_t n = 0;
    int r = 0;

    if (!sorted)
        return -ENOMEM;

    for (size_t i = 0; i < to->r->n_arrays; i++)
        if (!to->r->arrays[i].record->whole)
            sorted[n++] = &to->r->arrays[i];
    qsort(sorted, n, sizeof(*sorted), place_compare);
    for (size_t i = 0; r == 0 && i < n; i++) {
        if (sorted[i]->record->block != block)
            at = start_of(to->r, block = sorted[i]->record->block);
        r = restore_array(to, sorted[i], &at);
    }
    return r;
}

static int
restore_parts(const struct restoring *to)
{
    struct range *none = NULL;
    struct texts texts;
    int r = 0;

    for (size_t i = 0; r == 0 && i < to->r->n_arrays; i++) {
        struct restore_array *a = &to->r->arrays[i];
        const struct restore_array *whole =
            a->record->whole ? find(to->r, RECORD_ARRAY, a->record->whole) : NULL;
        if (whole && whole->array && !whole->array->is_part)
            r = restore_array(to, a, &none);
        else if (a->record->whole && texts_init(&texts, a))
            lose(to, a, &texts, LOST_MEMORY);
    }
    return r;
}

/* It is not what it was: it goes as a whole. */
static void
lose_whole(const struct restoring *to, struct restore_array *a, enum lost_why why)
{
    struct array *array = TAKE_PTR(a->array);

    if (!array->named) {
        a->array = array; /* settle_arrays() */
        return;
    }
    to->lost(to->userdata, array->pool->name, array->name, lost_reason(why));
    keep_lost(to, a->record, array_name(array), why);
    array_unlink(to->core, array);
}

static void
restore_companions(const struct restoring *to)
{
    for (size_t i = 0; i < to->r->n_arrays; i++) {
        struct restore_array *a = &to->r->arrays[i];
        struct restore_array *c = a->array && a->record->companion
                                      ? find(to->r, RECORD_ARRAY, a->record->companion)
                                      : NULL;
        if (!a->array || !a->record->companion)
            continue;
        if (!c || !c->array || c->array->named || c->array->companion || c == a) {
            lose_whole(to, a, LOST_COMPANION);
            continue;
        }
        a->array->companion = c->array;
        c->array->companion = a->array;
        c->array->is_companion = true;
    }
}

static int
restore_members(const struct restoring *to)
{
    int rc = 0;

    for (size_t i = 0; rc != -ENOMEM && i < to->r->n_members; i++) {
        const struct record_member *m = to->r->members[i];
        struct restore_array *set = find(to->r, RECORD_ARRAY, m->key.id);
        struct restore_array *member = find(to->r, RECORD_ARRAY, m->array);
        struct msg_str key = {m->name, m->n_name};
        if (!set || !set->array || set->array->span || set_get(set->array, key))
            continue; /* it has ended; or it was recorded twice, when the journal was renewed */
        if (member && member->array && !member->array->is_set)
            rc = set_restore(set->array, key, member->array, (uint32_t)m->key.of);
        else
            lose_whole(to, set, LOST_MEMBER);
    }
    return rc == -ENOMEM ? rc : 0;
}

/* What nobody keeps, since who kept it is lost, or is not waited for. Others of the list may go
 * with each. */
static void
settle_arrays(const struct restoring *to)
{
    struct core *core = to->core;

    for (size_t i = 0; i < to->r->n_arrays; i++) {
        struct array *array =
            array_index_find(core->former_arrays, to->r->arrays[i].record->key.id);
        if (array)
            array_settle(core, array);
    }
    if (!core->n_formers)
        free(TAKE_PTR(core->former_arrays));
}

/* ---- processes ---- */

/* NULL: its process has exited. */
static struct conn *
get_conn(const struct restoring *to, uint64_t number)
{
    const struct restore_conn *c = restore_find_conn(to->r, number);

    return c && c->conn ? conn_find(&to->core->departed, c->conn) : NULL;
}

static int
restore_hold(const struct restoring *to, const struct record_hold *record)
{
    const struct restore_block *b = find(to->r, RECORD_BLOCK, record->key.id);
    struct conn *conn = get_conn(to, record->key.of);
    struct hold *hold;
    bool is_new;

    if (!conn || !b || !b->block)
        return 0;
    if (hold_get(conn, &conn->holds, b->block->id, &b->block->holds, &hold, &is_new, NULL))
        return -ENOMEM;
    hold->block = b->block;
    hold->before = true;
    hold->awaited = conn->former;
    b->block->n_awaited += hold->awaited;
    if (b->block->n_before++ > 0)
        return 0;
    return block_set_aside(b->block);
}

static void
restore_done(const struct restoring *to, const struct record_done *record)
{
    struct conn *conn = get_conn(to, record->key.id);

    if (conn && record->key.of < DONE_MAX)
        conn->done[record->key.of] = record->done;
}

static int
restore_processes(const struct restoring *to)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < to->r->n_conns; i++)
        if (to->r->conns[i].conn)
            r = core_restore_conn(to->core, to->r->conns[i].conn, to->r->conns[i].kept,
                                  to->r->conns[i].record);
    for (size_t i = 0; r == 0 && i < to->r->n_holds; i++)
        r = restore_hold(to, to->r->holds[i]);
    for (size_t i = 0; i < to->r->n_dones; i++)
        restore_done(to, to->r->dones[i]);
    return r;
}

/* -ENOMEM; else it has its name, or there is no such pool. */
static int
restore_timeline(const struct restoring *to, struct conn *conn,
                 const struct record_page *record)
{
    struct pool *pool = get_pool(to, record->pool);
    struct msg_str name = {record->name, record->n_name};

    if (!pool || timeline_find(to->core, pool, name))
        return 0;
    return timeline_new(to->core, conn, pool, name, page_find(to->core, record->key.id), NULL);
}

static int
restore_pages(const struct restoring *to)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < to->r->n_pages; i++) {
        const struct restore_page *page = &to->r->pages[i];
        struct conn *conn = get_conn(to, page->record->conn);
        if (!conn || !page->made.slots || page->is_dead)
            continue;
        r = page_restore(to->core, conn, page->record->key.id, &page->made);
        if (r == 0 && page->record->n_name && conn->former)
            r = restore_timeline(to, conn, page->record);
    }
    return r;
}

/* ---- what was done with the arrays ---- */

/* What was written is there when that value is, which a stream is yet to store, or has stored. */
static int
restore_write(const struct restoring *to, struct array *array, uint64_t mark)
{
    const struct restore_page *page = find(to->r, RECORD_PAGE, mark >> MARK_ID_SHIFT);
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

    if (conn && conn->former)
        return former_doubt(array, conn->number);
    array->abandoned = true;
    return 0;
}

static int
restore_uses(const struct restoring *to)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < to->r->n_arrays; i++) {
        const struct restore_array *a = &to->r->arrays[i];
        if (a->array && a->mark & MARK_WRITING)
            r = restore_writer(to, a->array, a->mark);
        else if (a->array && a->mark & MARK_PENDING)
            r = restore_write(to, a->array, a->mark);
        if (r == 0 && a->array && !a->array->named)
            r = former_doubt(a->array, 0);
    }
    return r;
}

/* One of 0.1.0's ended with its sender. */
static int
restore_ticket(const struct restoring *to, const struct record_ticket *t, struct array *array)
{
    struct conn *conn = get_conn(to, t->conn);
    struct ticket like = {.secret = {t->key.id, t->key.of}, .made_ns = to->core->boot_ns};
    struct user *user;

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
    return ticket_restore(to->core, user, array, t->readonly, &like);
}

static int
restore_tickets(const struct restoring *to)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < to->r->n_tickets; i++) {
        const struct record_ticket *t = to->r->tickets[i];
        const struct restore_array *a = find(to->r, RECORD_ARRAY, t->array);
        if (a && a->array)
            r = restore_ticket(to, t, a->array);
    }
    return r;
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

    core->persist.n_numbers = to->r->n_numbers;
    if (to->r->n_pools)
        core->persist.n_pools = (uint32_t)to->r->pools[to->r->n_pools - 1]->key.id;
    if (!to->r->n_floors)
        return;
    core->next_array = core->next_block = core->next_page = core->persist.ids =
        to->r->floors[0]->ids;
    core_restore_floor(core, to->r->floors[0]->generation);
}

/* ---- the journal ---- */

/* What is not as it was: a mark, a name that is lost. */
static void
take_array(const struct restoring *to, const struct restore_array *a)
{
    const struct record_array *record = a->record;
    struct array *array = array_index_find(to->core->former_arrays, record->key.id);

    if (!array) {
        persist_gone(to->core, RECORD_ARRAY, record->key);
        return;
    }
    array->record = a->place;
    array->record_named = record->flags & ARRAY_NAMED;
    if (array->record_named != array->named)
        persist_array(array);
    else if (a->mark)
        persist_mark(array);
}

static void
take_conn(struct core *core, const struct restore_conn *c)
{
    if (!c->conn)
        persist_gone(core, RECORD_CONN, c->record->key);
    else if (c->kept != c->record->kept)
        persist_process(core, conn_find(&core->departed, c->conn));
}

/* Where its time begins now, that has to last. */
static void
take_ticket(struct core *core, const struct record_ticket *t)
{
    const struct ticket *ticket = ticket_find(core, (const uint64_t[]){t->key.id, t->key.of});

    if (!ticket)
        persist_gone(core, RECORD_TICKET, t->key);
    else if (t->lease || t->ends_ns != ticket->ends_ns)
        persist_ticket(core, ticket);
}

static void
take_losts(const struct restoring *to)
{
    struct core *core = to->core;
    struct pool *pool;
    struct lost *lost;

    RB_FOREACH(pool, pools, &core->pools)
        RB_FOREACH(lost, losts, &pool->losts)
            if (!find(to->r, RECORD_LOST, lost->id))
                persist_lost(core, lost);
}

/* All that there is has its record in it. What has not come back is not looked for again: the
 * keeper gives its number to others. */
static void
take_journal(const struct restoring *to)
{
    const struct restore *r = to->r;
    struct core *core = to->core;

    core->persist.journal = r->journal;
    persist_numbers(core);
    persist_suspects(core);
    for (size_t i = 0; i < r->n_blocks; i++)
        if (!r->blocks[i].block)
            persist_gone(core, RECORD_BLOCK, r->blocks[i].record->key);
    for (size_t i = 0; i < r->n_conns; i++)
        take_conn(core, &r->conns[i]);
    for (size_t i = 0; i < r->n_pages; i++)
        if (!page_find(core, r->pages[i].record->key.id))
            persist_gone(core, RECORD_PAGE, r->pages[i].record->key);
    for (size_t i = 0; i < r->n_arrays; i++)
        take_array(to, &r->arrays[i]);
    for (size_t i = 0; i < r->n_tickets; i++)
        take_ticket(core, r->tickets[i]);
    take_losts(to);
}

int
core_restore(struct core *core, struct restore *restore, restore_lost_fn *lost, void *userdata)
{
    static int (*const steps[])(const struct restoring *) = {
        restore_blocks,    restore_losts, restore_placed, restore_parts,
        restore_processes, restore_pages, restore_uses,   restore_tickets,
    };
    const struct restoring to = {core, restore, lost, userdata};
    struct user *user;
    int r = 0;

    restore_numbers(&to);
    restore_suspects(&to);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(steps); i++)
        r = steps[i](&to);
    if (r == 0)
        r = formers_begin(core, restore->arrays, restore->n_arrays);
    for (size_t i = 0; i < restore->n_blocks; i++)
        if (restore->blocks[i].block)
            restore->blocks[i].block->state = BLOCK_LIVE;
    if (r == 0)
        r = restore_members(&to);
    restore_companions(&to);
    if (r == 0)
        take_journal(&to);
    settle_arrays(&to);
    for (size_t i = 0; i < restore->n_blocks; i++)
        if (restore->blocks[i].block)
            block_settle(core, restore->blocks[i].block);
    RB_FOREACH(user, users, &core->users)
        user_touch(user);
    core->behind = true; /* what of it goes */
    return r;
}
