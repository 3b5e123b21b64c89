/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software CUDA driver: its one state per process, and what every entry point does first.
 *
 * The state comes to life at the first cuInit() or nvmlInit() and lives until the process ends,
 * as a real driver's does. Two copies of the library in one process share it.
 *
 * Locks, outermost first: soft->lock, soft->pools.lock, soft->memory_lock, context.order,
 * stream.lock, event.lock, soft->ranges.lock, soft->objects.lock, soft->ipc_events.lock,
 * soft->share.lock, soft->memories.lock. Beside them soft->watch.lock, of the first call, and
 * inside it soft->watch.faults.lock, under which no other is taken. None is held while a worker
 * runs an operation or a caller waits for one, with two exceptions: who ends what is in a primary
 * context holds soft->lock, and who unmaps memory or narrows its
 * access waits under soft->ranges.lock (as a condition's mutex) for the copies that
 * touch it at that moment.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/tree.h"
#include "cuda_abi.h"

#include "call.h"
#include "device.h"
#include "event_ipc.h"
#include "nvml_abi.h"
#include "object.h"
#include "params.h"
#include "range.h"
#include "settings.h"
#include "share.h"

#define SOFT_EXPORT      __attribute__((visibility("default")))
#define SOFT_VERSION     13000 /* of the CUDA driver API */
#define SOFT_GRANULARITY ((size_t)2 << 20)
#define SOFT_PAGE_SIZE   ((size_t)4096)

struct memory;
struct pool;

/* Whatever has a descriptor of device memory. The lock is held from before there is one until it is
 * in the list, and from its removal until it is closed: a fork finds all there are. */
struct memories {
    pthread_mutex_t lock;
    LIST_HEAD(, memory) all;
};

struct pools {
    pthread_mutex_t lock;
    LIST_HEAD(, pool) all;
};

struct soft {
    const char *version; /* CAID_VERSION of the copy that the state is in; stays the first */
    bool mismatched;     /* another version of this library was in the process first */
    pthread_mutex_t lock;
    pthread_mutex_t memory_lock; /* creators take turns; counts of handles */
    _Atomic bool ready;          /* settings and devices are there */
    _Atomic pid_t owner;         /* the process that called cuInit, 0 before */
    struct settings settings;
    struct device devices[SOFT_MAX_DEVICES];
    struct device *visible[SOFT_MAX_DEVICES]; /* by ordinal; see visible.h */
    int n_visible;
    CUresult visible_result;
    struct object_table objects;
    struct range_map ranges;
    struct memories memories; /* see memory.h */
    struct pools pools;       /* see pool.h */
    pthread_key_t thread_key; /* struct thread */
    _Atomic uint64_t last_stream_id, last_capture_id;
    _Atomic unsigned int n_captures; /* that were not ended */
    _Atomic unsigned int n_nvml_users;
    struct watch watch;
    struct share share;
    struct ipc_events ipc_events;
};

extern struct soft *soft;

/* Reads the settings and makes the devices, once. */
CUresult soft_setup(void);
/* What almost every entry point does first: NOT_INITIALIZED before cuInit and in a forked child,
 * NOT_PERMITTED inside a host callback. */
CUresult soft_enter(void);

/* Of a CUresult or an nvmlReturn_t: 0 is a success in both. */
#define RETURN_IF(call)                    \
    do {                                   \
        __typeof__(call) _result = (call); \
        if (_result != 0)                  \
            return _result;                \
    } while (0)

UNUSED static inline void
mutex_unlockp(pthread_mutex_t **lock)
{
    pthread_mutex_unlock(*lock);
}

UNUSED static inline pthread_mutex_t *
mutex_lock(pthread_mutex_t *lock)
{
    pthread_mutex_lock(lock);
    return lock;
}

/* Holds a mutex until the end of the block. */
#define LOCKED(mutex)          LOCKED_AS(mutex, __LINE__)
#define LOCKED_AS(mutex, line) LOCKED_AS_(mutex, line)
#define LOCKED_AS_(mutex, line) \
    _cleanup_(mutex_unlockp) UNUSED pthread_mutex_t *_locked_##line = mutex_lock(mutex)

/* Starts a thread of the driver's own, with all signals blocked. 0 or -errno. */
int thread_start(void *(*run)(void *), void *arg);

/* What exports.def names: symbol() is what callers find (entries.c), soft_##symbol() does the
 * work, and is what the driver's own code calls. */
#define EXPORT(symbol, base, version, ...)            \
    SOFT_EXPORT CUresult symbol(PARAMS(__VA_ARGS__)); \
    CUresult soft_##symbol(PARAMS(__VA_ARGS__));
#define EXPORT_PT(symbol, base, version, suffix, ...) \
    EXPORT(symbol, base, version, ##__VA_ARGS__)      \
    SOFT_EXPORT CUresult symbol##suffix(PARAMS(__VA_ARGS__));
#define ENTRY(symbol, base, version, ...) \
    CUresult symbol(PARAMS(__VA_ARGS__)); \
    CUresult soft_##symbol(PARAMS(__VA_ARGS__));
#define NVML(symbol, ...)                                 \
    SOFT_EXPORT nvmlReturn_t symbol(PARAMS(__VA_ARGS__)); \
    nvmlReturn_t soft_##symbol(PARAMS(__VA_ARGS__));
#include "exports.def"
#undef EXPORT
#undef EXPORT_PT
#undef ENTRY
#undef NVML

/* How caid tells this library from NVIDIA's: the version of caid that it belongs to. */
SOFT_EXPORT const char *caid_softcuda_version(void);
/* For tests; see control.h. 0 or -errno. */
SOFT_EXPORT int caid_softcuda_control(const char *command, char *reply, size_t size);
SOFT_EXPORT const char *nvmlErrorString(nvmlReturn_t result);
