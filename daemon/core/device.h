/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device: its figures, its deallocation queue, and what is in reserve there. As long as the core.
 */
#pragma once

#include "block.h"
#include "core.h"
#include "dealloc.h"

struct device {
    struct core_device info;
    struct dealloc queue;
    struct block_list reserved; /* that are not doomed, oldest first */
    struct block_list doomed;   /* to be released, one at a time, by their doom */
    uint64_t n_dooms;           /* ever */
    struct block *releasing;    /* the one that is under way */
    uint64_t calm_until_ns;     /* after a release that failed: nothing for reasons of age */
    struct waiter_list retries; /* creates that try again, by until */
    TAILQ_HEAD(flusher_list, flusher) flushers; /* by until */
    uint64_t used, pinned;       /* bytes of blocks, in device and in host memory */
    uint64_t allocated, pending; /* bytes of ranges: of arrays; in the queue */
    uint64_t used_of[N_KINDS], allocated_of[N_KINDS]; /* the same by kind, host memory, too */
    uint64_t reserve;                                 /* bytes of reserved blocks */
    uint64_t n_blocks, n_arrays;
    uint64_t n_legacy; /* blocks: while there are some, the daemon has a context there */
    uint64_t n_releases, n_quarantined, bytes_quarantined;
    struct lingering lingering;
};

void device_init(struct device *device, const struct core_device *info,
                 const struct core_memory *memory);
/* The bounds of its queue. */
void device_set_memory(struct device *device, const struct core_memory *memory);
/* Index of a device by its UUID; an absent one is the first device. */
int device_find(const struct core *core, struct msg_str uuid, uint32_t *ret, struct refusal *r);
