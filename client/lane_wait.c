/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a lane waits for (lane.h): enqueued, or waited for by the host, and noted until it has passed, so
 * that a fence which is lost can be told of, and pages stay that a stream still reads.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "stream.h"

/* ---- what is noted ---- */

/* A page that cannot be believed tells nothing: the stream may still wait. */
static bool
is_over(struct lane *lane, const struct fence *fence)
{
    enum fence_state state;

    if (fence_look(fence, true, &state, NULL) < 0 || state == FENCE_PENDING)
        return false;
    lane->lost |= state == FENCE_LOST && fence->data;
    return true;
}

void
lane_settle(struct lane *lane)
{
    for (size_t i = 0; i < lane->n_waits;) {
        if (!is_over(lane, &lane->waits[i])) {
            i++;
            continue;
        }
        fence_drop(&lane->waits[i]);
        lane->waits[i] = lane->waits[--lane->n_waits];
    }
}

/* Of a slot it waits for the highest value. */
static struct fence *
find_wait(struct lane *lane, const struct fence *fence)
{
    for (size_t i = 0; i < lane->n_waits; i++) {
        struct fence *wait = &lane->waits[i];
        if (wait->page == fence->page && wait->slot == fence->slot && wait->data == fence->data)
            return wait;
    }
    return NULL;
}

static int
grow_waits(struct lane *lane)
{
    size_t capacity = lane->waits_capacity * 2;
    struct fence *waits = malloc(capacity * sizeof(*waits));

    if (!waits)
        return -ENOMEM;
    memcpy(waits, lane->waits, lane->n_waits * sizeof(*waits));
    if (lane->waits != lane->few_waits)
        free(lane->waits);
    lane->waits = waits;
    lane->waits_capacity = capacity;
    return 0;
}

/* Before a wait is enqueued, so that none is that is not noted. */
static int
reserve_wait(struct lane *lane, struct caid_error *error)
{
    int r = lane->n_waits < lane->waits_capacity ? 0 : grow_waits(lane);
    return r < 0 ? fail_errno(error, -r, "no memory for what a stream waits for") : 0;
}

static void
note_wait(struct lane *lane, const struct fence *fence)
{
    struct fence *wait = find_wait(lane, fence);

    if (!wait)
        lane->waits[lane->n_waits++] = fence_ref(fence);
    else if (wait->value < fence->value)
        wait->value = fence->value;
}

/* ---- waiting ---- */

/* The stream's own comes before what it is to do next. Of a stream that is known by its handle alone nobody
 * can say that it is the same. */
static bool
is_own(const struct lane *lane, const struct fence *fence)
{
    return fence->page == lane->page && fence->slot == lane->slot && !lane->key;
}

/* What the stream cannot wait for stays: the host does. */
static int
enqueue_pending(struct caid_client *client, struct lane *lane, const struct stream *stream,
                struct fence *fence, struct caid_error *error)
{
    int r = reserve_wait(lane, error);
    if (r == 0)
        r = lane_enqueue_wait(client, lane, stream, fence, error);
    if (r == 0)
        note_wait(lane, fence);
    fence->enqueued = r == 0;
    return r < 0 ? r : 0;
}

static int
enqueue_fence(struct caid_client *client, struct lane *lane, const struct stream *stream,
              struct fence *fence, struct caid_error *error)
{
    enum fence_state state;

    if (fence->enqueued)
        return 0;
    int r = fence_look(fence, true, &state, error);
    if (r < 0 || state != FENCE_PENDING)
        return r;
    fence->enqueued = is_own(lane, fence);
    return fence->enqueued ? 0 : enqueue_pending(client, lane, stream, fence, error);
}

static int
enqueue_fences(struct caid_client *client, struct lane *lane, struct fence *fences, size_t n,
               struct caid_error *error)
{
    struct stream stream;

    lane_lock(lane);
    int r = lane_enter(client, lane, &stream, error);
    if (r == 0) {
        lane_settle(lane);
        for (size_t i = 0; r == 0 && i < n; i++)
            r = enqueue_fence(client, lane, &stream, &fences[i], error);
        stream_leave(&stream);
    }
    lane_unlock(lane);
    return r;
}

int
lane_wait(struct caid_client *client, struct lane *lane, struct fence *fences, size_t n,
          uint64_t deadline_ns, struct caid_error *error)
{
    bool lost = false;

    int r = lane && n > 0 ? enqueue_fences(client, lane, fences, n, error) : 0;
    for (size_t i = 0; r >= 0 && i < n; i++) {
        if (fences[i].enqueued)
            continue;
        r = fence_wait(&fences[i], true, deadline_ns, error);
        lost |= r > 0 && fences[i].data;
    }
    return r < 0 ? r : lost;
}

int
lane_wait_ahead(struct caid_client *client, struct lane *lane, struct fence *fence,
                struct caid_error *error)
{
    struct stream stream;
    enum fence_state state;

    int r = fence_look(fence, false, &state, error);
    if (r < 0 || state != FENCE_PENDING)
        return r < 0 ? r : state == FENCE_LOST;
    lane_lock(lane);
    r = lane_enter(client, lane, &stream, error);
    if (r == 0) {
        r = enqueue_pending(client, lane, &stream, fence, error);
        stream_leave(&stream);
    }
    lane_unlock(lane);
    return r;
}

int
lane_check(struct lane *lane, struct caid_error *error)
{
    lane_lock(lane);
    lane_settle(lane);
    bool lost = lane->lost;
    lane->lost = false;
    lane_unlock(lane);
    return lost
               ? fail(
                     error, CAID_ERR_ABANDONED,
                     "a process died before the work was done that the stream waited for: what "
                     "it has read since is not whole")
               : 0;
}
