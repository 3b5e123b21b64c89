/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device: its figures, its deallocation queue and its reserve. It lives as long as the core.
 */
#pragma once

#include "block.h"
#include "core.h"
#include "dealloc.h"

struct device {
    struct core_device info;
    struct dealloc queue;
    struct block_list reserved; /* reserved, not doomed; oldest first */
    struct block_list doomed;   /* doomed: to be released one at a time, in this order */
    uint64_t n_dooms;           /* dooms so far */
    struct block *releasing;    /* the block that the driver is releasing */
    /* after a failed release: nothing is released for its age until then */
    uint64_t calm_until_ns;
    struct waiter_list retries;                 /* creates that try again; sorted by until */
    TAILQ_HEAD(flusher_list, flusher) flushers; /* sorted by until */
    uint64_t used, pinned;       /* bytes of blocks, in device and in host memory */
    uint64_t allocated, pending; /* bytes of ranges: of arrays; in the queue */
    uint64_t used_of[N_KINDS], allocated_of[N_KINDS]; /* the same by kind, host memory, too */
    uint64_t reserve;                                 /* bytes of reserved blocks */
    uint64_t n_blocks, n_arrays;
    uint64_t n_users; /* that are charged for device memory here */
    /* while there are legacy blocks, the daemon has a context on the device */
    uint64_t n_legacy;
    uint64_t n_releases, n_quarantined, bytes_quarantined;
    struct lingering lingering;
};

void device_init(struct device *device, const struct core_device *info,
                 const struct core_memory *memory);
/* The bounds of its queue. */
void device_set_memory(struct device *device, const struct core_memory *memory);
/* The index of the device with that UUID; without one, 0. */
int device_find(const struct core *core, struct msg_str uuid, uint32_t *ret, struct refusal *r);
