/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events: what waits for what, and what does not. A gate holds up one stream; what
 * must wait is then still not done, and what must not wait is done before the gate opens (a test
 * in which it is not would hang, and fail by its timeout).
 */
#include "caid_test.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_test.h"

/* Pinned memory: an fd for none of it, and asynchronous copies do not wait. */
static volatile unsigned char *
pinned(void)
{
    void *at;
    MUST(cuMemHostAlloc(&at, 4096, 0));
    memset(at, 0, 4096);
    return at;
}

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

static CUstream
stream_of(unsigned int flags)
{
    CUstream stream;
    MUST(cuStreamCreate(&stream, flags));
    return stream;
}

CAID_TEST(soft_stream, work_is_not_done_before_it_is_waited_for)
{
    struct gate gate;
    soft_start_context();
    CUstream stream = stream_of(0);
    volatile unsigned char *data = pinned();
    cr_assert_eq(cu.cuStreamQuery(stream), CUDA_SUCCESS);
    gate_close(&gate, stream);
    fill(data, 1, stream);
    cr_assert_eq(data[0], 0);
    cr_assert_eq(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(data[0], 1);
    cr_assert_eq(cu.cuStreamQuery(stream), CUDA_SUCCESS);
    MUST(cuStreamDestroy_v2(stream));
    unpin(data);
}

/* The delay is long enough to outlast the test, which ends without waiting for it. */
CAID_TEST(soft_stream, the_delay_setting_stretches_work)
{
    setenv("CAID_SOFTCUDA_DELAY_US", "60000000", 1);
    soft_start_context();
    CUstream stream = stream_of(0);
    volatile unsigned char *data = pinned();
    fill(data, 1, stream);
    cr_assert_eq(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    cr_assert_eq(data[0], 0);
}

CAID_TEST(soft_stream, jitter_changes_when_but_not_what)
{
    setenv("CAID_SOFTCUDA_DELAY_US", "200", 1);
    setenv("CAID_SOFTCUDA_JITTER_SEED", "42", 1);
    soft_start_context();
    CUstream first = stream_of(0), second = stream_of(0);
    volatile unsigned char *data = pinned();
    CUevent event;
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 1; i <= 100; i++) {
        fill(data, (unsigned char)i, first);
        MUST(cuEventRecord(event, first));
        MUST(cuStreamWaitEvent(second, event, 0));
        fill(data, (unsigned char)(i + 100), second);
        MUST(cuEventRecord(event, second));
        MUST(cuStreamWaitEvent(first, event, 0));
    }
    MUST(cuCtxSynchronize());
    cr_assert_eq(data[0], 200);
    MUST(cuEventDestroy_v2(event));
    MUST(cuStreamDestroy_v2(first));
    MUST(cuStreamDestroy_v2(second));
    unpin(data);
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
 * seeds keep them 30 ms apart. */
static void
race_by(const char *seed, char *ret_order)
{
    static char names[] = "012345";
    int results[2];
    cr_assert_eq(pipe(results), 0);
    pid_t child = soft_fork();
    if (child == 0) {
        setenv("CAID_SOFTCUDA_DELAY_US", "200000", 1);
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
    race_by("2815", first);
    race_by("2815", again);
    race_by("339", other);
    cr_assert_str_eq(first, again);
    cr_assert_str_neq(first, other);
    cr_assert_str_neq(first, "012345", "no jitter at all");
}

/* A consumer that forgets the event reads the old bytes; one that waits reads the new ones. */
static unsigned char
consume(bool with_event)
{
    struct gate gate;
    CUevent event;
    CUstream producer = stream_of(CU_STREAM_NON_BLOCKING);
    CUstream consumer = stream_of(CU_STREAM_NON_BLOCKING);
    volatile unsigned char *data = pinned(), *copy = pinned();
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
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

CAID_TEST(soft_stream, a_missing_wait_is_seen_as_wrong_data)
{
    soft_start_context();
    cr_assert_eq(consume(false), 0);
    cr_assert_eq(consume(true), 9);
}

/* The legacy default stream waits for all blocking streams, and they for it. */
static void
check_legacy_order(CUstream other)
{
    struct gate gate;
    CUstream third = stream_of(0), free_one = stream_of(CU_STREAM_NON_BLOCKING);
    volatile unsigned char *legacy = pinned(), *after = pinned(), *apart = pinned();
    gate_close(&gate, other);
    fill(legacy, 1, NULL);
    fill(after, 2, third);
    fill(apart, 3, free_one);
    MUST(cuStreamSynchronize(free_one));
    cr_assert_eq(apart[0], 3, "non-blocking streams take no part");
    cr_assert_eq(cu.cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    cr_assert_eq(cu.cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
    cr_assert_eq(cu.cuStreamQuery(third), CUDA_ERROR_NOT_READY);
    cr_assert_eq(legacy[0], 0);
    cr_assert_eq(after[0], 0);
    gate_open(&gate);
    MUST(cuStreamSynchronize(third));
    cr_assert_eq(legacy[0], 1, "what came before it is done");
    cr_assert_eq(after[0], 2);
    MUST(cuStreamDestroy_v2(third));
    MUST(cuStreamDestroy_v2(free_one));
    unpin(legacy);
    unpin(after);
    unpin(apart);
}

CAID_TEST(soft_stream, the_legacy_stream_waits_for_blocking_ones)
{
    soft_start_context();
    CUstream stream = stream_of(0);
    check_legacy_order(stream);
    check_legacy_order(CU_STREAM_PER_THREAD);
    check_legacy_order(CU_STREAM_LEGACY);
    MUST(cuStreamDestroy_v2(stream));
}

CAID_TEST(soft_stream, the_legacy_stream_ignores_non_blocking_ones)
{
    struct gate gate;
    soft_start_context();
    CUstream stream = stream_of(CU_STREAM_NON_BLOCKING);
    volatile unsigned char *data = pinned();
    gate_close(&gate, stream);
    fill(data, 1, NULL);
    MUST(cuStreamSynchronize(NULL));
    cr_assert_eq(data[0], 1);
    cr_assert_eq(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy_v2(stream));
    unpin(data);
}

/* Streams of a kind do not wait for each other. */
CAID_TEST(soft_stream, blocking_streams_are_independent)
{
    struct gate gate;
    soft_start_context();
    CUstream first = stream_of(0), second = stream_of(0);
    volatile unsigned char *data = pinned();
    gate_close(&gate, first);
    fill(data, 1, second);
    MUST(cuStreamSynchronize(second));
    fill(data, 2, CU_STREAM_PER_THREAD);
    MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    cr_assert_eq(data[0], 2);
    cr_assert_eq(cu.cuStreamQuery(first), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    MUST(cuStreamSynchronize(first));
    MUST(cuStreamDestroy_v2(first));
    MUST(cuStreamDestroy_v2(second));
    unpin(data);
}

CAID_TEST(soft_stream, a_destroyed_stream_still_does_its_work)
{
    struct gate gate;
    soft_start_context();
    CUstream stream = stream_of(0);
    volatile unsigned char *data = pinned();
    gate_close(&gate, stream);
    fill(data, 1, stream);
    MUST(cuStreamDestroy_v2(stream));
    cr_assert_eq(data[0], 0, "destruction does not wait");
    cr_assert_eq(cu.cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    cr_assert_eq(cu.cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
    gate_open(&gate);
    MUST(cuCtxSynchronize()); /* it still counts for the context */
    cr_assert_eq(data[0], 1);
    unpin(data);
}

/* A wait takes the event as it was recorded when the wait was enqueued. */
CAID_TEST(soft_stream, waits_keep_the_record_they_saw)
{
    struct gate gate;
    CUevent event;
    soft_start_context();
    CUstream first = stream_of(0), second = stream_of(0), waiter = stream_of(0);
    volatile unsigned char *data = pinned();
    MUST(cuEventCreate(&event, 0));
    MUST(cuStreamWaitEvent(waiter, event, 0)); /* never recorded: no wait */
    MUST(cuStreamSynchronize(waiter));
    MUST(cuEventRecord(event, first));
    MUST(cuStreamWaitEvent(waiter, event, 0));
    gate_close(&gate, second);
    MUST(cuEventRecord(event, second));
    fill(data, 1, waiter);
    MUST(cuStreamSynchronize(waiter));
    cr_assert_eq(data[0], 1);
    cr_assert_eq(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
    MUST(cuStreamWaitEvent(waiter, event, 0));
    MUST(cuEventDestroy_v2(event)); /* the wait stays */
    fill(data, 2, waiter);
    cr_assert_eq(cu.cuStreamQuery(waiter), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    MUST(cuStreamSynchronize(waiter));
    cr_assert_eq(data[0], 2);
    MUST(cuStreamDestroy_v2(first));
    MUST(cuStreamDestroy_v2(second));
    MUST(cuStreamDestroy_v2(waiter));
    unpin(data);
}

CAID_TEST(soft_stream, events_measure_time)
{
    CUevent start, end, untimed;
    struct gate gate;
    float ms = -1, back;
    soft_start_context();
    CUstream stream = stream_of(0);
    MUST(cuEventCreate(&start, 0));
    MUST(cuEventCreate(&end, 0));
    MUST(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    cr_assert_eq(cu.cuEventElapsedTime_v2(&ms, start, end), CUDA_ERROR_INVALID_HANDLE);
    MUST(cuEventRecord(start, stream));
    gate_close(&gate, stream);
    MUST(cuEventRecord(end, stream));
    MUST(cuEventRecord(untimed, stream));
    MUST(cuEventSynchronize(start));
    cr_assert_eq(cu.cuEventElapsedTime_v2(&ms, start, end), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    MUST(cuEventSynchronize(end));
    MUST(cuEventElapsedTime(&ms, start, end));
    MUST(cuEventElapsedTime_v2(&back, end, start));
    cr_assert_geq(ms, 0);
    cr_assert_eq(ms, -back);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(cu.cuEventElapsedTime_v2(&ms, start, untimed), CUDA_ERROR_INVALID_HANDLE);
    MUST(cuEventDestroy_v2(start));
    MUST(cuEventDestroy_v2(end));
    MUST(cuEventDestroy_v2(untimed));
    cr_assert_eq(cu.cuEventDestroy_v2(end), CUDA_ERROR_INVALID_HANDLE);
    MUST(cuStreamDestroy_v2(stream));
}

CAID_TEST(soft_stream, bad_flags_are_refused)
{
    CUstream stream;
    CUevent event;
    soft_start_context();
    cr_assert_eq(cu.cuStreamCreate(&stream, 2), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuEventCreate(&event, 8), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
    MUST(cuEventCreate(&event, 0));
    cr_assert_eq(cu.cuStreamWaitEvent(NULL, event, 2), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamWaitEvent(NULL, NULL, 0), CUDA_ERROR_INVALID_HANDLE);
    cr_assert_eq(cu.cuEventRecord(NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    MUST(cuEventDestroy_v2(event));
}

CAID_TEST(soft_stream, streams_know_themselves)
{
    CUcontext context = soft_start_context(), owner;
    unsigned long long legacy, same, own, id;
    unsigned int flags;
    int priority, least, greatest;
    CUstream stream;
    MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
    cr_assert_lt(greatest, least);
    MUST(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -100));
    MUST(cuStreamGetPriority(stream, &priority));
    cr_assert_eq(priority, greatest);
    MUST(cuStreamGetFlags(stream, &flags));
    cr_assert_eq(flags, CU_STREAM_NON_BLOCKING);
    MUST(cuStreamGetCtx(stream, &owner));
    cr_assert_eq(owner, context);
    MUST(cuStreamGetId(stream, &id));
    MUST(cuStreamGetId(NULL, &legacy));
    MUST(cuStreamGetId(CU_STREAM_LEGACY, &same));
    MUST(cuStreamGetId(CU_STREAM_PER_THREAD, &own));
    cr_assert_eq(legacy, same);
    cr_assert_neq(legacy, own);
    cr_assert_neq(id, own);
    MUST(cuStreamGetId_ptsz(NULL, &same));
    cr_assert_eq(same, own, "no stream is the thread's own to who was built so");
    MUST(cuStreamDestroy_v2(stream));
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
}

/* Known streams do without a current context, default ones do not. */
CAID_TEST(soft_stream, a_stream_brings_its_context)
{
    CUevent event;
    soft_start_context();
    CUstream stream = stream_of(0);
    volatile unsigned char *data = pinned();
    MUST(cuEventCreate(&event, 0));
    MUST(cuCtxSetCurrent(NULL));
    fill(data, 1, stream);
    MUST(cuEventRecord(event, stream));
    MUST(cuEventSynchronize(event));
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(data[0], 1);
    cr_assert_eq(cu.cuStreamQuery(NULL), CUDA_ERROR_INVALID_CONTEXT);
    cr_assert_eq(cu.cuEventRecord(event, NULL), CUDA_ERROR_INVALID_CONTEXT);
    MUST(cuEventDestroy_v2(event));
    MUST(cuStreamDestroy_v2(stream));
    unpin(data);
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

CAID_TEST(soft_stream, host_functions_run_in_order_and_may_not_call_cuda)
{
    struct called called = {0};
    struct gate gate;
    soft_start_context();
    CUstream stream = stream_of(0);
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
    cr_assert_eq(cu.cuLaunchHostFunc(stream, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cu.cuStreamAddCallback(stream, on_callback, NULL, 1),
                 CUDA_ERROR_INVALID_VALUE);
    MUST(cuStreamDestroy_v2(stream));
}

/* After a fault a callback is told of it, and a host function is not called. */
CAID_TEST(soft_stream, callbacks_hear_of_a_fault)
{
    struct called callback = {0}, host = {0};
    struct gate gate;
    soft_start_context();
    CUstream stream = stream_of(0);
    struct soft_mapping mapping = soft_map(GRAN, 3);
    gate_close(&gate, stream);
    MUST(cuMemsetD8Async(mapping.at, 1, 16, stream));
    MUST(cuStreamAddCallback(stream, on_callback, &callback, 0));
    MUST(cuLaunchHostFunc(stream, on_host, &host));
    soft_unmap(&mapping);
    gate_open(&gate);
    cr_assert_eq(cu.cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
    cr_assert_eq(callback.status, CUDA_ERROR_LAUNCH_FAILED);
    cr_assert_eq(host.n, 0);
}

CAID_TEST(soft_stream, a_stream_tells_its_context_in_both_forms)
{
    CUcontext context = soft_start_context(), seen = NULL;
    CUgreenCtx green = (CUgreenCtx)&seen; /* any that is not null */
    CUstream stream = stream_of(0);
    MUST(cuStreamGetCtx(stream, &seen));
    cr_assert_eq(seen, context);
    seen = NULL;
    MUST(cuStreamGetCtx_v2(stream, &seen, &green));
    cr_assert_eq(seen, context);
    cr_assert_null(green);
    cr_assert_eq(cu.cuStreamGetCtx_v2(stream, &seen, NULL), CUDA_ERROR_INVALID_VALUE);
    MUST(cuStreamDestroy_v2(stream));
}

/* All blocking streams' work counts as its own. */
CAID_TEST(soft_stream, the_legacy_stream_is_as_ready_as_the_others)
{
    struct gate gate;
    soft_start_context();
    CUstream blocking = stream_of(0), other = stream_of(CU_STREAM_NON_BLOCKING);
    MUST(cuStreamSynchronize(CU_STREAM_LEGACY));
    gate_close(&gate, other);
    cr_assert_eq(cu.cuStreamQuery(CU_STREAM_LEGACY), CUDA_SUCCESS);
    gate_open(&gate);
    MUST(cuStreamSynchronize(other));
    gate_close(&gate, blocking);
    cr_assert_eq(cu.cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    MUST(cuStreamSynchronize(CU_STREAM_LEGACY));
    cr_assert_eq(cu.cuStreamQuery(blocking), CUDA_SUCCESS);
    MUST(cuStreamDestroy_v2(blocking));
    MUST(cuStreamDestroy_v2(other));
}
