/* SPDX-License-Identifier: Apache-2.0 */
/* Calls from outside, and the settings that are about them. */
#include "soft.h"

#include <stdio.h>

#include "base/clock.h"
#include "control.h"
#include "trace.h"

#define FN(symbol) ((void (*)(void))(symbol))

const struct entry_point entry_points[N_ENTRIES] = {
#define EXPORT(symbol, base, version, ...) {#symbol, base, version, false, FN(symbol)},
#define ENTRY                              EXPORT
#define EXPORT_PT(symbol, base, version, suffix, ...) \
    EXPORT(symbol, base, version){#symbol #suffix, base, version, true, FN(symbol##suffix)},
#define NVML(symbol, ...) {#symbol, "", 0, false, FN(symbol)},
#include "exports.def"
};

/* In the static part of a thread's storage: calls are frequent, and LeakSanitizer does not find its
 * way in the part that is made on demand. */
static _Thread_local bool own_stream_now __attribute__((tls_model("initial-exec")));

/* A setting is bad as a whole: its reader has complained on stderr. */
static bool
watch_read_settings(void)
{
    const char *fail = getenv("CAID_SOFTCUDA_FAIL");
    const char *trace = getenv("CAID_SOFTCUDA_TRACE");
    const char *control = getenv("CAID_SOFTCUDA_CONTROL");
    struct watch *watch = &soft->watch;
    watch->trace_fd = -1;
    if (fail && *fail && fault_add(&watch->faults, fail) < 0)
        return settings_complain("CAID_SOFTCUDA_FAIL", fail,
                                 "FUNCTION[@N]=RESULT, separated by commas") == 0;
    if (trace && *trace && (watch->trace_fd = trace_open(trace)) < 0)
        return settings_complain("CAID_SOFTCUDA_TRACE", trace, "a file to append to") == 0;
    if (control && *control && control_start(&watch->control, control) < 0)
        return settings_complain("CAID_SOFTCUDA_CONTROL", control,
                                 "where to make a Unix socket") == 0;
    watch->active = watch->trace_fd >= 0 || watch->faults.n_rules > 0;
    return true;
}

int
watch_setup(void)
{
    struct watch *watch = &soft->watch;
    if (!watch->ready) {
        LOCKED(&watch->lock);
        if (!watch->ready)
            watch->bad = !watch_read_settings();
        watch->ready = true;
    }
    return watch->bad ? -EINVAL : 0;
}

bool
call_begin(struct call *call, enum entry entry)
{
    *call = (struct call){.entry = &entry_points[entry], .own_before = own_stream_now};
    own_stream_now = call->entry->own_stream;
    watch_setup(); /* a setting that makes no sense is for soft_setup() to refuse */
    atomic_fetch_add_explicit(&soft->watch.n_calls[entry], 1, memory_order_relaxed);
    if (!soft->watch.active)
        return true;
    call->start_ns = clock_now_ns();
    return fault_meet(&soft->watch.faults, call->entry, &call->result);
}

int
call_end(const struct call *call, int result, const uintptr_t *args, size_t n_args)
{
    own_stream_now = call->own_before;
    if (result == 0)
        result = call->result;
    if (call->start_ns && soft->watch.trace_fd >= 0)
        trace_write(soft->watch.trace_fd, call, result, args, n_args);
    return result;
}

bool
call_own_stream(void)
{
    return own_stream_now;
}
