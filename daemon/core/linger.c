/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits for values to land: arrays that nobody holds any more (I2), pages that their owners have
 * given up (I7), and creates that find no memory while such arrays have it.
 *
 * Nobody tells the daemon of a value, so it looks: at some in each turn, those first that it has not
 * looked at for longest. Arrays whose last fence goes with its page are known without that.
 */
#include <assert.h>

#include "state.h"

#define TURN_NS     UINT64_C(10000000) /* between two looks at the same */
#define REST_NS     UINT64_C(1000000)  /* until those that a turn has left out are looked at */
#define MAX_ARRAYS  1024               /* in one turn: a tenth of a millisecond */
#define MAX_PAGES   64                 /* the same, since each has its slots */
#define PATIENCE_NS UINT64_C(1000000000) /* that a create waits in all */

static void
look_after(struct core *core, uint64_t ns)
{
    uint64_t at = core->now_ns + ns;

    if (core->linger_at_ns > at)
        core->linger_at_ns = at;
}

void
linger_later(struct core *core)
{
    look_after(core, TURN_NS);
}

/* ---- dead arrays ---- */

/* Creates may hope for its memory, or for that of the whole that it is a part of. */
static void
count(struct core *core, const struct array *array, bool there)
{
    struct lingering *of[] = {&core->devices[array->device].lingering, &array->pool->lingering};

    for (size_t i = 0; i < ARRAY_SIZE(of) && array->range; i++) {
        of[i]->n += there ? 1 : UINT64_MAX;
        of[i]->n_over += !there;
    }
}

bool
linger_array(struct core *core, struct array *array)
{
    struct access *access = array->access;

    if (!access || array->lingering)
        return array->lingering;
    assert(!access->n_waiting && LIST_EMPTY(&access->held));
    access_sweep_dead(access);
    if (!access_has_fences(access)) {
        access_settle(access);
        return false;
    }
    array->lingering = true;
    TAILQ_INSERT_TAIL(&core->lingering, access, of_lingering);
    count(core, array, true);
    linger_later(core);
    return true;
}

/* Settled at the end of the event: who comes here may be amid something. */
void
linger_end(struct core *core, struct access *access)
{
    TAILQ_REMOVE(&core->lingering, access, of_lingering);
    TAILQ_INSERT_TAIL(&core->landed, access, of_lingering);
}

static void
stop_lingering(struct core *core, struct access_list *list)
{
    struct access *access = TAILQ_FIRST(list);

    TAILQ_REMOVE(list, access, of_lingering);
    count(core, access->array, false);
    access->array->lingering = false;
    access_settle(access);
}

static void
settle_landed(struct core *core)
{
    struct access *access;

    while ((access = TAILQ_FIRST(&core->landed))) {
        struct array *array = access->array;
        stop_lingering(core, &core->landed);
        array_settle(core, array);
    }
}

void
linger_forget(struct core *core)
{
    while (!TAILQ_EMPTY(&core->landed))
        stop_lingering(core, &core->landed);
    while (!TAILQ_EMPTY(&core->lingering))
        stop_lingering(core, &core->lingering);
}

/* Whether it has left some out. */
static bool
look_at_arrays(struct core *core)
{
    struct access *last = TAILQ_LAST(&core->lingering, access_list), *access = NULL;

    for (size_t i = 0; access != last && i < MAX_ARRAYS; i++) {
        access = TAILQ_FIRST(&core->lingering);
        TAILQ_REMOVE(&core->lingering, access, of_lingering);
        TAILQ_INSERT_TAIL(&core->lingering, access, of_lingering);
        access_sweep_dead(access);
        if (!access_has_fences(access))
            linger_end(core, access);
    }
    return access != last;
}

/* ---- pages that are given up ---- */

static bool
look_at_pages(struct core *core)
{
    const struct page *last = TAILQ_LAST(&core->closing_pages, page_list);
    bool is_last = !last;

    for (size_t i = 0; !is_last && i < MAX_PAGES; i++) {
        struct page *page = TAILQ_FIRST(&core->closing_pages);
        is_last = page == last;
        TAILQ_REMOVE(&core->closing_pages, page, of_closing);
        TAILQ_INSERT_TAIL(&core->closing_pages, page, of_closing);
        page_end(core, page);
    }
    return !is_last;
}

/* ---- creates ---- */

bool
linger_wait(struct core *core, struct waiter *waiter, const struct lingering *lingering)
{
    if (!lingering->n || !waiter->conn || core->stopping)
        return false;
    if (!waiter->patience_ns)
        waiter->patience_ns = core->now_ns + PATIENCE_NS;
    if (waiter->patience_ns <= core->now_ns)
        return false;
    waiter->lingering = lingering;
    waiter->n_over = lingering->n_over;
    TAILQ_INSERT_TAIL(&core->hopeful, waiter, link);
    linger_later(core);
    return true;
}

/* From the start, what was freed is in the queue: the last time is as if it had not waited. */
static void
try_again(struct core *core, struct waiter *waiter)
{
    waiter->retried = false;
    waiter->minimal = true;
    waiter->quota_waits = 0;
    waiter_retry(core, waiter);
}

static void
try_waiters(struct core *core)
{
    struct waiter_list waiters = TAILQ_HEAD_INITIALIZER(waiters);
    struct waiter *waiter;

    TAILQ_CONCAT(&waiters, &core->hopeful, link);
    while ((waiter = TAILQ_FIRST(&waiters))) {
        bool over = !waiter->conn || core->stopping || waiter->patience_ns <= core->now_ns;
        TAILQ_REMOVE(&waiters, waiter, link);
        if (over || waiter->n_over != waiter->lingering->n_over)
            try_again(core, waiter);
        else
            TAILQ_INSERT_TAIL(&core->hopeful, waiter, link);
    }
}

/* ---- turns ---- */

void
linger_run(struct core *core)
{
    bool is_time = core->linger_at_ns <= core->now_ns, more = false;

    if (!is_time && TAILQ_EMPTY(&core->landed))
        return;
    if (is_time) {
        more = look_at_pages(core);
        more |= look_at_arrays(core);
        core->linger_at_ns = UINT64_MAX;
    }
    settle_landed(core);
    try_waiters(core);
    if (!TAILQ_EMPTY(&core->closing_pages) || !TAILQ_EMPTY(&core->lingering) ||
        !TAILQ_EMPTY(&core->hopeful))
        look_after(core, more ? REST_NS : TURN_NS);
}
