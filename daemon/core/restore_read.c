/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a journal says: the last record of each object that is there.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/tree.h"
#include "found.h"
#include "journal.h"
#include "restore.h"

#define IS_GONE 1 /* in a place, which is a multiple of 8: the record says so */
#define DONES_MIN \
    16384           /* records that are added before those that another replaces are dropped */
#define RECENT 2048 /* done records that are replaced in place */

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
    [RECORD_CHANNEL] = {sizeof(struct record_channel), sizeof(void *)},
};

static struct record_dropped
dropped_of(const struct record_lost *record)
{
    struct record_dropped more;

    memcpy(&more, record->name + record->n_name, offsetof(struct record_dropped, metadata));
    return more;
}

struct restore_dropped
restore_dropped(const struct record_lost *record)
{
    struct record_dropped more;

    if (!(record->is_set & LOST_MORE))
        return (struct restore_dropped){0};
    more = dropped_of(record);
    return (struct restore_dropped){
        .priority = more.priority,
        .reload_ns = more.reload_ns,
        .bytes = more.bytes,
        .metadata = {more.has_metadata ? record->name + record->n_name +
                                             offsetof(struct record_dropped, metadata)
                                       : NULL,
                     more.n_metadata},
    };
}

static bool
lost_is_whole(const struct record_lost *record, size_t n)
{
    size_t fixed = offsetof(struct record_lost, name) + record->n_name;

    if (!(record->is_set & LOST_MORE))
        return true;
    fixed += offsetof(struct record_dropped, metadata);
    return n >= fixed && n >= fixed + dropped_of(record).n_metadata;
}

/* What says more than it has is damaged, whatever its checksum. */
static bool
is_whole(const struct journal_record *record)
{
    const struct kind *kind = &kinds[record->type];
    const uint8_t *p = record->payload;

    if (record->n < kind->min || (kind->name && record->n < kind->name + p[kind->name - 1]))
        return false;
    return record->type == RECORD_LOST      ? lost_is_whole(record->payload, record->n)
           : record->type == RECORD_CHANNEL ? record->n == channel_record_size(record->payload)
                                            : true;
}

/* Each replaces an earlier one, but for a connection's first. recent: by the key, where in `to` the
 * last of such keys is; after founds_compact() another one may be there. -ENOMEM. */
static int
add_done(struct founds *to, uint32_t recent[static RECENT], struct record_key key,
         uint64_t place)
{
    uint32_t *at = &recent[(key.id * DONE_MAX + key.of) % RECENT];
    int r = 0;

    if (*at < to->n && to->v[*at].key.id == key.id && to->v[*at].key.of == key.of) {
        to->v[*at].place = place;
        return 0;
    }
    if (to->n == to->room && to->n >= DONES_MIN)
        r = founds_compact(to);
    *at = (uint32_t)to->n;
    return r ? r : founds_add(to, key, place);
}

/* One of a type that is not known, or too short, is left out. -ENOMEM. */
static int
read_record(struct founds all[static N_RECORDS], uint32_t recent[static RECENT],
            const struct journal_record *record)
{
    const struct record_gone *gone = record->payload;
    bool is_gone = record->type == RECORD_GONE;

    if (record->type >= N_RECORDS || !kinds[record->type].min || !is_whole(record))
        return 0;
    if (is_gone && (gone->type >= N_RECORDS || !kinds[gone->type].item))
        return 0;
    uint64_t type = is_gone ? gone->type : record->type;
    uint64_t place = record->place | (is_gone ? IS_GONE : 0);
    return type == RECORD_DONE ? add_done(&all[type], recent, gone->key, place)
                               : founds_add(&all[type], gone->key, place);
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
    const void *payload;

    if (!p)
        return -ENOMEM;
    for (size_t i = 0; i < founds->n; i++) {
        if (!is_last(founds, i))
            continue;
        payload = journal_payload(journal, founds->v[i].place);
        memcpy(p, &payload, sizeof(payload)); /* what each begins with */
        if (type == RECORD_ARRAY) {
            struct restore_array *a = (struct restore_array *)(void *)p;
            record = journal_get(journal, founds->v[i].place);
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
    uint32_t recent[RECENT] = {0};
    struct journal_record record;
    uint64_t place = JOURNAL_START, last;
    int r = 0;

    *ret = (struct restore){.in_hand = {journal->in_hand[0], journal->in_hand[1]}};
    while (r == 0 && journal_next(journal, &place, &record))
        r = read_record(all, recent, &record);
    for (enum record_type type = 0; type < N_RECORDS; type++) {
        if (r == 0)
            r = founds_sort(&all[type]);
        if (r == 0)
            r = take_kind(&ret->lists[type], type, &all[type], journal);
        last = last_number(type, &all[type]);
        if (last > ret->n_numbers)
            ret->n_numbers = last;
        founds_deinit(&all[type]);
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

void *
restore_find(const struct restore *r, enum record_type type, uint64_t id)
{
    const struct restore_list *list = &r->lists[type];

    return list->n ? bsearch(&id, list->items, list->n, kinds[type].item, id_compare) : NULL;
}

static int
key_compare(const void *a, const void *item)
{
    const struct record_key *x = a, *y;

    memcpy(&y, item, sizeof(y));
    return x->id != y->id ? CMP(x->id, y->id) : CMP(x->of, y->of);
}

const struct record_ticket *
restore_find_ticket(const struct restore *r, struct record_key secret)
{
    const struct record_ticket **found =
        r->n_tickets
            ? bsearch(&secret, r->tickets, r->n_tickets, sizeof(*r->tickets), key_compare)
            : NULL;

    return found ? *found : NULL;
}
