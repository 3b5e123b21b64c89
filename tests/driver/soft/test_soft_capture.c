/* SPDX-License-Identifier: Apache-2.0 */
/* The capture of streams: what a program is told, and that nothing is recorded. */
#include "caid_test.h"

#include "soft_test.h"

#define GLOBAL  CU_STREAM_CAPTURE_MODE_GLOBAL
#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED

static CUstreamCaptureStatus
status_of(CUstream stream)
{
    CUstreamCaptureStatus status;
    MUST(cuStreamIsCapturing(stream, &status));
    return status;
}

static CUstream
start_capture(CUstreamCaptureMode mode)
{
    soft_start_context();
    CUstream stream = soft_stream(CU_STREAM_NON_BLOCKING);
    MUST(cuStreamBeginCapture_v2(stream, mode));
    return stream;
}

static void
end_capture(CUstream stream)
{
    CUgraph graph = NULL;
    MUST(cuStreamEndCapture(stream, &graph));
    cr_assert_not_null(graph);
    cr_assert_eq(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
    MUST(cuGraphDestroy(graph));
    cr_assert_eq(cu.cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE, "a handle ends once");
}

CAID_TEST(soft_capture, begins_and_ends)
{
    CUstream stream = start_capture(GLOBAL);
    cr_assert_eq(status_of(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    REFUSED(ILLEGAL_STATE, cuStreamBeginCapture_v2(stream, GLOBAL));
    end_capture(stream);
    MUST(cuStreamBeginCapture_v2(stream, GLOBAL));
    end_capture(stream);
}

CAID_TEST(soft_capture, bad_arguments_are_refused)
{
    CUgraph graph;
    CUstream stream = start_capture(GLOBAL);
    REFUSED(INVALID_VALUE, cuStreamEndCapture(stream, NULL));
    end_capture(stream);
    REFUSED(ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
    REFUSED(INVALID_VALUE, cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)3));
    REFUSED(STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2(CU_STREAM_LEGACY, GLOBAL));
    REFUSED(INVALID_HANDLE, cuStreamBeginCapture_v2((CUstream)0x1234, GLOBAL));
    REFUSED(INVALID_VALUE, cuGraphDestroy(NULL));
}

/* There are no nodes to record it in; and the capture goes on. */
SOFT_TEST_LATE(soft_capture, work_is_refused)
{
    CUstream stream = start_capture(RELAXED);
    CUdeviceptr at = soft_memory(GRAN);
    CUevent event = soft_event(CU_EVENT_DISABLE_TIMING);
    REFUSED(NOT_SUPPORTED, cuMemsetD8Async(at, 1, 16, stream));
    REFUSED(NOT_SUPPORTED, cuStreamWriteValue64_v2(stream, at, 1, 0));
    REFUSED(NOT_SUPPORTED, cuEventRecord(event, stream));
    cr_assert_eq(status_of(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    end_capture(stream);
    MUST(cuMemsetD8Async(at, 1, 16, stream));
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(*(unsigned char *)(uintptr_t)at, 1);
}

static CUresult
end_elsewhere(void *stream)
{
    CUgraph graph;
    CUresult result = cu.cuStreamEndCapture(stream, &graph);
    if (result == CUDA_SUCCESS)
        MUST(cuGraphDestroy(graph));
    return result;
}

CAID_TEST(soft_capture, is_ended_by_the_thread_that_began_it_unless_it_is_relaxed)
{
    struct blocked other;
    CUstream stream = start_capture(GLOBAL);
    blocked_start(&other, end_elsewhere, stream);
    cr_assert_eq(blocked_join(&other), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    end_capture(stream);
    MUST(cuStreamBeginCapture_v2(stream, RELAXED));
    blocked_start(&other, end_elsewhere, stream);
    cr_assert_eq(blocked_join(&other), CUDA_SUCCESS);
}

CAID_TEST(soft_capture, each_has_an_id)
{
    CUstreamCaptureStatus status;
    cuuint64_t first, second;
    CUgraph graph = (CUgraph)&graph;
    const CUgraphNode *nodes = (const CUgraphNode *)&graph;
    const CUgraphEdgeData *edges = (const CUgraphEdgeData *)&graph;
    size_t n = 7;
    CUstream stream = start_capture(GLOBAL);
    MUST(cuStreamGetCaptureInfo_v2(stream, &status, &first, NULL, NULL, NULL));
    cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    end_capture(stream);
    MUST(cuStreamBeginCapture_v2(stream, GLOBAL));
    MUST(cuStreamGetCaptureInfo_v3(stream, &status, &second, &graph, &nodes, &edges, &n));
    cr_assert_neq(first, second);
    cr_assert_null(graph);
    cr_assert_null(nodes);
    cr_assert_null(edges);
    cr_assert_eq(n, 0);
    end_capture(stream);
}

SOFT_TEST(soft_capture, there_is_none_in_the_beginning)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    cuuint64_t id = 7;
    const CUgraphEdgeData *edges;
    MUST(cuStreamGetCaptureInfo_v3(NULL, &status, &id, NULL, NULL, NULL, NULL));
    cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    cr_assert_eq(id, 7, "not written");
    REFUSED(INVALID_VALUE,
            cuStreamGetCaptureInfo_v3(NULL, &status, NULL, NULL, NULL, &edges, NULL));
    REFUSED(INVALID_VALUE, cuStreamIsCapturing(NULL, NULL));
}

CAID_TEST(soft_capture, ends_with_its_stream)
{
    CUstream stream = start_capture(GLOBAL);
    MUST(cuStreamDestroy_v2(stream));
    cr_assert_eq(soft_live("graphs"), 0);
    cr_assert_eq(soft_live("streams"), 0);
}

/* What a capture forbade is allowed again once there is none, however it ended. */
SOFT_TEST_LATE(soft_capture, forbids_nothing_once_its_stream_or_context_is_gone)
{
    CUcontext context;
    CUstream stream = start_capture(GLOBAL);
    MUST(cuCtxGetCurrent(&context));
    CUevent event = soft_event(CU_EVENT_DISABLE_TIMING);
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuEventQuery(event));
    MUST(cuCtxRecordEvent(context, event));
    MUST(cuEventSynchronize(event));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture_v2(stream, GLOBAL));
    cr_assert_eq(cu.cuEventQuery(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                 "the thread's, in whichever context");
    MUST(cuCtxDestroy_v2(context));
    MUST(cuEventQuery(event));
}

CAID_TEST(soft_capture, of_another_context_is_no_business_of_a_record)
{
    CUcontext context, other;
    CUstream stream = start_capture(RELAXED);
    MUST(cuCtxGetCurrent(&context));
    MUST(cuCtxCreate_v2(&other, 0, 0));
    CUevent event = soft_event(CU_EVENT_DISABLE_TIMING);
    MUST(cuCtxRecordEvent(other, event));
    MUST(cuEventSynchronize(event));
    MUST(cuCtxDestroy_v2(other));
    end_capture(stream);
}

struct question {
    CUevent event;
    CUstreamCaptureMode mode;
};

static CUresult
ask_in_mode(void *question)
{
    struct question *q = question;
    MUST(cuThreadExchangeStreamCaptureMode(&q->mode));
    return cu.cuEventQuery(q->event);
}

CAID_TEST(soft_capture, forbids_other_threads_where_all_are_in_mode_global)
{
    CUstream stream = start_capture(RELAXED);
    CUevent event = soft_event(CU_EVENT_DISABLE_TIMING);
    end_capture(stream);
    for (int i = GLOBAL; i <= RELAXED; i++)
        for (int k = GLOBAL; k <= RELAXED; k++) {
            struct question question = {event, (CUstreamCaptureMode)k};
            bool forbidden = i == GLOBAL && k == GLOBAL;
            struct blocked other;
            CUgraph graph;
            MUST(cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)i));
            blocked_start(&other, ask_in_mode, &question);
            cr_assert_eq(blocked_join(&other),
                         forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
            if (forbidden)
                REFUSED(STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
            else
                end_capture(stream);
        }
}
