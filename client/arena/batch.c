/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: freed memory, from the queue until the GPU's work with it is done. */
#include <errno.h>
#include <stdlib.h>

#include "arena.h"
#include "session/client.h"

/* While so many batches drain, freed memory stays pending. */
#define N_BATCHES_MAX 32

/* The driver is open as soon as there is a block, and so an allocation or a batch. */
static const struct drv *
arena_drv(const struct caid_arena *arena)
{
    return arena->client->gpu.drv;
}

/* ---- batches ---- */

/* Not CU_EVENT_BLOCKING_SYNC: when 56 such events of a context are recorded and have not passed,
 * the next record blocks for ever while a stream waits for the host. 20,000 other events did not
 * (measured, H200). The price: a wait for one polls all the time. */
static CUresult
create_event(const struct caid_arena *arena, CUevent *ret)
{
    const struct drv *drv = arena_drv(arena);

    CUresult result = drv->cu.cuCtxPushCurrent(arena->context);
    if (result != CUDA_SUCCESS)
        return result;
    result = drv->cu.cuEventCreate(ret, CU_EVENT_DISABLE_TIMING);
    gpu_pop(drv);
    return result;
}

/* A batch that is in no list. NULL: *ret_result says why. */
static struct batch *
batch_new(struct caid_arena *arena, CUresult *ret_result)
{
    struct batch *batch = TAILQ_FIRST(&arena->spare_batches);

    *ret_result = CUDA_SUCCESS;
    if (batch) {
        TAILQ_REMOVE(&arena->spare_batches, batch, link);
        return batch;
    }
    batch = calloc(1, sizeof(*batch));
    if (!batch) {
        *ret_result = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    STAILQ_INIT(&batch->allocations);
    if (!arena->blind)
        *ret_result = create_event(arena, &batch->event);
    if (*ret_result != CUDA_SUCCESS) {
        free(batch);
        return NULL;
    }
    return batch;
}

static void
put_away(struct caid_arena *arena, struct batch *batch)
{
    batch->done = false;
    TAILQ_INSERT_TAIL(&arena->spare_batches, batch, link);
}

static void
destroy_batch(const struct caid_arena *arena, struct batch *batch)
{
    if (batch->event)
        arena_drv(arena)->cu.cuEventDestroy(batch->event);
    free(batch);
}

/* The first batch of the list is done. */
static void
finish(struct caid_arena *arena, struct batch *batch)
{
    struct allocation *allocation;

    TAILQ_REMOVE(&arena->batches, batch, link);
    arena->n_batches--;
    arena->draining -= batch->n;
    arena->draining_bytes -= batch->bytes;
    batch->n = batch->bytes = 0;
    while ((allocation = STAILQ_FIRST(&batch->allocations))) {
        STAILQ_REMOVE_HEAD(&batch->allocations, batched);
        arena_reclaim(allocation);
    }
    if (batch->n_waiting > 0)
        batch->done = true;
    else
        put_away(arena, batch);
}

/* ---- flushing ---- */

bool
arena_has_pending(const struct caid_arena *arena)
{
    return arena->freed.n > arena->freed.n_deferred;
}

/* The last batch, if it is blind and no thread waits for it: such a thread would not wait for
 * memory that is added. */
static struct batch *
open_batch(const struct caid_arena *arena)
{
    struct batch *last = TAILQ_LAST(&arena->batches, batch_list);

    return last && !last->event && last->n_waiting == 0 ? last : NULL;
}

/* Records the batch's event: it covers all work that the context has by now. */
static CUresult
record(struct caid_arena *arena, struct batch *batch)
{
    const struct drv *drv = arena_drv(arena);
    CUresult result;

    if (!batch->event)
        return CUDA_SUCCESS;
    result = drv->cu.cuCtxRecordEvent(arena->context, batch->event);
    if (result != CUDA_ERROR_NOT_FOUND) /* the driver lacks the call */
        return result;
    drv->cu.cuEventDestroy(batch->event);
    batch->event = NULL;
    arena->blind = true;
    return CUDA_SUCCESS;
}

static void
fill_batch(struct caid_arena *arena, struct batch *batch)
{
    struct dealloc_entry *entry;

    dealloc_begin(&arena->freed);
    while ((entry = dealloc_next(&arena->freed))) {
        struct allocation *allocation = container_of(entry, struct allocation, entry);
        batch->n++;
        batch->bytes += entry->bytes;
        arena->draining++;
        arena->draining_bytes += entry->bytes;
        dealloc_done(&arena->freed, entry->bytes, 0);
        STAILQ_INSERT_TAIL(&batch->allocations, allocation, batched);
    }
}

/* The context is gone with all its work: all freed memory can be used again. */
static void
reclaim_all(struct caid_arena *arena)
{
    struct dealloc_entry *entry;
    struct batch *batch;

    while ((batch = TAILQ_FIRST(&arena->batches)))
        finish(arena, batch);
    dealloc_begin(&arena->freed);
    while ((entry = dealloc_next(&arena->freed))) {
        uint64_t bytes = entry->bytes;
        arena_reclaim(container_of(entry, struct allocation, entry));
        dealloc_done(&arena->freed, bytes, 0);
    }
}

/* ---- captures ---- */

/* The calling thread's: caid_arena_work_on(). */
static _Thread_local uint64_t work_stream;

uint64_t
caid_arena_work_on(uint64_t stream)
{
    uint64_t before = work_stream;

    work_stream = stream;
    return before;
}

/* Threads are numbered from 1 on, and no number is used again. */
static uint64_t
thread_number(void)
{
    static _Atomic uint64_t last;
    static _Thread_local uint64_t own;

    if (!own)
        own = ++last;
    return own;
}

struct arena_lane
arena_lane(const struct caid_arena *arena)
{
    const struct drv *drv = arena_drv(arena);
    CUstream stream = work_stream ? (CUstream)(uintptr_t)work_stream : CU_STREAM_LEGACY;
    unsigned long long id = 0;
    bool captures = true;

    if (drv)
        gpu_captures(drv, stream, &captures);
    if (captures || drv->cu.cuStreamGetId(stream, &id) != CUDA_SUCCESS)
        return (struct arena_lane){0};
    return (struct arena_lane){.stream = id + 1,
                               .thread = work_stream <= 2 ? thread_number() : 0};
}

/* Whether a graph is known to be captured: by the thread's stream, or by a blocking one. */
static bool
is_capturing(const struct caid_arena *arena)
{
    const struct drv *drv = arena_drv(arena);
    bool pushed = gpu_current(drv) != arena->context, captures = false;

    if (pushed && drv->cu.cuCtxPushCurrent(arena->context) != CUDA_SUCCESS)
        return false;
    if (work_stream)
        gpu_captures(drv, (CUstream)(uintptr_t)work_stream, &captures);
    if (!captures)
        gpu_captures(drv, CU_STREAM_LEGACY, &captures);
    if (pushed)
        gpu_pop(drv);
    return captures;
}

/* ---- sending ---- */

static int
fail_batch(const struct caid_arena *arena, const char *call, CUresult result, const char *doing,
           struct caid_error *error)
{
    if (!error) /* formatting the text would take longer than the flush */
        return -EIO;
    return gpu_result(arena_drv(arena), call, result, doing, error);
}

/* Puts all pending memory into the batch, which is in no list yet. */
static CUresult
send_batch(struct caid_arena *arena, struct batch *batch)
{
    CUresult result = record(arena, batch);

    if (result != CUDA_SUCCESS) {
        put_away(arena, batch);
        return result;
    }
    TAILQ_INSERT_TAIL(&arena->batches, batch, link);
    arena->n_batches++;
    arena->kick |= !arena->ticking;
    fill_batch(arena, batch);
    return CUDA_SUCCESS;
}

int
arena_flush(struct caid_arena *arena, struct caid_error *error)
{
    struct batch *batch = open_batch(arena);
    CUresult result;

    if (!arena_has_pending(arena))
        return 0;
    if (batch) {
        fill_batch(arena, batch);
        return 0;
    }
    if (arena->n_batches >= N_BATCHES_MAX)
        arena_poll(arena);
    if (arena->n_batches >= N_BATCHES_MAX || is_capturing(arena))
        return 0;
    batch = batch_new(arena, &result);
    if (batch)
        result = send_batch(arena, batch);
    if (gpu_is_gone(result))
        reclaim_all(arena);
    else if (result != CUDA_SUCCESS)
        return fail_batch(arena, batch ? "cuCtxRecordEvent" : "cuEventCreate", result,
                          "cannot tell when the GPU is done with what was freed", error);
    return 0;
}

/* ---- asking, waiting ---- */

void
arena_poll(struct caid_arena *arena)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct batch *batch = TAILQ_FIRST(&arena->batches);

    if (!batch || !batch->event)
        return;
    const struct drv *drv = arena_drv(arena);
    CUresult result = drv->cu.cuThreadExchangeStreamCaptureMode(&mode);
    for (; batch && batch->event; batch = TAILQ_FIRST(&arena->batches)) {
        if (!gpu_is_over(drv->cu.cuEventQuery(batch->event)))
            break;
        finish(arena, batch);
    }
    if (result == CUDA_SUCCESS)
        drv->cu.cuThreadExchangeStreamCaptureMode(&mode);
}

/* Ends that batch and all before it. */
static void
finish_until(struct caid_arena *arena, const struct batch *last)
{
    struct batch *batch;

    do {
        batch = TAILQ_FIRST(&arena->batches);
        finish(arena, batch);
    } while (batch != last);
}

int
arena_wait(struct caid_arena *arena, struct caid_error *error)
{
    struct batch *batch = TAILQ_LAST(&arena->batches, batch_list);

    if (!batch)
        return 0;
    CUevent event = batch->event;
    CUcontext context = arena->context;
    batch->n_waiting++;
    bool forbidden = !event && is_capturing(arena);
    arena_unlock(arena);
    CUresult result = forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                : gpu_synchronize(arena_drv(arena), context, event);
    arena_lock(arena);
    if (!batch->done && !event && gpu_is_over(result))
        finish_until(arena, batch);
    arena_poll(arena);
    bool done = batch->done;
    if (--batch->n_waiting == 0 && done)
        put_away(arena, batch);
    if (done || gpu_is_over(result))
        return 0;
    return fail_batch(arena, event ? "cuEventSynchronize" : "cuCtxSynchronize", result,
                      "cannot wait until the GPU is done with what was freed", error);
}

void
arena_free_batches(struct caid_arena *arena)
{
    bool crossed = fork_guard_crossed(&arena->client->guard);
    struct batch *batch;

    TAILQ_CONCAT(&arena->spare_batches, &arena->batches, link);
    while ((batch = TAILQ_FIRST(&arena->spare_batches))) {
        TAILQ_REMOVE(&arena->spare_batches, batch, link);
        if (crossed)
            free(batch);
        else
            destroy_batch(arena, batch);
    }
}
