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
    CUresult result; /* the first of a wait that did not succeed */
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

/* A bit for each place, of those given, whose primary context is active. */
static uint64_t
active_primaries(const struct gpu *gpu, uint64_t places)
{
    uint64_t active = 0;

    for (uint32_t i = 0; i < gpu->n_devices; i++)
        if ((places & UINT64_C(1) << i) && primary_is_active(gpu->drv, &gpu->devices[i]))
            active |= UINT64_C(1) << i;
    return active;
}

static void
note_contexts(const struct gpu *gpu, uint64_t places, struct drain *ret)
{
    ret->primaries = active_primaries(gpu, places);
    ret->context = gpu_current(gpu->drv);
}

/* Managed and pinned memory may be used by the contexts of all devices. */
bool
drain_note_contexts(struct caid_array *array)
{
    if (!has_memory(array))
        return false;
    if (!gpu_opened(array->client)) /* it was for the host alone */
        return false;
    bool everywhere = array->managed ||
                      (array->block ? array->block->kind == BLOCK_PINNED : array->on_host);
    note_contexts(&array->client->gpu, everywhere ? UINT64_MAX : UINT64_C(1) << array->place,
                  &array->drain);
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
push_stream(struct caid_client *client, uint32_t place, uint64_t stream, CUresult *ret_result,
            struct caid_error *error)
{
    const char *call = "cuStreamGetCtx";
    CUcontext context = NULL;
    CUresult result = CUDA_SUCCESS;
    const struct drv *drv;

    int r = gpu_driver(client, &drv, error);
    if (r < 0)
        return r;
    if (!stream_is_special(stream))
        result = drv->cu.cuStreamGetCtx((CUstream)(uintptr_t)stream, &context);
    else if (!(context = gpu_current(drv))) {
        r = gpu_context(client, place, &context, error);
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
                    "the stream captures a graph: close or publish when the capture has ended");
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

/* If the context is dead, there is no event, and *ret_result is not SUCCESS. */
static int
note_stream(struct caid_client *client, uint32_t place, uint64_t stream, struct drain *ret,
            CUresult *ret_result, struct caid_error *error)
{
    const struct drv *drv = client->gpu.drv;
    const char *call;

    int r = push_stream(client, place, stream, ret_result, error);
    if (r < 0 || *ret_result != CUDA_SUCCESS)
        return r;
    r = check_not_capturing(drv, stream, error);
    if (r < 0) {
        gpu_pop(drv);
        return r;
    }
    *ret_result = record(drv, stream, &ret->event, &call);
    ret->context = *ret_result == CUDA_SUCCESS ? gpu_current(drv) : NULL;
    gpu_pop(drv);
    return gpu_is_dead(*ret_result) ? 0 : stream_done(drv, call, *ret_result, error);
}

int
drain_note_stream(struct caid_array *array, uint64_t stream, struct caid_error *error)
{
    CUresult result;

    int r = stream_check(stream, error);
    if (r < 0 || !has_memory(array))
        return r;
    return note_stream(array->client, array->place, stream, &array->drain, &result, error);
}

int
drain_note_work(struct caid_client *client, uint32_t place, uint64_t stream, struct drain *ret,
                struct caid_error *error)
{
    CUresult result = CUDA_SUCCESS;

    if (stream == 0) {
        note_contexts(&client->gpu, UINT64_MAX, ret);
        return 0;
    }
    int r = note_stream(client, place, stream, ret, &result, error);
    return r < 0 ? r : stream_done(client->gpu.drv, "cuEventRecord", result, error);
}

void
drain_forget(struct caid_client *client, struct drain *work)
{
    const struct drv *drv = client->gpu.drv;

    if (!work->event || drv->cu.cuCtxPushCurrent(work->context) != CUDA_SUCCESS)
        return;
    drv->cu.cuEventDestroy(work->event);
    gpu_pop(drv);
}

/* ---- waiting ---- */

static void
note_result(struct drained *drained, CUresult result)
{
    if (drained->result == CUDA_SUCCESS)
        drained->result = result;
}

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
    note_result(drained, result);
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
    note_result(drained, result);
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
wait_event(const struct drv *drv, const struct drain *work, struct drained *drained)
{
    CUresult result = drv->cu.cuCtxPushCurrent(work->context);

    note_result(drained, result);
    if (result != CUDA_SUCCESS)
        return gpu_is_gone(result); /* the event has gone with its context */
    result = drv->cu.cuEventSynchronize(work->event);
    drv->cu.cuEventDestroy(work->event);
    gpu_pop(drv);
    note_result(drained, result);
    return gpu_is_over(result);
}

/* false: the work may still go on. */
static bool
wait_work(struct caid_client *client, const struct drain *work, struct drained *drained)
{
    if (work->event)
        return wait_event(client->gpu.drv, work, drained);
    return wait_primaries(client, work->primaries, drained) &&
           (!work->context || wait_context(client, work->context, drained));
}

int
drain_wait(struct caid_client *client, struct drain *work, struct caid_error *error)
{
    struct drained drained = {0};
    const char *call = work->event ? "cuEventSynchronize" : "cuCtxSynchronize";

    wait_work(client, work, &drained);
    *work = (struct drain){0};
    return gpu_result(client->gpu.drv, call, drained.result,
                      "the work that writes the array failed", error);
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
        array->drain.kept = !wait_work(client, &array->drain, &drained);
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

    int r = push_stream(array->client, array->place, stream, &result, error);
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

/* Calls visit() with the active primary contexts of the places, and with the current one. */
static int
visit_contexts(struct caid_client *client, uint64_t places,
               int (*visit)(const struct drv *, CUcontext, struct caid_error *),
               struct caid_error *error)
{
    const struct drv *drv = gpu_opened(client);
    CUcontext primary;
    int r = 0;

    if (!drv)
        return 0;
    CUcontext current = gpu_current(drv);
    places = active_primaries(&client->gpu, places);
    for (uint32_t i = 0; r == 0 && i < client->gpu.n_devices; i++) {
        if (!(places & UINT64_C(1) << i))
            continue;
        r = gpu_context(client, i, &primary, error);
        if (r == 0)
            r = visit(drv, primary, error);
        if (r == 0 && primary == current)
            current = NULL;
    }
    return r == 0 && current ? visit(drv, current, error) : r;
}

int
drain_writes(struct caid_array *array, uint64_t stream, struct caid_error *error)
{
    if (!has_memory(array))
        return 0;
    if (stream != 0)
        return sync_stream(array, stream, error);
    return visit_contexts(array->client, UINT64_C(1) << array->place, sync_context, error);
}

/* ---- waiting for all work ---- */

static int
look_for_capture(const struct drv *drv, CUstream stream, struct caid_error *error)
{
    bool captures;
    CUresult result = gpu_captures(drv, stream, &captures);

    if (captures)
        return fail(error, CAID_ERR_INVALID, "a stream captures a graph");
    return gpu_result(drv, "cuStreamIsCapturing", result, "cannot use a stream", error);
}

/* The legacy default stream tells of all blocking ones. */
static int
check_context(const struct drv *drv, CUcontext context, struct caid_error *error)
{
    CUresult result = drv->cu.cuCtxPushCurrent(context);

    if (result != CUDA_SUCCESS)
        return gpu_result(drv, "cuCtxPushCurrent", result, "cannot use a context", error);
    int r = look_for_capture(drv, CU_STREAM_LEGACY, error);
    gpu_pop(drv);
    return r;
}

static int
sync_all(const struct drv *drv, CUcontext context, struct caid_error *error)
{
    CUresult result = gpu_synchronize(drv, context, NULL);

    if (gpu_is_capturing(result))
        return fail(error, CAID_ERR_INVALID, "a stream captured a graph, which this has ended");
    return gpu_result(drv, "cuCtxSynchronize", result, "the work before this failed", error);
}

int
drain_contexts(struct caid_client *client, uint64_t places, const uint64_t *streams,
               size_t n_streams, struct caid_error *error)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < n_streams; i++)
        if (!stream_is_special(streams[i]))
            r = look_for_capture(client->gpu.drv, (CUstream)(uintptr_t)streams[i], error);
    if (r == 0)
        r = visit_contexts(client, places, check_context, error);
    return r < 0 ? r : visit_contexts(client, places, sync_all, error);
}
