/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver calls, off the loop (I5): each runs on libuv's thread pool and its result comes back on
 * the loop, never from inside the call that asked for it.
 *
 * The worker owns the memory of every block (backing.h). The core has a handle for it, a number
 * that means something here only.
 */
#pragma once

#include <stdint.h>
#include <sys/queue.h>

#include <uv.h>

#include "backing.h"
#include "core.h"
#include "gpu.h"
#include "kept.h"

/* The allocations of one device that run at a time: where they do not return, the other devices
 * still have threads. Further ones wait, and fail when none has returned for WORKER_STUCK_MS. */
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
    struct kept *kept; /* gets the fds of blocks */
    uv_work_t start;
    struct worker_device *devices; /* one for each of gpu->devices */
    uv_timer_t stuck;
    struct backings backings;
    LIST_HEAD(, memory) memories; /* all memory that is not released */
};

/* How many calls may run at a time. More would wait in the queue of libuv's pool, all devices in
 * one. */
uint32_t worker_threads(const struct gpu *gpu);

/* -ENOMEM; -errno of threads that cannot be started, which is logged. */
int worker_init(struct worker *w, uv_loop_t *loop, const struct gpu *gpu, struct kept *kept,
                const struct worker_ops *ops, void *userdata);
/* Gives all memory that is left back to the driver; no job may be under way. */
void worker_deinit(struct worker *w);

/* Takes over the memory of an earlier daemon's block, which was found under that number. It is
 * claimed. -EBADF, -EINVAL: it is not such memory; -errno: the driver cannot import it now. It
 * blocks. */
int worker_adopt(struct worker *w, const char *device, enum core_kind kind, uint64_t size,
                 uint32_t kept, uint64_t *ret_handle);
/* -ENOMEM: nothing was started and nothing will be reported. */
int worker_alloc(struct worker *w, uint64_t job, enum core_kind kind, uint32_t device,
                 uint64_t size);
int worker_memory(struct worker *w, uint64_t job, uint32_t device); /* n_devices: of all */
/* Fails the allocations that wait for others of their device. */
void worker_stop(struct worker *w);
/* Cannot fail to start. */
void worker_release(struct worker *w, uint64_t job, uint64_t handle);
