/* SPDX-License-Identifier: Apache-2.0 */
/* The producer's side: it begins, commits and abandons frames. */
#include <errno.h>
#include <string.h>

#include "port.h"
#include "session/client.h"
#include "session/options.h"

static int
check_producer(const struct caid_channel *channel, struct caid_error *error)
{
    if (channel->produces)
        return 0;
    return fail(error, CAID_ERR_INVALID,
                "channel \"%s\" was opened to read: who creates it puts frames",
                channel_name(channel));
}

static int
check_stream(const struct caid_channel *channel, const struct lane *lane,
             struct caid_error *error)
{
    if (lane && channel->latest && channel->on_host)
        return fail(error, CAID_ERR_INVALID,
                    "channel \"%s\" lies in host memory: the host fills its frames",
                    channel_name(channel));
    return lane ? lane_check_device(lane, channel->array, error) : 0;
}

/* After a failure: the client's thread gives the place of a producer up whose page is dead. */
static int
tell_of_death(const struct caid_channel *channel, int r)
{
    if (r < 0 && timeline_is_dead(channel_slot_of(channel))) {
        client_enter_anyway(channel->client);
        client_leave(channel->client);
    }
    return r;
}

/* One frame is put at a time. */
static int
take_turn(struct caid_channel *channel, struct caid_error *error)
{
    pthread_mutex_lock(&channel->lock);
    int r = channel_check(channel, error);
    if (r == 0 && channel->put != PUT_NONE)
        r = fail(error, CAID_ERR_INVALID, "channel \"%s\": a frame is being put already",
                 channel_name(channel));
    if (r == 0 && channel->core.last >= CHANNEL_SEQUENCE_MAX)
        r = fail(error, CAID_ERR_LIMIT, "channel \"%s\" has no sequences left",
                 channel_name(channel));
    if (r == 0)
        channel->put = PUT_BUSY;
    pthread_mutex_unlock(&channel->lock);
    return r;
}

/* ---- fifo ---- */

/* What the frame waits for, of the readers: fences with references. The first may be of a reader
 * that has not submitted it: then *ret_waits, and there is no other. Under lock. */
static size_t
find_fences(struct caid_channel *channel, struct fence fences[CHANNEL_READERS_MAX],
            bool *ret_waits)
{
    const struct others *readers = &channel->readers;
    size_t n = 0;

    *ret_waits = false;
    for (size_t i = 0; i < readers->n && !*ret_waits; i++) {
        struct fence fence = {.page = readers->pages[i], .slot = PAGE_SLOT};
        enum core_wait wait = core_fifo_wait(&channel->core, &readers->views[i],
                                             channel->core.last + 1, &fence.value);
        if (wait == CORE_READY)
            continue;
        *ret_waits = wait == CORE_WAITING;
        if (*ret_waits)
            while (n > 0)
                fence_drop(&fences[--n]);
        fences[n++] = fence_ref(&fence);
    }
    return n;
}

/* A reader's page that says more than can be says that it has let go, too: that harms itself alone,
 * and no fence is needed. Then -EAGAIN, or -ETIMEDOUT at the deadline, in place of r. */
static int
excuse(int r, const struct fence *fences, size_t n, uint64_t deadline_ns)
{
    for (size_t i = 0; r == -EPROTO && i < n; i++)
        if (atomic_load(&fences[i].page->slots[fences[i].slot].done) >= fences[i].value)
            r = clock_now_ns() < deadline_ns ? -EAGAIN : -ETIMEDOUT;
    return r;
}

/* Waits on the host until all readers have submitted what the frame waits for. */
static int
wait_for_readers(struct caid_channel *channel, struct fence fences[CHANNEL_READERS_MAX],
                 size_t *ret_n, uint64_t deadline_ns, struct caid_error *error)
{
    uint64_t look_ns = 0;
    bool waits;

    for (;;) {
        pthread_mutex_lock(&channel->lock);
        int r = channel_check(channel, error);
        size_t n = r == 0 ? find_fences(channel, fences, &waits) : 0;
        pthread_mutex_unlock(&channel->lock);
        if (r < 0 || !waits) {
            *ret_n = n;
            return r;
        }
        r = channel_sleep(channel->client, &channel->core.table->waits, &fences[0], deadline_ns,
                          &look_ns, error);
        r = excuse(r, fences, 1, deadline_ns);
        fence_drop(&fences[0]);
        if (r < 0 && r != -EAGAIN)
            return r;
    }
}

static int
follow_readers(struct caid_channel *channel, struct lane *lane, uint64_t deadline_ns,
               struct caid_error *error)
{
    struct fence fences[CHANNEL_READERS_MAX];
    size_t n;
    int r;

    do {
        n = 0;
        r = wait_for_readers(channel, fences, &n, deadline_ns, error);
        if (r == 0)
            r = excuse(lane_wait(channel->client, lane, fences, n, deadline_ns, error), fences,
                       n, deadline_ns);
        while (n > 0)
            fence_drop(&fences[--n]);
    } while (r == -EAGAIN);
    if (r == -ETIMEDOUT)
        return fail(error, CAID_ERR_TIMEOUT,
                    "channel \"%s\": a reader did not let go of a frame in time",
                    channel_name(channel));
    return r < 0 ? r : 0;
}

/* ---- begin ---- */

/* What is done from here on comes after the last signal, which another stream may have made. */
static int
follow_last(struct caid_channel *channel, struct lane *lane, uint64_t deadline_ns,
            struct caid_error *error)
{
    struct fence last = signal_fence(channel, PAGE_SLOT);

    if (!signal_is_behind(channel, lane))
        return 0;
    int r = lane_wait(channel->client, lane, &last, 1, deadline_ns, error);
    if (r == -ETIMEDOUT)
        return fail(error, CAID_ERR_TIMEOUT,
                    "channel \"%s\": the last frame, of another stream, was not done in time",
                    channel_name(channel));
    return r < 0 ? r : 0;
}

static int
take_slot(struct caid_channel *channel, struct caid_error *error)
{
    struct core_producer *core = &channel->core;

    pthread_mutex_lock(&channel->lock);
    int slot = channel->latest
                   ? core_take_slot(core, channel->readers.views, channel->readers.n)
                   : (int)core_fifo_slot(core, core->last + 1);
    pthread_mutex_unlock(&channel->lock);
    if (slot < 0)
        return fail(error, CAID_ERR_PROTOCOL,
                    "channel \"%s\": its readers say that they use more frames than they may",
                    channel_name(channel));
    return slot;
}

/* The turn is this thread's. Returns the slot. Who waits for readers, or tries again, has made its
 * stream wait for nothing yet. */
static int
prepare(struct caid_channel *channel, struct lane *lane, uint64_t deadline_ns,
        struct caid_error *error)
{
    int r = channel->latest ? 0 : follow_readers(channel, lane, deadline_ns, error);
    if (r == 0)
        r = follow_last(channel, lane, deadline_ns, error);
    return r < 0 ? r : take_slot(channel, error);
}

static int
begin(struct caid_channel *channel, struct lane *lane, uint64_t timeout_ns,
      struct caid_frame *ret, struct caid_error *error)
{
    int r = check_stream(channel, lane, error);
    if (r == 0)
        r = take_turn(channel, error);
    if (r < 0)
        return r;
    r = prepare(channel, lane, deadline_of(timeout_ns), error);
    pthread_mutex_lock(&channel->lock);
    channel->put = r < 0 ? PUT_NONE : PUT_OPEN;
    if (r >= 0) {
        channel->slot = (uint32_t)r;
        channel->lane = lane;
        *ret = (struct caid_frame){
            .sequence = channel->core.last + 1,
            .offset = channel->slot * channel->step,
            .slot = channel->slot,
        };
    }
    pthread_mutex_unlock(&channel->lock);
    return r < 0 ? r : 0;
}

int
caid_channel_begin(struct caid_channel *channel, uint64_t stream, uint64_t timeout_ns,
                   struct caid_frame *ret, struct caid_error *error)
{
    struct lane *lane = NULL;

    int r = CHECK_GIVEN_OF(channel, ret, error);
    if (r == 0)
        r = check_producer(channel, error);
    if (r == 0 && stream != 0)
        r = channel_lane(channel, stream, &lane, error);
    if (r < 0)
        return r;
    r = begin(channel, lane, timeout_ns, ret, error);
    if (r < 0 && lane)
        lane_put(lane);
    return tell_of_death(channel, r);
}

/* ---- the end ---- */

static bool
is_waited_for(const struct caid_channel *channel)
{
    for (size_t i = 0; i < channel->readers.n; i++)
        if (channel_load(&channel->readers.views[i].tail->waits))
            return true;
    return false;
}

static int
take_open(struct caid_channel *channel, const struct caid_frame *frame,
          struct caid_error *error)
{
    if (channel->put != PUT_OPEN || frame->sequence != channel->core.last + 1)
        return fail(error, CAID_ERR_INVALID, "channel \"%s\": that frame is not being put",
                    channel_name(channel));
    channel->put = PUT_BUSY;
    return 0;
}

/* A frame whose stream cannot be used here and now stays open. Under lock, which it drops
 * meanwhile. */
static int
check_lane(struct caid_channel *channel, struct caid_error *error)
{
    struct lane *lane = channel->lane;
    struct caid_error why = {0};

    if (!lane)
        return 0;
    pthread_mutex_unlock(&channel->lock);
    lane_check_signal(channel->client, lane, &why);
    pthread_mutex_lock(&channel->lock);
    if (why.code != CAID_ERR_INVALID)
        return 0;
    channel->put = PUT_OPEN;
    return fail_again(error, &why);
}

/* Under lock. */
static void
end_turn(struct caid_channel *channel)
{
    signal_note(channel, channel->lane);
    channel->lane = NULL;
    channel->put = PUT_NONE;
}

/* Under lock, which it drops; returns without it. */
static int
commit(struct caid_channel *channel, const struct caid_frame *frame, bool is_void,
       struct caid_error *error)
{
    struct lane *lane = channel->lane;
    uint64_t info[CHANNEL_INFO / 8];
    bool wakes = false;

    memcpy(info, frame->info, sizeof(info));
    core_commit(&channel->core, channel->slot, frame->sequence, is_void, info);
    if (!lane) {
        signal_raise(channel, PAGE_SLOT, frame->sequence);
        wakes = is_waited_for(channel);
        end_turn(channel);
    }
    pthread_mutex_unlock(&channel->lock);
    if (wakes)
        timeline_wake(channel_slot_of(channel));
    if (!lane)
        return 0;
    int r = signal_value(channel, lane, NULL, 0, PAGE_SLOT, frame->sequence, error);
    pthread_mutex_lock(&channel->lock);
    end_turn(channel);
    pthread_mutex_unlock(&channel->lock);
    return r;
}

static int
end(struct caid_channel *channel, const struct caid_frame *frame, bool is_void,
    struct caid_error *error)
{
    pthread_mutex_lock(&channel->lock);
    int r = take_open(channel, frame, error);
    if (r == 0 && !is_void)
        r = check_lane(channel, error);
    if (r < 0) {
        pthread_mutex_unlock(&channel->lock);
        return r;
    }
    r = commit(channel, frame, is_void, error);
    return tell_of_death(channel, r < 0 ? r : channel_check(channel, error));
}

int
caid_channel_commit(struct caid_channel *channel, const struct caid_frame *frame,
                    struct caid_error *error)
{
    int r = CHECK_GIVEN_OF(channel, frame, error);

    return r < 0 ? r : end(channel, frame, false, error);
}

int
caid_channel_abandon(struct caid_channel *channel, const struct caid_frame *frame,
                     struct caid_error *error)
{
    int r = CHECK_GIVEN_OF(channel, frame, error);
    if (r == 0 && !channel->produces)
        return place_abandon(channel, frame->sequence, error);
    return r < 0 ? r : end(channel, frame, true, error);
}

void
put_close(struct caid_channel *channel)
{
    const struct caid_frame frame = {.sequence = channel->core.last + 1};

    if (channel->put == PUT_OPEN)
        caid_channel_abandon(channel, &frame, NULL);
    put_mark_closed(channel);
}

void
put_mark_closed(struct caid_channel *channel)
{
    if (!channel_is_broken(channel)) /* of that readers are told */
        channel_store(&channel->core.table->closed, 1);
    timeline_wake(channel_slot_of(channel));
}
