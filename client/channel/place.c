/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The places of a reader's frames, as many as its depth, and their ends: under channel->lock.
 *
 * A place that has ended is free when its `release` has been let go of: in a channel "latest" when
 * slot 0 of the own page has landed there, in "fifo" when slot 0 has been told. In "fifo" slot 0
 * says up to which sequence all frames are let go of, so that one whose end comes before that of an
 * older one is held back: till then a marker, a slot of its own, says that its stream has come to
 * its end, and the signal of slot 0 comes after that.
 */
#include <inttypes.h>

#include "port.h"
#include "session/client.h"
#include "session/options.h"

struct place *
place_find(struct caid_channel *channel, uint64_t *ret_release)
{
    uint64_t let_go = channel->latest ? channel_load(&channel_slot_of(channel)->done)
                                      : channel->let_go;

    *ret_release = UINT64_MAX;
    for (uint32_t i = 0; i < channel->depth; i++) {
        struct place *place = &channel->places[i];
        if (place->state != PLACE_ENDED)
            continue;
        if (place->release <= let_go)
            return place;
        if (channel->latest)
            *ret_release = min_u64(*ret_release, place->release);
    }
    return NULL;
}

static struct place *
find_open(struct caid_channel *channel, uint64_t sequence)
{
    for (uint32_t i = 0; i < channel->depth; i++)
        if (channel->places[i].state == PLACE_OPEN && channel->places[i].sequence == sequence)
            return &channel->places[i];
    return NULL;
}

/* ---- letting go ---- */

/* fifo: all up to this have been ended, or were void. */
static uint64_t
prefix_of(const struct caid_channel *channel)
{
    uint64_t prefix = channel->next - 1;

    for (uint32_t i = 0; i < channel->depth; i++) {
        const struct place *place = &channel->places[i];
        if (place->state != PLACE_ENDED && place->sequence && place->sequence <= prefix)
            prefix = place->sequence - 1;
    }
    return prefix;
}

static uint32_t
marker_of(const struct caid_channel *channel, const struct place *place)
{
    return PAGE_SLOT + 1 + (uint32_t)(place - channel->places);
}

/* What the next signal of slot 0 comes after: the last one, and the ends that it tells of. */
static size_t
find_before(const struct caid_channel *channel, const struct lane *lane, uint64_t value,
            struct fence ret[CHANNEL_DEPTH_MAX + 1])
{
    size_t n = 0;

    if (signal_is_behind(channel, lane))
        ret[n++] = signal_fence(channel, PAGE_SLOT);
    for (uint32_t i = 0; !channel->latest && i < channel->depth; i++) {
        const struct place *place = &channel->places[i];
        uint32_t slot = marker_of(channel, place);
        if (place->state == PLACE_ENDED && place->release > channel->let_go &&
            place->release <= value && !page_slot_has_landed(channel->page, slot))
            ret[n++] = signal_fence(channel, slot);
    }
    return n;
}

/* Lets go of all up to the value when the lane, or the host, has come to here. Takes the lane. */
static int
let_go(struct caid_channel *channel, struct lane *lane, uint64_t value,
       struct caid_error *error)
{
    struct fence before[CHANNEL_DEPTH_MAX + 1];
    size_t n = find_before(channel, lane, value, before);

    int r = signal_value(channel, lane, before, n, PAGE_SLOT, value, error);
    signal_note(channel, lane);
    channel->let_go = value;
    return r;
}

/* Takes the lane. */
static int
hold_back(struct caid_channel *channel, const struct place *place, struct lane *lane,
          struct caid_error *error)
{
    struct fence last = signal_fence(channel, marker_of(channel, place));
    bool pending = !page_slot_has_landed(channel->page, last.slot);

    if (!lane)
        return 0;
    int r = signal_value(channel, lane, &last, pending, last.slot, last.value + 1, error);
    lane_put(lane);
    return r;
}

static int
release(struct caid_channel *channel, struct place *place, struct lane *lane,
        struct caid_error *error)
{
    place->state = PLACE_ENDED;
    if (channel->latest) {
        place->release = timeline_submitted(channel_slot_of(channel)) + 1;
        return let_go(channel, lane, place->release, error);
    }
    place->release = place->sequence;
    uint64_t prefix = prefix_of(channel);
    return prefix > channel->let_go ? let_go(channel, lane, prefix, error)
                                    : hold_back(channel, place, lane, error);
}

static void
wake_producer(const struct caid_channel *channel)
{
    if (channel->view.slot && channel_load(&channel->view.table->waits))
        timeline_wake(channel_slot_of(channel));
}

void
place_pass_voids(struct caid_channel *channel)
{
    uint64_t prefix = prefix_of(channel);

    if (prefix <= channel->let_go || signal_find_wait(channel, NULL) >= 0)
        return;
    let_go(channel, NULL, prefix, NULL);
    wake_producer(channel);
}

/* ---- whether it was a frame ---- */

static int
check_given_up(const struct caid_channel *channel, uint64_t sequence, struct caid_error *error)
{
    if (!core_was_given_up(&channel->view, sequence, (uint32_t)(sequence % channel->n_slots)))
        return 0;
    return fail(error, CAID_ERR_ABANDONED,
                "channel \"%s\": frame %" PRIu64 ", which was got ahead, was given up",
                channel_name(channel), sequence);
}

bool
place_can_settle(const struct caid_channel *channel)
{
    return channel->doubts.from < channel->doubts.to && channel->view.slot &&
           timeline_submitted(channel->view.slot) >= channel->doubts.from;
}

int
place_settle(struct caid_channel *channel, struct caid_error *error)
{
    int r = 0;

    while (r == 0 && place_can_settle(channel)) {
        uint64_t sequence = channel->doubts.from++;
        const struct place *open = find_open(channel, sequence);
        if (!open || !open->ahead) /* else its end tells */
            r = check_given_up(channel, sequence, error);
    }
    return r;
}

/* It was got ahead, of the present producer. What has been told of is never among the doubts: all
 * of them come after it. */
static int
check_ahead(struct caid_channel *channel, uint64_t sequence, struct caid_error *error)
{
    struct doubts *doubts = &channel->doubts;
    bool is_there = timeline_submitted(channel->view.slot) >= sequence;

    if (is_there && (doubts->from == doubts->to || doubts->from > sequence))
        return check_given_up(channel, sequence, error);
    if (doubts->from == doubts->to)
        *doubts = (struct doubts){sequence, sequence};
    doubts->from = min_u64(doubts->from, sequence);
    if (doubts->to <= sequence)
        doubts->to = sequence + 1;
    return place_settle(channel, error);
}

/* As far as that is known. Takes the place's fence. */
static int
check_contents(struct caid_channel *channel, struct place *place, struct caid_error *error)
{
    enum fence_state state;

    int r = fence_look(&place->data, false, &state, error);
    if (r == 0 && state == FENCE_LOST)
        r = producer_tell_death(channel, place->data.page, error);
    else if (r == 0 && place->ahead && place->data.page == channel->producer) {
        place->ahead = false;
        r = check_ahead(channel, place->sequence, error);
    }
    fence_drop(&place->data);
    return r;
}

/* ---- the end ---- */

static int
fail_not_open(const struct caid_channel *channel, uint64_t sequence, struct caid_error *error)
{
    return fail(error, CAID_ERR_INVALID, "channel \"%s\": frame %" PRIu64 " is not open",
                channel_name(channel), sequence);
}

/* Drops the lock meanwhile. */
static int
wait_for_signals(struct caid_channel *channel, const struct lane *lane,
                 struct caid_error *error)
{
    int slot, r = 0;

    while (r == 0 && (slot = signal_find_wait(channel, lane)) >= 0) {
        const struct fence fence = signal_fence(channel, (uint32_t)slot);
        pthread_mutex_unlock(&channel->lock);
        r = fence_wait(channel->client, &fence, true, UINT64_MAX, error);
        pthread_mutex_lock(&channel->lock);
    }
    return r < 0 ? r : 0;
}

/* Takes the lane over. */
static int
end_place(struct caid_channel *channel, struct place *place, struct lane *lane,
          struct caid_error *error)
{
    struct lane *got_on = place->lane;

    place->lane = NULL;
    int contents = check_contents(channel, place, error);
    int r = release(channel, place, lane, contents < 0 ? NULL : error);
    if (got_on)
        lane_put(got_on);
    if (!lane)
        wake_producer(channel);
    return contents < 0 ? contents : r;
}

/* Takes the lane over. */
static int
end(struct caid_channel *channel, uint64_t sequence, struct lane *lane,
    struct caid_error *error)
{
    pthread_mutex_lock(&channel->lock);
    int r = find_open(channel, sequence) ? wait_for_signals(channel, lane, error) : 0;
    struct place *place = r == 0 ? find_open(channel, sequence) : NULL;
    if (place)
        r = end_place(channel, place, lane, error);
    else if (r == 0)
        r = fail_not_open(channel, sequence, error);
    pthread_mutex_unlock(&channel->lock);
    if (!place && lane)
        lane_put(lane);
    ready_update(channel);
    return r;
}

/* On the stream that it was got on. */
static void
end_where_got(struct caid_channel *channel, uint64_t sequence)
{
    struct lane *lane = NULL;

    pthread_mutex_lock(&channel->lock);
    const struct place *place = find_open(channel, sequence);
    if (place && place->lane) {
        lane = place->lane;
        atomic_fetch_add_explicit(&lane->refs, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&channel->lock);
    end(channel, sequence, lane, NULL);
}

/* What a stream of a dead context was to do with the frame is over. */
int
caid_channel_end(struct caid_channel *channel, const struct caid_frame *frame, uint64_t stream,
                 struct caid_error *error)
{
    struct lane *lane = NULL;
    struct caid_error why = {0};

    int r = CHECK_GIVEN_OF(channel, frame, error);
    if (r < 0)
        return r;
    if (stream != 0 && channel_lane(channel, stream, &lane, &why) < 0) {
        if (gpu_is_gone((CUresult)why.cuda_result))
            end_where_got(channel, frame->sequence);
        return fail_again(error, &why);
    }
    return end(channel, frame->sequence, lane, error);
}

int
place_abandon(struct caid_channel *channel, uint64_t sequence, struct caid_error *error)
{
    pthread_mutex_lock(&channel->lock);
    struct place *place = find_open(channel, sequence);
    if (place) {
        member_break(channel); /* before others count it as ended */
        fence_drop(&place->data);
        if (place->lane)
            lane_put(place->lane);
        *place = (struct place){.state = PLACE_ENDED, .release = UINT64_MAX};
    }
    pthread_mutex_unlock(&channel->lock);
    if (!place)
        return fail_not_open(channel, sequence, error);
    ready_update(channel);
    return channel_fail_broken(channel, error);
}

void
places_close(struct caid_channel *channel)
{
    for (uint32_t i = 0; i < channel->depth; i++)
        if (channel->places[i].state == PLACE_OPEN)
            end_where_got(channel, channel->places[i].sequence);
}
