/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brackets get their turn in the order of arrival: many readers or one writer. A reader waits
 * behind a writer that waits, or writers would starve. A bracket of several arrays enters all their
 * queues in one event. So all queues have the brackets that they share in the same order, and no
 * two brackets wait for each other because of their places alone.
 *
 * Each section has a queue of its own, and its claims exclude each other as if it were an array. A
 * claim waits, besides, for what overlaps with its section: for open claims, and for claims that
 * wait and have come before it, by the arrival of their brackets.
 *
 * Fences, of a section: of the last write and of the reads since, at most one for each slot. A read
 * comes after the write, and a write after all of them, so once a write has ended its own fence
 * stands for the others, and for those of sections that lie in its own.
 */
#include "use.h"

#include <assert.h>

#include "array.h"
#include "state.h"

/* How many claims and brackets a search for a deadlock looks at: well under a millisecond. A search
 * that needs more gives up; the brackets have their timeouts. */
#define SEARCH_MAX 16384

/* ---- life ---- */

enum doubt
doubt_of(struct array *array)
{
    struct core *core = array->charge.user->core;
    const struct block *block = array_block(array);

    if (block ? block->n_unresumed : pool_may_resume(core, array->pool))
        return DOUBT_HOLDERS;
    if (block ? block->n_landing : pool_is_landing(core, array->pool))
        return DOUBT_STREAMS;
    return block && block->n_before && array->is_old_part ? DOUBT_PLACE : DOUBT_NONE;
}

void
use_doubt(struct use *use, enum doubt doubt)
{
    struct block *block = doubt ? array_block(use->array) : NULL;
    struct doubts *doubts = block ? &block->doubts : &use->array->pool->doubts;

    if (use->doubt)
        LIST_REMOVE(use, of_doubts);
    use->doubt = doubt;
    if (doubt)
        LIST_INSERT_HEAD(&doubts->of[doubt], use, of_doubts);
}

static void
section_init(struct section *section, struct use *use, uint64_t from, uint64_t end)
{
    section->use = use;
    section->from = from;
    section->end = end;
    TAILQ_INIT(&section->waiting);
}

static void
count_use(struct use *use, bool there)
{
    struct whole *whole = use->array->is_part ? use->array->part->whole : NULL;

    if (!whole)
        return;
    whole->n_uses += there ? 1 : UINT32_MAX;
    if (there)
        TAILQ_INSERT_TAIL(&whole->uses, use, of_whole);
    else
        TAILQ_REMOVE(&whole->uses, use, of_whole);
}

int
use_get(struct array *array, struct use **ret)
{
    if (!array->use) {
        array->use = calloc(1, sizeof(*array->use));
        if (!array->use)
            return -ENOMEM;
        array->use->array = array;
        section_init(&array->use->whole, array->use, 0, UINT64_MAX);
        use_doubt(array->use, doubt_of(array));
        count_use(array->use, true);
    }
    *ret = array->use;
    return 0;
}

static bool
has_fences(const struct section *section)
{
    return section->write || !RB_EMPTY(&section->reads);
}

bool
use_has_fences(const struct use *use)
{
    const struct section *section;

    LIST_FOREACH(section, &use->sections, of_use)
        if (has_fences(section))
            return true;
    return has_fences(&use->whole);
}

static void
section_free(struct section *section)
{
    LIST_REMOVE(section, of_use);
    section->use->n_sections--;
    free(section);
}

static void
sections_settle(struct use *use)
{
    struct section *section, *next;

    for (section = LIST_FIRST(&use->sections); section; section = next) {
        next = LIST_NEXT(section, of_use);
        if (!section->n_claims && !has_fences(section) && !section->torn)
            section_free(section);
    }
}

static void
use_free(struct use *use)
{
    use_doubt(use, DOUBT_NONE);
    count_use(use, false);
    use->array->use = NULL;
    free(use);
}

/* The use of a dead array goes with the array: linger_stop(). */
void
use_settle(struct use *use)
{
    sections_settle(use);
    if (use->whole.n_claims || has_fences(&use->whole) || !LIST_EMPTY(&use->sections) ||
        use->array->lingering || use->kept || use->writer || use->writers || use->was_written)
        return;
    use_free(use);
}

void
use_forget(struct array *array)
{
    struct section *section;

    while (array->use && (section = LIST_FIRST(&array->use->sections))) {
        charge_deinit(&section->charge);
        section_free(section);
    }
    if (array->use)
        use_free(array->use);
}

/* ---- sections ---- */

static struct section *
section_find(struct use *use, uint64_t from, uint64_t end)
{
    struct section *section;

    LIST_FOREACH(section, &use->sections, of_use)
        if (section->from == from && section->end == end)
            return section;
    return NULL;
}

static void sweep_reads(struct section *section);
static void sweep_write(struct section *section);

/* Frees those of which only fences that have passed are left. */
static void
sections_sweep(struct use *use)
{
    struct section *section;

    LIST_FOREACH(section, &use->sections, of_use) {
        sweep_write(section);
        sweep_reads(section);
    }
    sections_settle(use);
    use->n_left = use->n_sections;
}

static int
section_get(struct use *use, uint64_t from, uint64_t end, uint32_t max, struct section **ret)
{
    struct section *section = end == UINT64_MAX ? &use->whole : section_find(use, from, end);

    if (!section && (use->n_sections > 2 * use->n_left + 8 || use->n_sections >= max))
        sections_sweep(use);
    if (!section && use->n_sections >= max)
        section = &use->whole;
    if (!section) {
        section = calloc(1, sizeof(*section));
        if (!section)
            return -ENOMEM;
        section_init(section, use, from, end);
        LIST_INSERT_HEAD(&use->sections, section, of_use);
        use->n_sections++;
    }
    *ret = section;
    return 0;
}

int
use_claim(struct claim *claim, struct array *array, uint64_t from, uint64_t end, bool was_open)
{
    uint32_t max = was_open ? RESUMED_MAX : SECTIONS_MAX;
    struct use *use;

    if (use_get(array, &use) < 0)
        return -ENOMEM;
    if (section_get(use, from, end, max, &claim->section) < 0) {
        use_settle(use);
        return -ENOMEM;
    }
    claim->use = use;
    claim->section->n_claims++;
    return 0;
}

void
use_drop(struct claim *claim)
{
    claim->section->n_claims--;
    use_settle(TAKE_PTR(claim->use));
}

bool
use_is_claimed(struct claim *claim, uint64_t number)
{
    const struct section *section;

    FOREACH_OVERLAPPING(section, claim->section)
        if (section->visited[0] == number)
            return true;
    claim->section->visited[0] = number;
    return false;
}

void
use_widen(struct claim *claim, uint64_t number)
{
    struct use *use = claim->use;

    claim->section->n_claims--;
    claim->section = &use->whole;
    claim->section->n_claims++;
    claim->section->visited[0] = number;
    claim->widened = true;
    sections_settle(use);
}

void
use_count(struct use *use, uint64_t *ret_readers, uint64_t *ret_writers, uint64_t *ret_waiting)
{
    const struct section *section;

    *ret_readers = *ret_writers = *ret_waiting = 0;
    FOREACH_SECTION(section, use) {
        *ret_readers += section->n_readers;
        *ret_writers += section->n_writers;
        *ret_waiting += section->n_waiting;
    }
}

/* ---- fences ---- */

static int
fence_compare(const struct fence *a, const struct fence *b)
{
    return a->page == b->page ? CMP(a->slot, b->slot) : CMP(a->page->id, b->page->id);
}

RB_GENERATE(fences, fence, of_section, fence_compare)

void
fence_free(struct fence *fence)
{
    struct section *section = fence->section;

    if (fence == section->write) {
        section->write = NULL;
        persist_mark(section->use->array);
    } else {
        RB_REMOVE(fences, &section->reads, fence);
        section->n_reads--;
    }
    LIST_REMOVE(fence, of_page);
    charge_deinit(&fence->charge);
    free(fence);
}

enum fence_state
fence_state(const struct fence *fence)
{
    return timeline_state(&fence->page->slots[fence->slot], fence->value);
}

/* A lost fence stays, for those who read next: use_is_abandoned(), or the client. */
static void
sweep_write(struct section *section)
{
    if (section->write && fence_state(section->write) == FENCE_PASSED)
        fence_free(section->write);
}

void
use_sweep(const struct claim *claim)
{
    struct section *section;

    FOREACH_OVERLAPPING(section, claim->section)
        sweep_write(section);
    sections_settle(claim->use);
}

/* Drops fences that have passed, or whose owner has died. */
static void
sweep_reads(struct section *section)
{
    struct fence *fence, *next;

    for (fence = RB_MIN(fences, &section->reads); fence; fence = next) {
        next = RB_NEXT(fences, &section->reads, fence);
        if (fence_state(fence) != FENCE_PENDING)
            fence_free(fence);
    }
    section->n_swept = section->n_reads;
}

/* It is not torn any more. */
static void
mend(struct section *section)
{
    section->use->n_torn -= section->torn;
    section->torn = false;
    charge_deinit(&section->charge);
}

void
use_sweep_dead(struct use *use)
{
    struct section *section;

    use->was_written = false;
    FOREACH_SECTION(section, use) {
        if (section->write && fence_state(section->write) != FENCE_PENDING)
            fence_free(section->write);
        sweep_reads(section);
        mend(section);
    }
    sections_settle(use);
}

/* ---- abandoned contents ---- */

void
use_tear(struct section *section)
{
    struct use *use = section->use;
    struct array *array = use->array;
    bool is_all = section == &use->whole || (array->abandoned && !use->n_torn);

    if (section->torn)
        return;
    if (!is_all && use->n_torn < TORN_MAX) {
        charge_init(&section->charge, array->charge.user, RES_HOST, 0, TORN_HOST, NULL);
        section->torn = true;
        use->n_torn++;
    } else {
        FOREACH_SECTION(section, use)
            mend(section);
    }
    array->abandoned = true;
    persist_mark(array);
}

void
use_abandon(struct section *section)
{
    use_tear(section);
    use_scan(section->use);
}

static bool
is_inside(const struct section *inner, const struct section *outer)
{
    return outer->from <= inner->from && inner->end <= outer->end;
}

void
use_heal(struct section *section)
{
    struct use *use = section->use;
    struct section *other;

    if (!use->array->abandoned)
        return;
    if (section == &use->whole)
        use->array->abandoned = false;
    else if (use->n_torn == 0)
        return;
    FOREACH_OVERLAPPING(other, section)
        if (is_inside(other, section))
            mend(other);
    use->array->abandoned = use->n_torn > 0;
    persist_mark(use->array);
}

/* A writer whose context has died marks that in its page. */
static void
notice_loss(struct section *section)
{
    if (section->write && fence_state(section->write) == FENCE_LOST) {
        fence_free(section->write);
        use_abandon(section);
    }
}

bool
use_is_abandoned(struct array *array)
{
    struct use *use = array->use;
    struct section *section;

    if (use) {
        FOREACH_SECTION(section, use)
            notice_loss(section);
        use_settle(use);
    }
    return array->abandoned;
}

bool
use_is_pending(struct use *use)
{
    struct section *section;

    FOREACH_SECTION(section, use) {
        notice_loss(section);
        sweep_write(section);
        sweep_reads(section);
    }
    bool pending = use_has_fences(use);
    use_settle(use);
    return pending;
}

static bool
is_torn(const struct section *section)
{
    return section->use->array->abandoned && (!section->use->n_torn || section->torn);
}

bool
use_is_torn(const struct claim *claim)
{
    struct section *section;
    bool torn = false;

    FOREACH_OVERLAPPING(section, claim->section) {
        notice_loss(section);
        torn = torn || is_torn(section);
    }
    sections_settle(claim->use);
    return torn;
}

/* The use of a dead array is looked at by linger.c. */
static bool
fence_sweep(struct fence *fence)
{
    struct section *section = fence->section;

    if (section->use->array->lingering || fence_state(fence) == FENCE_PENDING)
        return false;
    if (fence == section->write && fence_state(fence) == FENCE_LOST)
        use_abandon(section);
    fence_free(fence);
    use_settle(section->use);
    return true;
}

bool
fences_sweep(struct conn *conn, uint32_t max)
{
    struct page *page;
    struct fence *fence, *next;

    LIST_FOREACH(page, &conn->pages, of_conn)
        for (fence = LIST_FIRST(&page->fences); fence; fence = next) {
            next = LIST_NEXT(fence, of_page);
            if (max == 0)
                return true;
            max -= fence_sweep(fence);
        }
    return false;
}

static struct fence *
fence_take(struct claim *claim, struct page *page, uint32_t slot, uint64_t value)
{
    struct fence *fence = TAKE_PTR(claim->fence);

    charge_split(&claim->bracket->charge, &fence->charge, 1, FENCE_HOST);
    fence->section = claim->section;
    fence->page = page;
    fence->slot = slot;
    fence->value = value;
    LIST_INSERT_HEAD(&page->fences, fence, of_page);
    return fence;
}

static void
end_read(struct claim *claim, struct page *page, uint32_t slot, uint64_t value)
{
    struct fence key = {.page = page, .slot = slot}, *fence;
    struct section *section = claim->section;

    fence = RB_FIND(fences, &section->reads, &key);

    if (fence) {
        fence->value = value; /* a slot's values only grow */
        return;
    }
    fence = fence_take(claim, page, slot, value);
    RB_INSERT(fences, &section->reads, fence);
    section->n_reads++;
    if (section->n_reads > 2 * section->n_swept + 8)
        sweep_reads(section);
}

static void
drop_fences(struct section *section)
{
    if (section->write)
        fence_free(section->write);
    while (!RB_EMPTY(&section->reads))
        fence_free(RB_ROOT(&section->reads));
}

static void
end_write(struct claim *claim, struct page *page, uint32_t slot, uint64_t value)
{
    struct section *section = claim->section, *other;

    FOREACH_OVERLAPPING(other, section)
        if (is_inside(other, section))
            drop_fences(other);
    if (page)
        section->write = fence_take(claim, page, slot, value);
}

int
use_restore_write(struct array *array, struct page *page, uint32_t slot, uint64_t value)
{
    struct fence *fence = page ? calloc(1, sizeof(*fence)) : NULL;
    struct use *use;

    if ((page && !fence) || use_get(array, &use) < 0) {
        free(fence);
        return -ENOMEM;
    }
    if (use->whole.write)
        fence_free(use->whole.write);
    if (fence) {
        *fence =
            (struct fence){.section = &use->whole, .page = page, .slot = slot, .value = value};
        charge_init(&fence->charge, page->conn->user, RES_BRACKETS, 1, FENCE_HOST, NULL);
        LIST_INSERT_HEAD(&page->fences, fence, of_page);
        use->whole.write = fence;
        if (page->before[slot] < value)
            page->before[slot] = value;
    }
    persist_mark(array);
    use_settle(use);
    return 0;
}

void
use_end(struct claim *claim, struct page *page, uint32_t slot, uint64_t value)
{
    if (claim->write)
        end_write(claim, page, slot, value);
    else if (page)
        end_read(claim, page, slot, value);
}

/* ---- turns ---- */

/* Takes those out that wait for the claim's reading anyway. */
static size_t
excuse(struct claim *const *writers, size_t n, const struct claim *reading, struct claim **ret)
{
    size_t n_left = 0;

    for (size_t i = 0; i < n; i++)
        if (!section_overlaps(reading->section, writers[i]->section) ||
            reading->bracket->arrival > writers[i]->bracket->arrival)
            ret[n_left++] = writers[i];
    return n_left;
}

/* A thread that reads would wait for itself behind a writer that waits for what it reads. So it may
 * pass writers that came after that reading. It may not pass others: readings that overlap would
 * keep writers out for ever. */
static bool
may_overtake(struct use *use, const struct bracket *bracket, struct claim **writers, size_t n)
{
    const struct section *section;
    const struct claim *claim;

    FOREACH_SECTION(section, use)
        LIST_FOREACH(claim, &section->open, of_held) {
            if (!claim->write && claim->bracket->thread == bracket->thread)
                n = excuse(writers, n, claim, writers);
            if (n == 0)
                return true;
        }
    return false;
}

/* Whether claims that wait already exclude it, and it cannot overtake them. */
static bool
is_behind(struct claim *claim)
{
    struct claim *writers[RESUMED_MAX + 1];
    struct section *section;
    size_t n = 0;

    FOREACH_OVERLAPPING(section, claim->section) {
        if (claim->write && section->n_waiting)
            return true;
        if (section->first_writer)
            writers[n++] = section->first_writer;
    }
    claim->overtakes = n && may_overtake(claim->use, claim->bracket, writers, n);
    return n && !claim->overtakes;
}

/* The writer has hung up, and may go on writing until its process exits. Readers are told so, and
 * do not wait. Writers wait. */
static bool
writer_is_gone(const struct section *section)
{
    return is_torn(section) && LIST_FIRST(&section->open)->bracket->conn->departed;
}

static bool
is_kept(const struct section *section, bool write)
{
    const struct use *use = section->use;
    struct section *other;

    if (use->doubt >= DOUBT_STREAMS &&
        (write || use->writer || use->writers || use->was_written))
        return true;
    FOREACH_OVERLAPPING(other, section)
        if (other->n_writers ? write || !writer_is_gone(other) : write && other->n_readers)
            return true;
    return false;
}

bool
use_is_kept(const struct claim *claim)
{
    return is_kept(claim->section, claim->write);
}

static void
set_ready(struct claim *claim)
{
    struct bracket *bracket = claim->bracket;

    claim->ready = true;
    if (bracket->closed || --bracket->n_unready > 0)
        return;
    TAILQ_INSERT_TAIL(&bracket->conn->user->ready, bracket, ready);
    user_wake(bracket->conn->user);
}

void
use_queue(struct claim *claim)
{
    struct section *section = claim->section;
    bool behind = is_behind(claim);

    TAILQ_INSERT_TAIL(&section->waiting, claim, of_waiting);
    section->n_waiting++;
    section->n_overtaking += claim->overtakes;
    if (claim->write && !section->first_writer)
        section->first_writer = claim;
    if (!behind && !use_is_kept(claim))
        set_ready(claim);
}

/* Until which arrival no claim that waits in another section excludes one of this. */
static uint64_t
first_beside(const struct section *section, bool write)
{
    uint64_t first = UINT64_MAX;
    struct section *other;

    FOREACH_OVERLAPPING(other, section) {
        const struct claim *claim = write ? TAILQ_FIRST(&other->waiting) : other->first_writer;
        if (other != section && claim && claim->bracket->arrival < first)
            first = claim->bracket->arrival;
    }
    return first;
}

/* A writer that is first in the queue. */
static void
let_writer_go(struct section *section)
{
    struct claim *first = TAILQ_FIRST(&section->waiting);

    if (first && first->write && !first->ready && !use_is_kept(first) &&
        first->bracket->arrival < first_beside(section, true))
        set_ready(first);
}

/* Lets in the readers from there on, up to the next writer: those behind it wait for that. Returns
 * it. */
static struct claim *
let_readers_go(struct section *section, struct claim *claim)
{
    uint64_t end = is_kept(section, false) ? 0 : first_beside(section, false);

    for (; claim && !claim->write; claim = TAILQ_NEXT(claim, of_waiting))
        if (!claim->ready && claim->bracket->arrival < end)
            set_ready(claim);
    return claim;
}

static void
let_overtakers_go(struct section *section)
{
    struct claim *claim;

    TAILQ_FOREACH(claim, &section->waiting, of_waiting)
        if (claim->overtakes && !claim->ready)
            set_ready(claim);
}

static void
scan(struct section *section, bool readers)
{
    if (readers && section->n_waiting && !is_kept(section, false)) {
        let_readers_go(section, TAILQ_FIRST(&section->waiting));
        if (section->n_overtaking)
            let_overtakers_go(section);
    }
    let_writer_go(section);
}

void
use_scan(struct use *use)
{
    struct section *section;

    FOREACH_SECTION(section, use)
        scan(section, true);
}

/* A claim has left the section, for which those of others may have waited. */
static void
scan_beside(struct section *section, bool write)
{
    struct section *other;

    FOREACH_OVERLAPPING(other, section)
        if (other != section)
            scan(other, write);
}

void
use_unready(struct claim *claim)
{
    if (!use_is_kept(claim))
        return;
    claim->ready = false;
    claim->bracket->n_unready++;
}

/* Lets those in whose turn it is. Each reader is looked at once, so that a queue which empties
 * costs no more than its length. */
static void
stop_waiting(struct claim *claim)
{
    struct section *section = claim->section;
    struct claim *next = TAILQ_NEXT(claim, of_waiting);

    TAILQ_REMOVE(&section->waiting, claim, of_waiting);
    section->n_waiting--;
    section->n_overtaking -= claim->overtakes;
    if (claim == section->first_writer)
        section->first_writer = let_readers_go(section, next);
    let_writer_go(section);
    scan_beside(section, claim->write);
}

static void
hold(struct claim *claim)
{
    struct section *section = claim->section;

    LIST_INSERT_HEAD(&section->open, claim, of_held);
    section->n_readers += !claim->write;
    section->n_writers += claim->write;
    if (claim->write)
        persist_mark(claim->use->array);
}

void
use_hold(struct claim *claim)
{
    assert(claim->ready && !use_is_kept(claim));
    hold(claim); /* before another claim can be let in */
    stop_waiting(claim);
}

bool
use_resume(struct claim *claim)
{
    struct section *section;

    FOREACH_OVERLAPPING(section, claim->section)
        if (section->n_writers || (claim->write && section->n_readers))
            return false;
    hold(claim);
    return true;
}

static void
stop_holding(struct claim *claim)
{
    struct section *section = claim->section;

    LIST_REMOVE(claim, of_held);
    section->n_readers -= !claim->write;
    section->n_writers -= claim->write;
    if (claim->write)
        persist_mark(claim->use->array);
    if (section->n_readers)
        return;
    scan(section, true);
    scan_beside(section, claim->write);
}

void
use_leave(struct claim *claim)
{
    if (claim->bracket->waiting)
        stop_waiting(claim);
    else
        stop_holding(claim);
    LIST_REMOVE(claim, of_lease);
    use_drop(claim);
}

/* ---- deadlocks ---- */

/* Searches what a waiting bracket waits for, directly or not. */
struct search {
    const struct bracket *start;
    uint64_t number; /* of this search: what it has looked at carries it */
    uint32_t n_steps;
    bool found;
    struct bracket *first; /* found, and to be looked at; linked by next_found */
};

static void
search_add(struct search *s, struct bracket *bracket)
{
    if (bracket->visited == s->number || bracket->closed)
        return;
    bracket->visited = s->number;
    bracket->next_found = s->first;
    s->first = bracket;
}

static bool
search_is_over(const struct search *s)
{
    return s->found || s->n_steps >= SEARCH_MAX;
}

/* A thread ends its brackets only when what it waits for has come. */
static void
search_holder(struct search *s, const struct bracket *holder)
{
    struct thread *thread = holder->thread;
    struct bracket *bracket;

    if (thread->visited == s->number)
        return;
    thread->visited = s->number;
    s->found = thread == s->start->thread;
    for (bracket = LIST_FIRST(&thread->waiting); bracket && !search_is_over(s);
         bracket = LIST_NEXT(bracket, of_thread)) {
        s->n_steps++;
        search_add(s, bracket);
    }
}

static void
search_held(struct search *s, struct section *section, bool write)
{
    const struct claim *held;

    if (section->visited[write] == s->number)
        return;
    section->visited[write] = s->number;
    for (held = LIST_FIRST(&section->open); held && !search_is_over(s);
         held = LIST_NEXT(held, of_held)) {
        s->n_steps++;
        if (write || held->write)
            search_holder(s, held->bracket);
    }
}

/* Claims of the section that have come before it and exclude it, from that one back to a writer:
 * that one waits for the others. */
static void
search_ahead(struct search *s, const struct claim *claim, const struct claim *ahead)
{
    for (; ahead && !search_is_over(s); ahead = TAILQ_PREV(ahead, claims, of_waiting)) {
        s->n_steps++;
        if (ahead->bracket->arrival >= claim->bracket->arrival)
            continue;
        if (claim->write || ahead->write)
            search_add(s, ahead->bracket);
        if (ahead->write)
            return;
    }
}

static void
search_claim(struct search *s, const struct claim *claim)
{
    struct section *section;

    s->n_steps += claim->use->n_sections;
    FOREACH_OVERLAPPING(section, claim->section) {
        search_held(s, section, claim->write);
        if (!claim->overtakes)
            search_ahead(s, claim,
                         section == claim->section ? TAILQ_PREV(claim, claims, of_waiting)
                                                   : TAILQ_LAST(&section->waiting, claims));
    }
}

bool
use_is_deadlock(struct core *core, struct bracket *bracket)
{
    struct search s = {.start = bracket, .number = ++core->n_searches};
    struct bracket *next;

    search_add(&s, bracket);
    while (!search_is_over(&s) && (next = s.first)) {
        s.first = next->next_found;
        for (uint32_t i = 0; i < next->n_claims && !search_is_over(&s); i++) {
            const struct claim *claim = &next->claims[i];
            if (!claim->ready || use_is_kept(claim))
                search_claim(&s, claim);
        }
    }
    return s.found;
}
