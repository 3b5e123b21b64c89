/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events. What an event stands for is its last record: a place in a stream, made when the record
 * is enqueued, counted by the event and by the operation that stamps its time. Recording again
 * gives the event another record; waits that were enqueued before keep the old one.
 */
#include "stream.h"

#include "base/clock.h"

struct record {
    _Atomic unsigned int n_refs;
    struct point at; /* of the record operation; set before the event shows it to others */
    _Atomic uint64_t time_ns;
};

struct event {
    struct object object;
    struct context *context; /* one reference */
    uint64_t epoch;          /* of the context: the event ends with what is in it */
    unsigned int flags;
    pthread_mutex_t lock;
    struct record *last; /* NULL: never recorded; under lock */
};

struct record_op {
    struct op op;
    struct record *record;
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

static void
event_free(struct object *object)
{
    struct event *event = container_of(object, struct event, object);
    record_unref(event->last);
    context_unref(event->context);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

static void
event_unrefp(struct event **event)
{
    if (*event)
        object_unref(&(*event)->object);
}

static CUresult
event_check(const struct event *event)
{
    if (event->epoch != event->context->epoch)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return context_check(event->context);
}

/* A reference. */
static CUresult
event_get(CUevent handle, struct event **ret)
{
    struct object *object = object_get((uintptr_t)handle, OBJECT_EVENT);
    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    _cleanup_(event_unrefp) struct event *event = container_of(object, struct event, object);
    RETURN_IF(event_check(event));
    *ret = TAKE_PTR(event);
    return CUDA_SUCCESS;
}

/* A reference on the last record, or NULL. */
static struct record *
event_last(struct event *event)
{
    LOCKED(&event->lock);
    if (event->last)
        event->last->n_refs++;
    return event->last;
}

CUresult
soft_cuEventCreate(CUevent *ret, unsigned int flags)
{
    struct context *context;
    RETURN_IF(context_current(&context));
    if (!ret || (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING |
                           (unsigned int)CU_EVENT_INTERPROCESS)))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_EVENT_INTERPROCESS) /* not offered; the device attribute says so */
        return flags & CU_EVENT_DISABLE_TIMING ? CUDA_ERROR_NOT_SUPPORTED
                                               : CUDA_ERROR_INVALID_VALUE;
    struct event *event = calloc(1, sizeof(*event));
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object_init(&event->object, OBJECT_EVENT, event_free);
    object_ref(&context->object);
    event->context = context;
    event->epoch = context->epoch;
    event->flags = flags;
    pthread_mutex_init(&event->lock, NULL);
    int r = object_publish(&event->object);
    if (r == 0)
        *ret = (CUevent)(uintptr_t)event->object.handle;
    object_unref(&event->object);
    return r == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Needs no current context: finalizers call it. Done even where an error is the answer. */
CUresult
soft_cuEventDestroy_v2(CUevent handle)
{
    ENTER();
    struct object *object = object_take((uintptr_t)handle, OBJECT_EVENT);
    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    _cleanup_(event_unrefp) struct event *event = container_of(object, struct event, object);
    return event_check(event);
}

static CUresult
record_run(struct op *op, CUresult status UNUSED)
{
    container_of(op, struct record_op, op)->record->time_ns = clock_now_ns();
    return CUDA_SUCCESS;
}

static void
record_free(struct op *op)
{
    struct record_op *record_op = container_of(op, struct record_op, op);
    record_unref(record_op->record);
    free(record_op);
}

/* A record and its operation, each with a reference on the record. */
static struct record_op *
record_new(struct stream *stream)
{
    struct record_op *record_op = calloc(1, sizeof(*record_op));
    struct record *record = calloc(1, sizeof(*record));
    if (!record_op || !record) {
        free(record_op);
        free(record);
        return NULL;
    }
    object_ref(&stream->object);
    record->n_refs = 2;
    record->at.stream = stream;
    op_init(&record_op->op, record_run, record_free);
    record_op->op.stretched = false; /* it is the work before it that takes time */
    record_op->record = record;
    return record_op;
}

CUresult
soft_cuEventRecord(CUevent handle, CUstream stream_handle)
{
    _cleanup_(stream_unrefp) struct stream *stream = NULL;
    RETURN_IF(stream_get(stream_handle, &stream));
    _cleanup_(event_unrefp) struct event *event = NULL;
    RETURN_IF(event_get(handle, &event));
    if (event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    struct record_op *record_op = record_new(stream);
    if (!record_op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    _cleanup_(record_unrefp) struct record *record = record_op->record;
    RETURN_IF(stream_submit(stream, &record_op->op, &record->at.number));
    LOCKED(&event->lock);
    struct record *before = event->last;
    event->last = record;
    record = before;
    return CUDA_SUCCESS;
}

/* The flag is about graphs, of which there are none. */
CUresult
soft_cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    ENTER();
    if (flags & ~(unsigned int)CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    return soft_cuEventRecord(event, stream);
}

CUresult
soft_cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags)
{
    _cleanup_(stream_unrefp) struct stream *stream = NULL;
    RETURN_IF(stream_get(stream_handle, &stream));
    _cleanup_(event_unrefp) struct event *event = NULL;
    RETURN_IF(event_get(handle, &event));
    if (flags & ~(unsigned int)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    _cleanup_(record_unrefp) struct record *record = event_last(event);
    if (!record || record->at.stream == stream)
        return CUDA_SUCCESS;
    struct op *op = op_marker();
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (op_wait_for(op, record->at.stream, record->at.number) < 0) {
        free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return stream_submit(stream, op, NULL);
}

CUresult
soft_cuEventQuery(CUevent handle)
{
    ENTER();
    _cleanup_(event_unrefp) struct event *event = NULL;
    RETURN_IF(event_get(handle, &event));
    _cleanup_(record_unrefp) struct record *record = event_last(event);
    if (!record)
        return CUDA_SUCCESS;
    if (!stream_passed(record->at.stream, record->at.number))
        return CUDA_ERROR_NOT_READY;
    return (CUresult)record->at.stream->context->device->fault;
}

CUresult
soft_cuEventSynchronize(CUevent handle)
{
    ENTER();
    _cleanup_(event_unrefp) struct event *event = NULL;
    RETURN_IF(event_get(handle, &event));
    _cleanup_(record_unrefp) struct record *record = event_last(event);
    return record ? stream_finish(record->at.stream, record->at.number) : CUDA_SUCCESS;
}

/* The time of an event that can be measured by. */
static CUresult
event_time(CUevent handle, uint64_t *ret_ns)
{
    _cleanup_(event_unrefp) struct event *event = NULL;
    RETURN_IF(event_get(handle, &event));
    if (event->flags & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    _cleanup_(record_unrefp) struct record *record = event_last(event);
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
    ENTER();
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
