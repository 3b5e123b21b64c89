/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events, of this process or of another one. An event belongs to the primary context of a device,
 * and holds the client, so that the context lives as long as the event; or (CUDA_EVENT_OF_STREAM)
 * to the context of the stream that it is first recorded on. No daemon is asked.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "cuda/local.h"
#include "session/client.h"
#include "session/interrupt.h"
#include "session/stream.h"

#define KINDS     (CUDA_EVENT_IPC | CUDA_EVENT_OF_STREAM | CUDA_EVENT_TIMING) /* one at most */
#define FLAGS_ALL (KINDS | CUDA_EVENT_BLOCKING_SYNC)

_Static_assert(CUDA_EVENT_HANDLE_SIZE == sizeof(CUipcEventHandle),
               "local.h and the driver differ");

struct cuda_event {
    struct caid_client *client;
    int32_t device; /* index */
    uint32_t flags;
    CUcontext context;      /* set before event */
    _Atomic(CUevent) event; /* NULL: the first record makes it */
    bool has_handle;        /* other processes can open it */
};

/* ---- life ---- */

static struct cuda_event *
event_new(struct caid_client *client, int32_t device)
{
    struct cuda_event *event = calloc(1, sizeof(*event));

    if (!event)
        return NULL;
    event->client = client_ref(client);
    event->device = device;
    return event;
}

static void
event_free(struct cuda_event *event)
{
    client_unref(event->client);
    free(event);
}

/* Makes the event in the context that is current. */
static CUresult
event_make(struct cuda_event *event, const struct drv *drv, CUcontext context)
{
    unsigned int cuda_flags = event->flags & CUDA_EVENT_TIMING ? 0 : CU_EVENT_DISABLE_TIMING;
    CUevent made;

    if (event->flags & CUDA_EVENT_IPC)
        cuda_flags |= CU_EVENT_INTERPROCESS;
    if (event->flags & CUDA_EVENT_BLOCKING_SYNC)
        cuda_flags |= CU_EVENT_BLOCKING_SYNC;
    CUresult result = drv->cu.cuEventCreate(&made, cuda_flags);
    if (result != CUDA_SUCCESS)
        return result;
    event->has_handle = event->flags & CUDA_EVENT_IPC;
    event->context = context;
    atomic_store_explicit(&event->event, made, memory_order_release);
    return CUDA_SUCCESS;
}

static CUresult
event_adopt(struct cuda_event *event, const struct drv *drv, CUcontext context,
            const uint8_t *handle)
{
    CUipcEventHandle given;
    CUevent opened;

    memcpy(&given, handle, sizeof(given));
    CUresult result = drv->cu.cuIpcOpenEventHandle(&opened, given);
    if (result != CUDA_SUCCESS)
        return result;
    event->context = context;
    atomic_store_explicit(&event->event, opened, memory_order_release);
    return CUDA_SUCCESS;
}

static int
event_begin(struct cuda_event *event, const uint8_t *handle, struct caid_error *error)
{
    struct caid_client *client = event->client;
    const struct drv *drv = NULL;
    CUcontext context;

    int r = gpu_push(client, event->device, &drv, error);
    if (r < 0)
        return r;
    CUresult result = drv->cu.cuCtxGetCurrent(&context);
    const char *call = "cuCtxGetCurrent";
    if (result == CUDA_SUCCESS) {
        call = handle ? "cuIpcOpenEventHandle" : "cuEventCreate";
        result = handle ? event_adopt(event, drv, context, handle)
                        : event_make(event, drv, context);
    }
    gpu_pop(drv);
    return gpu_result(drv, call, result,
                      handle ? "cannot open another process's event" : "cannot make an event",
                      error);
}

/* Makes an event; opens another process's, where a handle is given. */
static int
event_get(struct caid_client *client, struct cuda_event **ret, int32_t device, uint32_t flags,
          const uint8_t *handle, struct caid_error *error)
{
    struct cuda_event *event = event_new(client, device);
    uint32_t place;

    if (!event)
        return fail_errno(error, ENOMEM, "no memory for an event");
    event->flags = flags;
    int r = flags & CUDA_EVENT_OF_STREAM /* made later: only the device is checked */
                ? gpu_find_place(client, device, NULL, &place, error)
                : event_begin(event, handle, error);
    if (r < 0)
        event_free(event);
    else
        *ret = event;
    return r;
}

int
cuda_event_new(struct caid_client *client, struct cuda_event **ret, int32_t device,
               uint32_t flags, struct caid_error *error)
{
    int r = client_check_given(client, ret, "ret", error);
    if (r == 0 && (flags & ~(uint32_t)FLAGS_ALL))
        r = fail(error, CAID_ERR_INVALID, "flags %#x: unknown here",
                 flags & ~(uint32_t)FLAGS_ALL);
    if (r == 0 && __builtin_popcount(flags & KINDS) > 1)
        r = fail(error, CAID_ERR_INVALID,
                 "an event has a handle for other processes, or timing, or is of a stream");
    return r < 0 ? r : event_get(client, ret, device, flags, NULL, error);
}

int
cuda_event_open(struct caid_client *client, struct cuda_event **ret, int32_t device,
                const uint8_t handle[CUDA_EVENT_HANDLE_SIZE], struct caid_error *error)
{
    int r = client_check_given(client, ret && handle, ret ? "handle" : "ret", error);
    return r < 0 ? r : event_get(client, ret, device, 0, handle, error);
}

/* The driver's event; NULL where it was not recorded yet. */
static CUevent
event_get_made(const struct cuda_event *event)
{
    return atomic_load_explicit(&event->event, memory_order_acquire);
}

/* Makes the context of an event that exists current, until gpu_pop(). */
static int
event_push_context(const struct cuda_event *event, const struct drv **ret,
                   struct caid_error *error)
{
    return gpu_push_context(event->client, event->context, "cannot use an event's context", ret,
                            error);
}

void
cuda_event_free(struct cuda_event *event)
{
    const struct drv *drv = NULL;

    if (!event)
        return;
    CUevent made = event_get_made(event);
    if (made && !fork_guard_crossed(&event->client->guard) &&
        event_push_context(event, &drv, NULL) == 0) {
        drv->cu.cuEventDestroy(made);
        gpu_pop(drv);
    }
    event_free(event);
}

/* ---- use ---- */

/* An event outlives its client's handle, but is of no use then. */
static int
event_check(const struct cuda_event *event, struct caid_error *error)
{
    if (!event)
        return fail(error, CAID_ERR_INVALID, "event is NULL");
    struct caid_client *client = event->client;
    int r = client_check(client, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&client->lock);
    bool closed = client->handle_closed;
    pthread_mutex_unlock(&client->lock);
    return closed ? fail(error, CAID_ERR_CLOSED, "%s: the event's client is closed",
                         client->socket)
                  : 0;
}

/* Checks, and makes the event's context current until gpu_pop(). *ret_made is NULL, and no
 * context current, where the event was not recorded yet. */
static int
event_push(const struct cuda_event *event, CUevent *ret_made, const struct drv **ret,
           struct caid_error *error)
{
    int r = event_check(event, error);
    if (r < 0)
        return r;
    *ret_made = event_get_made(event);
    return *ret_made ? event_push_context(event, ret, error) : 0;
}

/* Checks, and makes the stream's context current until stream_leave(). A stream that captures a
 * graph is refused: its events are a part of the graph, and nobody else can wait for them. */
static int
event_enter(const struct cuda_event *event, uint64_t stream, struct stream *ret,
            struct caid_error *error)
{
    int r = event_check(event, error);
    return r < 0 ? r : stream_enter(event->client, stream, event->device, ret, error);
}

static int
event_leave(const struct cuda_event *event, const struct stream *stream, const char *call,
            CUresult result, const char *doing, struct caid_error *error)
{
    int r = stream_result(event->client, stream, call, result, doing, error);
    stream_leave(stream);
    return r;
}

/* Gives the event. The first thread that asks makes it, in the context of the stream. */
static CUresult
event_made_on(struct cuda_event *event, const struct stream *stream, CUevent *ret)
{
    CUresult result = CUDA_SUCCESS;

    *ret = event_get_made(event);
    if (*ret)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&event->client->gpu.lock);
    if (!event_get_made(event))
        result = event_make(event, stream->drv, stream->context);
    pthread_mutex_unlock(&event->client->gpu.lock);
    *ret = event_get_made(event);
    return result;
}

int
cuda_event_record(struct cuda_event *event, uint64_t stream, struct caid_error *error)
{
    struct stream entered;
    CUevent made;

    int r = event_enter(event, stream, &entered, error);
    if (r < 0)
        return r;
    CUresult result = event_made_on(event, &entered, &made);
    if (result != CUDA_SUCCESS)
        return event_leave(event, &entered, "cuEventCreate", result, "cannot make an event",
                           error);
    if (entered.context != event->context) {
        stream_leave(&entered);
        return fail(error, CAID_ERR_DEVICE,
                    "the event is of another context than the stream (device %d)",
                    event->device);
    }
    result = entered.drv->cu.cuEventRecord(made, entered.handle);
    return event_leave(event, &entered, "cuEventRecord", result, "cannot record an event",
                       error);
}

int
cuda_event_wait(struct cuda_event *event, uint64_t stream, struct caid_error *error)
{
    struct stream entered;

    int r = event_enter(event, stream, &entered, error);
    if (r < 0)
        return r;
    CUevent made = event_get_made(event);
    CUresult result = made ? entered.drv->cu.cuStreamWaitEvent(entered.handle, made, 0)
                           : CUDA_SUCCESS;
    return event_leave(event, &entered, "cuStreamWaitEvent", result,
                       "cannot make a stream wait for an event", error);
}

int
cuda_event_synchronize(struct cuda_event *event, struct caid_error *error)
{
    const struct drv *drv = NULL;
    CUevent made;

    int r = event_push(event, &made, &drv, error);
    if (r < 0 || !made)
        return r;
    struct pauses pauses = {0};
    CUresult result = CUDA_SUCCESS;
    while (event->client->interrupted && r == 0 &&
           drv->cu.cuEventQuery(made) == CUDA_ERROR_NOT_READY)
        r = interrupt_pause(event->client, &pauses, UINT64_MAX, error);
    if (r == 0)
        result = drv->cu.cuEventSynchronize(made);
    gpu_pop(drv);
    if (r < 0)
        return r;
    return gpu_result(drv, "cuEventSynchronize", result, "cannot wait for an event", error);
}

int
cuda_event_query(struct cuda_event *event, struct caid_error *error)
{
    const struct drv *drv = NULL;
    CUevent made;

    int r = event_push(event, &made, &drv, error);
    if (r < 0 || !made)
        return r < 0 ? r : 1;
    int mode = gpu_relax(drv);
    CUresult result = drv->cu.cuEventQuery(made);
    gpu_unrelax(drv, mode);
    gpu_pop(drv);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)
        return result == CUDA_SUCCESS;
    return gpu_result(drv, "cuEventQuery", result, "cannot ask for an event", error);
}

int
cuda_event_ipc_handle(struct cuda_event *event, uint8_t ret[CUDA_EVENT_HANDLE_SIZE],
                      struct caid_error *error)
{
    CUipcEventHandle handle;
    const struct drv *drv = NULL;

    if (event && !ret)
        return fail(error, CAID_ERR_INVALID, "ret is NULL");
    int r = event_check(event, error);
    if (r == 0 && !event->has_handle)
        r = fail(error, CAID_ERR_UNSUPPORTED,
                 "only events that were made with CUDA_EVENT_IPC have a handle");
    if (r == 0)
        r = gpu_push(event->client, event->device, &drv, error);
    if (r < 0)
        return r;
    CUresult result = drv->cu.cuIpcGetEventHandle(&handle, event_get_made(event));
    gpu_pop(drv);
    if (result == CUDA_SUCCESS)
        memcpy(ret, &handle, sizeof(handle));
    return gpu_result(drv, "cuIpcGetEventHandle", result, "cannot make an event's handle",
                      error);
}

int
cuda_event_elapsed(const struct cuda_event *start, const struct cuda_event *end, float *ret_ms,
                   struct caid_error *error)
{
    const struct drv *drv = NULL;

    int r = event_check(start, error);
    if (r == 0)
        r = event_check(end, error);
    if (r == 0 && !(start->flags & end->flags & CUDA_EVENT_TIMING))
        r = fail(error, CAID_ERR_INVALID, "only events with timing measure the time");
    if (r == 0)
        r = event_push_context(start, &drv, error);
    if (r < 0)
        return r;
    CUresult result =
        drv->cu.cuEventElapsedTime(ret_ms, event_get_made(start), event_get_made(end));
    gpu_pop(drv);
    return gpu_result(drv, "cuEventElapsedTime", result,
                      "cannot measure the time between events", error);
}

uint64_t
cuda_event_handle(const struct cuda_event *event)
{
    return event ? (uintptr_t)event_get_made(event) : 0;
}
