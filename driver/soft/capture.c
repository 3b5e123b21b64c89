/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The capture of streams into graphs, as far as a program can tell that a stream is being captured.
 * There are no nodes: a capturing stream refuses all work (NOT_SUPPORTED, stream.c), and the graph
 * at its end is empty. A capture ends with its stream. A call that it forbids fails, and the
 * capture has come to nothing: it is invalidated until it is ended.
 */
#include "stream.h"

#include "base/thread.h"

static void
graph_free(struct object *graph)
{
    free(graph);
}

static CUresult
graph_make(CUgraph *ret)
{
    struct object *graph = calloc(1, sizeof(*graph));
    if (!graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object_init(graph, OBJECT_GRAPH, graph_free);
    return object_hand_out(graph, ret);
}

CUresult
soft_cuGraphDestroy(CUgraph handle)
{
    struct object *object = object_take((uintptr_t)handle, OBJECT_GRAPH);
    if (!object)
        return CUDA_ERROR_INVALID_VALUE;
    object_unref(object);
    return CUDA_SUCCESS;
}

/* Calls that a capture forbids. */

/* Of a thread that is not relaxed: its own, and others' in mode GLOBAL if it is in that itself. */
static bool
is_forbidden_here(const struct stream *stream)
{
    const struct capture *capture = &stream->capture;
    if (capture->thread == thread_id())
        return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           thread_get()->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

/* Returns the answer where there was one of these (NULL: any). Needs the order lock. */
static CUresult
captures_spoil(struct context *context, bool (*is_one)(const struct stream *), CUresult answer)
{
    CUresult result = CUDA_SUCCESS;
    struct stream *stream;
    LIST_FOREACH(stream, &context->streams, context_link) {
        if (stream->capture.status == CU_STREAM_CAPTURE_STATUS_NONE ||
            (is_one && !is_one(stream)))
            continue;
        stream->capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        result = answer;
    }
    return result;
}

CUresult
stream_forbid_implicit_capture(struct stream *stream)
{
    struct context *context = stream->context;
    if (soft->n_captures == 0 || stream != context->legacy)
        return CUDA_SUCCESS;
    return captures_spoil(context, stream_is_blocking, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

CUresult
stream_forbid_capture(struct stream *stream)
{
    LOCKED(&stream->context->order);
    RETURN_IF(stream_forbid_implicit_capture(stream));
    if (stream->capture.status == CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_SUCCESS;
    stream->capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult
context_forbid_capture(struct context *context)
{
    if (soft->n_captures == 0)
        return CUDA_SUCCESS;
    LOCKED(&context->order);
    return captures_spoil(context, NULL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUresult
thread_forbid_capture(void)
{
    if (soft->n_captures == 0)
        return CUDA_SUCCESS;
    struct thread *thread = thread_get();
    CUresult result = CUDA_SUCCESS;
    struct object *object;
    uint32_t index = 0;
    if (!thread)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (thread->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    while ((object = object_next(OBJECT_CONTEXT, &index))) {
        _cleanup_(context_unrefp) struct context *context =
            container_of(object, struct context, object);
        LOCKED(&context->order);
        CUresult spoilt =
            captures_spoil(context, is_forbidden_here, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        if (spoilt != CUDA_SUCCESS)
            result = spoilt;
    }
    return result;
}

/* Beginning and ending. */

void
stream_drop_capture(struct stream *stream)
{
    if (stream->capture.status == CU_STREAM_CAPTURE_STATUS_NONE)
        return;
    stream->capture.status = CU_STREAM_CAPTURE_STATUS_NONE;
    soft->n_captures--;
}

CUresult
soft_cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    HOLD(stream, stream, handle);
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    LOCKED(&stream->context->order);
    if (stream->capture.status != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_ILLEGAL_STATE;
    stream->capture = (struct capture){
        .status = CU_STREAM_CAPTURE_STATUS_ACTIVE,
        .mode = mode,
        .id = ++soft->last_capture_id,
        .thread = thread_id(),
    };
    soft->n_captures++;
    return CUDA_SUCCESS;
}

/* Whoever has begun it has to end it, unless it is relaxed. ret_before is what it was. */
static CUresult
capture_end(struct stream *stream, CUstreamCaptureStatus *ret_before)
{
    LOCKED(&stream->context->order);
    struct capture *capture = &stream->capture;
    if (capture->status == CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_id())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    *ret_before = capture->status;
    stream_drop_capture(stream);
    return CUDA_SUCCESS;
}

CUresult
soft_cuStreamEndCapture(CUstream handle, CUgraph *ret)
{
    CUstreamCaptureStatus before;
    HOLD(stream, stream, handle);
    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(capture_end(stream, &before));
    *ret = NULL;
    return before == CU_STREAM_CAPTURE_STATUS_ACTIVE ? graph_make(ret)
                                                     : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

/* Whether a blocking stream captures, which the legacy default stream would wait for. Needs the
 * order lock. */
static bool
is_captured_implicitly(const struct stream *legacy)
{
    const struct stream *stream;
    LIST_FOREACH(stream, &legacy->context->streams, context_link) {
        if (stream_is_blocking(stream) &&
            stream->capture.status != CU_STREAM_CAPTURE_STATUS_NONE)
            return true;
    }
    return false;
}

/* The id may be NULL, and is of a stream that captures only. */
static CUresult
capture_tell(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    HOLD(stream, stream, handle);
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&stream->context->order);
    if (stream == stream->context->legacy && is_captured_implicitly(stream))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = stream->capture.status;
    if (id && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
        *id = stream->capture.id;
    return CUDA_SUCCESS;
}

CUresult
soft_cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    return capture_tell(stream, status, NULL);
}

/* There is no graph before the end. */
CUresult
soft_cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                               CUgraph *graph, const CUgraphNode **dependencies,
                               size_t *n_dependencies)
{
    RETURN_IF(capture_tell(stream, status, id));
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (graph)
        *graph = NULL;
    if (dependencies)
        *dependencies = NULL;
    if (n_dependencies)
        *n_dependencies = 0;
    return CUDA_SUCCESS;
}

CUresult
soft_cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                               CUgraph *graph, const CUgraphNode **dependencies,
                               const CUgraphEdgeData **edges, size_t *n_dependencies)
{
    if (edges && !dependencies)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(soft_cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies,
                                             n_dependencies));
    if (edges && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
        *edges = NULL;
    return CUDA_SUCCESS;
}

/* Which calls a capture forbids the thread: thread_forbid_capture(). Kept, whatever it is. */
CUresult
soft_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    struct thread *thread = thread_get();
    if (!thread)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUstreamCaptureMode before = thread->capture_mode;
    thread->capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
