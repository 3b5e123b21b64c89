/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: primary ones, created ones, and the current one of each thread. */
#include "context.h"

#include "alloc.h"
#include "stream.h"

#define ALL_FLAGS CU_CTX_FLAGS_MASK

static CUcontext
context_handle(const struct context *context)
{
    return (CUcontext)(uintptr_t)context->object.handle;
}

static void
context_free(struct object *object)
{
    struct context *context = container_of(object, struct context, object);
    pthread_mutex_destroy(&context->order);
    free(context);
}

/* A live context with a handle. The caller has a reference. */
static struct context *
context_new(struct device *device, unsigned int flags, bool primary)
{
    struct context *context = calloc(1, sizeof(*context));
    if (!context)
        return NULL;
    object_init(&context->object, OBJECT_CONTEXT, context_free);
    context->device = device;
    context->flags = flags;
    context->primary = primary;
    context->live = true;
    pthread_mutex_init(&context->order, NULL);
    LIST_INIT(&context->streams);
    if (object_publish(&context->object) < 0)
        return context_unref(context);
    return context;
}

static struct thread *
thread_peek(void)
{
    return pthread_getspecific(soft->thread_key);
}

static struct context *
thread_top(void)
{
    struct thread *thread = thread_peek();
    return thread && thread->n_stack ? thread->stack[thread->n_stack - 1] : NULL;
}

struct device *
context_device(void)
{
    struct context *context = soft->ready ? thread_top() : NULL; /* no thread key before */
    struct device *first = soft->n_visible ? soft->visible[0] : &soft->devices[0];
    return context ? context->device : first;
}

/* Takes over a reference. */
static CUresult
thread_push(struct context *context)
{
    struct thread *thread = thread_get();
    if (thread && thread->n_stack == thread->n_room) {
        size_t n = thread->n_room ? 2 * thread->n_room : 8;
        struct context **stack = realloc(thread->stack, n * sizeof(struct context *));
        if (stack) {
            thread->stack = stack;
            thread->n_room = n;
        }
    }
    if (!thread || thread->n_stack == thread->n_room) {
        context_unref(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    thread->stack[thread->n_stack++] = context;
    return CUDA_SUCCESS;
}

CUresult
context_check(const struct context *context)
{
    if (!context->live)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return (CUresult)context->device->fault;
}

CUresult
context_current(struct context **ret)
{
    struct context *context = thread_top();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    RETURN_IF(context_check(context));
    *ret = context;
    return CUDA_SUCCESS;
}

bool
context_current_is_dead(void)
{
    struct context *context = thread_top();
    return context && !context->live;
}

struct context *
context_get(CUcontext handle)
{
    return handle ? context_by_handle((uintptr_t)handle) : context_ref(thread_top());
}

int
context_precede(struct context *context, struct op *op)
{
    struct stream *stream;
    LOCKED(&context->order);
    LIST_FOREACH(stream, &context->streams, context_link) {
        int r = op_wait_for(op, stream, stream->submitted);
        if (r < 0)
            return r;
    }
    return 0;
}

CUresult
context_synchronize(struct context *context)
{
    struct op *op = op_marker(); /* never submitted: it holds the points to wait for */
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int r = context_precede(context, op);
    for (size_t i = 0; i < op->n_after; i++)
        stream_wait(op->after[i].stream, op->after[i].number);
    op_free(op);
    return r < 0 ? CUDA_ERROR_OUT_OF_MEMORY : (CUresult)context->device->fault;
}

CUresult
context_synchronize_users(struct context *context)
{
    struct object *object;
    uint32_t index = 0;
    while ((object = object_next(OBJECT_CONTEXT, &index))) {
        struct context *other = container_of(object, struct context, object);
        if (other->reaches_out)
            context_synchronize(other);
        object_unref(object);
    }
    return context_synchronize(context);
}

/* The first stream that is not closed yet, with a reference. */
static struct stream *
first_open_stream(struct context *context)
{
    LOCKED(&context->order);
    struct stream *stream;
    LIST_FOREACH(stream, &context->streams, context_link) {
        if (stream->closed)
            continue;
        return stream_ref(stream);
    }
    return NULL;
}

/* Ends what is in the context, after its work is done. */
static void
context_empty(struct context *context)
{
    context->live = false;
    context_synchronize(context);
    for (struct stream *stream; (stream = first_open_stream(context)); stream_unref(stream)) {
        stream_close(stream);
        stream_unref(stream_end_handle(stream->object.handle));
    }
    pthread_mutex_lock(&context->order);
    struct stream *legacy = context->legacy, *recorder = context->recorder;
    context->legacy = NULL;
    context->recorder = NULL;
    pthread_mutex_unlock(&context->order);
    stream_unref(legacy);
    stream_unref(recorder);
    alloc_free_all(context->object.handle);
    context->peers = 0;
    context->epoch++;
}

/* Primary contexts. soft->lock orders retains and releases. */

/* Needs soft->lock. */
static struct context *
primary_make(struct device *device)
{
    if (!device->primary) {
        device->primary = context_new(device, CU_CTX_SCHED_AUTO, true);
        if (device->primary)
            device->primary->live = false;
    }
    return device->primary;
}

CUresult
soft_cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice ordinal)
{
    DEVICE(device, ordinal);
    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->lock);
    struct context *context = primary_make(device);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (device->fault)
        return (CUresult)device->fault;
    context->n_retains++;
    context->live = true;
    *ret = context_handle(context);
    return CUDA_SUCCESS;
}

CUresult
soft_cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    DEVICE(device, ordinal);
    LOCKED(&soft->lock);
    struct context *context = device->primary;
    if (!context || context->n_retains == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->n_retains == 0)
        context_empty(context);
    return CUDA_SUCCESS;
}

/* Whoever has retained the context still has, but it is dead until somebody does so again. */
CUresult
soft_cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    DEVICE(device, ordinal);
    LOCKED(&soft->lock);
    struct context *context = device->primary;
    if (context && context->live)
        context_empty(context);
    if (context)
        context->flags = CU_CTX_SCHED_AUTO;
    return CUDA_SUCCESS;
}

CUresult
soft_cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags)
{
    DEVICE(device, ordinal);
    if (flags & ~(unsigned int)ALL_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->lock);
    struct context *context = primary_make(device);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult
soft_cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
    DEVICE(device, ordinal);
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED(&soft->lock);
    *flags = device->primary ? device->primary->flags : CU_CTX_SCHED_AUTO;
    *active = device->primary && device->primary->live;
    return CUDA_SUCCESS;
}

/* Created contexts. */

CUresult
soft_cuCtxCreate_v2(CUcontext *ret, unsigned int flags, CUdevice ordinal)
{
    DEVICE(device, ordinal);
    if (!ret || (flags & ~(unsigned int)ALL_FLAGS))
        return CUDA_ERROR_INVALID_VALUE;
    if (device->fault)
        return (CUresult)device->fault;
    struct context *context = context_new(device, flags, false);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUcontext handle = context_handle(context);
    CUresult result = thread_push(context);
    if (result != CUDA_SUCCESS)
        context_unref(context_end_handle((uintptr_t)handle));
    else
        *ret = handle;
    return result;
}

CUresult
soft_cuCtxCreate_v4(CUcontext *ret, CUctxCreateParams *params, unsigned int flags,
                    CUdevice device)
{
    if (params &&
        (params->cigParams || params->execAffinityParams || params->numExecAffinityParams))
        return CUDA_ERROR_NOT_SUPPORTED;
    return soft_cuCtxCreate_v2(ret, flags, device);
}

CUresult
soft_cuCtxDestroy_v2(CUcontext handle)
{
    _cleanup_(context_unrefp) struct context *context = context_get(handle);
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    _cleanup_(context_unrefp) struct context *ended = context_end_handle((uintptr_t)handle);
    if (!ended)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (thread_top() == context)
        soft_cuCtxPopCurrent_v2(NULL);
    context_empty(context);
    return CUDA_SUCCESS;
}

/* The thread's stack. */

CUresult
soft_cuCtxPushCurrent_v2(CUcontext handle)
{
    struct context *context = handle ? context_get(handle) : NULL;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    return context ? thread_push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult
soft_cuCtxPopCurrent_v2(CUcontext *ret)
{
    struct context *top = thread_top();
    if (!top)
        return CUDA_ERROR_INVALID_CONTEXT;
    thread_peek()->n_stack--;
    if (ret)
        *ret = context_handle(top);
    context_unref(top);
    return CUDA_SUCCESS;
}

/* Replaces the top; a null handle only pops it. */
CUresult
soft_cuCtxSetCurrent(CUcontext handle)
{
    struct context *context = NULL;
    if (handle && !(context = context_get(handle)))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (thread_top())
        soft_cuCtxPopCurrent_v2(NULL);
    return context ? thread_push(context) : CUDA_SUCCESS;
}

CUresult
soft_cuCtxGetCurrent(CUcontext *ret)
{
    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    struct context *top = thread_top();
    *ret = top ? context_handle(top) : NULL;
    return CUDA_SUCCESS;
}

/* Questions about a context. */

CUresult
soft_cuCtxGetDevice_v2(CUdevice *device, CUcontext handle)
{
    _cleanup_(context_unrefp) struct context *context = context_get(handle);
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult
soft_cuCtxGetDevice(CUdevice *device)
{
    return soft_cuCtxGetDevice_v2(device, NULL);
}

CUresult
soft_cuCtxSynchronize_v2(CUcontext handle)
{
    _cleanup_(context_unrefp) struct context *context = context_get(handle);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->live)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    RETURN_IF(context_forbid_capture(context));
    return context_synchronize(context);
}

CUresult
soft_cuCtxSynchronize(void)
{
    return soft_cuCtxSynchronize_v2(NULL);
}
