/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kinds of memory and of fences that stress_soft_processes hands between processes: one row
 * of a table each. Any memory goes with any two fences.
 *
 * Both ends of a session have a struct memory for what they share, and a struct fence for each
 * direction. Who made it passes an offer to the other end, who opens it.
 */
#pragma once

#include <stdbool.h>

#include "soft_test.h"
#include "stress_soft_wire.h"

/* On one side. Who makes or opens it sets the first part before. */
struct memory {
    const struct memory_kind *kind; /* NULL: neither made nor opened */
    size_t size;                    /* for kinds of whole granules a multiple of GRAN */
    bool read_only;                 /* for the device, where the kind can do that */
    CUstream stream;                /* for kinds that are in stream order */

    CUdeviceptr at;
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool;
    void *host;
};

struct memory_kind {
    const char *name;
    void (*make)(struct memory *memory, struct offer *ret);
    /* Borrows the offer's fd. */
    CUresult (*open)(struct memory *memory, const struct offer *offer);
    void (*drop)(struct memory *memory, bool made);
    bool dies; /* once who made it is gone, opening may fail */
};

/* On one side; kind is set by who makes or opens it. */
struct fence {
    const struct fence_kind *kind; /* NULL: neither made nor opened */
    struct memory word;
    CUevent event;
};

/* A fence is signalled with values that grow, by one stream of who made it. A wait is enqueued
 * only after its signal was. So it hangs only where the signalling process dies: then the waiting
 * side calls release, and where there is none asks is_stuck, and has to end, too, if so. */
struct fence_kind {
    const char *name;
    bool host; /* the host waits for its work before it tells; there is nothing else */
    const struct memory_kind *word;
    void (*make)(struct fence *fence, struct offer *ret);
    CUresult (*open)(struct fence *fence, const struct offer *offer);
    void (*signal)(struct fence *fence, unsigned int value, CUstream stream);
    void (*wait)(struct fence *fence, unsigned int value, CUstream stream);
    void (*release)(struct fence *fence);
    bool (*is_stuck)(struct fence *fence);
    void (*drop)(struct fence *fence, bool made);
    bool dies;
};

extern const struct memory_kind memory_vmm, memory_pinned;
extern const struct memory_kind *const memory_kinds[];
extern const unsigned int n_memory_kinds;
/* Memory of the device that is used by one process alone; made only. */
extern const struct memory_kind *const own_kinds[];
extern const unsigned int n_own_kinds;
extern const struct fence_kind fence_kinds[];
extern const unsigned int n_fence_kinds;
