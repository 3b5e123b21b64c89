/* SPDX-License-Identifier: Apache-2.0 */
#include "enqueue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/client.h"

static const char signalling[] = "cannot signal", waiting[] = "cannot make a stream wait";

/* ---- by stream memory operations ---- */

static int
write_value(struct caid_client *client, const struct lane *lane, const struct stream *stream,
            struct page *page, uint32_t slot, uint64_t value, struct caid_error *error)
{
    CUdeviceptr at;

    int r = page_address(client, page, slot, lane->place, &at, error);
    if (r < 0)
        return r;
    CUresult result = stream->drv->cu.cuStreamWriteValue64(stream->handle, at, value,
                                                           CU_STREAM_WRITE_VALUE_DEFAULT);
    return stream_result(client, stream, "cuStreamWriteValue64", result, signalling, error);
}

static int
wait_value(struct caid_client *client, const struct lane *lane, const struct stream *stream,
           const struct fence *fence, struct caid_error *error)
{
    CUdeviceptr at;

    int r = page_address(client, fence->page, fence->slot, lane->place, &at, error);
    if (r < 0)
        return r;
    CUresult result = stream->drv->cu.cuStreamWaitValue64(stream->handle, at, fence->value,
                                                          CU_STREAM_WAIT_VALUE_GEQ);
    return stream_result(client, stream, "cuStreamWaitValue64", result, waiting, error);
}

/* ---- by the host ---- */

/* A value that a stream is to reach, with a reference to the page. Each value has one, since values
 * need not be consecutive. The driver owns it until it calls back. If the context has died, that
 * may be after the client has gone. */
struct arrival {
    struct page *page;
    uint32_t slot;
    uint64_t value;
};

/* Called by a thread of the driver. An error is that of the context: later work fails, too. */
static void
arrive(CUstream stream UNUSED, CUresult result, void *data)
{
    struct arrival arrival = *(struct arrival *)data;
    struct timeline_slot *slot = &arrival.page->slots[arrival.slot];

    free(data);
    if (result != CUDA_SUCCESS)
        slot_kill(slot);
    else
        slot_raise(&slot->done, arrival.value);
    page_unref(arrival.page);
}

static int
add_arrival(struct caid_client *client, const struct stream *stream, struct page *page,
            uint32_t slot, uint64_t value, struct caid_error *error)
{
    struct arrival *arrival = malloc(sizeof(*arrival));

    if (!arrival)
        return fail_errno(error, ENOMEM, "no memory for a signal");
    *arrival = (struct arrival){page_ref(page), slot, value};
    CUresult result = stream->drv->cu.cuStreamAddCallback(stream->handle, arrive, arrival, 0);
    if (result != CUDA_SUCCESS) {
        free(arrival);
        page_unref(page);
    }
    return stream_result(client, stream, "cuStreamAddCallback", result, signalling, error);
}

/* ---- by events of several processes ---- */

/* Says whether the slot has an event that was recorded for every value. Waiters read this after
 * `submitted`. */
static void
publish_event(struct page *page, uint32_t slot, bool has_event)
{
    atomic_store_explicit(&page->slots[slot].has_event, has_event, memory_order_release);
}

static CUresult
make_event(const struct drv *drv, struct page *page, uint32_t slot)
{
    struct page_slot *of_slot = &page->of_slot[slot];
    CUipcEventHandle handle;
    CUevent event;

    CUresult result =
        drv->cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    if (result != CUDA_SUCCESS)
        return result;
    result = drv->cu.cuIpcGetEventHandle(&handle, event);
    if (result != CUDA_SUCCESS) {
        drv->cu.cuEventDestroy(event);
        return result;
    }
    _Static_assert(sizeof(handle) == TIMELINE_EVENT_SIZE, "a handle fits a slot");
    memcpy(page->slots[slot].event, &handle, sizeof(handle));
    of_slot->event = event;
    return CUDA_SUCCESS;
}

/* A slot that has once had no event never gets one: an event belongs to one context, and a device
 * may not support events for other processes. Then waits for the slot are on the host. Under
 * page->lock. */
static bool
record_event(const struct lane *lane, const struct stream *stream, struct page *page,
             uint32_t slot)
{
    struct page_slot *of_slot = &page->of_slot[slot];

    if (of_slot->event_context && of_slot->event_context != lane->context)
        of_slot->no_event = true;
    if (!of_slot->no_event && !of_slot->event) {
        of_slot->event_context = lane->context;
        of_slot->no_event = make_event(stream->drv, page, slot) != CUDA_SUCCESS;
    }
    return !of_slot->no_event &&
           stream->drv->cu.cuEventRecord(of_slot->event, stream->handle) == CUDA_SUCCESS;
}

static void
signal_event(const struct lane *lane, const struct stream *stream, struct page *page,
             uint32_t slot)
{
    pthread_mutex_lock(&page->lock);
    publish_event(page, slot, record_event(lane, stream, page, slot));
    pthread_mutex_unlock(&page->lock);
}

/* Opens another process's event by its handle, which is not trusted; once for each handle. Under
 * page->lock. */
static CUevent
open_event(const struct drv *drv, struct page *page, uint32_t slot)
{
    struct page_slot *of_slot = &page->of_slot[slot];
    CUipcEventHandle handle;

    memcpy(&handle, page->slots[slot].event, sizeof(handle));
    if ((of_slot->event || of_slot->no_event) &&
        memcmp(of_slot->event_handle, &handle, sizeof(handle)) == 0)
        return of_slot->event;
    if (of_slot->event)
        drv->cu.cuEventDestroy(of_slot->event);
    memcpy(of_slot->event_handle, &handle, sizeof(handle));
    of_slot->event = NULL;
    of_slot->no_event = drv->cu.cuIpcOpenEventHandle(&of_slot->event, handle) != CUDA_SUCCESS;
    if (of_slot->no_event)
        of_slot->event = NULL;
    return of_slot->event;
}

/* 1: the event cannot be opened here, for example because its process has another uid. */
static int
wait_event(struct caid_client *client, const struct stream *stream, const struct fence *fence,
           struct caid_error *error)
{
    struct page *page = fence->page;
    CUresult result = CUDA_SUCCESS;

    if (!atomic_load_explicit(&page->slots[fence->slot].has_event, memory_order_acquire))
        return 1;
    pthread_mutex_lock(&page->lock);
    CUevent event = page->own ? page->of_slot[fence->slot].event
                              : open_event(stream->drv, page, fence->slot);
    if (event)
        result = stream->drv->cu.cuStreamWaitEvent(stream->handle, event, 0);
    pthread_mutex_unlock(&page->lock);
    return event ? stream_result(client, stream, "cuStreamWaitEvent", result, waiting, error)
                 : 1;
}

/* ---- all of them ---- */

static int
signal_by(struct caid_client *client, struct lane *lane, const struct stream *stream,
          struct page *page, uint32_t slot, uint64_t value, struct caid_error *error)
{
    switch (lane->handoff) {
    case HANDOFF_MEMOPS: return write_value(client, lane, stream, page, slot, value, error);
    case HANDOFF_EVENTS:
        signal_event(lane, stream, page, slot);
        return add_arrival(client, stream, page, slot, value, error);
    default: return add_arrival(client, stream, page, slot, value, error);
    }
}

int
enqueue_signal(struct caid_client *client, struct lane *lane, const struct stream *stream,
               struct page *page, uint32_t slot, uint64_t value, struct caid_error *error)
{
    int r = signal_by(client, lane, stream, page, slot, value, error);
    if (r < 0)
        return r;
    page->of_slot[slot].context = lane->context;
    slot_raise(&page->slots[slot].submitted, value);
    timeline_wake(&page->slots[slot]);
    page_watch(client);
    return 0;
}

int
enqueue_wait(struct caid_client *client, struct lane *lane, const struct stream *stream,
             const struct fence *fence, struct caid_error *error)
{
    switch (lane->handoff) {
    case HANDOFF_MEMOPS: return wait_value(client, lane, stream, fence, error);
    case HANDOFF_EVENTS: return wait_event(client, stream, fence, error);
    default: return 1;
    }
}
