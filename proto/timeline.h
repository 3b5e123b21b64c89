/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timelines, as they lie in memory that processes share. A page is a memfd: its owner, one
 * connection, has it mapped for writing, the daemon too, all others for reading. It is an array of
 * slots. Whatever is read from a page is another process's word for it: bounded and checked.
 *
 * A slot counts up. The owner's CPU stores `submitted` when the work that leads to a value has been
 * enqueued; the GPU stores `done` when it has come past it (or, where the device cannot do that, a
 * host function does in its place). A fence is a value of a slot; it has passed when `done` is that
 * far. Values are 1 to TIMELINE_VALUE_MAX and only grow.
 *
 * When the owner's process has exited, the daemon stores what `done` was as `landed`, then
 * TIMELINE_DEAD_SUBMITTED in `submitted` and TIMELINE_DEAD in `done`, which lets every waiter go: a
 * wait of a stream is a cyclic compare (CU_STREAM_WAIT_VALUE_GEQ, CUDA Driver API), in which all
 * ones would be -1. The owner does the same when its context is dead, since no value of its slots
 * will ever be stored then.
 *
 * `submitted` is waited for by futex(2), on its low half. That of a dead slot is one that hardly
 * any value has, so that who saw a value and sleeps after the kill finds another; for the rest, and
 * where an owner does not wake anybody, waiters bound their sleep.
 */
#pragma once

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/macros.h"

#define TIMELINE_DEAD           (UINT64_C(1) << 62)
#define TIMELINE_VALUE_MAX      (TIMELINE_DEAD - 1)
#define TIMELINE_DEAD_SUBMITTED (TIMELINE_DEAD | UINT32_MAX)

#define TIMELINE_SLOTS 16 /* in a page */
#define TIMELINE_PAGE_BYTES \
    4096                       /* that are used of a page; the memfd is a page of the system */
#define TIMELINE_EVENT_SIZE 64 /* of a CUipcEventHandle */

struct timeline_slot {
    _Atomic uint64_t done; /* a cache line that the GPU writes */
    uint64_t unused_0[7];
    _Atomic uint64_t submitted; /* and one that the owner's CPU does */
    _Atomic uint64_t landed;    /* before DEAD */
    _Atomic uint32_t
        has_event; /* hand-off by events: `event` is there, and recorded for each value */
    uint32_t unused_1[11];
    uint8_t event[TIMELINE_EVENT_SIZE];
    uint8_t unused_2[64];
};

static_assert(sizeof(struct timeline_slot) * TIMELINE_SLOTS == TIMELINE_PAGE_BYTES,
              "slots fill a page");

enum fence_state {
    FENCE_PENDING,
    FENCE_PASSED,
    FENCE_LOST, /* the owner is dead, and had not come that far */
};

static inline enum fence_state
timeline_state(const struct timeline_slot *slot, uint64_t value)
{
    uint64_t done = atomic_load_explicit(&slot->done, memory_order_acquire);

    if (done < TIMELINE_DEAD)
        return done >= value ? FENCE_PASSED : FENCE_PENDING;
    return atomic_load_explicit(&slot->landed, memory_order_acquire) >= value ? FENCE_PASSED
                                                                              : FENCE_LOST;
}

static inline uint64_t
timeline_submitted(const struct timeline_slot *slot)
{
    return atomic_load_explicit(&slot->submitted, memory_order_acquire);
}

static inline bool
timeline_is_dead(const struct timeline_slot *slot)
{
    return atomic_load_explicit(&slot->done, memory_order_acquire) >= TIMELINE_DEAD;
}

/* Nothing stores to the slot any more, or what does is over. The caller wakes those who wait for
 * `submitted`. Done twice, the second has no effect. What is above DEAD is no value: left there
 * it would be a smaller one to a cyclic compare, and hold streams for ever. */
static inline void
timeline_kill(struct timeline_slot *slot)
{
    uint64_t done = atomic_load_explicit(&slot->done, memory_order_acquire);

    if (done != TIMELINE_DEAD)
        atomic_store_explicit(&slot->landed, done < TIMELINE_DEAD ? done : 0,
                              memory_order_release);
    atomic_store_explicit(&slot->submitted, TIMELINE_DEAD_SUBMITTED, memory_order_release);
    atomic_store_explicit(&slot->done, TIMELINE_DEAD, memory_order_release);
}

/* Who waits for `submitted`, by its low half. */
static inline void
timeline_wake(struct timeline_slot *slot)
{
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "it is the first word");
    syscall(SYS_futex, &slot->submitted, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* All of its slots; who waits is woken. */
static inline void
timeline_kill_page(struct timeline_slot slots[TIMELINE_SLOTS])
{
    for (int i = 0; i < TIMELINE_SLOTS; i++) {
        timeline_kill(&slots[i]);
        timeline_wake(&slots[i]);
    }
}
