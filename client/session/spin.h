/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a thread polls for what another process does, before it sleeps. Being woken takes some
 * 10 us, and as much again where a hypervisor has stopped the CPU meanwhile: more than a whole
 * hand-off under MPS (docs/PERFORMANCE.md). So if the last wait took at most SPIN_MAX_NS, the next
 * one polls for that long, and yields to others by sched_yield(2). After a longer wait the next one
 * polls only for SPIN_MIN_NS, in which the daemon answers, or not at all, where nobody is asked:
 * then it would be lost CPU. CUDA's own host waits poll without end (CU_CTX_SCHED_SPIN, _YIELD).
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/clock.h"

#define SPIN_MIN_NS (20 * NSEC_PER_USEC)
#define SPIN_MAX_NS NSEC_PER_MSEC

struct spin { /* zeroed at first */
    _Atomic uint64_t last_ns;
};

static inline uint64_t
spin_for_ns(const struct spin *spin, uint64_t min_ns)
{
    return atomic_load_explicit(&spin->last_ns, memory_order_relaxed) <= SPIN_MAX_NS
               ? SPIN_MAX_NS
               : min_ns;
}

/* A wait took that long. */
static inline void
spin_note(struct spin *spin, uint64_t ns)
{
    atomic_store_explicit(&spin->last_ns, ns, memory_order_relaxed);
}
