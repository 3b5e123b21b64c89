/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver calls, off the loop (I5): each runs on libuv's thread pool and its result comes back on
 * the loop, never from inside the call that asked for it.
 *
 * The worker owns what is behind every block (backing.h). Core knows a block by a number that means
 * something here only.
 */
#pragma once

#include <stdint.h>
#include <sys/queue.h>

#include <uv.h>

#include "backing.h"
#include "core.h"
#include "gpu.h"
#include "kept.h"

/* Allocations of one device at a time: where they do not come back, the threads of the others are
 * left. Further ones wait, and fail when none has come back for so long. */
#define WORKER_DEVICE_MAX 3
#define WORKER_STUCK_MS   10000

struct worker_ops { /* called on the loop */
    void (*alloc_done)(void *userdata, uint64_t job, const struct core_alloc_result *result);
    void (*release_done)(void *userdata, uint64_t job, int error, int cuda, const char *text);
    void (*memory_done)(void *userdata, uint64_t job, const struct core_memory_result *results,
                        size_t n);
};

struct worker {
    uv_loop_t *loop;
    const struct gpu *gpu;
    const struct worker_ops *ops;
    void *userdata;
    struct kept *kept; /* gets the fds */
    uv_work_t start;
    struct worker_device *devices; /* of gpu */
    uv_timer_t stuck;
    struct backings backings;
    LIST_HEAD(, memory) memories; /* all that is not released */
};

/* Calls at a time. More would queue up in libuv's pool, where the first comes first. */
uint32_t worker_threads(const struct gpu *gpu);

/* -errno: -ENOMEM, or what keeps threads from being started, which is logged. */
int worker_init(struct worker *w, uv_loop_t *loop, const struct gpu *gpu, struct kept *kept,
                const struct worker_ops *ops, void *userdata);
/* Gives all memory that is left back to the driver; no job may be under way. */
void worker_deinit(struct worker *w);

/* A block of a former daemon's, which was found under that number: it is claimed, and its fd the
 * core's from here on. -EBADF, -EINVAL: it is no such memory; -errno: it cannot be had now. It
 * blocks. */
int worker_adopt(struct worker *w, const char *device, enum core_kind kind, uint64_t size,
                 uint32_t kept, uint64_t *ret_handle);
/* -ENOMEM: nothing was started and nothing will be reported. */
int worker_alloc(struct worker *w, uint64_t job, enum core_kind kind, uint32_t device,
                 uint64_t size);
int worker_memory(struct worker *w, uint64_t job, uint32_t device); /* n_devices: of all */
/* Allocations that wait for their device's others fail. */
void worker_stop(struct worker *w);
/* Cannot fail to start. */
void worker_release(struct worker *w, uint64_t job, uint64_t handle);
