/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of whole contexts: recorded after all that a context was given, or waited for by all that
 * it is given. Either is done by a stream that exists only for that: one for all records of a context,
 * one for each wait.
 */
#include "event.h"

/* A stream of the context that waits for no other one: the caller closes it. */
static CUresult
side_stream(struct context *context, struct stream **ret)
{
    *ret = stream_make(context, CU_STREAM_NON_BLOCKING, 0);
    return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void
side_stream_closep(struct stream **stream)
{
    if (!*stream)
        return;
    stream_close(*stream);
    stream_unref(*stream);
}

static CUresult
arguments(CUcontext handle, CUevent event_handle, struct context **ret_context,
          struct event **ret_event)
{
    ENTER();
    _cleanup_(context_unrefp) struct context *context = handle ? context_get(handle) : NULL;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    RETURN_IF(context_check(context));
    RETURN_IF(event_get(event_handle, ret_event));
    *ret_context = TAKE_PTR(context);
    return CUDA_SUCCESS;
}

CUresult
soft_cuCtxRecordEvent(CUcontext handle, CUevent event_handle)
{
    _cleanup_(context_unrefp) struct context *context = NULL;
    _cleanup_(event_unrefp) struct event *event = NULL;
    RETURN_IF(arguments(handle, event_handle, &context, &event));
    if (event->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    RETURN_IF(context_forbid_capture(context));
    _cleanup_(stream_unrefp) struct stream *recorder = stream_recorder(context);
    if (!recorder)
        return CUDA_ERROR_OUT_OF_MEMORY;
    RETURN_IF(stream_follow(recorder, context));
    return event->kind->record(event, recorder);
}

CUresult
soft_cuCtxWaitEvent(CUcontext handle, CUevent event_handle)
{
    _cleanup_(context_unrefp) struct context *context = NULL;
    _cleanup_(event_unrefp) struct event *event = NULL;
    RETURN_IF(arguments(handle, event_handle, &context, &event));
    _cleanup_(side_stream_closep) struct stream *side = NULL;
    RETURN_IF(side_stream(context, &side));
    RETURN_IF(event->kind->wait(event, side));
    if (context_follow(context, side, side->submitted) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}
