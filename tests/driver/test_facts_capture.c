/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ends the capture of a graph, and what does not, as far as caid needs to know: it works in
 * programs that capture, and captures nothing itself.
 */
#include "facts.h"

#define SUITE facts_capture
#define START facts_start_context

#define LEGACY 1 /* CU_STREAM_LEGACY */

#define GLOBAL       CU_STREAM_CAPTURE_MODE_GLOBAL
#define THREAD_LOCAL CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define RELAXED      CU_STREAM_CAPTURE_MODE_RELAXED

static const CUstreamCaptureMode modes[] = {GLOBAL, THREAD_LOCAL, RELAXED};

static int
capture_status(struct facts_process *process, uint64_t stream)
{
    int status = -1;
    uint64_t at = facts_put(process, &status, sizeof(status));
    MUST(process, cuStreamIsCapturing, stream, at);
    facts_read(process, at, &status, sizeof(status));
    return status;
}

FACT_OF_ONE(a_capturing_stream_says_so, process)
{
    uint64_t stream = GET(process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
    uint64_t other = GET(process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
    uint64_t at = GET(process, allocate_host, 8);
    cr_assert_eq(capture_status(process, stream), CU_STREAM_CAPTURE_STATUS_NONE);
    MUST(process, cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    cr_assert_eq(capture_status(process, stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    cr_assert_eq(capture_status(process, other), CU_STREAM_CAPTURE_STATUS_NONE);
    MUST(process, cuStreamEndCapture, stream, at);
    cr_assert_eq(capture_status(process, stream), CU_STREAM_CAPTURE_STATUS_NONE);
    uint64_t graph = GET(process, load, at);
    cr_assert_neq(graph, 0);
    MUST(process, cuGraphDestroy, graph);
    MUST(process, cuStreamSynchronize, stream);
}

FACT_OF_ONE(the_legacy_stream_cannot_be_captured, process)
{
    EXPECT(process, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture, LEGACY,
           CU_STREAM_CAPTURE_MODE_RELAXED);
}

FACT_OF_ONE(a_question_about_a_capturing_stream_spoils_the_capture, process)
{
    uint64_t stream = GET(process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
    uint64_t at = GET(process, allocate_host, 8);
    MUST(process, cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT(process, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery, stream);
    cr_assert_eq(capture_status(process, stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT(process, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture, stream, at);
    cr_assert_eq(GET(process, load, at), 0);
    MUST(process, cuStreamSynchronize, stream);
}

/* A process with two streams that wait for no other, and an event. */
struct scene {
    struct facts_process process;
    uint64_t context, stream, other, event;
};

static struct scene
scene_start(void)
{
    struct scene s = {.process = facts_start()};
    s.context = facts_context(&s.process, 0);
    s.stream = GET(&s.process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
    s.other = GET(&s.process, cuStreamCreate, CU_STREAM_NON_BLOCKING);
    s.event = GET(&s.process, cuEventCreate, CU_EVENT_DISABLE_TIMING);
    return s;
}

/* A body with a scene of its own. */
#define SCENE_FACT(name)                    \
    static void name##_on(struct scene *s); \
    FACT(facts_capture, name)               \
    {                                       \
        struct scene s = scene_start();     \
        name##_on(&s);                      \
        facts_stop(&s.process);             \
    }                                       \
    static void name##_on(struct scene *s)

/* Of the thread that makes the process's calls. */
static void
set_thread_mode(struct facts_process *process, CUstreamCaptureMode mode)
{
    MUST(process, cuThreadExchangeStreamCaptureMode, facts_put(process, &mode, sizeof(mode)));
}

/* Ends a capture that goes on, and one that has come to nothing. */
static void
assert_whole(struct scene *s, uint64_t stream)
{
    uint64_t at = GET(&s->process, allocate_host, 8);
    cr_assert_eq(capture_status(&s->process, stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    MUST(&s->process, cuStreamEndCapture, stream, at);
    MUST(&s->process, cuGraphDestroy, GET(&s->process, load, at));
}

static void
assert_spoilt(struct scene *s, uint64_t stream)
{
    uint64_t at = GET(&s->process, allocate_host, 8);
    cr_assert_eq(capture_status(&s->process, stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT(&s->process, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture, stream, at);
    cr_assert_eq(capture_status(&s->process, stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

SCENE_FACT(a_record_of_the_context_spoils_each_in_whatever_mode)
{
    facts_need_call(&s->process, "cuCtxRecordEvent", 12050);
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
        for (size_t k = 0; k < ARRAY_SIZE(modes); k++) {
            MUST(&s->process, cuStreamBeginCapture, s->stream, modes[i]);
            set_thread_mode(&s->process, modes[k]);
            EXPECT(&s->process, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxRecordEvent,
                   s->context, s->event);
            set_thread_mode(&s->process, GLOBAL);
            assert_spoilt(s, s->stream);
        }
    MUST(&s->process, cuCtxRecordEvent, s->context, s->event);
    MUST(&s->process, cuEventSynchronize, s->event);
}

SCENE_FACT(a_record_of_the_context_spoils_all_in_it)
{
    facts_need_call(&s->process, "cuCtxRecordEvent", 12050);
    MUST(&s->process, cuStreamBeginCapture, s->stream, RELAXED);
    MUST(&s->process, cuStreamBeginCapture, s->other, RELAXED);
    EXPECT(&s->process, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxRecordEvent, s->context,
           s->event);
    assert_spoilt(s, s->stream);
    assert_spoilt(s, s->other);
}

SCENE_FACT(so_does_a_synchronization_of_the_context)
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        MUST(&s->process, cuStreamBeginCapture, s->stream, modes[i]);
        set_thread_mode(&s->process, RELAXED);
        EXPECT(&s->process, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize);
        set_thread_mode(&s->process, GLOBAL);
        assert_spoilt(s, s->stream);
    }
    MUST(&s->process, cuCtxSynchronize);
}

/* What a thread and a capture may have in common unless one of them is relaxed. */
static void
assert_spoils_unless_relaxed(struct scene *s, void (*use)(struct scene *s, CUresult expected))
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
        for (size_t k = 0; k < ARRAY_SIZE(modes); k++) {
            bool relaxed = modes[i] == RELAXED || modes[k] == RELAXED;
            MUST(&s->process, cuStreamBeginCapture, s->stream, modes[i]);
            set_thread_mode(&s->process, modes[k]);
            use(s, relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            set_thread_mode(&s->process, GLOBAL);
            (relaxed ? assert_whole : assert_spoilt)(s, s->stream);
        }
}

static void
ask_event(struct scene *s, CUresult expected)
{
    EXPECT(&s->process, expected, cuEventQuery, s->event);
}

/* Of an event that has nothing to do with it. */
SCENE_FACT(a_question_about_an_event_spoils_it_unless_it_or_the_thread_is_relaxed)
{
    MUST(&s->process, cuEventRecord, s->event, s->other);
    MUST(&s->process, cuEventSynchronize, s->event);
    assert_spoils_unless_relaxed(s, ask_event);
}

SCENE_FACT(events_of_other_streams_can_be_recorded_meanwhile)
{
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        MUST(&s->process, cuStreamBeginCapture, s->stream, modes[i]);
        MUST(&s->process, cuEventRecord, s->event, s->other);
        MUST(&s->process, cuEventRecord, s->event, LEGACY);
        assert_whole(s, s->stream);
        MUST(&s->process, cuEventSynchronize, s->event);
    }
}

static void
allocate(struct scene *s, CUresult expected)
{
    EXPECT(&s->process, expected, cuMemAlloc, 64 * KIB); /* it stays */
}

SCENE_FACT(an_allocation_spoils_it_unless_it_or_the_thread_is_relaxed)
{
    assert_spoils_unless_relaxed(s, allocate);
}

SCENE_FACT(so_does_freeing)
{
    uint64_t at = GET(&s->process, cuMemAlloc, 64 * KIB);
    MUST(&s->process, cuStreamBeginCapture, s->stream, GLOBAL);
    EXPECT(&s->process, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemFree, at);
    assert_spoilt(s, s->stream);
    MUST(&s->process, cuMemFree, at);
}

/* A question that ends nothing. */
SCENE_FACT(the_legacy_stream_tells_that_a_blocking_one_captures)
{
    uint64_t blocking = GET(&s->process, cuStreamCreate, CU_STREAM_DEFAULT);
    uint64_t at = GET(&s->process, allocate_host, 8);
    MUST(&s->process, cuStreamBeginCapture, blocking, GLOBAL);
    EXPECT(&s->process, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing, LEGACY, at);
    assert_whole(s, blocking);
    MUST(&s->process, cuStreamBeginCapture, s->stream, GLOBAL);
    cr_assert_eq(capture_status(&s->process, LEGACY), CU_STREAM_CAPTURE_STATUS_NONE);
    assert_whole(s, s->stream);
}

SCENE_FACT(what_the_legacy_stream_is_given_spoils_that)
{
    uint64_t blocking = GET(&s->process, cuStreamCreate, CU_STREAM_DEFAULT);
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        MUST(&s->process, cuStreamBeginCapture, blocking, modes[i]);
        EXPECT(&s->process, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuEventRecord, s->event,
               LEGACY);
        assert_spoilt(s, blocking);
    }
    MUST(&s->process, cuEventRecord, s->event, LEGACY);
    MUST(&s->process, cuEventSynchronize, s->event);
}
