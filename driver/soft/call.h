/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What surrounds every call from outside (entries.c): it is counted, it may be made to fail or to
 * take long (fault.h), and it may be written down (trace.h). What the driver calls of its own
 * accord is soft_*(), and not counted.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "serve.h"

#define MAX_ARGS 9

enum entry {
#define EXPORT(symbol, ...)                           ENTRY_##symbol,
#define EXPORT_PT(symbol, base, version, suffix, ...) ENTRY_##symbol, ENTRY_##symbol##suffix,
#define ENTRY(symbol, ...)                            ENTRY_##symbol,
#define NVML(symbol, ...)                             ENTRY_##symbol,
#include "exports.def"
#undef EXPORT
#undef EXPORT_PT
#undef ENTRY
#undef NVML
    N_ENTRIES
};

/* What watches the calls of a process; part of struct soft. Set up by the first call. */
struct watch {
    pthread_mutex_t lock;
    _Atomic bool ready;
    bool bad;            /* a setting made no sense: there is no driver then */
    _Atomic bool active; /* there are rules, or a trace */
    _Atomic uint64_t n_calls[N_ENTRIES];
    struct fault_list faults;
    int trace_fd; /* -1: none */
    struct server control;
};

/* Of exports.def, in its order. */
struct entry_point {
    const char *name; /* as callers find it */
    const char *base; /* as cuGetProcAddress does; "" for NVML's, which it does not give */
    int version;
    bool own_stream; /* a null stream means the calling thread's own one */
    void (*fn)(void);
};

extern const struct entry_point entry_points[N_ENTRIES];

/* One call, on its wrapper's stack. */
struct call {
    const struct entry_point *entry;
    bool own_before;   /* what call_own_stream() was outside */
    uint64_t start_ns; /* 0: nobody looks */
    int result;        /* what it returns where it is not made, or instead of success */
};

/* Reads the settings that are about calls, once; -EINVAL when one of them made no sense. */
int watch_setup(void);

/* False: the call has to end without having done anything. */
bool call_begin(struct call *call, enum entry entry);
/* Returns what the caller gets: result (of a call that was not made: 0), or what a rule says. */
int call_end(const struct call *call, int result, const uintptr_t *args, size_t n_args);
/* Whether a null stream means the calling thread's own one in this call. */
bool call_own_stream(void);
