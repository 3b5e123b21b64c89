/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: their workers, and what enqueues into and asks about them. */
#include "stream.h"

#include <sys/prctl.h>

#include "base/clock.h"

#define LEAST_PRIORITY    0
#define GREATEST_PRIORITY (-5)

static void
stream_free(struct object *object)
{
    struct stream *stream = container_of(object, struct stream, object);
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->work);
    pthread_cond_destroy(&stream->progress);
    context_unref(stream->context);
    free(stream);
}

/* Needs the context's order lock. The caller has the first reference, and closes the stream. */
static struct stream *
stream_new(struct context *context, unsigned int flags, int priority)
{
    struct stream *stream = calloc(1, sizeof(*stream));
    if (!stream)
        return NULL;
    object_init(&stream->object, OBJECT_STREAM, stream_free);
    stream->context = context_ref(context);
    stream->flags = flags;
    stream->priority = priority;
    stream->id = ++soft->last_stream_id; /* for cuStreamGetId: never used twice */
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->progress, NULL);
    STAILQ_INIT(&stream->queue);
    LIST_INSERT_HEAD(&context->streams, stream, context_link);
    return stream;
}

void
stream_close(struct stream *stream)
{
    LOCKED(&stream->context->order);
    if (stream->closed)
        return;
    stream->closed = true;
    stream_drop_capture(stream);
    pthread_mutex_lock(&stream->lock);
    stream->draining = true;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->lock);
    if (!stream->started) /* else the worker does it when all is done */
        LIST_REMOVE(stream, context_link);
}

/* Operations. */

void
op_init(struct op *op, CUresult (*run)(struct op *, CUresult), void (*free)(struct op *))
{
    *op = (struct op){.stretched = true, .run = run, .free = free};
}

int
op_wait_for(struct op *op, struct stream *stream, uint64_t number)
{
    if (stream_passed(stream, number))
        return 0;
    struct point *after = realloc(op->after, (op->n_after + 1) * sizeof(*after));
    if (!after)
        return -ENOMEM;
    after[op->n_after++] = (struct point){stream_ref(stream), number};
    op->after = after;
    return 0;
}

void
op_free(struct op *op)
{
    for (size_t i = 0; i < op->n_after; i++)
        stream_unref(op->after[i].stream);
    free(op->after);
    if (op->free)
        op->free(op);
    else
        free(op);
}

bool
stream_passed(struct stream *stream, uint64_t number)
{
    return stream->passed >= number;
}

void
stream_wait(struct stream *stream, uint64_t number)
{
    LOCKED(&stream->lock);
    while (!stream_passed(stream, number))
        pthread_cond_wait(&stream->progress, &stream->lock);
}

CUresult
stream_finish(struct stream *stream, uint64_t number)
{
    stream_wait(stream, number);
    return (CUresult)stream->context->device->fault;
}

/* The worker. */

/* The last step of splitmix64: enough for a share of a delay. */
static uint64_t
mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The same for the same seed, stream and operation, by their numbers. */
static uint64_t
jitter(const struct stream *stream, uint64_t number)
{
    uint64_t of_stream = mix(soft->settings.jitter_seed + mix(stream->id));
    return mix(of_stream + number * UINT64_C(0x9e3779b97f4a7c15));
}

/* Before the operation, so that who reads too early finds the old bytes, and who overwrites too
 * early is read. */
static void
stream_stretch(const struct stream *stream, uint64_t number)
{
    uint64_t ns = soft->settings.delay_ns;
    if (ns && soft->settings.jitter)
        ns = jitter(stream, number) % ns;
    clock_pause_ns(ns);
}

static void
stream_run(struct stream *stream, struct op *op)
{
    struct device *device = stream->context->device;
    for (size_t i = 0; i < op->n_after; i++)
        stream_wait(op->after[i].stream, op->after[i].number);
    if (op->stretched)
        stream_stretch(stream, op->number);
    CUresult result = op->run ? op->run(op, (CUresult)device->fault) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        device_fault(device, result);
}

/* The next operation, or NULL when the stream is closed and has run dry. */
static struct op *
stream_next(struct stream *stream)
{
    LOCKED(&stream->lock);
    struct op *op;
    while (!(op = STAILQ_FIRST(&stream->queue)) && !stream->draining)
        pthread_cond_wait(&stream->work, &stream->lock);
    if (op)
        STAILQ_REMOVE_HEAD(&stream->queue, link);
    return op;
}

static void *
stream_worker(void *arg)
{
    struct stream *stream = arg;
    struct op *op;
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); /* short pauses are short: delays, memop.c */
    while ((op = stream_next(stream))) {
        uint64_t number = op->number;
        stream_run(stream, op);
        op_free(op);
        LOCKED(&stream->lock);
        stream->passed = number;
        pthread_cond_broadcast(&stream->progress);
    }
    pthread_mutex_lock(&stream->context->order);
    LIST_REMOVE(stream, context_link);
    pthread_mutex_unlock(&stream->context->order);
    stream_unref(stream);
    return NULL;
}

static int
stream_start(struct stream *stream)
{
    int r = thread_start(stream_worker, stream_ref(stream));
    stream->started = r == 0;
    if (r < 0)
        stream_unref(stream);
    return r;
}

/* What the legacy default stream means. Needs the order lock. */
static int
order_by_legacy(struct stream *stream, struct op *op)
{
    struct context *context = stream->context;
    if (stream != context->legacy) {
        if (!context->legacy || !stream_is_blocking(stream))
            return 0;
        return op_wait_for(op, context->legacy, context->legacy->submitted);
    }
    struct stream *other;
    LIST_FOREACH(other, &context->streams, context_link) {
        if (other == stream || !stream_is_blocking(other))
            continue;
        int r = op_wait_for(op, other, other->submitted);
        if (r < 0)
            return r;
    }
    return 0;
}

static CUresult
submit_locked(struct stream *stream, struct op *op)
{
    if (stream->closed)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture.status != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    RETURN_IF(stream_forbid_implicit_capture(stream));
    if (order_by_legacy(stream, op) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    LOCKED(&stream->lock);
    if (!stream->started && stream_start(stream) < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    op->number = ++stream->submitted;
    if (op->placed)
        op->placed(op);
    STAILQ_INSERT_TAIL(&stream->queue, op, link);
    pthread_cond_signal(&stream->work);
    return CUDA_SUCCESS;
}

CUresult
stream_follow(struct stream *stream, struct context *context)
{
    struct op *op = op_marker();
    if (op && context_precede(context, op) == 0)
        return stream_submit(stream, op, NULL);
    if (op)
        op_free(op);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult
stream_submit_after(struct stream *stream, const struct point *point, uint64_t *ret_number)
{
    struct op *op = op_marker();
    if (op && (!point->stream || point->stream == stream ||
               op_wait_for(op, point->stream, point->number) == 0))
        return stream_submit(stream, op, ret_number);
    if (op)
        op_free(op);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult
stream_submit(struct stream *stream, struct op *op, uint64_t *ret_number)
{
    pthread_mutex_lock(&stream->context->order);
    CUresult result = submit_locked(stream, op);
    if (result == CUDA_SUCCESS && ret_number)
        *ret_number = stream->submitted;
    pthread_mutex_unlock(&stream->context->order);
    if (result != CUDA_SUCCESS)
        op_free(op);
    return result;
}

/* Which stream a caller means. */

struct stream *
stream_legacy(struct context *context)
{
    LOCKED(&context->order);
    if (!context->legacy)
        context->legacy = stream_new(context, CU_STREAM_DEFAULT, LEAST_PRIORITY);
    return stream_ref(context->legacy);
}

/* One for all records: each is done no earlier than the one before, as it should be. */
struct stream *
stream_recorder(struct context *context)
{
    LOCKED(&context->order);
    if (!context->recorder)
        context->recorder = stream_new(context, CU_STREAM_NON_BLOCKING, LEAST_PRIORITY);
    return stream_ref(context->recorder);
}

/* The calling thread's own stream in the context. Those that were closed with their
 * contexts' contents are dropped. */
static struct stream *
own_get(struct context *context)
{
    struct thread *thread = thread_get();
    struct stream *stream, *next;
    if (!thread)
        return NULL;
    LOCKED(&context->order);
    for (stream = LIST_FIRST(&thread->own_streams); stream; stream = next) {
        next = LIST_NEXT(stream, thread_link);
        if (stream->context == context && !stream->closed)
            return stream_ref(stream);
        if (stream->context != context && stream->context->live)
            continue;
        LIST_REMOVE(stream, thread_link);
        stream_unref(stream);
    }
    stream = stream_new(context, CU_STREAM_DEFAULT, LEAST_PRIORITY);
    if (stream)
        LIST_INSERT_HEAD(&thread->own_streams, stream, thread_link);
    return stream_ref(stream);
}

static CUresult
default_get(CUstream handle, struct stream **ret)
{
    CURRENT(context);
    *ret = handle == CU_STREAM_PER_THREAD ? own_get(context) : stream_legacy(context);
    return *ret ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Only the default streams need a current context: others know their own. */
CUresult
stream_get(CUstream handle, struct stream **ret)
{
    if (!handle && call_own_stream())
        handle = CU_STREAM_PER_THREAD;
    if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
        return default_get(handle, ret);
    _cleanup_(stream_unrefp) struct stream *stream = stream_by_handle((uintptr_t)handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    RETURN_IF(context_check(stream->context));
    *ret = TAKE_PTR(stream);
    return CUDA_SUCCESS;
}

/* Entry points. */

CUresult
soft_cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CURRENT(context);
    if (least)
        *least = LEAST_PRIORITY;
    if (greatest)
        *greatest = GREATEST_PRIORITY;
    return CUDA_SUCCESS;
}

/* Priorities outside the range are clamped to it, as CUDA says. */
CUresult
soft_cuStreamCreateWithPriority(CUstream *ret, unsigned int flags, int priority)
{
    CURRENT(context);
    if (!ret || (flags & ~(unsigned int)CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    if (priority > LEAST_PRIORITY)
        priority = LEAST_PRIORITY;
    if (priority < GREATEST_PRIORITY)
        priority = GREATEST_PRIORITY;
    pthread_mutex_lock(&context->order);
    struct stream *stream = stream_new(context, flags, priority);
    pthread_mutex_unlock(&context->order);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object_ref(&stream->object);
    CUresult result = object_hand_out(&stream->object, ret);
    if (result != CUDA_SUCCESS)
        stream_close(stream);
    stream_unref(stream);
    return result;
}

CUresult
soft_cuStreamCreate(CUstream *ret, unsigned int flags)
{
    return soft_cuStreamCreateWithPriority(ret, flags, LEAST_PRIORITY);
}

/* Needs no current context: finalizers call it. Done even where a fault is the answer. */
CUresult
soft_cuStreamDestroy_v2(CUstream handle)
{
    _cleanup_(stream_unrefp) struct stream *stream = stream_end_handle((uintptr_t)handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    stream_close(stream);
    return (CUresult)stream->context->device->fault;
}

/* The streams whose work counts as this one's: of the legacy default stream, all blocking ones. */
static bool
counts_for(const struct stream *other, const struct stream *stream)
{
    return other == stream || (stream == stream->context->legacy && stream_is_blocking(other));
}

CUresult
soft_cuStreamQuery(CUstream handle)
{
    struct stream *other;
    HOLD(stream, stream, handle);
    RETURN_IF(stream_forbid_capture(stream));
    LOCKED(&stream->context->order);
    LIST_FOREACH(other, &stream->context->streams, context_link) {
        if (counts_for(other, stream) && !stream_passed(other, other->submitted))
            return CUDA_ERROR_NOT_READY;
    }
    return (CUresult)stream->context->device->fault;
}

/* An operation that only holds a place: of the legacy stream one that waits for all others. */
struct op *
op_marker(void)
{
    struct op *op = malloc(sizeof(*op));
    if (!op)
        return NULL;
    op_init(op, NULL, NULL);
    op->stretched = false;
    return op;
}

CUresult
soft_cuStreamSynchronize(CUstream handle)
{
    HOLD(stream, stream, handle);
    RETURN_IF(stream_forbid_capture(stream));
    uint64_t number = stream->submitted;
    if (stream == stream->context->legacy)
        RETURN_IF(stream_submit_after(stream, &(struct point){0}, &number));
    return stream_finish(stream, number);
}

/* What is known of a stream. */
#define STREAM_GET(symbol, type, what)                 \
    CUresult soft_##symbol(CUstream handle, type *ret) \
    {                                                  \
        HOLD(stream, stream, handle);                  \
        if (!ret)                                      \
            return CUDA_ERROR_INVALID_VALUE;           \
        *ret = (type)(what);                           \
        return CUDA_SUCCESS;                           \
    }

STREAM_GET(cuStreamGetFlags, unsigned int, stream->flags)
STREAM_GET(cuStreamGetPriority, int, stream->priority)
STREAM_GET(cuStreamGetId, unsigned long long, stream->id)
STREAM_GET(cuStreamGetCtx, CUcontext, (uintptr_t)stream->context->object.handle)

/* No stream is a green context's here. */
CUresult
soft_cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green)
{
    if (!green)
        return CUDA_ERROR_INVALID_VALUE;
    RETURN_IF(soft_cuStreamGetCtx(handle, context));
    *green = NULL;
    return CUDA_SUCCESS;
}
