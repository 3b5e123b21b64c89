/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is behind a block, by its kind:
 *     device  a VMM allocation and the fd that it was exported to, once (I3)
 *     legacy  memory of cuMemAlloc and its handle, in the primary context of the device
 *     pinned  a memfd, which every client registers with the driver by itself; no driver call here
 *
 * Functions here block, and are for the thread pool (I5); any number may run at a time. A backing
 * is made by backing_create() as a whole or not at all, and ends in backing_release(), whatever
 * the driver says to that.
 */
#pragma once

#include "core.h"
#include "gpu.h"
#include "legacy.h"
#include "vmm.h"

/* The daemon's contexts: a device's primary one from its first legacy backing until its last. */
struct backings {
    const struct gpu *gpu;
    struct backing_context *contexts; /* of each device */
};

struct backing {
    enum core_kind kind;
    uint32_t device;
    uint64_t size;

    union {
        struct vmm_alloc vmm;
        struct legacy_alloc legacy;
    };

    int fd; /* -1: legacy */
    uint64_t ipc[CORE_HANDLE_WORDS];
};

/* -ENOMEM. */
int backings_init(struct backings *b, const struct gpu *gpu);
/* No backing may be left. */
void backings_deinit(struct backings *b);

/* size: bytes, a multiple of the device's granularity. */
int backing_create(struct backings *b, enum core_kind kind, uint32_t device, uint64_t size,
                   struct backing *ret, struct drv_error *err);
/* Memory of a former daemon's, by the fd that it was exported to: with that, it is as if it had
 * been created here. -EINVAL: it is not of that size and kind; the fd is the caller's then. */
int backing_adopt(struct backings *b, enum core_kind kind, uint32_t device, uint64_t size,
                  int fd, struct backing *ret, struct drv_error *err);
/* The driver's answer; it is over either way. */
int backing_release(struct backings *b, struct backing *backing, struct drv_error *err);
