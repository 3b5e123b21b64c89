/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold between any two events, recomputed from the objects themselves. Models call it
 * after each step; it aborts at the first sum or reference that is wrong.
 */
#include "array.h"
#include "device.h"
#include "drop.h"
#include "flush.h"
#include "former.h"
#include "harness.h"
#include "lost.h"
#include "mem_check.h"
#include "monitor.h"
#include "set.h"
#include "state.h"
#include "waiter.h"

/* What the objects add up to; used for one user, pool or device at a time, NULL meaning all. */
struct tally {
    const struct user *user;
    const struct pool *pool;
    const struct device *device;
    uint64_t used[N_RESOURCES];
    uint64_t
        beyond[N_RESOURCES]; /* of these, by connections: may be those who are awaited; HOST:
                                     all, which are never refused for it */
    uint64_t arrays, names, leases, departed, lingering, allocated;
    uint64_t pending, pending_entries, queue_bytes;
    uint64_t blocks, bytes, pinned, reserve;
    uint64_t brackets;
    uint64_t members, kept; /* of sets; by sets */
};

static bool
counts_array(const struct core *core, const struct tally *t, const struct array *array)
{
    return (!t->user || t->user == array->charge.user) &&
           (!t->pool || t->pool == array->pool) &&
           (!t->device || t->device == &core->devices[array->device]);
}

/* ---- uses ---- */

static bool
excludes(const struct claim *a, const struct claim *b)
{
    return (a->write || b->write) && a->section->from < b->section->end &&
           b->section->from < a->section->end;
}

/* Whether one that waits has come before it and excludes it. */
static bool
is_preceded(struct use *use, const struct claim *claim)
{
    const struct section *section;
    const struct claim *other;

    FOREACH_SECTION(section, use)
        TAILQ_FOREACH(other, &section->waiting, of_waiting)
            if (other != claim && other->bracket->arrival < claim->bracket->arrival &&
                excludes(other, claim))
                return true;
    return false;
}

/* Those that none before them excludes are ready unless what is open keeps them; others are only if
 * they read, and their thread does already. */
static bool
turns_are_right(struct use *use)
{
    const struct section *section;
    const struct claim *claim;

    FOREACH_SECTION(section, use)
        TAILQ_FOREACH(claim, &section->waiting, of_waiting)
            if (is_preceded(use, claim) && !claim->overtakes
                    ? claim->ready && claim->write
                    : !claim->ready && !use_is_kept(claim))
                return false;
    return true;
}

/* No open claim excludes another one. */
static bool
open_are_right(struct use *use, const struct section *section)
{
    const struct section *other;
    const struct claim *claim;

    LIST_FOREACH(claim, &section->open, of_held) {
        FOREACH_SECTION(other, use) {
            const struct claim *second;
            LIST_FOREACH(second, &other->open, of_held)
                if (second != claim && excludes(claim, second))
                    return false;
        }
    }
    return true;
}

static bool
section_is_right(struct use *use, const struct section *section)
{
    const struct claim *claim;
    struct fence *fence;
    const struct claim *first_writer = NULL;
    uint32_t readers = 0, writers = 0, waiting = 0, reads = 0, overtaking = 0;

    LIST_FOREACH(claim, &section->open, of_held) {
        if (claim->use != use || claim->section != section || claim->lease->array != use->array)
            return false;
        *(claim->write ? &writers : &readers) += 1;
    }
    TAILQ_FOREACH(claim, &section->waiting, of_waiting) {
        const struct conn *conn = claim->lease->conn;
        if (claim->use != use || claim->section != section || (conn->departed && !conn->ending))
            return false;
        waiting++;
        overtaking += claim->overtakes;
        if (claim->write && !first_writer)
            first_writer = claim;
    }
    RB_FOREACH(fence, fences, (struct fences *)(uintptr_t)&section->reads)
        reads += fence->section == section;
    return section->use == use && readers == section->n_readers &&
           writers == section->n_writers && waiting == section->n_waiting &&
           overtaking == section->n_overtaking && first_writer == section->first_writer &&
           reads == section->n_reads && section->n_claims == readers + writers + waiting &&
           open_are_right(use, section) &&
           (section == &use->whole ||
            (section->from < section->end && section->end <= use->array->span)) &&
           (section == &use->whole || section->n_claims || section->write || reads ||
            section->torn) &&
           (!section->torn || section->charge.user == use->array->charge.user);
}

static bool
use_is_right(struct use *use)
{
    uint32_t n = 0, torn = 0;
    const struct section *section;

    FOREACH_SECTION(section, use) {
        n += section != &use->whole;
        torn += section->torn;
        if (!section_is_right(use, section))
            return false;
    }
    return n == use->n_sections && n <= RESUMED_MAX && torn == use->n_torn &&
           torn <= TORN_MAX && !use->whole.torn && (!torn || use->array->abandoned) &&
           use->doubt >= doubt_of(use->array) &&
           (use->doubt == DOUBT_HOLDERS || !use->writer) &&
           (use->doubt >= DOUBT_STREAMS || !use->writers) &&
           (use->doubt >= DOUBT_STREAMS || !use->was_written) &&
           (use->doubt == DOUBT_HOLDERS || (use->doubt && use->array->is_old_part) ||
            !use->kept) &&
           (use->whole.n_claims || n || use_has_fences(use) || use->array->lingering ||
            use->kept || use->writer || use->writers || use->was_written);
}

/* ---- arrays ---- */

static void
check_ticket(struct core *core, const struct ticket *ticket)
{
    const struct conn *conn = ticket->conn;

    CHECK(ticket_find(core, ticket->secret) == ticket);
    CHECK(ticket_of_user(ticket->lease.charge.user, ticket->id - 1) == ticket);
    CHECK(!ticket->lease.departed && ticket->id <= core->next_ticket);
    CHECK(conn ? !conn->departed || conn->ending || former_may_resume(conn)
               : ticket->ends_ns > 0);
}

static void
check_leases(const struct array *array)
{
    const struct lease *lease;
    uint64_t n_leases = 0, n_departed = 0;

    LIST_FOREACH(lease, &array->leases, of_array) {
        CHECK(lease->array == array);
        CHECK(!lease->hold == (!lease->conn || !array_block(array)));
        CHECK(!lease->hold || lease->hold->block == array_block(array));
        if (!lease->conn)
            check_ticket(array->charge.user->core, ticket_of_lease(lease));
        else
            CHECK(lease->departed == lease->conn->departed || lease->conn->ending);
        *(lease->departed ? &n_departed : &n_leases) += 1;
    }
    CHECK(n_leases == array->n_leases && n_departed == array->n_departed);
}

/* Each knows the other; one of the two keeps it, and pays. */
static void
check_companion(const struct array *array)
{
    const struct array *other = array->companion;

    CHECK(other || !array->is_companion);
    if (!other)
        return;
    CHECK(other->companion == array && other->is_companion != array->is_companion);
    CHECK(other->pool == array->pool && other->charge.user == array->charge.user);
    CHECK(!array->is_companion || (!array->named && !array->creating));
    CHECK(!array->pending && !other->pending);
}

/* Alive, dead or creating. */
static void
check_array(const struct array *array)
{
    const struct block *block = array_block(array);

    check_leases(array);
    CHECK(!array->pending);
    CHECK(array->creating || array->named || array->n_leases || array->n_departed ||
          array->is_whole || array->is_companion || array->n_sets || array->lingering ||
          (array->use && (array->use->kept || array->use->writer || array->use->writers)));
    CHECK(!array->is_set || (!array->span && !array->is_part && !array->n_sets));
    CHECK(!array->named || !set_over(array->pool, array_name(array)));
    check_companion(array);
    CHECK(!array->use || (array->use->array == array && use_is_right(array->use) &&
                          (array->charge.user->core->behind || turns_are_right(array->use))));
    CHECK(!array->lingering || (array->use && !array->named && !array->n_leases));
    CHECK(!array->creating || (!array->n_leases && !array->n_departed));
    CHECK(array->listed == (!array->named && !array->creating));
    CHECK(array->creating || !block == !array->span);
    if (!block)
        return;
    CHECK(block->pool == array->pool); /* I1 */
    CHECK(block->device == array->device && block->kind == array->kind);
    CHECK(block->state == BLOCK_LIVE || (block->state == BLOCK_ALLOCATING && array->creating));
    if (array->is_part)
        return;
    CHECK(array->range->userdata == array);
    CHECK(array->span <= range_bytes(array->range));
    CHECK(range_offset(array->range) + range_bytes(array->range) <= block->size);
}

/* ---- parts ---- */

static void
check_part(const struct part *part, const struct whole *whole)
{
    const struct array *array = part->array, *of = whole->array;

    CHECK(part->whole == whole && array && array->is_part && array->part == part);
    CHECK(array->id == part->id && !array->creating && !array->is_whole);
    CHECK(array->pool == of->pool && array->device == of->device && array->kind == of->kind);
    CHECK(array->charge.user == of->charge.user);
    CHECK(part->offset <= of->span && array->span <= of->span - part->offset); /* I2 */
    check_array(array);
}

/* What it counts is on its parts; who waits for it waits for somebody, or is looked at again. */
static void
check_whole(const struct whole *whole)
{
    uint64_t leases = 0, named = 0, members = 0, uses = 0, in_list = 0;
    const struct vacancy *set;
    const struct part *part;
    const struct use *use;

    LIST_FOREACH(part, &whole->parts, of_whole) {
        leases += part->array->n_leases + part->array->n_departed;
        named += part->array->named;
        members += part->array->n_sets;
        uses += part->array->use != NULL;
    }
    TAILQ_FOREACH(use, &whole->uses, of_whole)
        in_list++;
    CHECK(leases == whole->n_leases && named == whole->n_named && members == whole->n_members);
    CHECK(uses == whole->n_uses && uses == in_list);
    LIST_FOREACH(set, &whole->vacancies, of_whole)
        CHECK(set->whole == whole);
    CHECK(!whole->droppable ||
          (whole->droppable->whole == whole && whole->droppable->array->named &&
           whole->droppable->array->droppable));
    CHECK(!whole->droppable || whole->droppable->listed || drop_is_held(whole->droppable) ||
          whole->array->kind == KIND_PINNED);
}

/* Bytes of the daemon's memory that they take; counted for t's user alone, where it has one. */
static uint64_t
check_parts(struct core *core, const struct tally *t)
{
    struct whole *whole;
    struct part *part;
    uint64_t host = 0;

    RB_FOREACH(whole, wholes, &core->wholes) {
        uint32_t n = 0;
        CHECK(whole->array->is_whole && !whole->array->is_part && !whole->array->pending);
        LIST_FOREACH(part, &whole->parts, of_whole) {
            check_part(part, whole);
            n++;
            if (!t->user || part->charge.user == t->user)
                host += sizeof(struct part) + sizeof(struct whole);
        }
        CHECK(n == whole->n && n > 0);
        check_whole(whole);
    }
    return host;
}

/* Nothing that is known now is not answered, and nobody is let in by a producer that has gone. */
static void
check_participant(struct core *core, const struct channel *channel, const struct participant *p)
{
    const struct conn *conn = p->page->conn;
    const struct participant *producer = channel->producer;

    CHECK(p->channel == channel && p->page->participant == p);
    CHECK(RB_FIND(participants, &core->participants, (struct participant *)(uintptr_t)p) == p);
    CHECK(p->produces ? p->depth == 0 : p->depth > 0 && p->depth <= CHANNEL_DEPTH_MAX);
    CHECK(!channel->has_mode || p->latest == channel->latest);
    CHECK(p->joined || p->stands);
    CHECK(!p->stands || !conn->departed || conn->ending);
    if (!p->stands || conn->closing)
        return;
    if (p->method == MSG_MEMBERS)
        CHECK(p == producer && p->seen == channel->version);
    else if (p->produces)
        CHECK(producer ? p != producer &&
                             (producer->page->conn->departed || producer->page->conn->resumed)
                       : channel->held);
    else
        CHECK(producer ? !p->admitted : p->waits);
}

/* The bytes that channels take, without who takes part. */
static uint64_t
check_channels(struct core *core, const struct tally *t)
{
    struct channel *channel;
    const struct participant *p;
    uint64_t host = 0;

    RB_FOREACH(channel, channels, &core->channels) {
        uint32_t readers = 0, depths = 0;
        bool has_producer = !channel->producer;
        CHECK(channel->array->is_channel && !channel->array->pending && !channel->changed);
        TAILQ_FOREACH(p, &channel->participants, of_channel) {
            check_participant(core, channel, p);
            readers += !p->produces;
            depths += p->depth;
            has_producer |= p == channel->producer;
        }
        CHECK(readers == channel->n_readers && depths == channel->depths && has_producer);
        CHECK(readers <= CHANNEL_READERS_MAX && (!channel->producer || channel->has_mode));
        CHECK(!channel->has_mode || !channel->latest ||
              depths + (channel->array->kind == KIND_PINNED ? 2 : 3) <= channel->n_slots);
        if (!t->user || channel->charge.user == t->user)
            host += CHANNEL_HOST(channel->n_slots);
    }
    return host;
}

/* The same of times to live, which are of names that are there. */
static uint64_t
check_expiries(struct core *core, const struct tally *t)
{
    struct expiry *expiry;
    uint64_t host = 0, n = 0;

    RB_FOREACH(expiry, expiries, &core->expiries) {
        CHECK(expiry->array->expires && expiry->array->named);
        if (!t->user || expiry->charge.user == t->user)
            host += expiry->charge.host;
        n++;
    }
    RB_FOREACH(expiry, expiring, &core->expiring)
        n--;
    CHECK(n == 0);
    return host;
}

static void
tally_text(struct tally *t, const struct text *text)
{
    if (text && (!t->user || t->user == text->charge.user))
        t->used[RES_HOST] += text->charge.host;
}

/* Alive, or one that has ended. */
static void
tally_set(struct tally *t, struct set *set)
{
    struct member *member;
    uint32_t n = 0;

    RB_FOREACH(member, members, &set->members) {
        CHECK(member->array->n_sets && !member->array->is_set && !member->array->pending);
        CHECK(member->n_key <= set->longest);
        t->used[RES_HOST] += member_host(member->n_key);
        n++;
    }
    CHECK(n == set->n && n > 0);
    t->used[RES_NAMES] += n;
    t->used[RES_HOST] += SET_HOST;
    t->members += n;
}

static void
tally_array(const struct core *core, struct tally *t, const struct array *array)
{
    tally_text(t, array->metadata);
    tally_text(t, array->name_is_own ? container_of(array->name, struct text, s[0]) : NULL);
    if (!counts_array(core, t, array))
        return;
    uint64_t torn = array->use ? array->use->n_torn * TORN_HOST : 0;
    t->arrays++;
    t->kept += array->n_sets;
    if (array->is_set)
        tally_set(t, array->set);
    t->names += array->named;
    t->leases += array->n_leases;
    t->departed += array->n_departed;
    t->lingering += array->lingering && array->range;
    t->used[RES_ARRAYS]++;
    t->used[RES_NAMES] += array->named;
    t->used[RES_HOST] += array->charge.host + torn;
    t->beyond[RES_HOST] += torn; /* it does not wait for room */
    if (!array->uncharged)
        t->used[array->kind == KIND_PINNED ? RES_PINNED : RES_BYTES] +=
            array_bytes(core, array);
    if (array->kind != KIND_PINNED)
        t->allocated += array_bytes(core, array);
}

static void
tally_waiters(struct core *core, struct tally *t, const struct waiter_list *waiters)
{
    const struct waiter *waiter;

    TAILQ_FOREACH(waiter, waiters, link) {
        if (!waiter->array->named) /* else it is among the pool's names */
            tally_array(core, t, waiter->array);
        if (t->user && t->user != waiter->charge.user)
            continue;
        t->used[RES_JOBS]++;
        t->used[RES_HOST] += sizeof(*waiter);
    }
}

static void
tally_losts(struct tally *t, struct pool *pool)
{
    struct lost *lost;

    RB_FOREACH(lost, losts, &pool->losts) {
        CHECK(lost->pool == pool && lost->generation <= pool->floor);
        CHECK(!pool_find_array(pool, (struct msg_str){lost->name, lost->n_name}));
        if (t->user && t->user != lost->charge.user)
            continue;
        t->used[RES_NAMES]++;
        t->used[RES_HOST] += lost->charge.host;
    }
}

static void
tally_arrays(struct core *core, struct tally *t)
{
    struct pool *pool;
    struct user *user;
    struct array *array;
    struct set *set;

    RB_FOREACH(user, users, &core->users) {
        tally_waiters(core, t, &user->done);
        TAILQ_FOREACH(set, &user->ended, of_user)
            if (!t->user || t->user == user)
                tally_set(t, set);
    }
    RB_FOREACH(pool, pools, &core->pools) {
        tally_losts(t, pool);
        RB_FOREACH(array, names, &pool->names)
            tally_array(core, t, array);
        RB_FOREACH(array, nameless, &pool->nameless)
            tally_array(core, t, array);
    }
    for (size_t i = 0; i < core->config.n_devices; i++)
        tally_waiters(core, t, &core->devices[i].retries);
    tally_waiters(core, t, &core->hopeful);
}

/* ---- blocks ---- */

static void
check_holds(const struct block *block)
{
    const struct hold *hold;
    uint64_t before = 0, unresumed = 0, landing = 0;

    LIST_FOREACH(hold, &block->holds, of_held) {
        before += hold->before;
        unresumed += hold->unresumed;
        landing += hold->landing;
        CHECK(hold->before >= hold->unresumed + hold->landing);
        CHECK(hold->block == block);
        CHECK(hold_find(hold->tree, block->id) == hold && hold->id == block->id);
        CHECK(block->state == BLOCK_LIVE);
    }
    CHECK(block->state == BLOCK_RELEASING ||
          (block->n_before == before && block->n_unresumed == unresumed &&
           block->n_landing == landing));
}

/* That only processes of an earlier core's can reach. */
static bool
is_aside(const struct block *block, const struct range *range)
{
    const struct range *aside = block->aside;

    while (aside && aside != range)
        aside = aside->link;
    return aside;
}

static void
check_range(const struct block *block, const struct range *range)
{
    const struct array *array = range->userdata;

    if (is_aside(block, range))
        return;

    CHECK(block->state != BLOCK_RELEASING); /* I2 */
    CHECK(array->range == range);
    CHECK(array->pool == block->pool); /* I1 */
    if (array->pending) {
        CHECK(!array->use); /* I2 */
        CHECK(block->state == BLOCK_LIVE);
        CHECK(!block->own || block->spared);
    } else {
        check_array(array);
        CHECK(!block->own || !block->spared);
    }
}

static void
check_block(const struct block *block)
{
    const struct range *range;
    bool empty = true;

    for (range = block->extent.first; range && block->state != BLOCK_RELEASING;
         range = range->next)
        if (!range->is_free) {
            check_range(block, range);
            empty = false;
        }
    check_holds(block);
    CHECK(block->state == BLOCK_ALLOCATING || TAILQ_EMPTY(&block->waiters));
    CHECK((block->state == BLOCK_ALLOCATING) ==
          (block->fd < 0 && !block->handle)); /* tests give handles that are not 0 */
    CHECK(!block->reserved || (empty && block->state == BLOCK_LIVE));
    CHECK(!block->doomed || block->reserved);
    CHECK(!block->exported || !block->reserved || block->doomed ||
          block->charge.user->core->n_release_errors); /* one spares all that come after it */
    CHECK(!block->spared || block->own);
    CHECK(!empty || block->state != BLOCK_LIVE || block->reserved ||
          (block->kind != KIND_DEVICE && !LIST_EMPTY(&block->holds)));
}

static void
tally_block(struct core *core, struct tally *t, const struct block *block)
{
    const struct range *range;

    tally_waiters(core, t, &block->waiters);
    for (range = block->extent.first; range && block->state != BLOCK_RELEASING;
         range = range->next) {
        const struct array *array = range->is_free || is_aside(block, range) ? NULL
                                                                             : range->userdata;
        if (!array || !array->pending || !counts_array(core, t, array))
            continue;
        t->pending_entries++;
        t->pending += array->kind == KIND_PINNED ? 0 : array_bytes(core, array);
    }
    if (t->user == block->charge.user) {
        t->used[RES_FDS] += block->kind != KIND_LEGACY;
        t->used[RES_HOST] += BLOCK_HOST;
    }
    if ((t->pool && t->pool != block->pool) ||
        (t->device && t->device != &core->devices[block->device]) || t->user)
        return;
    t->blocks++;
    *(block->kind == KIND_PINNED ? &t->pinned : &t->bytes) += block->size;
    t->reserve += block->reserved ? block->size : 0;
}

static void
tally_all(struct core *core, struct tally *t)
{
    const struct block *block;

    tally_arrays(core, t);
    LIST_FOREACH(block, &core->blocks, of_core)
        tally_block(core, t, block);
}

/* ---- connections ---- */

static void
check_conn(const struct core *core, struct conn *conn, uint64_t *ret_leases,
           uint64_t *ret_holds, uint64_t *ret_watches)
{
    struct lease *lease;
    struct hold *hold;
    struct watch *watch;
    uint64_t held = 0, leased = 0;

    RB_FOREACH(lease, leases, &conn->leases) {
        CHECK(lease->conn == conn && !lease->array->pending && !lease->array->creating);
        leased += lease->hold != NULL;
        ++*ret_leases;
    }
    RB_FOREACH(hold, holds, &conn->holds) {
        CHECK(hold->conn == conn);
        held += hold->n_leases;
        ++*ret_holds;
    }
    CHECK(held == leased);
    *ret_watches += conn->monitor != NULL;
    RB_FOREACH(watch, watches_of_conn, &conn->watches) {
        CHECK(watch->conn == conn);
        ++*ret_watches;
    }
    CHECK(!conn->departed || conn->ending ||
          (RB_EMPTY(&conn->watches) && LIST_EMPTY(&conn->waiters) &&
           LIST_EMPTY(&conn->flushes) && LIST_EMPTY(&conn->jobs) &&
           TAILQ_EMPTY(&conn->published.there) && TAILQ_EMPTY(&conn->published.gone) &&
           !conn->published.asked));
    CHECK(conn->departed || RB_FIND(conns, &((struct core *)(uintptr_t)core)->conns, conn));
}

/* Bytes of the daemon's memory that its brackets, its pages and what it has of others' take. */
static uint64_t
check_uses(struct core *core, struct conn *conn, struct tally *uses)
{
    struct bracket *bracket;
    const struct page *page;
    const struct part *part;
    struct hold *hold;
    uint64_t host = 0;

    RB_FOREACH(bracket, brackets, &conn->brackets) {
        uint32_t unready = 0;
        CHECK(bracket->conn == conn);
        CHECK(!bracket->waiting || !conn->departed || conn->ending);
        for (uint32_t i = 0; i < bracket->n_claims; i++) {
            const struct claim *claim = &bracket->claims[i];
            CHECK(claim->fence && claim->bracket == bracket);
            CHECK(claim->use || !bracket->waiting || bracket->closed);
            CHECK(!claim->use || claim->lease->conn == conn);
            unready += bracket->waiting && !claim->ready;
        }
        CHECK(!bracket->waiting || bracket->closed || bracket->n_unready == unready);
        CHECK(!bracket->waiting || unready > 0 || core->behind); /* else it is answered */
        host += BRACKET_HOST + bracket->n_claims * CLAIM_HOST;
        uses->used[RES_BRACKETS] += bracket->n_claims;
        uses->brackets++;
    }
    LIST_FOREACH(page, &conn->pages, of_conn) {
        const struct fence *fence;
        uint64_t holds = 0;
        CHECK(page->conn == conn && page_find(core, page->id) == page);
        LIST_FOREACH(fence, &page->fences, of_page) {
            CHECK(fence->page == page &&
                  (fence->value <= page->last[fence->slot] ||
                   (page->before ? fence->value <= page->before[fence->slot]
                                 : fence_state(fence) != FENCE_PENDING)));
            CHECK(fence->section->use->array->use == fence->section->use);
            host += FENCE_HOST;
            uses->used[RES_BRACKETS]++;
        }
        LIST_FOREACH(hold, &page->holds, of_held)
            holds += hold_find(&hold->conn->page_holds, page->id) == hold;
        CHECK(holds == page->n_holds && (!holds || page->sealed));
        host += PAGE_HOST(min_u64(page->size - TIMELINE_PAGE_BYTES, PROTO_TAIL_MAX));
        if (page->participant)
            host += sizeof(*page->participant);
        if (page->timeline)
            host += TIMELINE_HOST(page->timeline->n_name);
        CHECK(!page->timeline ||
              (page->timeline->page == page &&
               (!conn->departed || conn->ending || former_may_resume(conn))));
        uses->used[RES_PAGES]++;
    }
    LIST_FOREACH(page, &conn->making, of_conn) {
        CHECK(page->conn == conn && !page->made && page_find(core, page->id) == page);
        host += PAGE_HOST(page->size - TIMELINE_PAGE_BYTES);
        uses->used[RES_PAGES]++;
    }
    RB_FOREACH(hold, holds, &conn->page_holds) {
        CHECK(hold->conn == conn && hold->page->conn != conn &&
              (!conn->departed || conn->ending));
        host += HOLD_HOST;
    }
    TAILQ_FOREACH(part, &conn->published.gone, of_conn) {
        CHECK(!part->array && !part->whole && part->conn == conn && !conn->published.asked);
        host += sizeof(struct part) + sizeof(struct whole);
    }
    return host;
}

static void
tally_conns(struct core *core, struct conns *conns, struct tally *t, uint64_t *ret_n)
{
    struct conn *conn;

    RB_FOREACH(conn, conns, conns) {
        uint64_t leases = 0, holds = 0, watches = 0;
        const struct flush *flush;
        const struct vacate *vacate;
        struct tally uses = {0};
        check_conn(core, conn, &leases, &holds, &watches);
        uint64_t host = check_uses(core, conn, &uses);
        ++*ret_n;
        if (t->user && t->user != conn->user)
            continue;
        t->used[RES_CONNECTIONS]++;
        t->used[RES_FDS] += CONN_FDS;
        t->beyond[RES_CONNECTIONS] += conn->lacks_place;
        t->beyond[RES_FDS] += conn->lacks_place ? CONN_FDS : 0;
        t->used[RES_LEASES] += leases;
        LIST_FOREACH(flush, &conn->flushes, of_conn) {
            t->used[RES_JOBS]++;
            host += flush->charge.host;
        }
        t->used[RES_WATCHES] += watches;
        LIST_FOREACH(vacate, &conn->vacates, of_conn) {
            CHECK(vacate->conn == conn && (vacate->in != &core->vacates.due || core->behind));
            t->used[RES_WATCHES] += vacate->n_sets;
            host += vacate->charge.host;
        }
        host += conn->n_groups * sizeof(gid_t) + leases * sizeof(struct lease);
        t->used[RES_HOST] += host + CONN_HOST + holds * HOLD_HOST;
        t->beyond[RES_HOST] += CONN_HOST + conn->n_groups * sizeof(gid_t);
        if (conn->monitor)
            t->used[RES_HOST] += sizeof(*conn->monitor);
        t->used[RES_BRACKETS] += uses.used[RES_BRACKETS];
        t->used[RES_PAGES] += uses.used[RES_PAGES];
        t->brackets += uses.brackets;
    }
}

/* ---- one of each ---- */

static struct {
    const uint64_t *sum;
    uint64_t was;
} seen[4096];

void
core_check_anew(void)
{
    memset(seen, 0, sizeof(seen));
}

/* Whether a sum is more than when this was asked last: what is over a limit, since that was
 * lowered, is not. Only `within` is for the limit. Two sums may have the same place here: then it
 * is not seen. */
static bool
has_grown(const uint64_t *sum, uint64_t within)
{
    size_t i = (uintptr_t)sum / sizeof(*sum) % ARRAY_SIZE(seen);
    bool grown = seen[i].sum == sum && within > seen[i].was;

    seen[i].sum = sum;
    seen[i].was = within;
    return grown;
}

static void
check_user(struct core *core, struct user *user)
{
    struct tally t = {.user = user};
    const struct ticket *ticket;
    struct job *job;
    uint64_t n = 0, pending = 0, bytes = 0;

    tally_all(core, &t);
    tally_conns(core, &core->conns, &t, &n);
    tally_conns(core, &core->departed, &t, &n);
    RB_FOREACH(job, jobs, &core->jobs)
        if (job->type == JOB_MEMORY && job->user == user)
            t.used[RES_JOBS]++;
    for (ticket = ticket_of_user(user, 0); ticket; ticket = ticket_of_user(user, ticket->id)) {
        t.used[RES_LEASES]++;
        t.used[RES_HOST] += TICKET_HOST;
    }
    t.used[RES_HOST] +=
        check_parts(core, &t) + check_expiries(core, &t) + check_channels(core, &t);
    for (enum resource i = 0; i < N_RESOURCES; i++) { /* I4 */
        CHECK(user->used[i] == t.used[i]);
        uint64_t within = user->used[i] - t.beyond[i];
        CHECK(!has_grown(&user->used[i], within) || within <= user_limit(core, i));
    }
    for (size_t i = 0; i < core->config.n_devices; i++) {
        pending += user->devices[i].queue.n;
        bytes += user->devices[i].bytes;
    }
    CHECK(bytes == user->used[RES_BYTES]);
    CHECK(user->n_pending == t.pending_entries && pending == t.pending_entries);
}

static void
check_zone(const struct core *core, const struct pool *pool, const struct zone *zone)
{
    const struct array *array;
    const struct block *block;
    uint64_t pending = 0, spare = 0, n_own_pending = 0, n_doomed = 0;

    space_check(&zone->space);
    TAILQ_FOREACH(array, &zone->pendings, of_zone)
        pending += array_bytes(core, array);
    LIST_FOREACH(block, &core->blocks, of_core) {
        if (block->pool != pool || zone != &pool->zones[block->device * N_KINDS + block->kind])
            continue;
        n_doomed += block->doomed || block->state == BLOCK_RELEASING;
        spare += block->spared && !block->exported ? block->size : 0;
        n_own_pending += block->spared && !extent_is_empty(&block->extent);
    }
    CHECK(zone->pending == pending && zone->spare == spare);
    CHECK(zone->n_own_pending == n_own_pending && zone->n_doomed == n_doomed);
}

/* What metrics has by kind is what there is of all. */
static void
check_kinds(uint64_t used, uint64_t allocated, const struct tally *t)
{
    CHECK(used == t->bytes + t->pinned && allocated >= t->allocated);
}

static void
check_pool(struct core *core, struct pool *pool)
{
    struct tally t = {.pool = pool};
    const struct block *block;
    uint64_t reserve = 0, used = 0, allocated = 0;

    tally_all(core, &t);
    CHECK(pool->n_arrays == t.arrays && pool->n_names == t.names);
    CHECK(pool->allocated == t.allocated && pool->pending == t.pending);
    CHECK(pool->used == t.bytes && pool->pinned == t.pinned && pool->n_blocks == t.blocks);
    CHECK(!has_grown(&pool->used, pool->used) || !pool->quota || pool->used <= pool->quota);
    CHECK(!pool->leaving || (!pool->owner && !pool_is_used(pool)));
    CHECK(pool->lingering.n == t.lingering);
    TAILQ_FOREACH(block, &pool->reserved, of_pool) {
        CHECK(block->reserved && !block->doomed && block->pool == pool);
        reserve += block->size;
    }
    CHECK(pool->reserve == reserve + pool->doomed && pool->reserve == t.reserve);
    for (size_t i = 0; i < core->config.n_devices * N_KINDS; i++) {
        check_zone(core, pool, &pool->zones[i]);
        used += pool->zones[i].used;
        allocated += pool->zones[i].allocated;
    }
    check_kinds(used, allocated, &t);
}

static void
check_device(struct core *core, const struct device *device)
{
    struct tally t = {.device = device};
    uint64_t used = 0, allocated = 0;

    tally_all(core, &t);
    for (size_t i = 0; i < N_KINDS; i++) {
        used += device->used_of[i];
        allocated += device->allocated_of[i];
    }
    check_kinds(used, allocated, &t);
    dealloc_check(&device->queue);
    CHECK(device->n_arrays == t.arrays && device->n_blocks == t.blocks);
    CHECK(device->allocated == t.allocated && device->pending == t.pending);
    CHECK(device->queue.n == t.pending_entries && device->queue.bytes == t.pending);
    CHECK(device->used == t.bytes && device->pinned == t.pinned);
    CHECK(device->reserve == t.reserve && device->lingering.n == t.lingering);
    CHECK(!device->releasing || device->releasing->state == BLOCK_RELEASING);
    CHECK(device->releasing || TAILQ_EMPTY(&device->doomed) || core->stopping || core->behind);
    CHECK(device->releasing || TAILQ_EMPTY(&device->retries) || core->stopping || core->behind);
}

static void
check_totals(struct core *core)
{
    struct tally t = {0};
    uint64_t conns = 0, departed = 0, pools = 0;
    struct pool *pool;

    RB_FOREACH(pool, pools, &core->pools)
        pools += !pool->leaving;
    CHECK(core->n_pools == pools);
    tally_all(core, &t);
    tally_conns(core, &core->conns, &t, &conns);
    tally_conns(core, &core->departed, &t, &departed);
    CHECK(core->n_conns == conns && core->n_departed == departed);
    CHECK(core->n_arrays == t.arrays && core->n_names == t.names);
    CHECK(core->n_leases == t.leases && core->n_blocks == t.blocks);
    CHECK(t.members == t.kept);
    CHECK(core->n_watches == t.used[RES_WATCHES]);
    CHECK(core->n_running <= core->config.threads);
    CHECK(core->n_brackets == t.brackets && core->n_pages == t.used[RES_PAGES]);
    CHECK(core->linger_at_ns != UINT64_MAX ||
          (TAILQ_EMPTY(&core->lingering) && TAILQ_EMPTY(&core->closing_pages) &&
           TAILQ_EMPTY(&core->hopeful)));
    CHECK((TAILQ_EMPTY(&core->landed) && TAILQ_EMPTY(&core->busy)) || core->behind);
    check_parts(core, &t);
    check_channels(core, &t);
}

void
core_set_pieces(struct core *core, uint32_t pieces)
{
    core->pieces = pieces;
}

bool
core_is_behind(const struct core *core)
{
    return core->behind;
}

void
core_check(const struct core *core)
{
    struct core *c = (struct core *)(uintptr_t)core; /* the tree macros want it */
    struct user *user;
    struct pool *pool;
    struct block *block;
    struct array *array;

    LIST_FOREACH(block, &c->blocks, of_core)
        check_block(block);
    RB_FOREACH(pool, pools, &c->pools) {
        RB_FOREACH(array, names, &pool->names)
            check_array(array);
        RB_FOREACH(array, nameless, &pool->nameless)
            check_array(array);
        check_pool(c, pool);
    }
    RB_FOREACH(user, users, &c->users)
        check_user(c, user);
    for (size_t i = 0; i < core->config.n_devices; i++)
        check_device(c, &c->devices[i]);
    check_totals(c);
}

static struct array *
find_array(struct core *core, uint64_t id)
{
    struct pool *pool;
    struct array *array;

    RB_FOREACH(pool, pools, &core->pools) {
        RB_FOREACH(array, names, &pool->names)
            if (array->id == id)
                return array;
        RB_FOREACH(array, nameless, &pool->nameless)
            if (array->id == id)
                return array;
    }
    return NULL;
}

bool
core_is_abandoned(struct core *core, uint64_t id, bool *ret_all)
{
    struct array *array = find_array(core, id);
    bool is_abandoned = array && use_is_abandoned(array);

    *ret_all = is_abandoned && !(array->use && array->use->n_torn);
    return is_abandoned;
}

bool
core_has_bracket(struct core *core, uint64_t id, uint64_t bracket)
{
    struct conn *conn = conn_find(&core->conns, id);

    return conn && bracket_find(conn, bracket);
}

void
core_get_counts(const struct core *core, struct core_counts *ret)
{
    *ret = (struct core_counts){
        .connections = core->n_conns,
        .departed = core->n_departed,
        .users = core->n_users,
        .pools = core->n_pools,
        .blocks = core->n_blocks,
        .arrays = core->n_arrays,
        .names = core->n_names,
        .leases = core->n_leases,
        .watches = core->n_watches,
        .jobs = core->n_jobs,
        .brackets = core->n_brackets,
        .pages = core->n_pages,
        .timelines = core->n_timelines,
    };
    for (size_t i = 0; i < core->config.n_devices; i++) {
        ret->bytes += core->devices[i].used + core->devices[i].pinned;
        ret->pending += core->devices[i].queue.n;
        ret->reserve_bytes += core->devices[i].reserve;
    }
}
