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
is_over(struct lane *lane, const struct lane_wait *wait)
{
    enum fence_state state;

    if (fence_look(&wait->fence, true, &state, NULL) < 0 || state == FENCE_PENDING)
        return false;
    lane->lost |= state == FENCE_LOST && wait->heed;
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
        fence_drop(&lane->waits[i].fence);
        lane->waits[i] = lane->waits[--lane->n_waits];
    }
}

/* Of a slot it waits for the highest value. */
static struct lane_wait *
find_wait(struct lane *lane, const struct fence *fence, bool heed)
{
    for (size_t i = 0; i < lane->n_waits; i++) {
        struct lane_wait *wait = &lane->waits[i];
        if (wait->fence.page == fence->page && wait->fence.slot == fence->slot &&
            wait->heed == heed)
            return wait;
    }
    return NULL;
}

static int
grow_waits(struct lane *lane)
{
    size_t capacity = lane->waits_capacity * 2;
    struct lane_wait *waits = malloc(capacity * sizeof(*waits));

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
note_wait(struct lane *lane, const struct fence *fence, bool heed)
{
    struct lane_wait *wait = find_wait(lane, fence, heed);

    if (!wait)
        lane->waits[lane->n_waits++] = (struct lane_wait){fence_ref(fence), heed};
    else if (wait->fence.value < fence->value)
        wait->fence.value = fence->value;
}

/* ---- waiting ---- */

/* What waits of streams come to. */
struct outcome {
    bool lost, for_host;
};

static int
enqueue_pending(struct caid_client *client, struct lane *lane, const struct stream *stream,
                const struct fence *fence, bool heed, struct outcome *outcome,
                struct caid_error *error)
{
    if (fence->page == lane->page && fence->slot == lane->slot)
        return 0; /* the stream's own: it comes after that */
    int r = reserve_wait(lane, error);
    if (r == 0)
        r = lane_enqueue_wait(client, lane, stream, fence, error);
    if (r == 0)
        note_wait(lane, fence, heed);
    outcome->for_host |= r > 0;
    return r < 0 ? r : 0;
}

static int
enqueue_fence(struct caid_client *client, struct lane *lane, const struct stream *stream,
              const struct fence *fence, bool heed, struct outcome *outcome,
              struct caid_error *error)
{
    enum fence_state state;

    int r = fence_look(fence, true, &state, error);
    if (r < 0)
        return r;
    outcome->lost |= state == FENCE_LOST;
    return state == FENCE_PENDING
               ? enqueue_pending(client, lane, stream, fence, heed, outcome, error)
               : 0;
}

static int
enqueue_fences(struct caid_client *client, struct lane *lane, const struct fence *fences,
               size_t n, bool heed, struct outcome *outcome, struct caid_error *error)
{
    struct stream stream;

    int r = lane_enter(client, lane, &stream, error);
    if (r < 0)
        return r;
    lane_settle(lane);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = enqueue_fence(client, lane, &stream, &fences[i], heed, outcome, error);
    stream_leave(&stream);
    return r;
}

static int
wait_on_host(const struct fence *fences, size_t n, uint64_t deadline_ns, bool *lost,
             struct caid_error *error)
{
    for (size_t i = 0; i < n; i++) {
        int r = fence_wait(&fences[i], true, deadline_ns, error);
        if (r < 0)
            return r;
        *lost |= r > 0;
    }
    return 0;
}

int
lane_wait(struct caid_client *client, struct lane *lane, const struct fence *fences, size_t n,
          bool heed, uint64_t deadline_ns, struct caid_error *error)
{
    struct outcome outcome = {.for_host = !lane || lane->handoff == HANDOFF_HOST};
    int r = 0;

    if (n == 0)
        return 0;
    if (!outcome.for_host) {
        lane_lock(lane);
        r = enqueue_fences(client, lane, fences, n, heed, &outcome, error);
        lane_unlock(lane);
    }
    if (r == 0 && outcome.for_host)
        r = wait_on_host(fences, n, deadline_ns, &outcome.lost, error);
    return r < 0 ? r : outcome.lost;
}

int
lane_wait_ahead(struct caid_client *client, struct lane *lane, const struct fence *fence,
                struct caid_error *error)
{
    struct outcome outcome = {0};
    struct stream stream;
    enum fence_state state;

    int r = fence_look(fence, false, &state, error);
    if (r < 0 || state != FENCE_PENDING)
        return r < 0 ? r : state == FENCE_LOST;
    lane_lock(lane);
    r = lane_enter(client, lane, &stream, error);
    if (r == 0) {
        pthread_mutex_lock(&client->pages.quiet);
        r = enqueue_pending(client, lane, &stream, fence, true, &outcome, error);
        pthread_mutex_unlock(&client->pages.quiet);
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
