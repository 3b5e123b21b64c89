/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brackets get their turn in the order of arrival: many readers or one writer. A reader waits
 * behind a writer that waits, or writers would starve. A bracket of several arrays enters all their
 * queues in one event. So all queues have the brackets that they share in the same order, and no
 * two brackets wait for each other because of their places alone.
 *
 * Fences: of the last write and of the reads since, at most one for each slot. A read comes after
 * the write, and a write after all of them, so once a write has ended its own fence stands for the
 * others.
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

int
use_get(struct array *array, struct use **ret)
{
    if (!array->use) {
        array->use = calloc(1, sizeof(*array->use));
        if (!array->use)
            return -ENOMEM;
        array->use->array = array;
        TAILQ_INIT(&array->use->waiting);
        use_doubt(array->use, doubt_of(array));
    }
    *ret = array->use;
    return 0;
}

bool
use_has_fences(const struct use *use)
{
    return use->write || !RB_EMPTY(&use->reads);
}

/* The use of a dead array goes with the array: linger_stop(). */
void
use_settle(struct use *use)
{
    if (use->n_waiting || !LIST_EMPTY(&use->open) || use_has_fences(use) ||
        use->array->lingering || use->kept || use->writer || use->was_written)
        return;
    use_doubt(use, DOUBT_NONE);
    use->array->use = NULL;
    free(use);
}

/* ---- fences ---- */

static int
fence_compare(const struct fence *a, const struct fence *b)
{
    return a->page == b->page ? CMP(a->slot, b->slot) : CMP(a->page->id, b->page->id);
}

RB_GENERATE(fences, fence, of_use, fence_compare)

void
fence_free(struct fence *fence)
{
    struct use *use = fence->use;

    if (fence == use->write) {
        use->write = NULL;
        persist_mark(use->array);
    } else {
        RB_REMOVE(fences, &use->reads, fence);
        use->n_reads--;
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
void
use_sweep(struct use *use)
{
    if (use->write && fence_state(use->write) == FENCE_PASSED)
        fence_free(use->write);
}

/* Drops fences that have passed, or whose owner has died. */
static void
sweep_reads(struct use *use)
{
    struct fence *fence, *next;

    for (fence = RB_MIN(fences, &use->reads); fence; fence = next) {
        next = RB_NEXT(fences, &use->reads, fence);
        if (fence_state(fence) != FENCE_PENDING)
            fence_free(fence);
    }
    use->n_swept = use->n_reads;
}

void
use_sweep_dead(struct use *use)
{
    use->was_written = false;
    if (use->write && fence_state(use->write) != FENCE_PENDING)
        fence_free(use->write);
    sweep_reads(use);
}

void
use_abandon(struct use *use)
{
    use->array->abandoned = true;
    persist_mark(use->array);
    use_scan(use);
}

/* A writer whose context has died marks that in its page. */
bool
use_is_abandoned(struct array *array)
{
    struct use *use = array->use;

    if (use && use->write && fence_state(use->write) == FENCE_LOST) {
        fence_free(use->write);
        use_abandon(use);
        use_settle(use);
    }
    return array->abandoned;
}

/* The use of a dead array is looked at by linger.c. */
static bool
fence_sweep(struct fence *fence)
{
    struct use *use = fence->use;

    if (use->array->lingering || fence_state(fence) == FENCE_PENDING)
        return false;
    if (fence == use->write && fence_state(fence) == FENCE_LOST)
        use_abandon(use);
    fence_free(fence);
    use_settle(use);
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
    fence->use = claim->use;
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
    struct use *use = claim->use;

    fence = RB_FIND(fences, &use->reads, &key);

    if (fence) {
        fence->value = value; /* a slot's values only grow */
        return;
    }
    fence = fence_take(claim, page, slot, value);
    RB_INSERT(fences, &use->reads, fence);
    use->n_reads++;
    if (use->n_reads > 2 * use->n_swept + 8)
        sweep_reads(use);
}

static void
end_write(struct claim *claim, struct page *page, uint32_t slot, uint64_t value)
{
    struct use *use = claim->use;

    if (use->write)
        fence_free(use->write);
    while (!RB_EMPTY(&use->reads))
        fence_free(RB_ROOT(&use->reads));
    if (page)
        use->write = fence_take(claim, page, slot, value);
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
    if (use->write)
        fence_free(use->write);
    if (fence) {
        *fence = (struct fence){.use = use, .page = page, .slot = slot, .value = value};
        charge_init(&fence->charge, page->conn->user, RES_BRACKETS, 1, FENCE_HOST, NULL);
        LIST_INSERT_HEAD(&page->fences, fence, of_page);
        use->write = fence;
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

/* A thread that reads an array would wait for itself behind a writer that waits for it. So it may
 * pass writers that came after that reading. It may not pass others: readings that overlap would
 * keep writers out for ever. */
static bool
may_overtake(const struct use *use, const struct bracket *bracket)
{
    const struct claim *claim;

    LIST_FOREACH(claim, &use->open, of_held)
        if (!claim->write && claim->bracket->thread == bracket->thread &&
            claim->bracket->arrival < use->first_writer->bracket->arrival)
            return true;
    return false;
}

/* The writer has hung up, and may go on writing until its process exits. Readers are told so, and
 * do not wait. Writers wait. */
static bool
writer_is_gone(const struct use *use)
{
    return use->n_writers && use->array->abandoned &&
           LIST_FIRST(&use->open)->bracket->conn->departed;
}

bool
use_is_kept(const struct use *use, bool write)
{
    if (use->doubt >= DOUBT_STREAMS && (write || use->writer || use->was_written))
        return true;
    if (use->n_writers)
        return write || !writer_is_gone(use);
    return write && use->n_readers;
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
    struct use *use = claim->use;
    bool behind = claim->write ? use->n_waiting > 0
                               : use->first_writer && !may_overtake(use, claim->bracket);

    TAILQ_INSERT_TAIL(&use->waiting, claim, of_waiting);
    use->n_waiting++;
    if (claim->write && !use->first_writer)
        use->first_writer = claim;
    if (!behind && !use_is_kept(use, claim->write))
        set_ready(claim);
}

/* A writer that is first in the queue. */
static void
let_writer_go(struct use *use)
{
    struct claim *first = TAILQ_FIRST(&use->waiting);

    if (first && first->write && !first->ready && !use_is_kept(use, true))
        set_ready(first);
}

/* Lets in the readers from there on, up to the next writer: those behind it wait for that. Returns
 * it. */
static struct claim *
let_readers_go(struct use *use, struct claim *claim)
{
    for (; claim && !claim->write; claim = TAILQ_NEXT(claim, of_waiting))
        if (!claim->ready && !use_is_kept(use, false))
            set_ready(claim);
    return claim;
}

void
use_scan(struct use *use)
{
    if (!use_is_kept(use, false))
        let_readers_go(use, TAILQ_FIRST(&use->waiting));
    let_writer_go(use);
}

void
use_unready(struct claim *claim)
{
    if (!use_is_kept(claim->use, claim->write))
        return;
    claim->ready = false;
    claim->bracket->n_unready++;
}

/* Lets those in whose turn it is. Each reader is looked at once, so that a queue which empties
 * costs no more than its length. */
static void
stop_waiting(struct claim *claim)
{
    struct use *use = claim->use;
    struct claim *next = TAILQ_NEXT(claim, of_waiting);

    TAILQ_REMOVE(&use->waiting, claim, of_waiting);
    use->n_waiting--;
    if (claim == use->first_writer)
        use->first_writer = let_readers_go(use, next);
    let_writer_go(use);
}

static void
hold(struct claim *claim)
{
    struct use *use = claim->use;

    LIST_INSERT_HEAD(&use->open, claim, of_held);
    use->n_readers += !claim->write;
    use->n_writers += claim->write;
    if (claim->write)
        persist_mark(use->array);
}

void
use_hold(struct claim *claim)
{
    struct use *use = claim->use;

    assert(claim->ready && !use_is_kept(use, claim->write));
    hold(claim); /* before another claim can be let in */
    stop_waiting(claim);
}

bool
use_resume(struct claim *claim)
{
    struct use *use = claim->use;

    if (use->n_writers || (claim->write && use->n_readers))
        return false;
    hold(claim);
    return true;
}

static void
stop_holding(struct claim *claim)
{
    struct use *use = claim->use;

    LIST_REMOVE(claim, of_held);
    use->n_readers -= !claim->write;
    use->n_writers -= claim->write;
    if (claim->write)
        persist_mark(use->array);
    if (!use->n_readers)
        use_scan(use);
}

void
use_leave(struct claim *claim)
{
    struct use *use = claim->use;

    if (claim->bracket->waiting)
        stop_waiting(claim);
    else
        stop_holding(claim);
    LIST_REMOVE(claim, of_lease);
    claim->use = NULL;
    use_settle(use);
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
search_held(struct search *s, const struct claim *claim)
{
    struct use *use = claim->use;
    const struct claim *held;

    if (use->visited[claim->write] == s->number)
        return;
    use->visited[claim->write] = s->number;
    for (held = LIST_FIRST(&use->open); held && !search_is_over(s);
         held = LIST_NEXT(held, of_held)) {
        s->n_steps++;
        if (claim->write || held->write)
            search_holder(s, held->bracket);
    }
}

/* Claims before it that exclude it, up to a writer: that one waits for the others. */
static void
search_ahead(struct search *s, const struct claim *claim)
{
    const struct claim *ahead = claim;

    while (!search_is_over(s) && (ahead = TAILQ_PREV(ahead, claims, of_waiting))) {
        s->n_steps++;
        if (claim->write || ahead->write)
            search_add(s, ahead->bracket);
        if (ahead->write)
            return;
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
            if (claim->ready && !use_is_kept(claim->use, claim->write))
                continue;
            search_held(&s, claim);
            search_ahead(&s, claim);
        }
    }
    return s.found;
}
