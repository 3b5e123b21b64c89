/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events: what waits for what, and what does not. A gate holds up one stream; what
 * must wait is then still not done, and what must not wait is done before the gate opens (a test
 * in which it is not would hang, and fail by its timeout).
 */
#include "caid_test.h"

#include <dirent.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_test.h"

static void
unpin(volatile unsigned char *at)
{
    MUST(cuMemFreeHost((void *)(uintptr_t)at));
}

static void
fill(volatile unsigned char *at, unsigned char value, CUstream stream)
{
    MUST(cuMemsetD8Async((uintptr_t)at, value, 4096, stream));
}

/* The delay is long enough to outlast the test, which ends without waiting for it. */
CAID_TEST(soft_stream, the_delay_setting_stretches_work)
{
    setenv("CAID_SOFTCUDA_DELAY_US", "60000000", 1);
    soft_start_context();
    CUstream stream = soft_stream(0);
    volatile unsigned char *data = soft_pinned();
    fill(data, 1, stream);
    REFUSED(NOT_READY, cuStreamQuery(stream));
    cr_assert_eq(data[0], 0);
}

#define N_RACERS 6

struct race {
    int n;
    char order[N_RACERS + 1];
};

static struct race race;

static void
arrive(void *data)
{
    race.order[__atomic_fetch_add(&race.n, 1, __ATOMIC_SEQ_CST)] = *(const char *)data;
}

/* The order in which one operation in each of some streams runs, in a process of its own. These
 * seeds keep them 80 ms apart. */
static void
race_by(const char *seed, char *ret_order)
{
    static char names[] = "012345";
    int results[2];
    cr_assert_eq(pipe(results), 0);
    pid_t child = soft_fork();
    if (child == 0) {
        setenv("CAID_SOFTCUDA_DELAY_US", "500000", 1);
        setenv("CAID_SOFTCUDA_JITTER_SEED", seed, 1);
        soft_start_context();
        CUstream streams[N_RACERS];
        for (int i = 0; i < N_RACERS; i++)
            MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        for (int i = 0; i < N_RACERS; i++)
            MUST(cuLaunchHostFunc(streams[i], arrive, &names[i]));
        MUST(cuCtxSynchronize());
        _exit(write(results[1], race.order, sizeof(race.order)) < 0);
    }
    close(results[1]);
    cr_assert_eq(read(results[0], ret_order, N_RACERS + 1), N_RACERS + 1);
    close(results[0]);
    cr_assert_eq(waitpid(child, NULL, 0), child);
}

CAID_TEST(soft_stream, a_seed_gives_the_same_order_each_time)
{
    char first[N_RACERS + 1], again[N_RACERS + 1], other[N_RACERS + 1];
    race_by("13577", first);
    race_by("13577", again);
    race_by("12327", other);
    cr_assert_str_eq(first, again);
    cr_assert_str_neq(first, other);
    cr_assert_str_neq(first, "012345", "no jitter at all");
}

/* A consumer that forgets the event reads the old bytes; one that waits reads the new ones. */
static unsigned char
consume(bool with_event)
{
    struct gate gate;
    CUstream producer = soft_stream(CU_STREAM_NON_BLOCKING);
    CUstream consumer = soft_stream(CU_STREAM_NON_BLOCKING);
    volatile unsigned char *data = soft_pinned(), *copy = soft_pinned();
    CUevent event = soft_event(CU_EVENT_DISABLE_TIMING);
    gate_close(&gate, producer);
    fill(data, 9, producer);
    MUST(cuEventRecord(event, producer));
    if (with_event) {
        MUST(cuStreamWaitEvent(consumer, event, 0));
        gate_open(&gate);
    }
    MUST(cuMemcpyAsync((uintptr_t)copy, (uintptr_t)data, 4096, consumer));
    MUST(cuStreamSynchronize(consumer));
    if (!with_event)
        gate_open(&gate);
    unsigned char seen = copy[0];
    MUST(cuCtxSynchronize());
    MUST(cuEventDestroy_v2(event));
    MUST(cuStreamDestroy_v2(producer));
    MUST(cuStreamDestroy_v2(consumer));
    unpin(data);
    unpin(copy);
    return seen;
}

SOFT_TEST(soft_stream, a_missing_wait_is_seen_as_wrong_data)
{
    cr_assert_eq(consume(false), 0);
    cr_assert_eq(consume(true), 9);
}

SOFT_TEST(soft_stream, bad_flags_are_refused)
{
    CUstream stream;
    CUevent event;
    REFUSED(INVALID_VALUE, cuStreamCreate(&stream, 2));
    REFUSED(INVALID_VALUE, cuEventCreate(&event, 8));
    REFUSED(INVALID_VALUE, cuEventCreate(&event, CU_EVENT_INTERPROCESS));
    MUST(cuEventCreate(&event, 0));
    REFUSED(INVALID_VALUE, cuStreamWaitEvent(NULL, event, 2));
    REFUSED(INVALID_HANDLE, cuStreamWaitEvent(NULL, NULL, 0));
    REFUSED(INVALID_HANDLE, cuEventRecord(NULL, NULL));
    MUST(cuEventDestroy_v2(event));
    REFUSED(INVALID_HANDLE, cuEventDestroy_v2(event));
    CUstream gone = soft_stream(0);
    MUST(cuStreamDestroy_v2(gone));
    REFUSED(INVALID_HANDLE, cuStreamQuery(gone));
    REFUSED(INVALID_HANDLE, cuStreamDestroy_v2(gone));
    MUST(cuCtxSetCurrent(NULL)); /* known streams do without one, default ones do not */
    REFUSED(INVALID_CONTEXT, cuStreamQuery(NULL));
}

static void *
own_stream_id(void *arg)
{
    CUcontext context = arg;
    static unsigned long long id;
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamGetId(CU_STREAM_PER_THREAD, &id));
    MUST(cuMemsetD8Async(0, 0, 0, CU_STREAM_PER_THREAD));
    return &id;
}

CAID_TEST(soft_stream, each_thread_has_a_default_stream_of_its_own)
{
    CUcontext context = soft_start_context();
    unsigned long long mine, *theirs;
    void *result;
    pthread_t thread;
    MUST(cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
    pthread_create(&thread, NULL, own_stream_id, context);
    pthread_join(thread, &result);
    theirs = result;
    cr_assert_neq(mine, *theirs);
    MUST(cuStreamGetId_ptsz(NULL, theirs));
    cr_assert_eq(mine, *theirs, "no stream is the thread's own to who was built so");
    MUST(cuStreamGetId(NULL, theirs));
    cr_assert_neq(mine, *theirs);
}

struct called {
    int n;
    CUstream stream;
    CUresult status, inside;
};

static void
on_callback(CUstream stream, CUresult status, void *data)
{
    struct called *called = data;
    called->n++;
    called->stream = stream;
    called->status = status;
    called->inside = cu.cuStreamSynchronize(stream);
}

static void
on_host(void *data)
{
    int n;
    struct called *called = data;
    called->n++;
    called->inside = cu.cuDeviceGetCount(&n);
}

SOFT_TEST(soft_stream, host_functions_run_in_order_and_may_not_call_cuda)
{
    struct called called = {0};
    struct gate gate;
    CUstream stream = soft_stream(0);
    gate_close(&gate, stream);
    MUST(cuStreamAddCallback(stream, on_callback, &called, 0));
    cr_assert_eq(called.n, 0);
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(called.n, 1);
    cr_assert_eq(called.stream, stream);
    cr_assert_eq(called.status, CUDA_SUCCESS);
    cr_assert_eq(called.inside, CUDA_ERROR_NOT_PERMITTED);
    MUST(cuLaunchHostFunc(stream, on_host, &called));
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(called.n, 2);
    cr_assert_eq(called.inside, CUDA_ERROR_NOT_PERMITTED);
    REFUSED(INVALID_VALUE, cuLaunchHostFunc(stream, NULL, NULL));
    REFUSED(INVALID_VALUE, cuStreamAddCallback(stream, on_callback, NULL, 1));
}

/* After a fault a callback is told of it, and a host function is not called. */
SOFT_TEST(soft_stream, callbacks_hear_of_a_fault)
{
    struct called callback = {0}, host = {0};
    struct gate gate;
    CUstream stream = soft_stream(0);
    struct soft_mapping mapping = soft_map(GRAN, 3);
    gate_close(&gate, stream);
    MUST(cuMemsetD8Async(mapping.at, 1, 16, stream));
    MUST(cuStreamAddCallback(stream, on_callback, &callback, 0));
    MUST(cuLaunchHostFunc(stream, on_host, &host));
    soft_unmap(&mapping);
    gate_open(&gate);
    REFUSED(LAUNCH_FAILED, cuStreamSynchronize(stream));
    cr_assert_eq(callback.status, CUDA_ERROR_LAUNCH_FAILED);
    cr_assert_eq(host.n, 0);
}

SOFT_TEST_LATE(soft_stream, a_stream_tells_its_context_in_both_forms)
{
    CUcontext context = soft_start_context(), seen = NULL;
    CUgreenCtx green = (CUgreenCtx)&seen; /* any that is not null */
    CUstream stream = soft_stream(0);
    MUST(cuStreamGetCtx(stream, &seen));
    cr_assert_eq(seen, context);
    seen = NULL;
    MUST(cuStreamGetCtx_v2(stream, &seen, &green));
    cr_assert_eq(seen, context);
    cr_assert_null(green);
    REFUSED(INVALID_VALUE, cuStreamGetCtx_v2(stream, &seen, NULL));
}

static size_t
count_threads(void)
{
    size_t n = 0;
    DIR *folder = opendir("/proc/self/task");
    cr_assert_not_null(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

/* One stream makes them all. */
CAID_TEST(soft_stream, records_of_a_context_cost_no_thread_each)
{
    CUcontext context = soft_start_context();
    CUevent events[64];
    size_t before = count_threads();
    for (size_t i = 0; i < ARRAY_SIZE(events); i++) {
        MUST(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
        MUST(cuCtxRecordEvent(context, events[i]));
        cr_assert_leq(count_threads(), before + 1);
    }
    REFUSED(INVALID_HANDLE, cuCtxRecordEvent(context, NULL));
    REFUSED(INVALID_CONTEXT, cuCtxRecordEvent(NULL, events[0]));
    for (size_t i = 0; i < ARRAY_SIZE(events); i++) {
        MUST(cuEventSynchronize(events[i]));
        MUST(cuEventDestroy_v2(events[i]));
    }
}
