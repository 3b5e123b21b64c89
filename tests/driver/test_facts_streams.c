/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What streams and events do: which of them wait for which, what the host may do meanwhile, and
 * what of CUDA needs a current context.
 */
#include "facts.h"

#define SUITE facts_streams
#define START facts_start_context

#define LEGACY     1 /* CU_STREAM_LEGACY */
#define PER_THREAD 2 /* CU_STREAM_PER_THREAD */

#define SIZE (64 * KIB)

/* A process, and a page of words that streams mark. Word 0 is a gate: what hold() put into a stream
 * ends when it is not 0. */
struct ground {
    struct facts_process process;
    struct facts_page page;
    uint64_t host, device; /* the page's addresses there */
    uint64_t blocking, other_blocking, non_blocking;
};

static struct ground
ground_start(void)
{
    struct ground g = {.process = facts_start_context(), .page = facts_page_new()};
    g.host = facts_page_map(&g.process, &g.page, PROT_READ | PROT_WRITE);
    MUST(&g.process, cuMemHostRegister, g.host, FACTS_PAGE_SIZE, CU_MEMHOSTREGISTER_DEVICEMAP);
    g.device = GET(&g.process, cuMemHostGetDevicePointer, g.host, 0);
    g.blocking = GET(&g.process, cuStreamCreate, CU_STREAM_DEFAULT);
    g.other_blocking = GET(&g.process, cuStreamCreate, CU_STREAM_DEFAULT);
    g.non_blocking = GET(&g.process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
    return g;
}

static void
ground_stop(struct ground *g)
{
    g->page.words[0] = 1;
    MUST(&g->process, cuCtxSynchronize);
    facts_stop(&g->process);
    facts_page_deinit(&g->page);
}

/* A body with a ground of its own. */
#define GROUND_FACT(name)                    \
    static void name##_on(struct ground *g); \
    FACT(facts_streams, name)                \
    {                                        \
        struct ground g = ground_start();    \
        name##_on(&g);                       \
        ground_stop(&g);                     \
    }                                        \
    static void name##_on(struct ground *g)

static void
call_host(struct ground *g, uint64_t stream, enum facts_host_function function, int word)
{
    uint64_t address = GET(&g->process, host_function, function);
    MUST(&g->process, cuLaunchHostFunc, stream, address, g->host + 8 * word);
}

static void
hold(struct ground *g, uint64_t stream)
{
    call_host(g, stream, FACTS_HOLD, 0);
}

/* Enqueues: the word becomes 1. */
static void
mark(struct ground *g, uint64_t stream, int word)
{
    MUST(&g->process, cuMemsetD32Async, g->device + 8 * word, 1, 1, stream);
}

static void
assert_passes(struct ground *g, uint64_t stream)
{
    MUST(&g->process, cuStreamSynchronize, stream);
}

static void
assert_waits(struct ground *g, uint64_t stream)
{
    facts_pause_ms(50);
    EXPECT(&g->process, CUDA_ERROR_NOT_READY, cuStreamQuery, stream);
}

/* Default streams. */

GROUND_FACT(the_legacy_stream_waits_for_blocking_streams_and_later_work_in_them_for_it)
{
    hold(g, g->blocking);
    mark(g, LEGACY, 1);
    mark(g, g->other_blocking, 2);
    mark(g, g->non_blocking, 3);
    assert_passes(g, g->non_blocking);
    assert_waits(g, LEGACY);
    assert_waits(g, g->other_blocking);
    cr_assert_eq(g->page.words[1] | g->page.words[2], 0);
    g->page.words[0] = 1;
    assert_passes(g, g->other_blocking);
    cr_assert_eq(g->page.words[1], 1, "what went before in the legacy stream");
}

GROUND_FACT(blocking_streams_wait_for_the_legacy_stream)
{
    hold(g, LEGACY);
    mark(g, g->blocking, 1);
    mark(g, PER_THREAD, 2);
    mark(g, g->non_blocking, 3);
    assert_passes(g, g->non_blocking);
    assert_waits(g, g->blocking);
    assert_waits(g, PER_THREAD);
    cr_assert_eq(g->page.words[1] | g->page.words[2], 0);
}

GROUND_FACT(the_null_stream_is_the_legacy_stream)
{
    hold(g, 0);
    mark(g, g->blocking, 1);
    assert_waits(g, LEGACY);
    assert_waits(g, g->blocking);
}

GROUND_FACT(blocking_streams_do_not_wait_for_each_other)
{
    hold(g, g->blocking);
    mark(g, g->other_blocking, 1);
    mark(g, PER_THREAD, 2);
    assert_passes(g, g->other_blocking);
    assert_passes(g, PER_THREAD);
    assert_waits(g, g->blocking);
}

GROUND_FACT(a_stream_runs_in_its_order)
{
    uint64_t at = GET(&g->process, cuMemAlloc, 2 * SIZE);
    facts_fill(&g->process, at, 2 * SIZE, 0);
    hold(g, g->non_blocking);
    MUST(&g->process, cuMemsetD32Async, at, 5, SIZE / 4, g->non_blocking);
    MUST(&g->process, cuMemcpyDtoDAsync, at + SIZE, at, SIZE, g->non_blocking);
    MUST(&g->process, cuMemsetD32Async, at, 6, SIZE / 4, g->non_blocking);
    facts_assert_filled(&g->process, at, 2 * SIZE, 0);
    g->page.words[0] = 1;
    assert_passes(g, g->non_blocking);
    facts_assert_filled(&g->process, at, SIZE, 6);
    facts_assert_filled(&g->process, at + SIZE, SIZE, 5);
}

GROUND_FACT(a_synchronisation_of_the_context_waits_for_all_streams)
{
    hold(g, g->non_blocking);
    BEGIN(&g->process, cuCtxSynchronize);
    cr_assert(facts_is_blocked(&g->process));
    g->page.words[0] = 1;
    EXPECT_END(&g->process, CUDA_SUCCESS);
}

/* Properties. */

static int
get_flags(struct facts_process *process, uint64_t stream)
{
    int flags = -1;
    uint64_t at = facts_put(process, &flags, sizeof(flags));
    MUST(process, cuStreamGetFlags, stream, at);
    facts_read(process, at, &flags, sizeof(flags));
    return flags;
}

static uint64_t
get_id(struct facts_process *process, uint64_t stream)
{
    uint64_t at = GET(process, allocate_host, 8);
    MUST(process, cuStreamGetId, stream, at);
    return GET(process, load, at);
}

GROUND_FACT(flags_and_identities)
{
    cr_assert_eq(get_flags(&g->process, g->blocking), CU_STREAM_DEFAULT);
    cr_assert_eq(get_flags(&g->process, g->non_blocking), CU_STREAM_NON_BLOCKING);
    uint64_t streams[] = {LEGACY, PER_THREAD, g->blocking, g->non_blocking};
    uint64_t ids[ARRAY_SIZE(streams)];
    for (size_t i = 0; i < ARRAY_SIZE(streams); i++) {
        ids[i] = get_id(&g->process, streams[i]);
        cr_assert_eq(get_id(&g->process, streams[i]), ids[i]);
        for (size_t k = 0; k < i; k++)
            cr_assert_neq(ids[k], ids[i]);
    }
}

/* Their handles are the same in every context. */
FACT_OF_ONE(default_streams_of_each_context_have_their_own_identities, process)
{
    uint64_t first = GET(process, cuCtxGetCurrent), ids[4];
    uint64_t second = GET(process, cuCtxCreate, 0, 0);
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
        MUST(process, cuCtxSetCurrent, i < 2 ? first : second);
        ids[i] = get_id(process, i % 2 ? PER_THREAD : LEGACY);
        for (size_t k = 0; k < i; k++)
            cr_assert_neq(ids[k], ids[i], "%zu and %zu", k, i);
    }
    MUST(process, cuCtxSetCurrent, first);
    cr_assert_eq(get_id(process, LEGACY), ids[0]);
}

/* Handles of streams are used again by some drivers. */
FACT(facts_streams, an_identity_is_never_used_again)
{
    enum {
        N = 20
    };
    _cleanup_process_ struct facts_process process = facts_start_context();
    uint64_t ids[N];
    for (size_t i = 0; i < N; i++) {
        uint64_t stream = GET(&process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
        ids[i] = get_id(&process, stream);
        MUST(&process, cuStreamDestroy, stream);
        for (size_t k = 0; k < i; k++)
            cr_assert_neq(ids[k], ids[i]);
    }
}

static int
get_priority(struct facts_process *process, uint64_t stream)
{
    int priority = 1;
    uint64_t at = facts_put(process, &priority, sizeof(priority));
    MUST(process, cuStreamGetPriority, stream, at);
    facts_read(process, at, &priority, sizeof(priority));
    return priority;
}

FACT_OF_ONE(a_priority_out_of_range_is_brought_into_it, process)
{
    int range[2]; /* least, greatest: a greater priority is a smaller number */
    uint64_t at = GET(process, allocate_host, sizeof(range));
    MUST(process, cuCtxGetStreamPriorityRange, at, at + sizeof(int));
    facts_read(process, at, range, sizeof(range));
    cr_assert_leq(range[1], range[0]);
    uint64_t high = GET(process, cuStreamCreateWithPriority, 0, range[1] - 10);
    uint64_t low = GET(process, cuStreamCreateWithPriority, 0, range[0] + 10);
    uint64_t plain = GET(process, cuStreamCreate, 0);
    cr_assert_eq(get_priority(process, high), range[1]);
    cr_assert_eq(get_priority(process, low), range[0]);
    cr_assert_eq(get_priority(process, plain), 0);
}

GROUND_FACT(a_destroyed_stream_finishes_its_work)
{
    hold(g, g->non_blocking);
    mark(g, g->non_blocking, 1);
    MUST(&g->process, cuStreamDestroy, g->non_blocking);
    cr_assert_eq(g->page.words[1], 0);
    g->page.words[0] = 1;
    MUST(&g->process, cuCtxSynchronize);
    for (int i = 0; i < 200 && g->page.words[1] == 0; i++)
        facts_pause_ms(50);
    cr_assert_eq(g->page.words[1], 1);
}

/* Host functions. */

GROUND_FACT(host_functions_run_in_the_order_of_the_stream)
{
    hold(g, g->non_blocking);
    mark(g, g->non_blocking, 1);
    call_host(g, g->non_blocking, FACTS_COUNT, 1);
    call_host(g, g->non_blocking, FACTS_COUNT, 1);
    facts_pause_ms(50);
    cr_assert_eq(g->page.words[1], 0);
    g->page.words[0] = 1;
    assert_passes(g, g->non_blocking);
    cr_assert_eq(g->page.words[1], 3, "set to 1, then counted twice");
}

GROUND_FACT(a_host_function_may_not_call_cuda)
{
    call_host(g, g->non_blocking, FACTS_CALL, 1);
    assert_passes(g, g->non_blocking);
    cr_assert_eq(g->page.words[1], CUDA_ERROR_NOT_PERMITTED + 1);
}

static uint64_t
told(struct ground *g, int word)
{
    for (int i = 0; i < 200 && g->page.words[word] == 0; i++)
        facts_pause_ms(50);
    return g->page.words[word];
}

GROUND_FACT(a_callback_is_told_that_all_is_well)
{
    hold(g, g->non_blocking);
    MUST(&g->process, cuStreamAddCallback, g->non_blocking, GET(&g->process, callback),
         g->host + 8, 0);
    facts_pause_ms(50);
    cr_assert_eq(g->page.words[1], 0);
    g->page.words[0] = 1;
    cr_assert_eq(told(g, 1), CUDA_SUCCESS + 1);
}

/* Unlike a host function, which is not called after an error. */
FACT(facts_streams, a_callback_is_told_of_an_error)
{
    struct ground g = ground_start();
    _cleanup_page_ struct facts_page readable = facts_page_new();
    uint64_t at = facts_page_register(&g.process, &readable, PROT_READ);
    hold(&g, g.non_blocking);
    MUST(&g.process, cuStreamWriteValue64, g.non_blocking, at, 1, 0);
    MUST(&g.process, cuStreamAddCallback, g.non_blocking, GET(&g.process, callback), g.host + 8,
         0);
    g.page.words[0] = 1;
    cr_assert_gt(told(&g, 1), CUDA_SUCCESS + 1);
    facts_kill(&g.process);
    facts_page_deinit(&g.page);
}

/* Events. */

GROUND_FACT(an_event_is_what_was_enqueued_before_it)
{
    uint64_t event = GET(&g->process, cuEventCreate, CU_EVENT_DISABLE_TIMING);
    MUST(&g->process, cuEventQuery, event); /* never recorded */
    MUST(&g->process, cuStreamWaitEvent, g->non_blocking, event, 0);
    assert_passes(g, g->non_blocking);

    hold(g, g->blocking);
    MUST(&g->process, cuEventRecord, event, g->blocking);
    EXPECT(&g->process, CUDA_ERROR_NOT_READY, cuEventQuery, event);
    MUST(&g->process, cuStreamWaitEvent, g->non_blocking, event, 0);
    mark(g, g->non_blocking, 1);
    assert_waits(g, g->non_blocking);
    cr_assert_eq(g->page.words[1], 0);
    BEGIN(&g->process, cuEventSynchronize, event);
    cr_assert(facts_is_blocked(&g->process));
    g->page.words[0] = 1;
    EXPECT_END(&g->process, CUDA_SUCCESS);
    assert_passes(g, g->non_blocking);
}

GROUND_FACT(a_wait_is_for_the_record_before_it)
{
    uint64_t event = GET(&g->process, cuEventCreate, CU_EVENT_DISABLE_TIMING);
    hold(g, g->blocking);
    MUST(&g->process, cuEventRecord, event, g->blocking);
    MUST(&g->process, cuStreamWaitEvent, g->non_blocking, event, 0);
    MUST(&g->process, cuEventRecord, event, g->other_blocking);
    MUST(&g->process, cuEventSynchronize, event);
    assert_waits(g, g->non_blocking);
    MUST(&g->process, cuEventDestroy, event);
    assert_waits(g, g->non_blocking);
}

/* Records of a whole context. */

/* The primary context, and an event. */
static uint64_t
start_context_event(struct ground *g, uint64_t *ret_event)
{
    facts_need_call(&g->process, "cuCtxRecordEvent", 12050);
    *ret_event = GET(&g->process, cuEventCreate, CU_EVENT_DISABLE_TIMING);
    return GET(&g->process, cuCtxGetCurrent);
}

GROUND_FACT(a_record_of_a_context_is_of_all_its_streams)
{
    uint64_t event, context = start_context_event(g, &event);
    uint64_t streams[] = {LEGACY, PER_THREAD, g->blocking, g->non_blocking};
    for (size_t i = 0; i < ARRAY_SIZE(streams); i++) {
        g->page.words[0] = 0;
        hold(g, streams[i]);
        MUST(&g->process, cuCtxRecordEvent, context, event);
        facts_pause_ms(50);
        EXPECT(&g->process, CUDA_ERROR_NOT_READY, cuEventQuery, event);
        BEGIN(&g->process, cuEventSynchronize, event);
        cr_assert(facts_is_blocked(&g->process), "stream %zu", i);
        g->page.words[0] = 1;
        EXPECT_END(&g->process, CUDA_SUCCESS);
        MUST(&g->process, cuEventQuery, event);
    }
}

GROUND_FACT(a_record_of_a_context_holds_nothing_up)
{
    uint64_t event, context = start_context_event(g, &event);
    hold(g, g->non_blocking);
    MUST(&g->process, cuCtxRecordEvent, context, event);
    mark(g, g->blocking, 1);
    mark(g, LEGACY, 2);
    mark(g, PER_THREAD, 3);
    assert_passes(g, PER_THREAD);
    assert_passes(g, LEGACY);
    cr_assert_eq(g->page.words[1] & g->page.words[2] & g->page.words[3], 1);
    EXPECT(&g->process, CUDA_ERROR_NOT_READY, cuEventQuery, event);
}

GROUND_FACT(a_record_of_a_context_is_of_what_went_before)
{
    uint64_t event, context = start_context_event(g, &event);
    uint64_t later = GET(&g->process, cuEventCreate, CU_EVENT_DISABLE_TIMING);
    mark(g, g->non_blocking, 1);
    MUST(&g->process, cuCtxRecordEvent, context, event);
    hold(g, g->non_blocking);
    MUST(&g->process, cuCtxRecordEvent, context, later);
    MUST(&g->process, cuEventSynchronize, event);
    cr_assert_eq(g->page.words[1], 1);
    EXPECT(&g->process, CUDA_ERROR_NOT_READY, cuEventQuery, later);
    g->page.words[0] = 1;
    MUST(&g->process, cuEventSynchronize, later);
}

static int
elapsed(struct facts_process *process, uint64_t from, uint64_t to, float *ret_ms)
{
    uint64_t at = GET(process, allocate_host, sizeof(*ret_ms));
    int result = TRY(process, cuEventElapsedTime, at, from, to);
    facts_read(process, at, ret_ms, sizeof(*ret_ms));
    return result;
}

/* Between the events the stream was held for more than 100 ms. */
GROUND_FACT(events_tell_the_time_between_them)
{
    float ms;
    uint64_t from = GET(&g->process, cuEventCreate, CU_EVENT_DEFAULT);
    uint64_t to = GET(&g->process, cuEventCreate, CU_EVENT_DEFAULT);
    uint64_t untimed = GET(&g->process, cuEventCreate, CU_EVENT_DISABLE_TIMING);
    cr_assert_eq(elapsed(&g->process, from, to, &ms), CUDA_ERROR_INVALID_HANDLE);
    MUST(&g->process, cuEventRecord, from, g->non_blocking);
    MUST(&g->process, cuEventRecord, untimed, g->non_blocking);
    assert_passes(g, g->non_blocking);
    hold(g, g->non_blocking);
    MUST(&g->process, cuEventRecord, to, g->non_blocking);
    cr_assert_eq(elapsed(&g->process, from, to, &ms), CUDA_ERROR_NOT_READY);
    facts_pause_ms(120);
    g->page.words[0] = 1;
    assert_passes(g, g->non_blocking);
    cr_assert_eq(elapsed(&g->process, from, to, &ms), CUDA_SUCCESS);
    cr_assert_geq(ms, 100.0F);
    cr_assert_eq(elapsed(&g->process, from, untimed, &ms), CUDA_ERROR_INVALID_HANDLE);
}

/* Contexts, and processes. */

FACT(facts_streams, making_something_needs_a_current_context)
{
    _cleanup_process_ struct facts_process process = facts_start();
    EXPECT(&process, CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc, SIZE);
    EXPECT(&process, CUDA_ERROR_INVALID_CONTEXT, cuMemHostAlloc, SIZE, 0);
    EXPECT(&process, CUDA_ERROR_INVALID_CONTEXT, cuMemAllocManaged, SIZE, CU_MEM_ATTACH_GLOBAL);
    EXPECT(&process, CUDA_ERROR_INVALID_CONTEXT, cuStreamCreate, 0);
    EXPECT(&process, CUDA_ERROR_INVALID_CONTEXT, cuEventCreate, 0);
    EXPECT(&process, CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize);
    EXPECT(&process, CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice);
}

/* As finalizers do, in whatever thread they run. */
FACT_OF_ONE(giving_something_back_needs_none, process)
{
    uint64_t at = GET(process, cuMemAlloc, SIZE);
    uint64_t host = GET(process, cuMemHostAlloc, SIZE, 0);
    uint64_t stream = GET(process, cuStreamCreate, 0);
    uint64_t event = GET(process, cuEventCreate, 0);
    MUST(process, cuCtxSetCurrent, 0);
    MUST(process, cuMemFree, at);
    MUST(process, cuMemFreeHost, host);
    MUST(process, cuStreamDestroy, stream);
    MUST(process, cuEventDestroy, event);
    cr_assert_eq(GET(process, cuCtxGetCurrent), 0);
}

GROUND_FACT(events_of_a_context_need_none)
{
    uint64_t event, context = start_context_event(g, &event);
    MUST(&g->process, cuCtxSetCurrent, 0);
    MUST(&g->process, cuCtxRecordEvent, context, event);
    MUST(&g->process, cuEventSynchronize, event);
    MUST(&g->process, cuEventQuery, event);
    cr_assert_eq(GET(&g->process, cuCtxGetCurrent), 0);
    MUST(&g->process, cuCtxSetCurrent, context);
}

FACT_OF_ONE(a_forked_child_has_no_driver, process)
{
    uint64_t at = GET(process, cuMemAlloc, SIZE);
    MUST(process, fork);
    EXPECT(process, CUDA_ERROR_NOT_INITIALIZED, cuInit, 0);
    EXPECT(process, CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc, SIZE);
    EXPECT(process, CUDA_ERROR_NOT_INITIALIZED, cuMemsetD32, at, 0, 1);
    EXPECT(process, CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent);
    EXPECT(process, CUDA_ERROR_NOT_INITIALIZED, create, 2 * MIB, 0);
    MUST(process, quit);
    facts_fill(process, at, SIZE, 7);
    facts_assert_filled(process, at, SIZE, 7);
}
