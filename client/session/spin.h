/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a thread looks for what another process is to do before it sleeps. To be woken costs
 * some 10 us, and as much again where a hypervisor has stopped the CPU meanwhile: more than a
 * hand-off under MPS takes in all (docs/PERFORMANCE.md). So whoever has waited for less than
 * SPIN_MAX_NS the last time looks for that long, giving way to others by sched_yield(2); a wait
 * that took longer is slept through the next time. CUDA's own host waits look without end
 * (CU_CTX_SCHED_SPIN, _YIELD).
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
spin_for_ns(const struct spin *spin)
{
    return atomic_load_explicit(&spin->last_ns, memory_order_relaxed) <= SPIN_MAX_NS
               ? SPIN_MAX_NS
               : SPIN_MIN_NS;
}

/* It took that long. */
static inline void
spin_note(struct spin *spin, uint64_t ns)
{
    atomic_store_explicit(&spin->last_ns, ns, memory_order_relaxed);
}
