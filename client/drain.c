/* SPDX-License-Identifier: Apache-2.0 */
#include "drain.h"

#include <time.h>

#include "array.h"
#include "client.h"

/* The highest of the streams that are no handle: 1 the legacy default one, 2 the per-thread
 * one. */
#define STREAM_SPECIAL_MAX 2

/* Until a context in which a stream captures a graph is asked again. */
#define CAPTURE_PAUSE_NS 2000000

/* Contexts that are known to have drained; more than these are waited for again. */
#define N_DRAINED 8

struct drained {
    uint64_t places; /* whose primary context has, a bit each */
    CUcontext contexts[N_DRAINED];
    size_t n;
};

static bool
has_memory(const struct caid_array *array)
{
    return array->block || array->managed;
}

static bool
primary_is_active(const struct drv *drv, const struct gpu_device *device)
{
    unsigned int flags;
    int active;

    return device->context || (drv->cu.cuDevicePrimaryCtxGetState(device->ordinal, &flags,
                                                                  &active) == CUDA_SUCCESS &&
                               active);
}

static CUcontext
current_context(const struct drv *drv)
{
    CUcontext context;

    return drv->cu.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}

bool
drain_note_contexts(struct caid_array *array)
{
    const struct gpu *gpu = &array->client->gpu;

    if (!has_memory(array))
        return false;
    array->drain.primary = primary_is_active(gpu->drv, &gpu->devices[array->place]);
    array->drain.context = current_context(gpu->drv);
    return array->drain.primary || array->drain.context;
}

/* ---- streams ---- */

/* Whether the answer is that of a context in which nothing runs any more. */
static bool
is_dead(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_EXTERNAL_DEVICE: return true;
    default: return false;
    }
}

static int
fail_stream(const struct drv *drv, const char *call, CUresult result, struct caid_error *error)
{
    return gpu_fail(drv, call, result, "cannot wait for a stream", error);
}

/* Makes the stream's context current, until gpu_pop(). The default streams are those of the
 * thread's current context, or of the primary one. *ret_result is not SUCCESS when the context
 * is dead, and then nothing has been pushed. */
static int
push_stream(struct caid_array *array, uint64_t stream, CUresult *ret_result,
            struct caid_error *error)
{
    const struct drv *drv = array->client->gpu.drv;
    const char *call = "cuStreamGetCtx";
    CUcontext context = NULL;
    CUresult result = CUDA_SUCCESS;

    if (stream > STREAM_SPECIAL_MAX)
        result = drv->cu.cuStreamGetCtx((CUstream)(uintptr_t)stream, &context);
    else if (!(context = current_context(drv))) {
        int r = gpu_context(array->client, array->place, &context, error);
        if (r < 0)
            return r;
    }
    if (result == CUDA_SUCCESS) {
        call = "cuCtxPushCurrent";
        result = drv->cu.cuCtxPushCurrent(context);
    }
    *ret_result = result;
    return result == CUDA_SUCCESS || is_dead(result) ? 0
                                                     : fail_stream(drv, call, result, error);
}

/* An event that is recorded while its stream captures is a part of the graph: nobody can wait
 * for it. */
static int
check_not_capturing(const struct drv *drv, uint64_t stream, struct caid_error *error)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = drv->cu.cuStreamIsCapturing((CUstream)(uintptr_t)stream, &status);

    if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
        return fail(error, CAID_ERR_INVALID,
                    "the stream captures a graph: close the array when the capture has ended");
    return 0;
}

static CUresult
record(const struct drv *drv, uint64_t stream, CUevent *ret, const char **ret_call)
{
    CUevent event;

    *ret_call = "cuEventCreate";
    CUresult result =
        drv->cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    if (result != CUDA_SUCCESS)
        return result;
    *ret_call = "cuEventRecord";
    result = drv->cu.cuEventRecord(event, (CUstream)(uintptr_t)stream);
    if (result == CUDA_SUCCESS)
        *ret = event;
    else
        drv->cu.cuEventDestroy(event);
    return result;
}

static int
check_stream(uint64_t stream, struct caid_error *error)
{
    return stream != 0 ? 0
                       : fail(error, CAID_ERR_INVALID,
                              "stream 0 is ambiguous: 1 is the legacy default stream, 2 the "
                              "per-thread one");
}

int
drain_note_stream(struct caid_array *array, uint64_t stream, struct caid_error *error)
{
    const struct drv *drv = array->client->gpu.drv;
    CUresult result;
    const char *call;

    int r = check_stream(stream, error);
    if (r < 0 || !has_memory(array))
        return r;
    r = push_stream(array, stream, &result, error);
    if (r < 0 || result != CUDA_SUCCESS)
        return r;
    r = check_not_capturing(drv, stream, error);
    if (r < 0) {
        gpu_pop(drv);
        return r;
    }
    result = record(drv, stream, &array->drain.event, &call);
    array->drain.context = result == CUDA_SUCCESS ? current_context(drv) : NULL;
    gpu_pop(drv);
    if (result != CUDA_SUCCESS && !is_dead(result))
        return fail_stream(drv, call, result, error);
    return 0;
}

/* ---- waiting ---- */

/* A context in which a stream captures a graph cannot be waited for, and says nothing of the
 * work that it has. */
static bool
is_capturing(CUresult result)
{
    return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
           result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

static CUresult
synchronize(const struct drv *drv, CUcontext context)
{
    CUresult result = drv->cu.cuCtxPushCurrent(context);

    if (result == CUDA_SUCCESS) {
        result = drv->cu.cuCtxSynchronize();
        gpu_pop(drv);
    }
    return result;
}

/* What else it answers is not of interest: a context that fails has drained. */
static void
wait_context(struct caid_client *client, CUcontext context, struct drained *drained)
{
    const struct timespec pause = {.tv_nsec = CAPTURE_PAUSE_NS};

    for (size_t i = 0; i < drained->n; i++)
        if (drained->contexts[i] == context)
            return;
    while (is_capturing(synchronize(client->gpu.drv, context)) && reaper_may_wait(client))
        nanosleep(&pause, NULL);
    if (drained->n < N_DRAINED)
        drained->contexts[drained->n++] = context;
}

/* Held only meanwhile: the program may want to be rid of it. One that has gone is not made
 * anew. */
static void
wait_primary(struct caid_client *client, struct gpu_device *device, struct drained *drained)
{
    const struct drv *drv = client->gpu.drv;
    CUcontext context = device->context;

    if (context) {
        wait_context(client, context, drained);
        return;
    }
    if (!primary_is_active(drv, device) ||
        drv->cu.cuDevicePrimaryCtxRetain(&context, device->ordinal) != CUDA_SUCCESS)
        return;
    wait_context(client, context, drained);
    drv->cu.cuDevicePrimaryCtxRelease(device->ordinal);
}

static void
wait_event(const struct drv *drv, const struct caid_array *array)
{
    if (drv->cu.cuCtxPushCurrent(array->drain.context) != CUDA_SUCCESS)
        return; /* gone, and the event with it */
    drv->cu.cuEventSynchronize(array->drain.event);
    drv->cu.cuEventDestroy(array->drain.event);
    gpu_pop(drv);
}

static void
drain_array(struct caid_client *client, struct caid_array *array, struct drained *drained)
{
    struct gpu_device *device = &client->gpu.devices[array->place];
    uint64_t bit = array->place < 64 ? UINT64_C(1) << array->place : 0;

    if (array->drain.event) {
        wait_event(client->gpu.drv, array);
        return;
    }
    if (array->drain.primary && !(drained->places & bit)) {
        wait_primary(client, device, drained);
        drained->places |= bit;
    }
    if (array->drain.context)
        wait_context(client, array->drain.context, drained);
}

static void
free_managed(struct caid_client *client, struct caid_array *array)
{
    const struct drv *drv;

    if (gpu_push_place(client, array->place, &drv, NULL) < 0)
        return;
    drv->cu.cuMemFree(array->managed);
    gpu_pop(drv);
}

void
drain_arrays(struct caid_client *client, struct array_queue *arrays)
{
    struct drained drained = {0};
    struct caid_array *array;

    STAILQ_FOREACH(array, arrays, entry)
    {
        drain_array(client, array, &drained);
        if (array->managed)
            free_managed(client, array);
    }
}

/* ---- waiting for what has been written ---- */

static int
sync_stream(struct caid_array *array, uint64_t stream, struct caid_error *error)
{
    const struct drv *drv = array->client->gpu.drv;
    CUresult result;

    int r = push_stream(array, stream, &result, error);
    if (r < 0)
        return r;
    if (result != CUDA_SUCCESS)
        return fail_stream(drv, "cuStreamGetCtx", result, error);
    result = drv->cu.cuStreamSynchronize((CUstream)(uintptr_t)stream);
    gpu_pop(drv);
    return result == CUDA_SUCCESS ? 0 : fail_stream(drv, "cuStreamSynchronize", result, error);
}

static int
sync_context(const struct drv *drv, CUcontext context, struct caid_error *error)
{
    CUresult result = synchronize(drv, context);
    return result == CUDA_SUCCESS ? 0
                                  : gpu_fail(drv, "cuCtxSynchronize", result,
                                             "the work that writes the array failed", error);
}

int
drain_writes(struct caid_array *array, uint64_t stream, struct caid_error *error)
{
    struct caid_client *client = array->client;
    const struct drv *drv = client->gpu.drv;
    CUcontext primary = NULL, current;
    int r = 0;

    if (!has_memory(array))
        return 0;
    if (stream != 0)
        return sync_stream(array, stream, error);
    current = current_context(drv);
    if (primary_is_active(drv, &client->gpu.devices[array->place])) {
        r = gpu_context(client, array->place, &primary, error);
        if (r == 0)
            r = sync_context(drv, primary, error);
    }
    if (r == 0 && current && current != primary)
        r = sync_context(drv, current, error);
    return r;
}
