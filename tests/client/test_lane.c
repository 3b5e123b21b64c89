/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes (client/handoff/lane.h): which slot a stream signals, in which order, and when a slot
 * passes on to another stream; what is told of fences that are lost.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/macros.h"
#include "caid_test.h"
#include "daemon.h"
#include "gpu.h"
#include "handoff/lane.h"
#include "session/client.h"
#include "session/stream.h"

#define N_STREAMS 40
#define N_SIGNALS 500
#define N_THREADS 4
#define N_COMING  400 /* streams that come and go */

static struct fixture {
    struct test_gpu gpu;
    struct daemon daemon;
    struct caid_client *client;
    _Atomic uint64_t *gate;
} f;

#define MODES_TEST(name) CAID_TEST_WITH(lane, name, .init = soft_warm_up_events, .timeout = 120)
#define LANE_TEST(name)                                                                \
    CAID_TEST_BETWEEN(lane, name, begin("memops"), end(), .init = soft_warm_up_events, \
                      .timeout = 120)

static void
begin(const char *mode)
{
    gpu_begin(&f.gpu);
    f.gate = gpu_gate_new(&f.gpu);
    daemon_start_by(&f.daemon, mode);
    f.client = daemon_connect(&f.daemon);
}

static void
end(void)
{
    caid_client_close(f.client);
    daemon_stop(&f.daemon);
    gpu_gate_free(&f.gpu, f.gate);
    gpu_end(&f.gpu);
}

static void
gate_close(uint64_t stream)
{
    gpu_wait_at(&f.gpu, f.gate, (CUstream)(uintptr_t)stream);
}

static uint64_t
new_stream(void)
{
    uint64_t stream;

    assert_ok(caid_stream_create(f.client, 0, CAID_STREAM_NON_BLOCKING, &stream, &error));
    return stream;
}

static void
destroy_stream(uint64_t stream)
{
    assert_ok(caid_stream_destroy(f.client, stream, &error));
}

static struct fence
signal_on(uint64_t stream)
{
    struct fence fence;
    struct lane *lane;

    assert_ok(lane_get(f.client, stream, 0, &lane, &error));
    pthread_mutex_lock(&lane->lock);
    assert_ok(lane_signal(f.client, lane, &fence, &error));
    pthread_mutex_unlock(&lane->lock);
    lane_put(lane);
    return fence;
}

static enum fence_state
state_of(const struct fence *fence)
{
    enum fence_state state;

    assert_ok(fence_look(fence, true, &state, &error));
    return state;
}

static void
wait_passed(const struct fence *fence)
{
    cr_assert_eq(fence_wait(f.client, fence, true, deadline_of(30 * NSEC_PER_SEC), &error), 0);
}

static bool
same_slot(const struct fence *a, const struct fence *b)
{
    return a->page == b->page && a->slot == b->slot;
}

/* ---- slots ---- */

/* A stream keeps its slot, and counts. */
MODES_TEST(counts)
{
    static const char *const modes[] = {"memops", "host", "events"};
    struct fence first, fence;

    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        begin(modes[i]);
        uint64_t stream = new_stream();
        first = signal_on(stream);
        cr_assert_eq(first.value, 1);
        for (uint64_t value = 2; value < 50; value++) {
            fence = signal_on(stream);
            cr_assert(same_slot(&fence, &first) && fence.value == value);
            fence_drop(&fence);
        }
        fence = signal_on(stream);
        wait_passed(&fence); /* a client that is closed before keeps the page, and its event */
        wait_passed(&first);
        fence_drop(&fence);
        fence_drop(&first);
        cr_assert_eq(status_of(f.client).pages, 1);
        destroy_stream(stream);
        end();
    }
}

static void
assert_distinct(const struct fence *fences, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            cr_assert(!same_slot(&fences[i], &fences[k]), "%zu and %zu", i, k);
}

/* Streams that are busy have a slot each; then the slots go to others, and go on counting. */
LANE_TEST(slots_pass_on)
{
    uint64_t streams[N_STREAMS], late[N_STREAMS];
    struct fence fences[N_STREAMS], others[N_STREAMS];

    for (size_t i = 0; i < N_STREAMS; i++) {
        streams[i] = new_stream();
        gate_close(streams[i]);
        fences[i] = signal_on(streams[i]);
        cr_assert_eq(state_of(&fences[i]), FENCE_PENDING);
    }
    assert_distinct(fences, N_STREAMS);
    cr_assert_eq(status_of(f.client).pages, (N_STREAMS + TIMELINE_SLOTS - 1) / TIMELINE_SLOTS);
    *f.gate = 1;
    for (size_t i = 0; i < N_STREAMS; i++)
        wait_passed(&fences[i]);

    *f.gate = 0;
    bool again = false;
    for (size_t i = 0; i < N_STREAMS; i++) {
        late[i] = new_stream();
        gate_close(late[i]);
        others[i] = signal_on(late[i]);
        again |= others[i].value > 1;
    }
    assert_distinct(others, N_STREAMS);
    cr_assert(again);
    cr_assert_eq(status_of(f.client).pages, (N_STREAMS + TIMELINE_SLOTS - 1) / TIMELINE_SLOTS);
    /* What has passed has passed, whoever counts there now. */
    for (size_t i = 0; i < N_STREAMS; i++) {
        cr_assert_eq(state_of(&fences[i]), FENCE_PASSED);
        cr_assert_eq(state_of(&others[i]), FENCE_PENDING);
    }
    *f.gate = 1;
    for (size_t i = 0; i < N_STREAMS; i++) {
        wait_passed(&others[i]);
        fence_drop(&fences[i]);
        fence_drop(&others[i]);
        destroy_stream(streams[i]);
        destroy_stream(late[i]);
    }
}

/* Nobody tells when a stream goes: what is known of it goes all the same. */
LANE_TEST(streams_come_and_go)
{
    for (size_t i = 0; i < N_COMING; i++) {
        uint64_t stream = (uintptr_t)gpu_stream_new(&f.gpu);
        struct fence fence = signal_on(stream);
        wait_passed(&fence);
        fence_drop(&fence);
        assert_cuda(f.gpu.drv->cu.cuStreamDestroy((CUstream)(uintptr_t)stream));
    }
    cr_assert_lt(f.client->lanes->n, N_COMING / 2);
    cr_assert_leq(status_of(f.client).pages, 8);
}

/* ---- threads ---- */

struct thread {
    uint64_t stream;
    pthread_t thread;
};

static void *
signal_many(void *arg)
{
    struct thread *thread = arg;
    uint64_t last = 0;

    for (size_t i = 0; i < N_SIGNALS; i++) {
        struct fence fence = signal_on(thread->stream);
        cr_assert_gt(fence.value, last);
        last = fence.value;
        fence_drop(&fence);
    }
    return NULL;
}

/* Values are stored in the order in which they are enqueued: else fence_look() would see them run
 * backwards. */
static void
signal_by_threads(const char *mode)
{
    struct thread threads[N_THREADS];
    enum fence_state state;

    begin(mode);
    uint64_t stream = new_stream();
    struct fence first = signal_on(stream), last = first;
    last.value = N_THREADS * N_SIGNALS + 1;
    for (size_t i = 0; i < N_THREADS; i++) {
        threads[i] = (struct thread){stream, 0};
        cr_assert_eq(pthread_create(&threads[i].thread, NULL, signal_many, &threads[i]), 0);
    }
    do
        assert_ok(fence_look(&last, false, &state, &error));
    while (state == FENCE_PENDING);
    for (size_t i = 0; i < N_THREADS; i++)
        pthread_join(threads[i].thread, NULL);
    cr_assert_eq(state, FENCE_PASSED);
    cr_assert_eq(fence_reached(&last), last.value);
    fence_drop(&first);
    destroy_stream(stream);
    end();
}

MODES_TEST(threads)
{
    signal_by_threads("memops");
    signal_by_threads("host");
}

static void *
signal_elsewhere(void *arg)
{
    struct thread *thread = arg;
    struct lane *lane = (struct lane *)(uintptr_t)thread->stream;
    struct fence fence;

    pthread_mutex_lock(&lane->lock);
    assert_failed(lane_signal(f.client, lane, &fence, &error), CAID_ERR_INVALID);
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

/* 2 is another stream in another thread. */
LANE_TEST(per_thread_stream)
{
    struct lane *lane, *again;

    struct thread thread = {0};
    assert_ok(lane_get(f.client, 2, 0, &lane, &error));
    assert_ok(lane_get(f.client, 2, 0, &again, &error));
    cr_assert_eq(lane, again);
    thread.stream = (uintptr_t)lane;
    cr_assert_eq(pthread_create(&thread.thread, NULL, signal_elsewhere, &thread), 0);
    pthread_join(thread.thread, NULL);
    struct fence fence = signal_on(2);
    wait_passed(&fence);
    fence_drop(&fence);
    lane_put(lane);
    lane_put(again);
}

/* ---- waits ---- */

static void
lane_wait_one(struct lane *lane, const struct fence *fence)
{
    struct fence once = *fence;

    assert_ok(lane_wait(f.client, lane, &once, 1, UINT64_MAX, &error));
}

/* One's own other stream is waited for by the stream; the same stream needs no wait. */
LANE_TEST(waits)
{
    struct lane *lane;

    uint64_t from = new_stream(), to = new_stream();
    gate_close(from);
    struct fence fence = signal_on(from);
    uint64_t before = soft_calls(&f.gpu, "cuStreamWaitValue64");
    assert_ok(lane_get(f.client, from, 0, &lane, &error));
    lane_wait_one(lane, &fence);
    lane_put(lane);
    cr_assert_eq(soft_calls(&f.gpu, "cuStreamWaitValue64"), before);

    assert_ok(lane_get(f.client, to, 0, &lane, &error));
    lane_wait_one(lane, &fence);
    cr_assert_eq(soft_calls(&f.gpu, "cuStreamWaitValue64"), before + 1);
    uint64_t waiting;
    cr_assert(lanes_are_waiting(f.client, &waiting));
    cr_assert_eq(waiting, to);
    *f.gate = 1;
    wait_passed(&fence);
    cr_assert(!lanes_are_waiting(f.client, &waiting));
    lane_wait_one(lane, &fence); /* has passed */
    cr_assert_eq(soft_calls(&f.gpu, "cuStreamWaitValue64"), before + 1);
    assert_ok(lane_check(lane, &error));
    lane_put(lane);
    fence_drop(&fence);
    destroy_stream(from);
    destroy_stream(to);
}

/* Where the host waits, it does not for what the same stream does before, nor twice. */
MODES_TEST(host_waits_for_others_only)
{
    struct lane *lane;

    begin("host");
    uint64_t from = new_stream(), to = new_stream();
    gate_close(from);
    struct fence fence = signal_on(from);
    assert_ok(lane_get(f.client, from, 0, &lane, &error));
    assert_ok(lane_wait(f.client, lane, &fence, 1, 0, &error));
    lane_put(lane);
    fence.enqueued = false;
    assert_ok(lane_get(f.client, to, 0, &lane, &error));
    assert_failed(lane_wait(f.client, lane, &fence, 1, 0, &error), CAID_ERR_TIMEOUT);
    *f.gate = 1;
    lane_wait_one(lane, &fence);
    lane_put(lane);
    fence_drop(&fence);
    destroy_stream(from);
    destroy_stream(to);
    end();
}

/* What a stream is to call back for holds its page, though the slot has been killed and the page
 * let go. */
MODES_TEST(called_back_late)
{
    begin("host");
    uint64_t stream = new_stream();
    gate_close(stream);
    struct fence fence = signal_on(stream);
    slot_kill(&fence.page->slots[fence.slot]);
    fence_drop(&fence);
    caid_client_close(f.client);
    *f.gate = 1;
    assert_cuda(f.gpu.drv->cu.cuStreamSynchronize((CUstream)(uintptr_t)stream));
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy((CUstream)(uintptr_t)stream));
    f.client = daemon_connect(&f.daemon);
    end();
}

/* More fences than a lane has room for at first; of a slot the highest counts. */
LANE_TEST(many_waits)
{
    uint64_t streams[N_STREAMS];
    struct fence fences[N_STREAMS];
    struct lane *lane;

    uint64_t to = new_stream();
    for (size_t i = 0; i < N_STREAMS; i++) {
        streams[i] = new_stream();
        gate_close(streams[i]);
        fences[i] = signal_on(streams[i]);
    }
    assert_ok(lane_get(f.client, to, 0, &lane, &error));
    for (int i = 0; i < 3; i++)
        assert_ok(lane_wait(f.client, lane, fences, N_STREAMS, UINT64_MAX, &error));
    cr_assert_eq(lane->n_waits, N_STREAMS);
    *f.gate = 1;
    assert_ok(caid_stream_synchronize(f.client, to, 0, &error));
    cr_assert_eq(lane->n_waits, 0);
    lane_put(lane);
    for (size_t i = 0; i < N_STREAMS; i++) {
        fence_drop(&fences[i]);
        destroy_stream(streams[i]);
    }
    destroy_stream(to);
}

/* A fence that is lost: at once it is the caller's to tell; later the lane tells, once; of data
 * only. */
LANE_TEST(lost)
{
    struct lane *lane;

    for (int heed = 0; heed <= 1; heed++) {
        uint64_t from = new_stream(), to = new_stream();
        *f.gate = 0;
        gate_close(from);
        struct fence fence = signal_on(from);
        assert_ok(lane_get(f.client, to, 0, &lane, &error));
        fence.data = heed;
        lane_wait_one(lane, &fence);
        struct timeline_slot *slot = &fence.page->slots[fence.slot];
        slot_kill(slot);
        assert_cuda(f.gpu.drv->cu.cuStreamSynchronize((CUstream)(uintptr_t)to));
        if (heed)
            assert_failed(lane_check(lane, &error), CAID_ERR_ABANDONED);
        assert_ok(lane_check(lane, &error));
        cr_assert_eq(lane_wait(f.client, lane, &fence, 1, UINT64_MAX, &error), heed);
        assert_ok(lane_check(lane, &error));
        lane_put(lane);
        fence_drop(&fence);
        *f.gate = 1;
        assert_cuda(f.gpu.drv->cu.cuStreamSynchronize((CUstream)(uintptr_t)from));
        slot_kill(slot); /* the stream, which lives, has stored to it */
        destroy_stream(from);
        destroy_stream(to);
    }
}

/* ---- default streams ---- */

/* 1 and 2 are other streams in another context. */
LANE_TEST(of_each_context)
{
    CUresult (*create)(CUcontext *, unsigned int, CUdevice);
    struct fence fences[4];
    CUcontext other, popped;

    void *symbol = gpu_symbol(&f.gpu, "cuCtxCreate_v2");
    memcpy(&create, &symbol, sizeof(create));
    for (size_t i = 0; i < 2; i++) {
        gate_close(i + 1);
        fences[i] = signal_on(i + 1);
    }
    assert_cuda(create(&other, 0, 0));
    for (size_t i = 2; i < 4; i++) {
        fences[i] = signal_on(i - 1);
        wait_passed(&fences[i]);
    }
    assert_cuda(f.gpu.drv->cu.cuCtxPopCurrent(&popped)); /* it lives on, as the header asks */
    assert_distinct(fences, 2);
    for (size_t i = 0; i < 2; i++)
        cr_assert_eq(state_of(&fences[i]), FENCE_PENDING);
    *f.gate = 1;
    for (size_t i = 0; i < 4; i++) {
        wait_passed(&fences[i]);
        fence_drop(&fences[i]);
    }
}

/* ---- a driver that tells no ids ---- */

/* Then a handle may be another stream by now: a slot whose value has not come is left to it. */
LANE_TEST(without_ids)
{
    struct fence fences[20];
    struct lane *lane;

    soft_control(&f.gpu, "fail cuStreamGetId=NOT_FOUND");
    uint64_t stream = new_stream();
    gate_close(stream);
    for (size_t i = 0; i < ARRAY_SIZE(fences); i++)
        fences[i] = signal_on(stream);
    assert_distinct(fences, ARRAY_SIZE(fences));
    assert_ok(lane_get(f.client, stream, 0, &lane, &error));
    cr_assert_eq(lane->handoff, HANDOFF_HOST);
    assert_failed(lane_wait(f.client, lane, fences, 1, deadline_of(NSEC_PER_MSEC), &error),
                  CAID_ERR_TIMEOUT);
    lane_put(lane);
    *f.gate = 1;
    for (size_t i = 0; i < ARRAY_SIZE(fences); i++)
        wait_passed(&fences[i]);
    struct fence fence = signal_on(stream);
    cr_assert_gt(fence.value, 0);
    wait_passed(&fence);
    fence_drop(&fence);
    for (size_t i = 0; i < ARRAY_SIZE(fences); i++)
        fence_drop(&fences[i]);
    destroy_stream(stream);
    soft_control(&f.gpu, "clear");
}

/* ---- driver calls that fail ---- */

static const struct {
    const char *mode, *function, *result;
    int32_t code;
} faults[] = {
    {"memops", "cuStreamGetId", "UNKNOWN", CAID_ERR_DRIVER},
    {"memops", "cuStreamGetCtx", "INVALID_HANDLE", CAID_ERR_DRIVER},
    {"memops", "cuStreamIsCapturing", "UNKNOWN", CAID_ERR_DRIVER},
    {"memops", "cuCtxGetDevice", "UNKNOWN", CAID_ERR_DRIVER},
    {"memops", "cuMemHostRegister", "OUT_OF_MEMORY", CAID_ERR_NO_MEMORY},
    {"memops", "cuMemHostGetDevicePointer", "UNKNOWN", CAID_ERR_DRIVER},
    {"memops", "cuStreamWriteValue64", "NOT_SUPPORTED", CAID_ERR_UNSUPPORTED},
    {"host", "cuStreamAddCallback", "OUT_OF_MEMORY", CAID_ERR_NO_MEMORY},
};

static int
try_signal(uint64_t stream, struct fence *ret)
{
    struct lane *lane;

    int r = lane_get(f.client, stream, 0, &lane, &error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&lane->lock);
    r = lane_signal(f.client, lane, ret, &error);
    pthread_mutex_unlock(&lane->lock);
    lane_put(lane);
    return r;
}

/* Nothing was submitted, and the next signal is the first one. */
MODES_TEST(signals_that_fail)
{
    struct fence fence;
    char command[96];

    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        begin(faults[i].mode);
        uint64_t stream = new_stream();
        snprintf(command, sizeof(command), "fail %s=%s", faults[i].function, faults[i].result);
        soft_control(&f.gpu, command);
        cr_assert_lt(try_signal(stream, &fence), 0, "%s", command);
        cr_assert_eq(error.code, faults[i].code, "%s: %d: %s", command, error.code,
                     error.message);
        cr_assert(strstr(error.message, faults[i].function), "%s", error.message);
        soft_control(&f.gpu, "clear");
        assert_ok(try_signal(stream, &fence));
        cr_assert_eq(fence.value, 1, "%s", command);
        wait_passed(&fence);
        fence_drop(&fence);
        destroy_stream(stream);
        end();
    }
}

/* A wait that fails is not noted, and holds no page. */
LANE_TEST(waits_that_fail)
{
    struct lane *lane;

    uint64_t from = new_stream(), to = new_stream();
    gate_close(from);
    struct fence fence = signal_on(from);
    assert_ok(lane_get(f.client, to, 0, &lane, &error));
    soft_control(&f.gpu, "fail cuStreamWaitValue64=UNKNOWN");
    assert_failed(lane_wait(f.client, lane, &fence, 1, UINT64_MAX, &error), CAID_ERR_DRIVER);
    soft_control(&f.gpu, "clear");
    cr_assert_eq(lane->n_waits, 0);
    lane_put(lane);
    *f.gate = 1;
    wait_passed(&fence);
    fence_drop(&fence);
    destroy_stream(from);
    destroy_stream(to);
}

/* No event for other processes: by the host, for everyone. */
MODES_TEST(events_that_fail)
{
    static const char *const functions[] = {"cuEventCreate", "cuIpcGetEventHandle",
                                            "cuEventRecord"};
    char command[96];
    struct lane *lane;

    for (size_t i = 0; i < ARRAY_SIZE(functions); i++) {
        begin("events");
        uint64_t from = new_stream(), to = new_stream();
        snprintf(command, sizeof(command), "fail %s=NOT_SUPPORTED", functions[i]);
        soft_control(&f.gpu, command);
        gate_close(from);
        struct fence fence = signal_on(from);
        cr_assert_eq(fence.page->slots[fence.slot].has_event, 0);
        assert_ok(lane_get(f.client, to, 0, &lane, &error));
        assert_failed(lane_wait(f.client, lane, &fence, 1, deadline_of(NSEC_PER_MSEC), &error),
                      CAID_ERR_TIMEOUT);
        *f.gate = 1;
        lane_wait_one(lane, &fence);
        lane_put(lane);
        fence_drop(&fence);
        soft_control(&f.gpu, "clear");
        destroy_stream(from);
        destroy_stream(to);
        end();
    }
}
