/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader gets frames. How far it has come is in the channel, under its lock:
 *
 * next      fifo: the frame to be got next; latest: the oldest that would be new. A get that takes
 *           a frame goes on to the one after it, and comes back if it fails.
 * since     latest: what comes before it does not count as missed.
 * producer  and view, told, asked: of whom it gets them (producer.c).
 * places    and let_go, doubts: what it has got (place.c).
 *
 * caid_channel_get() takes a place, looks until there is a frame, has the stream wait for that one,
 * and opens the place. To look is to ask producer_next() what there is, and to take that under the
 * same lock, so that two threads never get the same frame; where there is nothing, act() does what
 * may change that, without the lock. The thread of ready.c asks, too, and takes nothing.
 */
#include <errno.h>
#include <string.h>

#include "port.h"
#include "session/client.h"
#include "session/interrupt.h"
#include "session/options.h"

/* A call of caid_channel_get(). */
struct getting {
    struct caid_channel *channel;
    struct place *place;
    struct lane *lane;
    bool ahead;
    uint64_t deadline_ns, look_ns;
    struct pauses pauses;
    uint64_t word; /* of the frame that was found */
    struct caid_frame frame;
    uint64_t before; /* channel->next before it was taken; 0: it has not been */
};

static struct channel_reader *
own_tail(const struct caid_channel *channel)
{
    return channel_reader_of(channel->page->slots);
}

/* ---- to look ---- */

/* The frame is this call's, and none before it any more. */
static void
take(struct getting *g)
{
    struct caid_channel *channel = g->channel;
    struct channel_reader *tail = own_tail(channel);
    struct caid_frame *frame = &g->frame;

    frame->sequence = channel_sequence(g->word);
    frame->slot = channel_slot(g->word);
    frame->offset = frame->slot * channel->step;
    if (channel->latest) {
        uint64_t due = channel->next > 1 ? channel->next : channel->since;
        frame->missed = frame->sequence > due ? frame->sequence - due : 0;
    }
    g->place->sequence = frame->sequence;
    g->before = channel->next;
    channel->next = frame->sequence + 1;
    channel_store(&tail->got, frame->sequence);
    if (frame->missed)
        channel_store(&tail->missed, channel_load(&tail->missed) + frame->missed);
}

static uint64_t
next_word(const struct caid_channel *channel)
{
    return channel_word(channel->next, (uint32_t)(channel->next % channel->n_slots));
}

/* What CORE_GOT, or CORE_LAST, is about. 1: it was void, look again. */
static int
read_entry(struct getting *g, enum core_step *step, struct caid_error *error)
{
    struct caid_channel *channel = g->channel;
    uint64_t info[CHANNEL_INFO / 8] = {0};

    enum core_entry entry =
        core_entry(&channel->view, channel_sequence(g->word), channel_slot(g->word), info);
    memcpy(g->frame.info, info, sizeof(info));
    if (entry == CORE_VOID && !channel->latest) {
        channel->next++;
        *step = CORE_COMES;
        return 1;
    }
    if (entry == CORE_FRAME)
        return 0;
    if (*step != CORE_LAST)
        return fail(error, CAID_ERR_PROTOCOL,
                    "channel \"%s\": its producer has written what cannot be",
                    channel_name(channel));
    *step = CORE_CLOSED;
    return 0;
}

/* Takes what peek() has found, if it is still there. */
static int
try_take(struct getting *g, enum core_step *step, struct caid_error *error)
{
    struct caid_channel *channel = g->channel;
    int r = 0;

    g->word = next_word(channel);
    if (channel->latest)
        *step = core_secure(&channel->view, place_announcement(channel, g->place),
                            channel_waits(g->lane), channel->next, &g->word);
    if (*step == CORE_GOT || *step == CORE_LAST)
        r = read_entry(g, step, error);
    if (r == 0 && *step == CORE_GOT)
        take(g);
    return r;
}

/* fifo: gets what is not there yet. */
static void
take_ahead(struct getting *g)
{
    g->word = next_word(g->channel);
    g->place->ahead = true;
    take(g);
}

/* *ret CORE_GOT: it has taken a frame. *ret_wanted: of the frame, or what is waited for. */
static int
look(struct getting *g, enum core_step *ret, struct fence *ret_wanted, struct caid_error *error)
{
    struct caid_channel *channel = g->channel;
    uint32_t left = channel->n_slots; /* no more are void at a time */

    int r = channel_check(channel, error);
    if (r < 0)
        return r;
    *ret_wanted = (struct fence){.slot = PAGE_SLOT};
    do {
        *ret = producer_next(channel, channel_waits(g->lane), &ret_wanted->value);
        r = place_settle(channel, error);
        if (r == 0 && (*ret == CORE_GOT || *ret == CORE_LAST))
            r = try_take(g, ret, error);
    } while (r > 0 && --left > 0);
    if (r < 0)
        return r;
    if (*ret == CORE_DEAD)
        return producer_tell_death(channel, channel->producer, error);
    if (!channel->latest && *ret != CORE_GOT)
        place_pass_voids(channel);
    if (*ret == CORE_NOTHING && g->ahead) {
        take_ahead(g);
        *ret = CORE_GOT;
    }
    if (*ret == CORE_GOT || *ret == CORE_NOTHING || *ret == CORE_LAST)
        ret_wanted->page = page_ref(channel->producer);
    return 0;
}

/* ---- what may change it ---- */

/* The daemon may not know yet that this producer has ended. */
static int
pause_for(struct getting *g, struct caid_error *error)
{
    if (clock_now_ns() >= g->deadline_ns)
        return -ETIMEDOUT;
    return interrupt_pause(g->channel->client, &g->pauses, g->deadline_ns, error);
}

/* Unless another thread has got it meanwhile. */
static bool
take_last(struct getting *g)
{
    pthread_mutex_lock(&g->channel->lock);
    bool is_new = channel_sequence(g->word) >= g->channel->next;
    if (is_new)
        take(g);
    pthread_mutex_unlock(&g->channel->lock);
    return is_new;
}

/* Asks for the next producer. `last`: it has found the last frame of this one, which has closed,
 * or NULL. 1: it has got that. */
static int
rejoin(struct getting *g, const struct page *last, struct caid_error *error)
{
    const struct announced announced = {.place = g->place,
                                        .word = g->word,
                                        .producer = last,
                                        .host = channel_waits(g->lane)};
    enum answer answer;

    int r = producer_ask(g->channel, last ? &announced : NULL, g->deadline_ns, &answer, error);
    if (r < 0)
        return r;
    return answer == ANSWER_SAME ? pause_for(g, error) : answer == ANSWER_SAFE && take_last(g);
}

/* 1: it has got the frame. 0: it is to look again. */
static int
act(struct getting *g, enum core_step step, const struct fence *wanted,
    struct caid_error *error)
{
    switch (step) {
    case CORE_GOT: return 1;
    case CORE_NOTHING:
        return channel_sleep(g->channel->client, &own_tail(g->channel)->waits, wanted,
                             g->deadline_ns, &g->look_ns, error);
    case CORE_COMES: return pause_for(g, error);
    default: return rejoin(g, step == CORE_LAST ? wanted->page : NULL, error);
    }
}

/* ---- to get ---- */

/* *ret: the frame's, with a reference. */
static int
find_frame(struct getting *g, struct fence *ret, struct caid_error *error)
{
    enum core_step step;

    for (;;) {
        pthread_mutex_lock(&g->channel->lock);
        int r = look(g, &step, ret, error);
        pthread_mutex_unlock(&g->channel->lock);
        if (r == 0)
            r = act(g, step, ret, error);
        if (r > 0) {
            ret->value = g->frame.sequence;
            ret->data = true;
            return 0;
        }
        fence_drop(ret);
        if (r < 0)
            return r;
    }
}

/* Has the stream wait for the frame. 1: it is lost. */
static int
follow(const struct getting *g, struct fence *fence, struct caid_error *error)
{
    enum fence_state state = FENCE_PENDING;

    if (!g->lane) {
        int r = fence_look(fence, false, &state, error);
        return r < 0 ? r : state == FENCE_LOST;
    }
    if (g->place->ahead)
        return lane_wait_ahead(g->channel->client, g->lane, fence, error);
    return lane_wait(g->channel->client, g->lane, fence, 1, g->deadline_ns, error);
}

/* The frame is got again, if no later one has been got. */
static void
put_back(struct getting *g)
{
    struct caid_channel *channel = g->channel;
    struct channel_reader *tail = own_tail(channel);

    if (g->before && channel->next == g->frame.sequence + 1) {
        channel->next = g->before;
        channel_store(&tail->missed, channel_load(&tail->missed) - g->frame.missed);
    }
    *g->place = (struct place){.state = PLACE_ENDED};
}

static int
get(struct getting *g, struct caid_error *error)
{
    struct caid_channel *channel = g->channel;
    struct fence fence = {0};

    int r = find_frame(g, &fence, error);
    if (r == 0)
        r = follow(g, &fence, error);
    pthread_mutex_lock(&channel->lock);
    if (r > 0)
        r = producer_tell_death(channel, fence.page, error);
    if (r < 0) {
        put_back(g);
        fence_drop(&fence);
    } else {
        g->place->state = PLACE_OPEN;
        g->place->lane = g->lane;
        g->place->data = fence;
    }
    pthread_mutex_unlock(&channel->lock);
    return r;
}

static int
fail_depth(const struct caid_channel *channel, struct caid_error *error)
{
    return fail(
        error, CAID_ERR_INVALID,
        "channel \"%s\": %u frames are open, as many as this reader's depth: end %s first",
        channel_name(channel), channel->depth, channel->latest ? "one" : "the oldest");
}

static int
take_place(struct getting *g, struct caid_error *error)
{
    struct caid_channel *channel = g->channel;
    struct fence fence = {.page = channel->page, .slot = PAGE_SLOT};

    for (;;) {
        pthread_mutex_lock(&channel->lock);
        int r = channel_check(channel, error);
        g->place = r == 0 ? place_find(channel, &fence.value) : NULL;
        if (g->place)
            *g->place = (struct place){.state = PLACE_TAKEN};
        pthread_mutex_unlock(&channel->lock);
        if (g->place)
            return 0;
        if (r == 0 && fence.value == UINT64_MAX)
            r = fail_depth(channel, error);
        if (r == 0)
            r = fence_wait(channel->client, &fence, true, g->deadline_ns, error);
        if (r < 0)
            return r;
    }
}

int
get_check_reader(const struct caid_channel *channel, struct caid_error *error)
{
    if (!channel->produces)
        return 0;
    return fail(error, CAID_ERR_INVALID,
                "channel \"%s\" was created to put frames: who opens it gets them",
                channel_name(channel));
}

static int
check_get(const struct caid_channel *channel, const struct caid_frame *frame, uint32_t flags,
          struct caid_error *error)
{
    int r = CHECK_GIVEN_OF(channel, frame, error);
    if (r == 0)
        r = get_check_reader(channel, error);
    if (r == 0 && (flags & ~(uint32_t)CAID_CHANNEL_AHEAD))
        r = fail(error, CAID_ERR_INVALID, "flags 0x%x are not known", flags);
    if (r == 0 && flags && channel->latest)
        r = fail(error, CAID_ERR_INVALID,
                 "channel \"%s\" is \"latest\": it has no frame that is next",
                 channel_name(channel));
    return r;
}

int
caid_channel_get(struct caid_channel *channel, uint64_t stream, uint64_t timeout_ns,
                 uint32_t flags, struct caid_frame *ret, struct caid_error *error)
{
    struct getting g = {.channel = channel};

    int r = check_get(channel, ret, flags, error);
    if (r < 0)
        return r;
    if (stream != 0)
        r = channel_lane(channel, stream, &g.lane, error);
    if (r == 0 && g.lane)
        r = lane_check_device(g.lane, channel->array, error);
    if (r == 0) {
        g.ahead = (flags & CAID_CHANNEL_AHEAD) && g.lane && g.lane->handoff == HANDOFF_MEMOPS;
        g.deadline_ns = timeout_ns ? deadline_of(timeout_ns) : 0;
        r = take_place(&g, error);
    }
    if (r == 0)
        r = get(&g, error);
    if (r == 0)
        *ret = g.frame;
    else if (r == -ETIMEDOUT)
        r = fail(error, CAID_ERR_TIMEOUT, "channel \"%s\": no frame came in time",
                 channel_name(channel));
    ready_got(channel, !channel_waits(g.lane));
    if (r < 0 && g.lane)
        lane_put(g.lane);
    return r;
}

/* ---- what a get would wait for ---- */

static enum due
due_of_join(struct caid_channel *channel)
{
    pthread_mutex_lock(&channel->client->lock);
    bool stands = channel->join.state != CALL_IDLE, is_answered = channel->is_answered;
    pthread_mutex_unlock(&channel->client->lock);
    return is_answered ? DUE_NOW : stands ? DUE_KICK : DUE_ASK;
}

static enum due
due_of(struct caid_channel *channel, bool host)
{
    uint64_t unused;

    if (place_can_settle(channel))
        return DUE_NOW;
    switch (producer_next(channel, host, &unused)) {
    case CORE_NOTHING: return DUE_SUBMIT;
    case CORE_COMES: return DUE_LAND;
    case CORE_LAST:
    case CORE_CLOSED: return due_of_join(channel);
    default: return DUE_NOW;
    }
}

enum due
get_due(struct caid_channel *channel, bool host, uint64_t *ret_submitted)
{
    uint64_t release;

    *ret_submitted = channel->view.slot ? timeline_submitted(channel->view.slot) : 0;
    if (channel_check(channel, NULL) < 0)
        return DUE_NOW;
    if (!place_find(channel, &release))
        return release == UINT64_MAX ? DUE_KICK : DUE_LAND;
    return due_of(channel, host);
}
