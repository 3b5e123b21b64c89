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
free_some(struct arena_fixture *f, size_t n, uint64_t nbytes)
{
    uint64_t ptrs[32];

    for (size_t i = 0; i < n; i++)
        ptrs[i] = arena_get(f, nbytes);
    for (size_t i = 0; i < n; i++)
        arena_put(f, ptrs[i]);
}

static void
limits(struct arena_fixture *f, uint64_t count, double ratio, uint64_t capacity)
{
    assert_ok(caid_arena_set_limits(f->arena, count, ratio, capacity, &f->error), f->error);
}

static void
defer_begin(struct arena_fixture *f)
{
    assert_ok(caid_arena_defer_begin(f->arena, &f->error), f->error);
}

static void
defer_end(struct arena_fixture *f)
{
    assert_ok(caid_arena_defer_end(f->arena, &f->error), f->error);
}

/* Until the GPU is done with what was flushed. */
static void
drain(struct arena_fixture *f)
{
    while (arena_look(f).draining > 0)
        assert_ok(caid_arena_flush(f->arena, &f->error), f->error);
}

/* ---- Numba's rules ---- */

CLIENT_TEST(arena_queue, r1_r2_the_eleventh_flushes_all)
{
    struct arena_fixture f;

    arena_begin(&f, NULL);
    for (uint64_t i = 1; i <= 10; i++) {
        free_some(&f, 1, 100);
        cr_assert_eq(arena_look(&f).pending, i);
        cr_assert_eq(arena_look(&f).pending_bytes, 100 * i, "as asked for");
    }
    cr_assert_eq(arena_look(&f).n_flushes, 0);
    free_some(&f, 1, 100);
    struct caid_arena_info info = arena_look(&f);
    cr_assert_eq(info.pending, 0);
    cr_assert_eq(info.pending_bytes, 0);
    cr_assert_eq(info.n_flushes, 1);
    arena_end(&f);
}

CLIENT_TEST(arena_queue, r3_so_does_a_byte_more_than_the_ratio_allows)
{
    struct arena_fixture f;

    arena_begin(&f, NULL);
    limits(&f, 1000, 0.2, 1000);
    free_some(&f, 2, 100);
    cr_assert_eq(arena_look(&f).pending, 2, "200 of 1000");
    free_some(&f, 1, 1);
    cr_assert_eq(arena_look(&f).pending, 0, "201");
    limits(&f, 1000, 1e300, UINT64_MAX);
    free_some(&f, 3, 2 * MIB);
    cr_assert_eq(arena_look(&f).pending, 3, "more than a number holds");
    arena_end(&f);
}

CLIENT_TEST(arena_queue, r3_the_ratio_is_one_of_the_device)
{
    struct caid_arena_options options = CAID_INIT(options);
    const struct caid_device *devices;
    struct arena_fixture f;

    options.max_pending_count = 1000;
    options.max_pending_ratio = 1e-9;
    arena_begin(&f, &options);
    cr_assert_gt(caid_client_devices(f.client, &devices), 0);
    uint64_t bytes = (uint64_t)((double)devices[0].total * 1e-9);
    free_some(&f, 1, bytes);
    cr_assert_eq(arena_look(&f).pending, 1);
    free_some(&f, 1, 1);
    cr_assert_eq(arena_look(&f).pending, 0);
    arena_end(&f);
}

CLIENT_TEST(arena_queue, r4_limits_are_read_at_each_free)
{
    struct arena_fixture f;

    arena_begin(&f, NULL);
    free_some(&f, 3, 100);
    limits(&f, 2, 1, UINT64_MAX);
    cr_assert_eq(arena_look(&f).pending, 3, "and at no other time");
    free_some(&f, 1, 100);
    cr_assert_eq(arena_look(&f).pending, 0);
    limits(&f, 0, 1, UINT64_MAX);
    free_some(&f, 1, 100);
    cr_assert_eq(arena_look(&f).pending, 0);
    arena_end(&f);
}

CLIENT_TEST(arena_queue, nothing_waits_by_a_negative_ratio)
{
    struct caid_arena_options options = CAID_INIT(options);
    struct arena_fixture f;

    options.max_pending_ratio = -1;
    arena_begin(&f, &options);
    free_some(&f, 1, 100);
    drain(&f);
    struct caid_arena_info info = arena_look(&f);
    cr_assert_eq(info.pending, 0);
    cr_assert_eq(info.blocks, 0, "nor do blocks");
    wait_for_leases(f.client, 0);
    arena_end(&f);
}

CLIENT_TEST(arena_queue, r8_deferral_nests)
{
    struct arena_fixture f;

    arena_begin(&f, NULL);
    defer_begin(&f);
    defer_begin(&f);
    free_some(&f, 20, 100);
    cr_assert_eq(arena_look(&f).pending, 20);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    assert_ok(caid_arena_trim(f.arena, &f.error), f.error);
    cr_assert_eq(arena_look(&f).pending, 20, "held back from those, too");
    defer_end(&f);
    free_some(&f, 1, 100);
    cr_assert_eq(arena_look(&f).pending, 21);
    defer_end(&f);
    cr_assert_eq(arena_look(&f).pending, 21, "R9: its end flushes nothing");
    free_some(&f, 1, 100);
    cr_assert_eq(arena_look(&f).pending, 0, "R9: the next free does");
    assert_failed(caid_arena_defer_end(f.arena, &f.error), f.error, CAID_ERR_INVALID);
    arena_end(&f);
}

CLIENT_TEST(arena_queue, r9_what_was_deferred_can_be_flushed_at_once)
{
    struct arena_fixture f;

    arena_begin(&f, NULL);
    defer_begin(&f);
    free_some(&f, 20, 100);
    defer_end(&f);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    cr_assert_eq(arena_look(&f).pending, 0);
    cr_assert_eq(arena_look(&f).n_flushes, 1);
    arena_end(&f);
}

/* ---- the GPU's work ---- */

CLIENT_TEST(arena_queue, memory_is_not_used_again_before_the_work_is_done)
{
    struct arena_fixture f;
    struct gate gate;

    arena_begin(&f, NULL);
    uint64_t first = arena_get(&f, 8 * MIB);
    gate_shut(&f, &gate);
    assert_cuda(f.gpu.drv->cu.cuMemsetD8Async(first, 1, 8 * MIB, gate.stream));
    arena_put(&f, first);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    struct caid_arena_info info = arena_look(&f);
    cr_assert_eq(info.draining, 1);
    cr_assert_eq(info.draining_bytes, 8 * MIB);
    for (int i = 0; i < 10; i++) /* more than the block has */
        cr_assert_neq(arena_get(&f, 8 * MIB), first);
    cr_assert_gt(arena_look(&f).blocks, 1);

    gate_open(&f, &gate);
    drain(&f);
    cr_assert_eq(arena_look(&f).draining_bytes, 0);
    cr_assert_eq(arena_get(&f, 8 * MIB), first);
    arena_end(&f);
}

/* What was freed before it does not wait for what was enqueued after. */
CLIENT_TEST(arena_queue, later_work_is_not_waited_for)
{
    struct arena_fixture f;
    struct gate gate;

    arena_begin(&f, NULL);
    free_some(&f, 1, 100);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    gate_shut(&f, &gate);
    drain(&f);
    free_some(&f, 1, 100);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    cr_assert_eq(arena_look(&f).draining, 1);
    gate_open(&f, &gate);
    drain(&f);
    arena_end(&f);
}

/* What is recorded has a limit, beyond which it would wait for the GPU: the rest stays pending. */
CLIENT_TEST(arena_queue, many_flushes_while_the_gpu_is_busy)
{
    struct arena_fixture f;
    struct gate gate;

    arena_begin(&f, NULL);
    limits(&f, 0, 0, 0);
    arena_get(&f, 1); /* so that the block stays */
    uint64_t before = gpu_is_soft() ? soft_live(&f.gpu, "events") : 0;
    gate_shut(&f, &gate);
    for (uint64_t i = 1; i <= 300; i++) {
        free_some(&f, 1, 512);
        struct caid_arena_info info = arena_look(&f);
        cr_assert_eq(info.draining, i < 32 ? i : 32);
        cr_assert_eq(info.pending + info.draining, i);
    }
    if (gpu_is_soft())
        cr_assert_leq(soft_live(&f.gpu, "events") - before, 32);
    gate_open(&f, &gate);
    drain(&f);
    cr_assert_eq(arena_look(&f).pending, 0);
    cr_assert_eq(arena_look(&f).draining_bytes, 0);
    arena_end(&f);
}

/* ---- captures ---- */

struct capture {
    CUresult (*begin)(CUstream, CUstreamCaptureMode);
    CUresult (*end)(CUstream, CUgraph *);
    CUresult (*destroy)(CUgraph);
    CUstream stream;
};

static void
capture_begin(struct arena_fixture *f, struct capture *c, CUstreamCaptureMode mode)
{
    void *begin = gpu_symbol(&f->gpu, "cuStreamBeginCapture_v2");
    void *end = gpu_symbol(&f->gpu, "cuStreamEndCapture");
    void *destroy = gpu_symbol(&f->gpu, "cuGraphDestroy");

    memcpy(&c->begin, &begin, sizeof(c->begin));
    memcpy(&c->end, &end, sizeof(c->end));
    memcpy(&c->destroy, &destroy, sizeof(c->destroy));
    c->stream = gpu_stream_new(&f->gpu);
    assert_cuda(c->begin(c->stream, mode));
}

/* Whether it was not ended by something else. */
static bool
capture_end(struct arena_fixture *f, struct capture *c)
{
    CUgraph graph = NULL;
    CUresult result = c->end(c->stream, &graph);

    if (graph)
        assert_cuda(c->destroy(graph));
    assert_cuda(f->gpu.drv->cu.cuStreamDestroy(c->stream));
    return result == CUDA_SUCCESS;
}

static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                            CU_STREAM_CAPTURE_MODE_RELAXED};

CLIENT_TEST(arena_queue, a_capture_goes_on_while_the_arena_is_deferred)
{
    struct capture capture;
    struct arena_fixture f;

    arena_begin(&f, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        free_some(&f, 5, 100);
        assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
        defer_begin(&f);
        capture_begin(&f, &capture, modes[i]);
        free_some(&f, 30, 100);
        uint64_t large = arena_get(&f, 40 * MIB); /* asks the daemon */
        arena_put(&f, large);
        assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
        assert_ok(caid_arena_trim(f.arena, &f.error), f.error);
        cr_assert_eq(arena_look(&f).pending, 31);
        cr_assert(capture_end(&f, &capture), "mode %d", (int)modes[i]);
        defer_end(&f);
        assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
        cr_assert_eq(arena_look(&f).pending, 0);
    }
    arena_end(&f);
}

/* Recording ends the capture and fails: what was freed waits on, and a free has worked. */
CLIENT_TEST(arena_queue, nothing_is_lost_to_a_capture_without_deferral)
{
    struct capture capture;
    struct arena_fixture f;

    arena_begin(&f, NULL);
    arena_get(&f, 100);
    capture_begin(&f, &capture, CU_STREAM_CAPTURE_MODE_RELAXED);
    free_some(&f, 12, 100);
    struct caid_arena_info info = arena_look(&f);
    cr_assert_eq(info.pending, 12);
    cr_assert_eq(info.draining, 0);
    cr_assert_eq(info.n_flushes, 0);
    assert_failed(caid_arena_flush(f.arena, &f.error), f.error, CAID_ERR_DRIVER);
    cr_assert(strstr(f.error.message, "cuCtxRecordEvent"), "%s", f.error.message);
    cr_assert_not(capture_end(&f, &capture));
    free_some(&f, 1, 100);
    cr_assert_eq(arena_look(&f).pending, 0);
    drain(&f);
    arena_end(&f);
}

/* Asking whether work is done must not end the capture of the thread that asks. */
CLIENT_TEST(arena_queue, a_capture_does_not_notice_that_events_are_asked)
{
    struct capture capture;
    struct arena_fixture f;
    struct gate gate;

    arena_begin(&f, NULL);
    uint64_t first = arena_get(&f, 12 * MIB);
    arena_get(&f, 12 * MIB);
    gate_shut(&f, &gate);
    arena_put(&f, first);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    gate_open(&f, &gate);
    capture_begin(&f, &capture, CU_STREAM_CAPTURE_MODE_GLOBAL);
    while (arena_get(&f, 12 * MIB) != first)
        ;
    cr_assert(capture_end(&f, &capture));
    arena_end(&f);
}

/* ---- drivers that fail ---- */

#define FAULT_TEST(name) \
    CAID_TEST_WITH(arena_queue, name, .init = driver_warm_up, .timeout = 120)

FAULT_TEST(what_cannot_be_put_behind_the_work_waits_on)
{
    const char *const faults[] = {"fail cuCtxRecordEvent=UNKNOWN",
                                  "fail cuEventCreate=OUT_OF_MEMORY",
                                  "fail cuCtxPushCurrent=UNKNOWN"};
    const char *const calls[] = {"cuCtxRecordEvent", "cuEventCreate", "cuEventCreate"};
    struct arena_fixture f;

    if (!gpu_is_soft())
        return;
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        arena_begin(&f, NULL);
        arena_get(&f, 100);
        soft_control(&f.gpu, faults[i]);
        free_some(&f, 20, 100);
        cr_assert_eq(arena_look(&f).pending, 20, "%s", faults[i]);
        assert_failed(caid_arena_flush(f.arena, &f.error), f.error, f.error.code);
        cr_assert_neq(f.error.cuda_result, 0);
        cr_assert(strstr(f.error.message, calls[i]), "%s", f.error.message);
        soft_control(&f.gpu, "clear");
        assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
        cr_assert_eq(arena_look(&f).pending, 0);
        drain(&f);
        arena_end(&f);
    }
}

FAULT_TEST(what_is_not_known_to_be_done_is_not_used)
{
    struct arena_fixture f;

    if (!gpu_is_soft())
        return;
    arena_begin(&f, NULL);
    uint64_t first = arena_get(&f, 20 * MIB);
    soft_control(&f.gpu, "fail cuEventQuery=UNKNOWN");
    arena_put(&f, first);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    cr_assert_eq(arena_look(&f).draining, 1);
    cr_assert_neq(arena_get(&f, 20 * MIB), first);
    soft_control(&f.gpu, "clear");
    drain(&f);
    cr_assert_eq(arena_get(&f, 20 * MIB), first);
    arena_end(&f);
}

/* Before CUDA 12.5 no event can be recorded after all work of a context. */
FAULT_TEST(a_driver_that_cannot_record_is_synchronized)
{
    struct arena_fixture f;
    struct gate gate;

    if (!gpu_is_soft())
        return;
    arena_begin(&f, NULL);
    uint64_t first = arena_get(&f, 20 * MIB);
    soft_control(&f.gpu, "fail cuCtxRecordEvent=NOT_FOUND");
    gate_shut(&f, &gate);
    arena_put(&f, first);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    cr_assert_eq(arena_look(&f).draining, 1);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    cr_assert_eq(arena_look(&f).draining, 1, "a flush waits for nothing");
    gate_open(&f, &gate);
    uint64_t before = soft_calls(&f.gpu, "cuCtxSynchronize");
    for (int i = 0; i < 20; i++) {
        uint64_t again = arena_get(&f, 20 * MIB);
        cr_assert_eq(again, first);
        arena_put(&f, again);
    }
    cr_assert_eq(arena_look(&f).n_leased, 1);
    cr_assert_eq(soft_calls(&f.gpu, "cuCtxSynchronize"), before + 20);
    assert_ok(caid_arena_trim(f.arena, &f.error), f.error);
    cr_assert_eq(arena_look(&f).blocks, 0);
    soft_control(&f.gpu, "clear");
    arena_end(&f);
}

FAULT_TEST(a_trim_that_cannot_wait_fails)
{
    const char *const faults[] = {
        "fail cuEventSynchronize=STREAM_CAPTURE_UNSUPPORTED",
        "fail cuCtxRecordEvent=NOT_FOUND,cuCtxSynchronize=STREAM_CAPTURE_UNSUPPORTED",
    };
    const char *const calls[] = {"cuEventSynchronize", "cuCtxSynchronize"};
    struct arena_fixture f;
    struct gate gate;

    if (!gpu_is_soft())
        return;
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        arena_begin(&f, NULL);
        uint64_t first = arena_get(&f, 40 * MIB);
        gate_shut(&f, &gate);
        arena_put(&f, first);
        soft_control(&f.gpu, faults[i]);
        assert_failed(caid_arena_trim(f.arena, &f.error), f.error, CAID_ERR_DRIVER);
        cr_assert(strstr(f.error.message, calls[i]), "%s", f.error.message);
        cr_assert_eq(f.error.cuda_result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        cr_assert_lt(caid_arena_trim(f.arena, NULL), 0);
        cr_assert_eq(arena_look(&f).draining, 1);
        cr_assert_eq(arena_look(&f).blocks, 1);
        gate_open(&f, &gate);
        soft_control(&f.gpu, "clear");
        assert_ok(caid_arena_trim(f.arena, &f.error), f.error);
        cr_assert_eq(arena_look(&f).blocks, 0);
        arena_end(&f);
    }
}

FAULT_TEST(what_drains_in_a_context_that_dies_is_done)
{
    struct arena_fixture f;
    struct gate gate;

    if (!gpu_is_soft())
        return;
    arena_begin(&f, NULL);
    uint64_t first = arena_get(&f, 20 * MIB);
    gate_shut(&f, &gate);
    arena_put(&f, first);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    cr_assert_eq(arena_look(&f).draining, 1);
    soft_control(&f.gpu, "fail cuEventQuery=ILLEGAL_ADDRESS");
    cr_assert_eq(arena_get(&f, 20 * MIB), first);
    soft_control(&f.gpu, "clear");
    gate_open(&f, &gate);
    arena_end(&f);
}

/* A context in which nothing runs any more is done with everything. */
FAULT_TEST(a_dead_context_is_done)
{
    struct arena_fixture f;

    if (!gpu_is_soft())
        return;
    arena_begin(&f, NULL);
    arena_get(&f, 1);
    uint64_t first = arena_get(&f, 8 * MIB);
    arena_put(&f, first);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    free_some(&f, 5, 100);
    soft_control(&f.gpu, "fail *=LAUNCH_FAILED");
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    struct caid_arena_info info = arena_look(&f);
    cr_assert_eq(info.pending + info.draining, 0);
    free_some(&f, 30, 100);
    assert_ok(caid_arena_flush(f.arena, &f.error), f.error);
    cr_assert_eq(arena_get(&f, 8 * MIB), first);
    soft_control(&f.gpu, "clear");
    arena_end(&f);
}
