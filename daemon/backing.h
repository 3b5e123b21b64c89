/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a block, by its kind:
 *     device  a VMM allocation and the fd that it was exported to, once (I3)
 *     legacy  memory of cuMemAlloc and its handle, in the primary context of the device
 *     pinned  a memfd, which each client registers with its driver; no driver call here
 *
 * Functions here block, and are for the thread pool (I5); any number may run at a time.
 * backing_create() makes a backing as a whole or not at all. backing_release() ends it, whatever
 * the driver answers.
 */
#pragma once

#include "core.h"
#include "gpu.h"
#include "legacy.h"
#include "vmm.h"

/* The daemon's contexts: the primary one of a device, from its first legacy backing to its last. */
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
/* Memory of an earlier daemon, by the fd that it was exported to: then it is as if it had been
 * created here. -EINVAL: it is not of that size and kind. On failure the fd stays the caller's. */
int backing_adopt(struct backings *b, enum core_kind kind, uint32_t device, uint64_t size,
                  int fd, struct backing *ret, struct drv_error *err);
/* Returns the driver's answer; the backing has ended either way. */
int backing_release(struct backings *b, struct backing *backing, struct drv_error *err);
