/* SPDX-License-Identifier: Apache-2.0 */
#include "drain.h"

#include <time.h>

#include "array.h"
#include "block.h"
#include "session/client.h"
#include "session/stream.h"

/* The pause before a context in which a stream captures a graph is asked again. */
#define CAPTURE_PAUSE_NS 2000000

/* So many contexts are remembered as drained; others are waited for again. */
#define N_DRAINED 8

struct drained {
    uint64_t places; /* whose primary context has drained, a bit each */
    CUcontext contexts[N_DRAINED];
    size_t n;
};

static bool
has_memory(const struct caid_array *array)
{
    return array->block || array->managed || array->of_parts;
}

/* Where the driver cannot say, the context counts as active, unless it is dead. */
static bool
primary_is_active(const struct drv *drv, const struct gpu_device *device)
{
    unsigned int flags;
    int active;

    if (device->context)
        return true;
    CUresult result = drv->cu.cuDevicePrimaryCtxGetState(device->ordinal, &flags, &active);
    return result == CUDA_SUCCESS ? active : !gpu_is_dead(result);
}

/* A bit for each place whose primary context may use the array. Managed and pinned memory may be
 * used by those of all devices. */
static uint64_t
active_primaries(const struct caid_array *array)
{
    const struct gpu *gpu = &array->client->gpu;
    bool everywhere = array->managed ||
                      (array->block ? array->block->kind == BLOCK_PINNED : array->on_host);
    uint64_t places = 0;

    for (uint32_t i = 0; i < gpu->n_devices; i++)
        if ((everywhere || i == array->place) && primary_is_active(gpu->drv, &gpu->devices[i]))
            places |= UINT64_C(1) << i;
    return places;
}

bool
drain_note_contexts(struct caid_array *array)
{
    const struct gpu *gpu = &array->client->gpu;

    if (!has_memory(array))
        return false;
    array->drain.primaries = active_primaries(array);
    array->drain.context = gpu_current(gpu->drv);
    return array->drain.primaries || array->drain.context;
}

/* ---- streams ---- */

static int
stream_done(const struct drv *drv, const char *call, CUresult result, struct caid_error *error)
{
    return gpu_result(drv, call, result, "cannot wait for a stream", error);
}

/* Makes the stream's context current, until gpu_pop(). A default stream is that of the thread's
 * current context, or of the primary one. If the context is dead, *ret_result is not SUCCESS, and
 * nothing has been pushed. */
static int
push_stream(struct caid_array *array, uint64_t stream, CUresult *ret_result,
            struct caid_error *error)
{
    const struct drv *drv = array->client->gpu.drv;
    const char *call = "cuStreamGetCtx";
    CUcontext context = NULL;
    CUresult result = CUDA_SUCCESS;

    if (!stream_is_special(stream))
        result = drv->cu.cuStreamGetCtx((CUstream)(uintptr_t)stream, &context);
    else if (!(context = gpu_current(drv))) {
        int r = gpu_context(array->client, array->place, &context, error);
        if (r < 0)
            return r;
    }
    if (result == CUDA_SUCCESS) {
        call = "cuCtxPushCurrent";
        result = drv->cu.cuCtxPushCurrent(context);
    }
    *ret_result = result;
    return gpu_is_dead(result) ? 0 : stream_done(drv, call, result, error);
}

/* An event that is recorded while its stream captures becomes a part of the graph, and cannot be
 * waited for. */
static int
check_not_capturing(const struct drv *drv, uint64_t stream, struct caid_error *error)
{
    bool captures;

    gpu_captures(drv, (CUstream)(uintptr_t)stream, &captures);
    if (captures)
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

int
drain_note_stream(struct caid_array *array, uint64_t stream, struct caid_error *error)
{
    const struct drv *drv = array->client->gpu.drv;
    CUresult result;
    const char *call;

    int r = stream_check(stream, error);
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
    array->drain.context = result == CUDA_SUCCESS ? gpu_current(drv) : NULL;
    gpu_pop(drv);
    return gpu_is_dead(result) ? 0 : stream_done(drv, call, result, error);
}

/* ---- waiting ---- */

/* A context in which a stream captures a graph cannot be waited for, nor asked for its work. false:
 * it may not have drained. */
static bool
wait_context(struct caid_client *client, CUcontext context, struct drained *drained)
{
    const struct timespec pause = {.tv_nsec = CAPTURE_PAUSE_NS};
    CUresult result;

    for (size_t i = 0; i < drained->n; i++)
        if (drained->contexts[i] == context)
            return true;
    while (gpu_is_capturing(result = gpu_synchronize(client->gpu.drv, context, NULL)) &&
           reaper_may_wait(client))
        nanosleep(&pause, NULL);
    if (gpu_is_over(result) && drained->n < N_DRAINED)
        drained->contexts[drained->n++] = context;
    return gpu_is_over(result);
}

/* Retains the primary context only for the wait: the program may want to release it. One that is
 * not active is not made anew. */
static bool
wait_primary(struct caid_client *client, struct gpu_device *device, struct drained *drained)
{
    const struct drv *drv = client->gpu.drv;
    CUcontext context = device->context;

    if (context)
        return wait_context(client, context, drained);
    if (!primary_is_active(drv, device))
        return true;
    CUresult result = drv->cu.cuDevicePrimaryCtxRetain(&context, device->ordinal);
    if (result != CUDA_SUCCESS)
        return gpu_is_gone(result);
    bool over = wait_context(client, context, drained);
    drv->cu.cuDevicePrimaryCtxRelease(device->ordinal);
    return over;
}

static bool
wait_primaries(struct caid_client *client, uint64_t places, struct drained *drained)
{
    for (uint32_t i = 0; i < client->gpu.n_devices; i++) {
        uint64_t bit = UINT64_C(1) << i;
        if (!(places & bit) || (drained->places & bit))
            continue;
        if (!wait_primary(client, &client->gpu.devices[i], drained))
            return false;
        drained->places |= bit;
    }
    return true;
}

static bool
wait_event(const struct drv *drv, const struct caid_array *array)
{
    CUresult result = drv->cu.cuCtxPushCurrent(array->drain.context);

    if (result != CUDA_SUCCESS)
        return gpu_is_gone(result); /* the event has gone with its context */
    result = drv->cu.cuEventSynchronize(array->drain.event);
    drv->cu.cuEventDestroy(array->drain.event);
    gpu_pop(drv);
    return gpu_is_over(result);
}

/* false: GPU work may still use the array. */
static bool
drain_array(struct caid_client *client, struct caid_array *array, struct drained *drained)
{
    if (array->drain.event)
        return wait_event(client->gpu.drv, array);
    return wait_primaries(client, array->drain.primaries, drained) &&
           (!array->drain.context || wait_context(client, array->drain.context, drained));
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
drain_arrays(struct caid_client *client, const struct reaped_queue *arrays)
{
    struct drained drained = {0};
    struct reaped *entry;

    STAILQ_FOREACH(entry, arrays, entry) {
        struct caid_array *array = container_of(entry, struct caid_array, reaped);
        array->drain.kept = !drain_array(client, array, &drained);
        if (array->managed && !array->drain.kept)
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
        return stream_done(drv, "cuStreamGetCtx", result, error);
    const struct stream entered = {.drv = drv, .handle = (CUstream)(uintptr_t)stream};
    r = stream_synchronize(array->client, &entered, &result, error);
    gpu_pop(drv);
    return r < 0 ? r : stream_done(drv, "cuStreamSynchronize", result, error);
}

static int
sync_context(const struct drv *drv, CUcontext context, struct caid_error *error)
{
    CUresult result = gpu_synchronize(drv, context, NULL);
    return gpu_result(drv, "cuCtxSynchronize", result, "the work that writes the array failed",
                      error);
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
    current = gpu_current(drv);
    if (primary_is_active(drv, &client->gpu.devices[array->place])) {
        r = gpu_context(client, array->place, &primary, error);
        if (r == 0)
            r = sync_context(drv, primary, error);
    }
    if (r == 0 && current && current != primary)
        r = sync_context(drv, current, error);
    return r;
}
