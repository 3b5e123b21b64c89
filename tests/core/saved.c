/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The harness's journal: what the core has recorded, and what another core makes of it.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "array.h"
#include "books.h"
#include "caid_test.h"
#include "device.h"
#include "participant.h"
#include "restore.h"
#include "set.h"
#include "state.h"

#define BYTES (UINT64_C(64) << 20) /* reserved, not used */

static struct journal
journal_new(void)
{
    void *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct journal journal = {.bytes = bytes, .size = BYTES};

    cr_assert_neq(bytes, MAP_FAILED);
    cr_assert_eq(journal_init(&journal), 0);
    return journal;
}

void
saved_init(struct harness *h)
{
    h->journal = &h->journals[0];
    *h->journal = journal_new();
    core_set_journal(h->core, h->journal);
    h->journal_at = h->journal->at;
}

void
saved_deinit(struct harness *h)
{
    if (h->restore)
        restore_deinit(h->restore);
    free(h->restore);
    for (size_t i = 0; i < h->n_pages; i++) /* of a core that was not whole, or had stopped */
        free(h->pages[i].slots);
    for (int i = 0; i < 2; i++)
        if (h->journals[i].bytes)
            munmap(h->journals[i].bytes, BYTES);
}

/* ---- what was recorded ---- */

static struct h_saved *
find(struct harness *h, uint8_t type, uint64_t id)
{
    for (size_t i = 0; i < h->n_saved; i++)
        if (h->saved[i].type == type && h->saved[i].id == id)
            return &h->saved[i];
    return NULL;
}

static void
forget(struct harness *h, struct h_saved *saved)
{
    if (saved)
        *saved = h->saved[--h->n_saved];
}

static struct h_saved *
get(struct harness *h, uint8_t type, uint64_t id)
{
    struct h_saved *saved = find(h, type, id);

    if (saved)
        return saved;
    cr_assert_lt(h->n_saved, H_BOOKS);
    h->saved[h->n_saved] = (struct h_saved){.type = type, .id = id};
    return &h->saved[h->n_saved++];
}

static void
note_name(struct harness *h, const struct h_saved *saved, const char *what)
{
    char text[2 * sizeof(saved->text)];

    if (!saved || !saved->text[0])
        return;
    snprintf(text, sizeof(text), "%s %s", what, saved->text);
    h_note(h, text);
}

static void
read_array(struct harness *h, const struct record_array *a)
{
    size_t n_extents = (size_t)a->ndim * (a->flags & ARRAY_STRIDES ? 2 : 1);
    const char *name = (const char *)(a + 1) +
                       (n_extents + !!(a->flags & ARRAY_EXPIRES)) * sizeof(int64_t) +
                       a->n_typestr + a->n_descr;
    struct h_saved *saved = get(h, RECORD_ARRAY, a->key.id), was = *saved;
    const struct h_saved *pool = find(h, RECORD_POOL, a->pool);

    saved->text[0] = '\0';
    if (a->flags & ARRAY_NAMED)
        snprintf(saved->text, sizeof(saved->text), "%.20s:%.*s", pool->text,
                 a->n_name < 20 ? a->n_name : 20, name);
    note_name(h, saved, "name");
    if (was.text[0] && strcmp(was.text, saved->text) != 0)
        note_name(h, &was, "name gone");
}

static void
read_gone(struct harness *h, const struct record_gone *gone)
{
    struct h_saved *saved = find(h, (uint8_t)gone->type, gone->key.id);
    char text[64];

    if (gone->type == RECORD_BLOCK) {
        cr_assert(saved, "the end of what was not there is recorded");
        snprintf(text, sizeof(text), "block gone %llu", (unsigned long long)gone->key.id);
        h_note(h, text);
    }
    note_name(h, saved, "name gone");
    if (gone->type == RECORD_BLOCK || gone->type == RECORD_ARRAY)
        forget(h, saved);
}

static void
read_record(struct harness *h, const struct journal_record *r)
{
    const struct record_pool *pool = r->payload;
    const struct record_block *block = r->payload;
    char text[64];

    switch (r->type) {
    case RECORD_POOL:
        snprintf(get(h, RECORD_POOL, pool->key.id)->text, sizeof(h->saved[0].text), "%.*s",
                 (int)pool->n_name, pool->name);
        break;
    case RECORD_BLOCK:
        cr_assert(!find(h, RECORD_BLOCK, block->key.id) || block->marks & BLOCK_EXPORTED,
                  "a block is recorded twice");
        get(h, RECORD_BLOCK, block->key.id);
        snprintf(text, sizeof(text), "block %llu", (unsigned long long)block->key.id);
        h_note(h, text);
        break;
    case RECORD_ARRAY: read_array(h, r->payload); break;
    case RECORD_GONE: read_gone(h, r->payload); break;
    default: break;
    }
}

void
saved_read(struct harness *h)
{
    struct journal reading = *h->journal;
    struct journal_record record;

    cr_assert_not(h->journal->full);
    while (h->journal_at < h->journal->at && journal_next(&reading, &h->journal_at, &record))
        read_record(h, &record);
    cr_assert_eq(h->journal_at, h->journal->at, "a record is broken");
}

bool
saved_block(struct harness *h, uint64_t block)
{
    return find(h, RECORD_BLOCK, block);
}

bool
saved_name(const struct harness *h, const char *pool, const char *name)
{
    char text[sizeof(h->saved[0].text)];

    snprintf(text, sizeof(text), "%.20s:%.20s", pool, name);
    for (size_t i = 0; i < h->n_saved; i++)
        if (h->saved[i].type == RECORD_ARRAY && strcmp(h->saved[i].text, text) == 0)
            return true;
    return false;
}

uint64_t
saved_count(const struct harness *h, bool blocks)
{
    uint64_t n = 0;

    for (size_t i = 0; i < h->n_saved; i++)
        n += blocks ? h->saved[i].type == RECORD_BLOCK
                    : h->saved[i].type == RECORD_ARRAY && h->saved[i].text[0];
    return n;
}

/* ---- another core ---- */

/* Legacy memory is lost, with all parts of it. */
static bool
has_legacy(const struct restore *r)
{
    for (size_t i = 0; i < r->n_blocks; i++)
        if (r->blocks[i].record->kind == KIND_LEGACY)
            return true;
    return false;
}

static void
lost(void *userdata, const char *pool, const char *name, const char *why)
{
    bool is_fault = strstr(why, "damaged") ||
                    (strstr(why, "memory could not") && !has_legacy(userdata));

    cr_assert_not(is_fault, "\"%s\" in \"%s\" is lost: %s", name, pool, why);
}

static bool
is_pending_write(const struct array *array)
{
    struct use *use = array->use;
    const struct section *section;
    const struct fence *fence = NULL; /* for all that was submitted by now */

    if (use && use->whole.n_writers) { /* who may come back and say that it is whole */
        const struct conn *conn = LIST_FIRST(&use->whole.open)->bracket->conn;
        return !conn->resumes || conn->departed || use->whole.write;
    }
    if (!use)
        return false;
    FOREACH_SECTION(section, use)
        fence = section->write ? section->write : fence;
    if (!fence)
        return false;
    const struct timeline_slot *slot = &fence->page->slots[fence->slot];
    return timeline_state(slot, timeline_submitted(slot)) == FENCE_LOST;
}

/* Who is writing it, or may say that it is whole, is not known; or may not any more, and is waited
 * for only by what lies in his blocks. */
static bool
is_uncertain(const struct array *array)
{
    const struct use *use = array->use;

    return use &&
           (use->writer || use->writers || persist_get_mark(array) & MARK_SEVERAL ||
            (use->whole.n_writers && !array_block(array) &&
             !pool_may(array->pool, LIST_FIRST(&use->whole.open)->bracket->conn, MAY_WRITE)));
}

static void
assert_same(const struct array *a, const struct array *b)
{
    struct msg_str of_a = array_metadata(a), of_b = array_metadata(b);

    cr_assert(b, "\"%s\" has not come back", a->name);
    cr_assert_str_eq(a->name, b->name);
    cr_assert_eq(a->named, b->named);
    cr_assert_eq(a->id, b->id);
    cr_assert_eq(a->generation, b->generation);
    cr_assert_eq(a->nbytes, b->nbytes);
    cr_assert_eq(a->span, b->span);
    cr_assert_eq(a->kind, b->kind);
    cr_assert_eq(a->charge.user->uid, b->charge.user->uid);
    cr_assert_eq(a->ndim, b->ndim);
    cr_assert_arr_eq(array_shape(a), array_shape(b), a->ndim * sizeof(int64_t));
    cr_assert_str_eq(array_typestr(a), array_typestr(b));
    cr_assert(of_a.n == of_b.n && !of_a.p == !of_b.p &&
              (of_a.n == 0 || memcmp(of_a.p, of_b.p, of_a.n) == 0));
    cr_assert_eq(array_offset(a), array_offset(b));
    if (array_block(a))
        cr_assert_eq(array_block(a)->id, array_block(b)->id);
    if (a->companion)
        cr_assert_eq(a->companion->id, b->companion->id);
    cr_assert_eq(a->is_set, b->is_set);
    cr_assert_eq(expiry_at_ns(a->charge.user->core, a), expiry_at_ns(b->charge.user->core, b));
    if (is_uncertain(a))
        return;
    cr_assert_eq(b->abandoned, a->abandoned || is_pending_write(a),
                 "\"%s\" was being written, or was not", a->name);
}

/* It ends with the daemon, or what it cannot be without does. */
static bool
is_mortal(const struct array *array)
{
    struct member *member;

    if (array->kind == KIND_LEGACY ||
        (array->companion && array->companion->kind == KIND_LEGACY))
        return true;
    if (array->is_set)
        RB_FOREACH(member, members, &array->set->members)
            if (is_mortal(member->array))
                return true;
    return false;
}

static void
assert_members(const struct array *a, const struct array *b)
{
    struct member *member;

    if (!a->is_set)
        return;
    RB_FOREACH(member, members, &a->set->members) {
        const struct array *other = set_get(b, (struct msg_str){member->key, member->n_key});
        assert_same(member->array, other);
    }
}

static const struct participant *
next_joined(const struct channel *channel, const struct participant *after)
{
    const struct participant *p = after ? TAILQ_NEXT(after, of_channel)
                                        : TAILQ_FIRST(&channel->participants);

    while (p && !p->joined)
        p = TAILQ_NEXT(p, of_channel);
    return p;
}

/* Whoever was told that he takes part does, and is let in or not; and what was kept is. */
static void
assert_channel(const struct channel *a, const struct channel *b)
{
    const struct participant *p = NULL, *q = NULL;

    if (!b) /* nobody has ever taken part */
        cr_assert(!a->has_mode && !next_joined(a, NULL));
    if (!b)
        return;
    cr_assert(a->former == b->former && a->sequence == b->sequence);
    cr_assert(a->has_mode == b->has_mode && a->latest == b->latest);
    for (uint32_t i = 0; i < a->n_slots; i++)
        cr_assert_eq(a->kept[i].sequence, b->kept[i].sequence);
    do {
        p = next_joined(a, p);
        q = next_joined(b, q);
        cr_assert(!p == !q, "a member is missing, or too many");
        cr_assert(!p || (p->id == q->id && p->page->id == q->page->id && p->depth == q->depth &&
                         p->admitted == q->admitted && p->sequence == q->sequence));
        cr_assert(!p || (p == a->producer) == (q == b->producer));
    } while (p);
}

static const struct block *
find_block(const struct core *core, uint64_t id)
{
    const struct block *block;

    LIST_FOREACH(block, &core->blocks, of_core)
        if (block->id == id)
            return block;
    return NULL;
}

/* Whoever has it mapped lives on: it is nobody else's (I2). */
static void
assert_not_free(const struct core *core, const struct array *array)
{
    const struct block *block = array->is_set ? NULL : array_block(array);
    const struct block *other = block ? find_block(core, block->id) : NULL;
    uint64_t start = block ? array_offset(array) : 0;

    if (!other) /* gone, with all that could be given away */
        return;
    for (const struct range *range = other->extent.first; range; range = range->next)
        cr_assert(!range->is_free || range_offset(range) >= start + array->span ||
                      range_offset(range) + range_bytes(range) <= start,
                  "array %llu is free, and is in use", (unsigned long long)array->id);
}

static void
assert_leases(struct core *core, struct conns *conns)
{
    struct lease *lease;
    struct conn *conn;

    RB_FOREACH(conn, conns, conns)
        RB_FOREACH(lease, leases, &conn->leases)
            if (lease->hold)
                assert_not_free(core, lease->array);
}

/* Who may have memory mapped is who had it: here each has the number that it had there. */
static void
assert_holds(struct core *core, struct core *was)
{
    struct conn *conn, *other;
    struct hold *hold;

    RB_FOREACH(conn, conns, &core->departed) {
        other = conn_find(&was->conns, conn->id);
        if (!other)
            other = conn_find(&was->departed, conn->id);
        RB_FOREACH(hold, holds, &conn->holds)
            cr_assert(hold_find(&other->holds, hold->id), "nobody had block %llu",
                      (unsigned long long)hold->id);
    }
}

static struct pool *
find_pool(struct core *core, const char *name)
{
    struct pool *pool = pool_find_from(core, MSG_STR(name));

    return pool && strcmp(pool->name, name) == 0 ? pool : NULL;
}

static void
assert_pools(struct core *a, struct core *b)
{
    struct pool *pool;
    struct array *array;

    RB_FOREACH(pool, pools, &a->pools) {
        struct pool *other = find_pool(b, pool->name);
        cr_assert_geq(other ? other->floor : b->floor, pool->floor);
        RB_FOREACH(array, names, &pool->names) {
            struct msg_str name = {array->name, array->n_name};
            if (array->creating || is_mortal(array))
                continue;
            cr_assert(other);
            assert_same(array, pool_find_array(other, name));
            assert_members(array, pool_find_array(other, name));
            if (array->is_channel)
                assert_channel(channel_find(a, array),
                               channel_find(b, pool_find_array(other, name)));
        }
    }
}

static void
carry_out(struct core *core)
{
    struct core_action a;

    while (core_next(core, &a))
        if (a.type == CORE_RELEASE)
            core_release_done(core, a.job, 0, 0, "");
}

/* Whoever is left exits: then memory is taken by names alone. */
static void
end(struct core *core, const struct restore *r)
{
    for (size_t i = 0; i < r->n_conns; i++)
        core_exited(core, r->conns[i].conn);
    do
        carry_out(core);
    while (core_is_behind(core) && (core_tick(core, core->now_ns), true));
    core_check(core);
    cr_assert(RB_EMPTY(&core->departed) && LIST_EMPTY(&core->aside));
    core_free(core);
}

/* The connection that is recorded under that number. */
static uint64_t
find_conn(struct core *core, uint64_t number)
{
    struct conns *all[] = {&core->conns, &core->departed};
    struct conn *conn;

    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        RB_FOREACH(conn, conns, all[i])
            if (conn->number == number)
                return conn->id;
    cr_assert_fail("connection %llu is recorded, and is gone", (unsigned long long)number);
    return 0;
}

static int
import(void *userdata UNUSED, struct restore_block *b)
{
    b->handle = b->record->kept;
    b->fd = (int)b->record->kept;
    return 0;
}

static const struct restore_ops ops = {.import = import, .lost = lost};

static void (*fails)(bool on); /* around what may fail */

static void
arm(bool on)
{
    if (fails)
        fails(on);
}

/* The core that comes after this one. The tail is torn. -ENOMEM. */
static int
take_over(struct core **ret, struct harness *h, const struct journal *from,
          struct journal *source, struct restore *r)
{
    struct core_device devices[H_DEVICES];
    struct core_config config = h->config;
    int rc;

    for (uint32_t i = 0; i < h->n_devices; i++)
        devices[i] = h->core->devices[i].info;
    config.devices = devices;
    config.limits.host_bytes = 0; /* what was at a limit is more, for a while */
    config.limits.brackets = config.limits.pages = config.limits.leases = 1000;
    *ret = NULL;
    *source = journal_new();
    memcpy(source->bytes, from->bytes, from->at);
    memset(source->bytes + from->at, 0xa5, 100);
    cr_assert_eq(journal_open(source), 0);
    arm(true);
    rc = restore_read(r, source);
    arm(false);
    if (rc < 0)
        return rc;
    r->journal = source;
    r->ops = &ops;
    r->userdata = r;
    for (size_t i = 0; i < r->n_conns; i++) {
        r->conns[i].conn = find_conn(h->core, r->conns[i].record->key.id);
        r->conns[i].kept = r->conns[i].record->kept;
    }
    for (size_t i = 0; i < r->n_pages; i++) {
        const struct h_page *page = h_page(h, r->pages[i].record->key.id);
        r->pages[i].made = (struct core_page_result){.write = page->sealed ? -1 : page->write,
                                                     .read = page->read,
                                                     .kept = r->pages[i].record->kept,
                                                     .size = page->size,
                                                     .slots = page->slots};
    }
    core_check_anew();
    cr_assert_eq(core_new(ret, &config, h->now_ns), 0);
    core_set_boottime(*ret, h->now_ns + h->asleep_ns);
    arm(true);
    rc = core_restore(*ret, r);
    arm(false);
    return rc;
}

/* Another one has all; or it fails and ends, and what it leaves is whole for the next one. */
static bool
check_journal(struct harness *h, const struct journal *journal)
{
    struct journal source;
    struct restore r;
    struct core *core;
    int rc = take_over(&core, h, journal, &source, &r);

    while (rc == 0 && !core_is_whole(core)) {
        arm(true);
        core_tick(core, h->now_ns);
        arm(false);
        rc = core_restore_error(core);
    }
    if (rc == 0) {
        core_check(core);
        assert_pools(h->core, core);
        assert_leases(core, &h->core->conns);
        assert_leases(core, &h->core->departed);
        assert_holds(core, h->core);
        end(core, &r);
    } else {
        cr_assert(fails && rc == -ENOMEM);
        fails = NULL;
        if (core) {
            core_drop_journal(core);
            carry_out(core);
        }
        core_free(core);
        check_journal(h, &source);
    }
    core_check_anew();
    restore_deinit(&r);
    munmap(source.bytes, BYTES);
    return rc == 0;
}

bool
saved_fails(struct harness *h, void (*around)(bool on))
{
    fails = around;
    bool failed = !check_journal(h, h->journal);
    fails = NULL;
    return failed;
}

/* When the new one has all, a keeper may have either. */
void
saved_check(struct harness *h)
{
    if (h_known || !core_is_whole(h->core))
        return;
    if (h_on_check)
        h_on_check(h);
    check_journal(h, h->journal);
    if (core_journal_is_renewed(h->core))
        check_journal(h, h->core->persist.next);
}

static bool
has_handle(void *userdata, uint64_t handle)
{
    const struct restore *r = userdata;

    for (size_t i = 0; i < r->n_blocks; i++)
        if (r->blocks[i].record->kept == handle)
            return r->blocks[i].record->kind != KIND_LEGACY;
    return false;
}

/* What comes of its end is of no concern to anybody: its books are the next one's. */
static void
bury(struct harness *h)
{
    h->buried = true;
    h->on_reply = NULL;
    h->on_page_gone = NULL;
    core_check_anew();
    for (uint64_t conn = 1; conn <= h->next_conn; conn++)
        h_disconnect(h, conn);
    h_finish_all(h);
    core_free(h->core);
    saved_deinit(h);
    core_check_anew();
}

static void
copy(struct harness *to, const struct harness *from)
{
    memcpy(to, from, offsetof(struct harness, holds));
    memcpy(to->holds, from->holds, from->n_holds * sizeof(from->holds[0]));
    memcpy(to->page_holds, from->page_holds, from->n_page_holds * sizeof(from->page_holds[0]));
    memcpy(to->ranges, from->ranges, from->n_ranges * sizeof(from->ranges[0]));
    memcpy(to->contents, from->contents, from->n_contents * sizeof(from->contents[0]));
    memcpy(to->saved, from->saved, from->n_saved * sizeof(from->saved[0]));
    memcpy(to->uses, from->uses, from->n_uses * sizeof(from->uses[0]));
}

void
saved_restart(struct harness *h)
{
    saved_begin_restart(h);
    saved_finish(h);
}

void
saved_finish(struct harness *h)
{
    while (!core_is_whole(h->core))
        h_tick(h, 0);
}

void
saved_settle_exits(struct harness *h)
{
    struct conn *conn;
    bool has_exited = false;

    RB_FOREACH(conn, conns, &h->core->departed)
        has_exited |= h->exited[conn->id];
    if (has_exited)
        saved_finish(h);
}

void
saved_begin_restart(struct harness *h)
{
    static struct harness old;
    struct core *core;

    core_drop_journal(h->core);
    copy(&old, h);
    old.journal = &old.journals[h->journal - h->journals];
    for (size_t i = 0; i < h->n_pages; i++) {
        h->pages[i].slots = h_slots_new();
        memcpy(h->pages[i].slots, old.pages[i].slots, H_PAGE_BYTES);
    }
    for (uint64_t conn = 1; conn <= h->next_conn; conn++)
        h->gone[conn] = true;
    books_uses_unknown(h);
    memset(h->journals, 0, sizeof(h->journals));
    h->restore = calloc(1, sizeof(*h->restore));
    h->journal = &h->journals[0];
    cr_assert_eq(take_over(&core, h, old.journal, h->journal, h->restore), 0);
    h->core = core;
    journal_go_on(h->journal);
    core_set_pieces(h->core, old.core->pieces);
    books_restarted(h, has_handle, h->restore);
    bury(&old);
    h_tick(h, 0);
}

/* Begins a new journal, or goes over to it when that has all. */
void
saved_renew(struct harness *h)
{
    struct journal *next = &h->journals[h->journal == &h->journals[0]];

    if (!core_is_whole(h->core))
        return;
    if (!next->bytes) {
        *next = journal_new();
        core_renew_journal(h->core, next);
    } else if (core_journal_is_renewed(h->core)) {
        saved_read(h);
        core_switch_journal(h->core);
        munmap(h->journal->bytes, BYTES);
        *h->journal = (struct journal){0};
        h->journal = next;
        h->journal_at = next->at;
    }
}
