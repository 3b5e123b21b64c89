/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of freed memory: Numba's rules, by their numbers in docs/DEALLOCATION.md, through
 * the public API; the GPU's work, which is waited for; captures; drivers that fail.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena_fixture.h"
#include "base/macros.h"

static void
free_some(size_t n, uint64_t nbytes)
{
    uint64_t ptrs[32];

    for (size_t i = 0; i < n; i++)
        ptrs[i] = arena_get(nbytes);
    for (size_t i = 0; i < n; i++)
        arena_put(ptrs[i]);
}

static void
limits(uint64_t count, double ratio, uint64_t capacity)
{
    assert_ok(caid_arena_set_limits(f.arena, count, ratio, capacity, &error));
}

static void
defer_begin(void)
{
    assert_ok(caid_arena_defer_begin(f.arena, &error));
}

static void
defer_end(void)
{
    assert_ok(caid_arena_defer_end(f.arena, &error));
}

/* Until the GPU is done with what was flushed. */
static void
drain(void)
{
    while (arena_look().draining > 0)
        assert_ok(caid_arena_flush(f.arena, &error));
}

/* ---- Numba's rules ---- */

ARENA_TEST(arena_queue, r1_r2_the_eleventh_flushes_all)
{
    for (uint64_t i = 1; i <= 10; i++) {
        free_some(1, 100);
        cr_assert_eq(arena_look().pending, i);
        cr_assert_eq(arena_look().pending_bytes, 100 * i, "as asked for");
    }
    cr_assert_eq(arena_look().n_flushes, 0);
    free_some(1, 100);
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.pending, 0);
    cr_assert_eq(info.pending_bytes, 0);
    cr_assert_eq(info.n_flushes, 1);
}

ARENA_TEST(arena_queue, r3_so_does_a_byte_more_than_the_ratio_allows)
{
    limits(1000, 0.2, 1000);
    free_some(2, 100);
    cr_assert_eq(arena_look().pending, 2, "200 of 1000");
    free_some(1, 1);
    cr_assert_eq(arena_look().pending, 0, "201");
    limits(1000, 1e300, UINT64_MAX);
    free_some(3, 2 * MIB);
    cr_assert_eq(arena_look().pending, 3, "more than a number holds");
}

ARENA_TEST_OF(arena_queue, r3_the_ratio_is_one_of_the_device, .max_pending_count = 1000,
              .max_pending_ratio = 1e-9)
{
    const struct caid_device *const *devices;

    cr_assert_gt(caid_client_devices(f.client, &devices), 0);
    uint64_t bytes = (uint64_t)((double)devices[0]->total * 1e-9);
    free_some(1, bytes);
    cr_assert_eq(arena_look().pending, 1);
    free_some(1, 1);
    cr_assert_eq(arena_look().pending, 0);
}

ARENA_TEST(arena_queue, r4_limits_are_read_at_each_free)
{
    free_some(3, 100);
    limits(2, 1, UINT64_MAX);
    cr_assert_eq(arena_look().pending, 3, "and at no other time");
    free_some(1, 100);
    cr_assert_eq(arena_look().pending, 0);
    limits(0, 1, UINT64_MAX);
    free_some(1, 100);
    cr_assert_eq(arena_look().pending, 0);
}

ARENA_TEST_OF(arena_queue, nothing_waits_by_a_negative_ratio, .max_pending_ratio = -1)
{
    free_some(1, 100);
    drain();
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.pending, 0);
    cr_assert_eq(info.blocks, 0, "nor do blocks");
    wait_for_leases(f.client, 0);
}

ARENA_TEST(arena_queue, r8_deferral_nests)
{
    defer_begin();
    defer_begin();
    free_some(20, 100);
    cr_assert_eq(arena_look().pending, 20);
    assert_ok(caid_arena_flush(f.arena, &error));
    assert_ok(caid_arena_trim(f.arena, &error));
    cr_assert_eq(arena_look().pending, 20, "held back from those, too");
    defer_end();
    free_some(1, 100);
    cr_assert_eq(arena_look().pending, 21);
    defer_end();
    cr_assert_eq(arena_look().pending, 21, "R9: its end flushes nothing");
    free_some(1, 100);
    cr_assert_eq(arena_look().pending, 0, "R9: the next free does");
    assert_failed(caid_arena_defer_end(f.arena, &error), CAID_ERR_INVALID);
}

ARENA_TEST(arena_queue, r9_what_was_deferred_can_be_flushed_at_once)
{
    defer_begin();
    free_some(20, 100);
    defer_end();
    assert_ok(caid_arena_flush(f.arena, &error));
    cr_assert_eq(arena_look().pending, 0);
    cr_assert_eq(arena_look().n_flushes, 1);
}

/* ---- the GPU's work ---- */

ARENA_TEST(arena_queue, memory_is_not_used_again_before_the_work_is_done)
{
    struct gate gate;

    uint64_t first = arena_get(8 * MIB);
    gate_shut(&gate);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(first, 1, 8 * MIB, gate.stream));
    arena_put(first);
    assert_ok(caid_arena_flush(f.arena, &error));
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.draining, 1);
    cr_assert_eq(info.draining_bytes, 8 * MIB);
    for (int i = 0; i < 10; i++) /* more than the block has */
        cr_assert_neq(arena_get(8 * MIB), first);
    cr_assert_gt(arena_look().blocks, 1);

    gate_open(&gate);
    drain();
    cr_assert_eq(arena_look().draining_bytes, 0);
    cr_assert_eq(arena_get(8 * MIB), first);
}

/* What was freed before it does not wait for what was enqueued after. */
ARENA_TEST(arena_queue, later_work_is_not_waited_for)
{
    struct gate gate;

    free_some(1, 100);
    assert_ok(caid_arena_flush(f.arena, &error));
    gate_shut(&gate);
    drain();
    free_some(1, 100);
    assert_ok(caid_arena_flush(f.arena, &error));
    cr_assert_eq(arena_look().draining, 1);
    gate_open(&gate);
    drain();
}

/* What is recorded has a limit, beyond which it would wait for the GPU: the rest stays pending. */
ARENA_TEST(arena_queue, many_flushes_while_the_gpu_is_busy)
{
    struct gate gate;

    limits(0, 0, 0);
    arena_get(1); /* so that the block stays */
    uint64_t before = gpu_is_soft() ? soft_live(&f.gpu, "events") : 0;
    gate_shut(&gate);
    for (uint64_t i = 1; i <= 300; i++) {
        free_some(1, 512);
        struct caid_arena_info info = arena_look();
        cr_assert_eq(info.draining, i < 32 ? i : 32);
        cr_assert_eq(info.pending + info.draining, i);
    }
    if (gpu_is_soft())
        cr_assert_leq(soft_live(&f.gpu, "events") - before, 32);
    gate_open(&gate);
    drain();
    cr_assert_eq(arena_look().pending, 0);
    cr_assert_eq(arena_look().draining_bytes, 0);
}

/* ---- captures ---- */

static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                            CU_STREAM_CAPTURE_MODE_RELAXED};

static CUstream
capture_begin(unsigned int flags, CUstreamCaptureMode mode)
{
    CUstream stream;

    assert_cuda(f.gpu.drv->cu.cuStreamCreate(&stream, flags));
    gpu_capture_begin(&f.gpu, stream, mode);
    return stream;
}

/* Whether it was not ended by something else. */
static bool
capture_end(CUstream stream)
{
    bool whole = gpu_capture_end(&f.gpu, stream);

    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(stream));
    return whole;
}

/* How the arena knows that it is not to flush. */
enum way {
    TOLD,
    BLOCKING,
    DEFERRED
};

static void
assert_goes_on(enum way way, CUstreamCaptureMode mode)
{
    free_some(5, 100);
    assert_ok(caid_arena_flush(f.arena, &error));
    CUstream stream =
        capture_begin(way == BLOCKING ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING, mode);
    if (way == DEFERRED)
        defer_begin();
    caid_arena_work_on(way == TOLD ? (uintptr_t)stream : 0);
    free_some(30, 100);
    uint64_t large = arena_get(40 * MIB); /* asks the daemon */
    arena_put(large);
    assert_ok(caid_arena_flush(f.arena, &error));
    assert_ok(caid_arena_trim(f.arena, &error));
    cr_assert_eq(arena_look().pending, 31);
    caid_arena_work_on(0);
    cr_assert(capture_end(stream), "way %d, mode %d", (int)way, (int)mode);
    if (way == DEFERRED)
        defer_end();
    free_some(1, 100);
    cr_assert_eq(arena_look().pending, 0, "what waited goes with the next");
}

ARENA_TEST(arena_queue, a_capture_that_is_known_of_goes_on)
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
        for (enum way way = TOLD; way <= DEFERRED; way++)
            assert_goes_on(way, modes[i]);
}

ARENA_TEST(arena_queue, a_capture_is_known_of_with_no_context_current)
{
    CUcontext context;

    arena_get(100);
    CUstream stream = capture_begin(CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_cuda(f.gpu.drv->cu.cuCtxPopCurrent(&context));
    free_some(12, 100);
    cr_assert_eq(arena_look().pending, 12);
    assert_cuda(f.gpu.drv->cu.cuCtxPushCurrent(context));
    cr_assert(capture_end(stream));
}

/* Recording ends one that nobody knows of, and fails: what was freed waits on, and a free has
 * worked. */
ARENA_TEST(arena_queue, nothing_is_lost_to_a_capture_that_is_not_known_of)
{
    arena_get(100);
    CUstream stream = capture_begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
    free_some(12, 100);
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.pending, 12);
    cr_assert_eq(info.draining, 0);
    cr_assert_eq(info.n_flushes, 0);
    assert_failed(caid_arena_flush(f.arena, &error), CAID_ERR_DRIVER);
    cr_assert(strstr(error.message, "cuCtxRecordEvent"), "%s", error.message);
    cr_assert_not(capture_end(stream));
    free_some(1, 100);
    cr_assert_eq(arena_look().pending, 0);
    drain();
}

/* Asking whether work is done must not end the capture of the thread that asks. */
ARENA_TEST(arena_queue, a_capture_does_not_notice_that_events_are_asked)
{
    struct gate gate;

    uint64_t first = arena_get(12 * MIB);
    arena_get(12 * MIB);
    gate_shut(&gate);
    arena_put(first);
    assert_ok(caid_arena_flush(f.arena, &error));
    gate_open(&gate);
    CUstream stream = capture_begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
    while (arena_get(12 * MIB) != first)
        ;
    cr_assert(capture_end(stream));
}

/* So an allocation is no danger to captures that nobody knows of. */
ARENA_TEST_OF(arena_queue, a_lease_can_come_first, .block_size = 2 * MIB)
{
    uint64_t ptr;

    free_some(1, MIB);
    CUstream stream = capture_begin(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_ok(caid_arena_alloc(f.arena, 2 * MIB, CAID_ARENA_LEASE_FIRST, &ptr, &error));
    cr_assert_eq(arena_look().pending, 1);
    cr_assert(capture_end(stream));
    assert_failed(caid_arena_free(f.arena, ptr, CAID_ARENA_LEASE_FIRST, &error),
                  CAID_ERR_INVALID);
}

/* ---- drivers that fail ---- */

#define FAULT_TEST(name)                                                            \
    CAID_TEST_BETWEEN(arena_queue, name, ONLY_IF(gpu_is_soft(), arena_begin(NULL)), \
                      arena_end(), .init = driver_warm_up, .timeout = 120)

CLIENT_TEST(arena_queue, what_cannot_be_put_behind_the_work_waits_on)
{
    const char *const faults[] = {"fail cuCtxRecordEvent=UNKNOWN",
                                  "fail cuEventCreate=OUT_OF_MEMORY",
                                  "fail cuCtxPushCurrent=UNKNOWN"};
    const char *const calls[] = {"cuCtxRecordEvent", "cuEventCreate", "cuEventCreate"};

    if (!gpu_is_soft())
        return;
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        arena_begin(NULL);
        arena_get(100);
        soft_control(&f.gpu, faults[i]);
        free_some(20, 100);
        cr_assert_eq(arena_look().pending, 20, "%s", faults[i]);
        assert_failed(caid_arena_flush(f.arena, &error), error.code);
        cr_assert_neq(error.cuda_result, 0);
        cr_assert(strstr(error.message, calls[i]), "%s", error.message);
        soft_control(&f.gpu, "clear");
        assert_ok(caid_arena_flush(f.arena, &error));
        cr_assert_eq(arena_look().pending, 0);
        drain();
        arena_end();
    }
}

FAULT_TEST(what_is_not_known_to_be_done_is_not_used)
{
    uint64_t first = arena_get(20 * MIB);
    soft_control(&f.gpu, "fail cuEventQuery=UNKNOWN");
    arena_put(first);
    assert_ok(caid_arena_flush(f.arena, &error));
    cr_assert_eq(arena_look().draining, 1);
    cr_assert_neq(arena_get(20 * MIB), first);
    soft_control(&f.gpu, "clear");
    drain();
    cr_assert_eq(arena_get(20 * MIB), first);
}

/* Before CUDA 12.5 no event can be recorded after all work of a context. */
FAULT_TEST(a_driver_that_cannot_record_is_synchronized)
{
    struct gate gate;

    uint64_t first = arena_get(20 * MIB);
    soft_control(&f.gpu, "fail cuCtxRecordEvent=NOT_FOUND");
    gate_shut(&gate);
    arena_put(first);
    assert_ok(caid_arena_flush(f.arena, &error));
    cr_assert_eq(arena_look().draining, 1);
    assert_ok(caid_arena_flush(f.arena, &error));
    cr_assert_eq(arena_look().draining, 1, "a flush waits for nothing");
    gate_open(&gate);
    uint64_t before = soft_calls(&f.gpu, "cuCtxSynchronize");
    for (int i = 0; i < 20; i++) {
        uint64_t again = arena_get(20 * MIB);
        cr_assert_eq(again, first);
        arena_put(again);
    }
    cr_assert_eq(arena_look().n_leased, 1);
    cr_assert_eq(soft_calls(&f.gpu, "cuCtxSynchronize"), before + 20);
    assert_ok(caid_arena_trim(f.arena, &error));
    cr_assert_eq(arena_look().blocks, 0);
    soft_control(&f.gpu, "clear");
}

FAULT_TEST(nor_is_it_synchronized_while_a_graph_is_captured)
{
    uint64_t first = arena_get(20 * MIB);
    soft_control(&f.gpu, "fail cuCtxRecordEvent=NOT_FOUND");
    arena_put(first);
    assert_ok(caid_arena_flush(f.arena, &error));
    CUstream stream = capture_begin(CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_RELAXED);
    cr_assert_neq(arena_get(20 * MIB), first);
    assert_failed(caid_arena_trim(f.arena, &error), CAID_ERR_DRIVER);
    cr_assert(capture_end(stream));
    cr_assert_eq(arena_get(20 * MIB), first);
    soft_control(&f.gpu, "clear");
}

CLIENT_TEST(arena_queue, a_trim_that_cannot_wait_fails)
{
    const char *const faults[] = {
        "fail cuEventSynchronize=STREAM_CAPTURE_UNSUPPORTED",
        "fail cuCtxRecordEvent=NOT_FOUND,cuCtxSynchronize=STREAM_CAPTURE_UNSUPPORTED",
    };
    const char *const calls[] = {"cuEventSynchronize", "cuCtxSynchronize"};
    struct gate gate;

    if (!gpu_is_soft())
        return;
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        arena_begin(NULL);
        uint64_t first = arena_get(40 * MIB);
        gate_shut(&gate);
        arena_put(first);
        soft_control(&f.gpu, faults[i]);
        assert_failed(caid_arena_trim(f.arena, &error), CAID_ERR_DRIVER);
        cr_assert(strstr(error.message, calls[i]), "%s", error.message);
        cr_assert_eq(error.cuda_result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        cr_assert_lt(caid_arena_trim(f.arena, NULL), 0);
        cr_assert_eq(arena_look().draining, 1);
        cr_assert_eq(arena_look().blocks, 1);
        gate_open(&gate);
        soft_control(&f.gpu, "clear");
        assert_ok(caid_arena_trim(f.arena, &error));
        cr_assert_eq(arena_look().blocks, 0);
        arena_end();
    }
}

FAULT_TEST(what_drains_in_a_context_that_dies_is_done)
{
    struct gate gate;

    uint64_t first = arena_get(20 * MIB);
    gate_shut(&gate);
    arena_put(first);
    assert_ok(caid_arena_flush(f.arena, &error));
    cr_assert_eq(arena_look().draining, 1);
    soft_control(&f.gpu, "fail cuEventQuery=ILLEGAL_ADDRESS");
    cr_assert_eq(arena_get(20 * MIB), first);
    soft_control(&f.gpu, "clear");
    gate_open(&gate);
}

/* A context in which nothing runs any more is done with everything. */
FAULT_TEST(a_dead_context_is_done)
{
    arena_get(1);
    uint64_t first = arena_get(8 * MIB);
    arena_put(first);
    assert_ok(caid_arena_flush(f.arena, &error));
    free_some(5, 100);
    soft_control(&f.gpu, "fail *=LAUNCH_FAILED");
    assert_ok(caid_arena_flush(f.arena, &error));
    struct caid_arena_info info = arena_look();
    cr_assert_eq(info.pending + info.draining, 0);
    free_some(30, 100);
    assert_ok(caid_arena_flush(f.arena, &error));
    cr_assert_eq(arena_get(8 * MIB), first);
    soft_control(&f.gpu, "clear");
}

/* ---- ordered by a stream ---- */

ARENA_TEST(arena_queue, what_a_stream_gave_back_serves_it)
{
    const uint32_t flags = CAID_ARENA_ORDERED | CAID_ARENA_NOWAIT;
    uint64_t first, again;
    CUstream stream;

    assert_cuda(f.gpu.drv->cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    caid_arena_work_on((uintptr_t)stream);
    assert_ok(caid_arena_alloc(f.arena, 100, CAID_ARENA_ORDERED, &first, &error));
    assert_ok(caid_arena_free(f.arena, first, flags, &error));
    assert_ok(caid_arena_alloc(f.arena, 100, flags, &again, &error));
    cr_assert_eq(again, first);
    cr_assert_eq(arena_look().pending, 0);
    arena_put(again); /* in no order: all work of the context is waited for */
    assert_ok(caid_arena_alloc(f.arena, 100, flags, &again, &error));
    cr_assert_neq(again, first);
    assert_ok(caid_arena_free(f.arena, again, flags, &error));
    defer_begin();
    assert_ok(caid_arena_alloc(f.arena, 100, flags, &again, &error));
    cr_assert_eq(arena_look().pending, 2, "deferred memory stays");
    defer_end();
    caid_arena_work_on(0);
    assert_cuda(f.gpu.drv->cu.cuStreamDestroy(stream));
}

/* The default streams of two contexts have one handle. */
ARENA_TEST(arena_queue, what_a_stream_gave_back_serves_none_of_another_context)
{
    const uint32_t flags = CAID_ARENA_ORDERED | CAID_ARENA_NOWAIT;
    CUresult (*create)(CUcontext *, unsigned int, CUdevice);
    CUcontext other, popped;
    uint64_t first, again;

    void *symbol = gpu_symbol(&f.gpu, "cuCtxCreate_v2");
    memcpy(&create, &symbol, sizeof(create));
    for (uint64_t stream = 1; stream <= 2; stream++) {
        caid_arena_work_on(stream);
        assert_ok(caid_arena_alloc(f.arena, 100, CAID_ARENA_ORDERED, &first, &error));
        assert_ok(caid_arena_free(f.arena, first, flags, &error));
        assert_cuda(create(&other, 0, 0));
        assert_ok(caid_arena_alloc(f.arena, 100, flags, &again, &error));
        cr_assert_neq(again, first);
        assert_cuda(f.gpu.drv->cu.cuCtxPopCurrent(&popped)); /* it lives on */
        arena_put(again);
        assert_ok(caid_arena_alloc(f.arena, 100, flags, &again, &error));
        cr_assert_eq(again, first);
        arena_put(again);
    }
    caid_arena_work_on(0);
}
