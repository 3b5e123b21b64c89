/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timelines in memory that processes share. A page is a memfd with an array of slots. Its owner,
 * one connection, and the daemon have it mapped for writing, all others for reading. Another
 * process writes the page, so whatever is read from it is checked.
 *
 * A slot counts up. The owner's CPU stores `submitted` when the work that leads to a value has been
 * enqueued. The GPU stores `done` when it has reached the value; where the device cannot do that, a
 * host function does. A fence is a value of a slot, and has passed when `done` is at least that.
 * Values are 1 to TIMELINE_VALUE_MAX and only grow.
 *
 * When the owner's process has exited, the daemon copies `done` to `landed`, then stores
 * TIMELINE_DEAD_SUBMITTED in `submitted` and TIMELINE_DEAD in `done`, which ends every wait. A wait
 * of a stream is a cyclic compare (CU_STREAM_WAIT_VALUE_GEQ, CUDA Driver API), to which all ones
 * would be -1. The owner does the same when its context is dead, since no value of its slots will
 * be stored any more.
 *
 * Waits for `submitted` use futex(2), on its low half. The low half of a dead slot is one that
 * hardly any value has, so that a waiter that has seen a value, and sleeps only after the kill,
 * sees another one. For the other cases, and because an owner may not wake anybody, waiters limit
 * their sleep.
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
    4096                       /* bytes with slots; the memfd has a page of the system's size */
#define TIMELINE_EVENT_SIZE 64 /* of a CUipcEventHandle */

struct timeline_slot {
    _Atomic uint64_t done; /* in a cache line that the GPU writes */
    uint64_t unused_0[7];
    _Atomic uint64_t submitted; /* in one that the owner's CPU writes */
    _Atomic uint64_t landed;    /* `done` before it was TIMELINE_DEAD */
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
    FENCE_LOST, /* the owner is dead, and the value was not reached */
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

/* Marks the slot as dead, when nothing stores to it any more. The caller wakes the waiters for
 * `submitted`. A second call has no effect. A `done` above TIMELINE_DEAD is not a value, and is
 * replaced: to a cyclic compare it would be a smaller one, and streams would wait for ever. */
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

/* Wakes the waiters for `submitted`, which wait on its low half. */
static inline void
timeline_wake(struct timeline_slot *slot)
{
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half is the first word");
    syscall(SYS_futex, &slot->submitted, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Kills all slots of the page, and wakes their waiters. */
static inline void
timeline_kill_page(struct timeline_slot slots[TIMELINE_SLOTS])
{
    for (int i = 0; i < TIMELINE_SLOTS; i++) {
        timeline_kill(&slots[i]);
        timeline_wake(&slots[i]);
    }
}
