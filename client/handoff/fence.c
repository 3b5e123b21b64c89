/* SPDX-License-Identifier: Apache-2.0 */
#include "fence.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/clock.h"
#include "base/macros.h"
#include "session/client.h"
#include "session/interrupt.h"

/* How long the host sleeps between two looks at what a CPU stores that wakes us, if it is honest.
 */
#define WAKE_MAX_NS (100 * NSEC_PER_MSEC)

static bool
fence_is_possible(const struct msg_fence *m)
{
    return m->slot < TIMELINE_SLOTS && m->value > 0 && m->value <= TIMELINE_VALUE_MAX;
}

int
fences_take(struct caid_client *client, const struct msg_fence *fences, uint32_t n,
            struct fence *ret)
{
    for (uint32_t i = 0; i < n; i++) {
        struct page *page = fence_is_possible(&fences[i]) ? page_find(client, fences[i].page)
                                                          : NULL;
        if (!page) {
            while (i-- > 0)
                fence_drop(&ret[i]);
            return -EPROTO;
        }
        ret[i] = (struct fence){
            .page = page_ref(page),
            .slot = (uint32_t)fences[i].slot,
            .data = fences[i].data,
            .value = fences[i].value,
        };
    }
    return 0;
}

/* ---- looking ---- */

static const struct timeline_slot *
slot_of(const struct fence *fence)
{
    return &fence->page->slots[fence->slot];
}

static int
fail_page(const struct fence *fence, struct caid_error *error, const char *what, uint64_t value)
{
    return fail(error, CAID_ERR_PROTOCOL,
                "page %" PRIu64 " of timelines, slot %u: %s (%" PRIu64
                "): its owner has written to it what cannot be",
                fence->page->id, fence->slot, what, value);
}

/* The state of a slot that was seen before: it cannot have gone back since. */
struct known {
    struct page_slot *slot;
    uint64_t seen;
    bool dead;
};

static struct known
known_of(const struct fence *fence)
{
    struct page_slot *slot = &fence->page->of_slot[fence->slot];

    return (struct known){
        .slot = slot,
        .dead = atomic_load_explicit(&slot->dead, memory_order_acquire),
        .seen = atomic_load_explicit(&slot->seen, memory_order_acquire),
    };
}

static void
note_seen(struct page_slot *slot, uint64_t seen, uint64_t done)
{
    while (seen < done &&
           !atomic_compare_exchange_weak_explicit(&slot->seen, &seen, done,
                                                  memory_order_acq_rel, memory_order_acquire))
        ;
}

static int
look_at_living(const struct fence *fence, const struct known *known, uint64_t done,
               bool submitted, enum fence_state *ret, struct caid_error *error)
{
    uint64_t on_its_way = timeline_submitted(slot_of(fence));

    if (known->dead)
        return fail_page(fence, error, "it was dead, and counts again", done);
    if (done < known->seen)
        return fail_page(fence, error, "it runs backwards", done);
    if (on_its_way > TIMELINE_VALUE_MAX && on_its_way != TIMELINE_DEAD_SUBMITTED)
        return fail_page(fence, error, "more was submitted than there is", on_its_way);
    note_seen(known->slot, known->seen, done);
    if (done >= fence->value)
        *ret = FENCE_PASSED;
    else if (submitted && on_its_way < fence->value)
        return fail_page(fence, error, "what was said to be submitted is not", on_its_way);
    else
        *ret = FENCE_PENDING;
    return 0;
}

/* A value that was seen to pass has passed, whatever the page says now. */
static int
look_at_dead(const struct fence *fence, const struct known *known, enum fence_state *ret,
             struct caid_error *error)
{
    uint64_t landed = atomic_load_explicit(&slot_of(fence)->landed, memory_order_acquire);

    if (landed >= TIMELINE_DEAD)
        return fail_page(fence, error, "more has landed than there is", landed);
    atomic_store_explicit(&known->slot->dead, true, memory_order_release);
    note_seen(known->slot, known->seen, landed);
    *ret = landed >= fence->value || known->seen >= fence->value ? FENCE_PASSED : FENCE_LOST;
    return 0;
}

int
fence_look(const struct fence *fence, bool submitted, enum fence_state *ret,
           struct caid_error *error)
{
    const struct known known = known_of(fence);
    uint64_t done = atomic_load_explicit(&slot_of(fence)->done, memory_order_acquire);

    if (done > TIMELINE_DEAD)
        return fail_page(fence, error, "more is done than there is", done);
    return done < TIMELINE_DEAD ? look_at_living(fence, &known, done, submitted, ret, error)
                                : look_at_dead(fence, &known, ret, error);
}

uint64_t
fence_reached(const struct fence *fence)
{
    return atomic_load_explicit(&fence->page->of_slot[fence->slot].seen, memory_order_acquire);
}

/* ---- waiting ---- */

static int
fail_timeout(const struct fence *fence, struct caid_error *error)
{
    return fail(error, CAID_ERR_TIMEOUT,
                "page %" PRIu64 " of timelines, slot %u: %" PRIu64 " was not reached in time",
                fence->page->id, fence->slot, fence->value);
}

int
fence_wait(const struct caid_client *client, const struct fence *fence, bool submitted,
           uint64_t deadline_ns, struct caid_error *error)
{
    struct pauses pauses = {0};
    enum fence_state state;

    for (;;) {
        int r = fence_look(fence, submitted, &state, error);
        if (r < 0 || state != FENCE_PENDING)
            return r < 0 ? r : state == FENCE_LOST;
        if (clock_now_ns() >= deadline_ns)
            return fail_timeout(fence, error);
        r = interrupt_pause(client, &pauses, deadline_ns, error);
        if (r < 0)
            return r;
    }
}

/* Until `submitted` is another than it was, for no longer than ns: false after a signal or that
 * time. The word is the low half. */
static bool
wait_for_store(const struct timeline_slot *slot, uint64_t was, uint64_t ns)
{
    const struct timespec left = {.tv_sec = (time_t)(ns / NSEC_PER_SEC),
                                  .tv_nsec = (long)(ns % NSEC_PER_SEC)};

    return syscall(SYS_futex, &slot->submitted, FUTEX_WAIT, (uint32_t)was, &left, NULL, 0) ==
               0 ||
           errno == EAGAIN;
}

int
fence_wait_submitted(const struct caid_client *client, const struct fence *fence,
                     uint64_t deadline_ns, struct caid_error *error)
{
    const struct timeline_slot *slot = slot_of(fence);
    struct spin *spin = &fence->page->of_slot[fence->slot].spin;
    uint64_t began_ns = 0, look_ns = 0;
    enum fence_state state;

    for (;;) {
        uint64_t submitted = timeline_submitted(slot);
        int r = fence_look(fence, false, &state, error);
        bool over = r < 0 || state != FENCE_PENDING || submitted >= fence->value;
        if (over && began_ns == 0)
            return r;
        uint64_t now = clock_now_ns();
        if (over) {
            spin_note(spin, now - began_ns);
            return r;
        }
        if (now >= deadline_ns)
            return fail_timeout(fence, error);
        if (began_ns == 0) {
            began_ns = now;
            look_ns = now + WAKE_MAX_NS;
        }
        if (now - began_ns < spin_for_ns(spin, 0)) {
            sched_yield();
            continue;
        }
        if (wait_for_store(slot, submitted, min_u64(WAKE_MAX_NS, deadline_ns - now)) &&
            now < look_ns)
            continue;
        r = interrupt_ask(client, error);
        if (r < 0)
            return r;
        look_ns = now + WAKE_MAX_NS;
    }
}
