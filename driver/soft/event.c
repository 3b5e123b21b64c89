/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points for events, and the ordinary kind. What such an event stands for is its last record:
 * a place in a stream, made when the record is enqueued, counted by the event and by the operation
 * that stamps its time. Recording again gives the event another record; waits that were enqueued
 * before keep the old one.
 */
#include "event.h"

#include "base/clock.h"

struct record {
    struct op op;
    _Atomic unsigned int n_refs;
    struct point at; /* of the record operation; set before the event shows it to others */
    _Atomic uint64_t time_ns;
};

struct place_event {
    struct event event;
    pthread_mutex_t lock;
    struct record *last; /* NULL: never recorded; under lock */
};

static void
record_unref(struct record *record)
{
    if (!record || --record->n_refs > 0)
        return;
    stream_unref(record->at.stream);
    free(record);
}

static void
record_unrefp(struct record **record)
{
    record_unref(*record);
}

/* What both kinds have. */

void
event_init(struct event *event, const struct event_kind *kind, struct context *context,
           unsigned int flags, void (*free)(struct object *object))
{
    object_init(&event->object, OBJECT_EVENT, free);
    event->kind = kind;
    event->context = context_ref(context);
    event->epoch = context->epoch;
    event->flags = flags;
}

void
event_deinit(struct event *event)
{
    context_unref(event->context);
}

static CUresult
event_check(const struct event *event)
{
    if (event->epoch != event->context->epoch)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return context_check(event->context);
}

CUresult
event_get(CUevent handle, struct event **ret)
{
    _cleanup_(event_unrefp) struct event *event = event_by_handle((uintptr_t)handle);
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    RETURN_IF(event_check(event));
    *ret = TAKE_PTR(event);
    return CUDA_SUCCESS;
}

/* Ordinary events. */

static struct place_event *
place_of(struct event *event)
{
    return container_of(event, struct place_event, event);
}

/* A reference on the last record, or NULL. */
static struct record *
place_last(struct event *event)
{
    struct place_event *place = place_of(event);
    LOCKED(&place->lock);
    if (place->last)
        place->last->n_refs++;
    return place->last;
}

static CUresult
record_run(struct op *op, CUresult status UNUSED)
{
    container_of(op, struct record, op)->time_ns = clock_now_ns();
    return CUDA_SUCCESS;
}

static void
record_done(struct op *op)
{
    record_unref(container_of(op, struct record, op));
}

/* With two references: the operation's and the caller's. */
static struct record *
record_new(struct stream *stream)
{
    struct record *record = calloc(1, sizeof(*record));
    if (!record)
        return NULL;
    op_init(&record->op, record_run, record_done);
    record->op.stretched = false; /* it is the work before it that takes time */
    record->n_refs = 2;
    record->at.stream = stream_ref(stream);
    return record;
}

static CUresult
place_record(struct event *event, struct stream *stream)
{
    struct place_event *place = place_of(event);
    _cleanup_(record_unrefp) struct record *record = record_new(stream);
    if (!record)
        return CUDA_ERROR_OUT_OF_MEMORY;
    RETURN_IF(stream_submit(stream, &record->op, &record->at.number));
    LOCKED(&place->lock);
    struct record *before = place->last;
    place->last = record;
    record = before;
    return CUDA_SUCCESS;
}

static CUresult
place_wait(struct event *event, struct stream *stream)
{
    _cleanup_(record_unrefp) struct record *record = place_last(event);
    if (!record || record->at.stream == stream)
        return CUDA_SUCCESS;
    return stream_submit_after(stream, &record->at, NULL);
}

static bool
place_passed(struct event *event)
{
    _cleanup_(record_unrefp) struct record *record = place_last(event);
    return !record || stream_passed(record->at.stream, record->at.number);
}

static void
place_finish(struct event *event)
{
    _cleanup_(record_unrefp) struct record *record = place_last(event);
    if (record)
        stream_wait(record->at.stream, record->at.number);
}

static const struct event_kind place_kind = {
    .record = place_record,
    .wait = place_wait,
    .passed = place_passed,
    .finish = place_finish,
};

static void
place_free(struct object *object)
{
    struct event *event = container_of(object, struct event, object);
    struct place_event *place = place_of(event);
    record_unref(place->last);
    event_deinit(event);
    pthread_mutex_destroy(&place->lock);
    free(place);
}

static CUresult
place_new(struct context *context, unsigned int flags, struct event **ret)
{
    struct place_event *place = calloc(1, sizeof(*place));
    if (!place)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event_init(&place->event, &place_kind, context, flags, place_free);
    pthread_mutex_init(&place->lock, NULL);
    *ret = &place->event;
    return CUDA_SUCCESS;
}

/* Entry points. */

CUresult
soft_cuEventCreate(CUevent *ret, unsigned int flags)
{
    struct event *event;
    CURRENT(context);
    if (!ret || (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING |
                           (unsigned int)CU_EVENT_INTERPROCESS)))
        return CUDA_ERROR_INVALID_VALUE;
    bool shared = flags & CU_EVENT_INTERPROCESS;
    if (shared && !(flags & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF((shared ? event_ipc_new : place_new)(context, flags, &event));
    return object_hand_out(&event->object, ret);
}

/* Needs no current context: finalizers call it. Done even where an error is the answer. */
CUresult
soft_cuEventDestroy_v2(CUevent handle)
{
    _cleanup_(event_unrefp) struct event *event = event_end_handle((uintptr_t)handle);
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    return event_check(event);
}

CUresult
soft_cuEventRecord(CUevent handle, CUstream stream_handle)
{
    HOLD(stream, stream, stream_handle);
    HOLD(event, event, handle);
    if (event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    return event->kind->record(event, stream);
}

/* After all that the context was given: by a stream that is there only for records. */
CUresult
soft_cuCtxRecordEvent(CUcontext handle, CUevent event_handle)
{
    _cleanup_(context_unrefp) struct context *context = handle ? context_get(handle) : NULL;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    RETURN_IF(context_check(context));
    HOLD(event, event, event_handle);
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
soft_cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags)
{
    HOLD(stream, stream, stream_handle);
    HOLD(event, event, handle);
    if (flags & ~(unsigned int)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    return event->kind->wait(event, stream);
}

CUresult
soft_cuEventQuery(CUevent handle)
{
    HOLD(event, event, handle);
    RETURN_IF(thread_forbid_capture());
    if (!event->kind->passed(event))
        return CUDA_ERROR_NOT_READY;
    return (CUresult)event->context->device->fault;
}

CUresult
soft_cuEventSynchronize(CUevent handle)
{
    HOLD(event, event, handle);
    event->kind->finish(event);
    return (CUresult)event->context->device->fault;
}

/* The time of an event that can be measured by: an ordinary one. */
static CUresult
event_time(CUevent handle, uint64_t *ret_ns)
{
    HOLD(event, event, handle);
    if (event->flags & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    _cleanup_(record_unrefp) struct record *record = place_last(event);
    if (!record)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!stream_passed(record->at.stream, record->at.number))
        return CUDA_ERROR_NOT_READY;
    *ret_ns = record->time_ns;
    return CUDA_SUCCESS;
}

CUresult
soft_cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    uint64_t start_ns, end_ns;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(event_time(start, &start_ns));
    RETURN_IF(event_time(end, &end_ns));
    *milliseconds = (float)((double)(int64_t)(end_ns - start_ns) / (double)NSEC_PER_MSEC);
    return CUDA_SUCCESS;
}

CUresult
soft_cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return soft_cuEventElapsedTime_v2(milliseconds, start, end);
}
