/* SPDX-License-Identifier: Apache-2.0 */
/* A reader's side: it gets frames and lets go of them. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "port.h"
#include "session/client.h"
#include "session/interrupt.h"
#include "session/options.h"

/* Another thread asks for the next producer. */
#define TURN_NS NSEC_PER_MSEC

/* A call of caid_channel_get(). */
struct getting {
    struct caid_channel *channel;
    uint32_t i; /* of its place */
    struct lane *lane;
    bool ahead;
    uint64_t deadline_ns;
    struct pauses pauses;
    uint64_t word; /* STEP_LAST: of the frame */
    struct caid_frame frame;
    uint64_t before; /* channel->next before it; 0: it has none */
};

enum step {
    STEP_GOT,
    STEP_NOTHING, /* until `wanted` is submitted */
    STEP_POLL,    /* it is submitted, and has to land; or it moves */
    STEP_VOID,    /* fifo: that one was given up */
    STEP_LAST,    /* latest: announced, but the producer has closed: to be secured */
    STEP_DEAD,    /* the reader is to be told */
    STEP_ENDED,   /* there is no producer, or no longer */
    STEP_BROKEN,
};

static struct channel_reader *
own_tail(const struct caid_channel *channel)
{
    return channel_reader_of(channel->page->slots);
}

static struct channel_announcement *
announcement_of(const struct getting *g)
{
    return &own_tail(g->channel)->announcements[g->i];
}

/* ---- producers ---- */

/* The one before has ended: its frames that were not got are with the next one, or nowhere. Takes
 * the reference. */
static void
take_producer(struct caid_channel *channel, struct page *page, uint64_t counted)
{
    if (channel->producer != page)
        channel->told = false;
    if (channel->producer)
        page_unref(channel->producer);
    channel->producer = page;
    channel->view = (struct core_view){
        .slot = page ? &page->slots[PAGE_SLOT] : NULL,
        .table = page ? channel_table_of(page->slots) : NULL,
        .n_slots = channel->n_slots,
    };
    if (channel->since || !counted)
        return;
    channel->since = counted;
    channel->let_go = counted - 1;
    if (!channel->latest)
        channel->next = counted;
}

/* JOIN is answered, for which they were announced. */
static void
forget_asked(struct caid_channel *channel)
{
    for (uint32_t i = 0; i < channel->depth; i++) {
        struct place *place = &channel->places[i];
        if (place->asked && place->state == PLACE_FREE)
            core_retract(&own_tail(channel)->announcements[i]);
        place->asked = 0;
    }
}

void
get_begin(struct caid_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    pthread_mutex_lock(&channel->client->lock);
    struct page *page = channel->joined;
    uint64_t counted = channel->counted;
    channel->joined = NULL;
    channel->is_answered = false;
    forget_asked(channel);
    pthread_mutex_unlock(&channel->client->lock);
    take_producer(channel, page, counted);
    pthread_mutex_unlock(&channel->lock);
}

/* The daemon may not know yet that this producer has ended. */
static int
pause_for(struct getting *g, struct caid_error *error)
{
    if (clock_now_ns() >= g->deadline_ns)
        return -ETIMEDOUT;
    return interrupt_pause(g->channel->client, &g->pauses, g->deadline_ns, error);
}

/* Whether JOIN's answer names the producer that is known already. */
static bool
is_same(struct caid_channel *channel, bool *ret_none)
{
    pthread_mutex_lock(&channel->client->lock);
    bool same = channel->joined && channel->joined == channel->producer;
    *ret_none = !channel->joined && channel->producer &&
                channel->former == channel->producer->id;
    pthread_mutex_unlock(&channel->client->lock);
    return same;
}

/* Asks for a producer: for the next one, which it waits for, or what the daemon knows now. */
static int
ask(struct getting *g, bool wait, bool *ret_none, struct caid_error *error)
{
    struct caid_channel *channel = g->channel;

    int r = member_join(channel, wait, g->deadline_ns, error);
    if (r < 0)
        return r;
    bool same = is_same(channel, ret_none);
    get_begin(channel);
    return same ? pause_for(g, error) : 0;
}

static bool
has_closed(const struct caid_channel *channel)
{
    return channel_load(&channel->view.table->closed);
}

/* ---- what there is ---- */

static void
fill(struct getting *g, uint64_t sequence, uint32_t slot)
{
    struct caid_channel *channel = g->channel;
    struct channel_reader *tail = own_tail(channel);
    struct place *place = &channel->places[g->i];

    g->frame.sequence = sequence;
    g->frame.slot = slot;
    g->frame.offset = slot * channel->step;
    g->frame.missed = 0;
    place->sequence = sequence;
    if (channel->latest) {
        uint64_t due = channel->next > 1 ? channel->next : channel->since;
        g->frame.missed = sequence > due ? sequence - due : 0;
    }
    g->before = channel->next;
    channel->next = sequence + 1;
    channel_store(&tail->got, sequence);
    if (g->frame.missed)
        channel_store(&tail->missed, channel_load(&tail->missed) + g->frame.missed);
}

static enum core_entry
read_entry(const struct caid_channel *channel, uint64_t sequence, uint32_t slot, void *info)
{
    uint64_t words[CHANNEL_INFO / 8] = {0};
    enum core_entry entry = core_entry(&channel->view, sequence, slot, words);

    memcpy(info, words, sizeof(words));
    return entry;
}

/* A frame that is newest may not have been submitted yet, which a stream could not wait for. */
static enum step
check_latest(struct getting *g, uint64_t word, bool ended)
{
    struct caid_channel *channel = g->channel;
    uint64_t sequence = channel_sequence(word);

    if (ended && !has_closed(channel))
        return STEP_DEAD;
    if (timeline_submitted(channel->view.slot) < sequence)
        return STEP_NOTHING;
    if (read_entry(channel, sequence, channel_slot(word), g->frame.info) != CORE_FRAME)
        return ended ? STEP_ENDED : STEP_BROKEN;
    return ended ? STEP_LAST : STEP_GOT;
}

static enum step
take_latest(struct getting *g)
{
    struct caid_channel *channel = g->channel;
    struct channel_announcement *a = announcement_of(g);

    enum core_look look =
        core_announce(&channel->view, a, channel_waits(g->lane), channel->next - 1, &g->word);
    if (look != CORE_SECURED && look != CORE_ENDED)
        return STEP_POLL;
    enum step step = check_latest(g, g->word, look == CORE_ENDED);
    if (step == STEP_GOT)
        fill(g, channel_sequence(g->word), channel_slot(g->word));
    else if (step != STEP_LAST)
        core_retract(a);
    return step;
}

static enum step
peek_latest(const struct caid_channel *channel, bool host, uint64_t *ret_wanted)
{
    const struct core_view *view = &channel->view;
    bool closed = has_closed(channel), dead = timeline_is_dead(view->slot);
    uint64_t submitted = timeline_submitted(view->slot);
    uint64_t word = core_newer(view, host, channel->next - 1);

    *ret_wanted = submitted + 1;
    if (dead && !closed)
        return STEP_DEAD;
    if (word)
        return channel_sequence(word) <= submitted ? STEP_GOT : STEP_NOTHING;
    if (channel_sequence(channel_load(&view->table->newest)) >= channel->next)
        return STEP_POLL;
    return closed ? STEP_ENDED : STEP_NOTHING;
}

/* All up to this have been ended, or were void. */
static uint64_t
prefix_of(const struct caid_channel *channel)
{
    uint64_t prefix = channel->next - 1;

    for (uint32_t i = 0; i < channel->depth; i++) {
        const struct place *place = &channel->places[i];
        if (place->state == PLACE_OPEN && place->sequence <= prefix)
            prefix = place->sequence - 1;
    }
    return prefix;
}

static void
free_up_to(struct caid_channel *channel, uint64_t prefix)
{
    channel->let_go = prefix;
    for (uint32_t i = 0; i < channel->depth; i++) {
        struct place *place = &channel->places[i];
        if (place->state == PLACE_ENDED && place->sequence <= prefix)
            place->state = PLACE_FREE;
    }
}

/* Lets go of what was void, so that the producer does not wait for it. If a stream is still to
 * signal, the next end does. */
static void
pass_voids(struct caid_channel *channel)
{
    uint64_t prefix = prefix_of(channel);

    if (prefix <= channel->let_go || signal_find_wait(channel, NULL) >= 0)
        return;
    signal_raise(channel, PAGE_SLOT, prefix);
    free_up_to(channel, prefix);
    timeline_wake(channel_slot_of(channel));
}

static void
take_fifo(struct getting *g)
{
    fill(g, g->channel->next, (uint32_t)(g->channel->next % g->channel->n_slots));
    /* open from now on: it holds back what comes after it */
    g->channel->places[g->i].state = PLACE_OPEN;
}

static enum step
take_next(struct getting *g)
{
    struct caid_channel *channel = g->channel;
    uint32_t slot = (uint32_t)(channel->next % channel->n_slots);

    switch (read_entry(channel, channel->next, slot, g->frame.info)) {
    case CORE_OTHER: return STEP_BROKEN;
    case CORE_VOID: channel->next++; return STEP_VOID;
    default: take_fifo(g); return STEP_GOT;
    }
}

static enum step
take_ahead(struct getting *g)
{
    memset(g->frame.info, 0, sizeof(g->frame.info));
    take_fifo(g);
    g->channel->places[g->i].ahead = true;
    return STEP_GOT;
}

static enum step
peek_fifo(const struct caid_channel *channel, bool host, uint64_t *ret_wanted)
{
    const struct timeline_slot *slot = channel->view.slot;
    bool closed = has_closed(channel);
    uint64_t submitted = timeline_submitted(slot);
    uint64_t done = channel_load(&slot->done);
    bool dead = done >= TIMELINE_DEAD || submitted >= TIMELINE_DEAD; /* that comes first */
    uint64_t limit = dead ? channel_load(&slot->landed) : host ? done : submitted;

    *ret_wanted = channel->next;
    if (channel->next <= limit)
        return STEP_GOT;
    if (!dead && host && submitted >= channel->next)
        return STEP_POLL;
    return closed ? STEP_ENDED : dead ? STEP_DEAD : STEP_NOTHING;
}

/* What a get would find, which it takes then, if that is a frame: STEP_GOT. */
static enum step
peek(const struct caid_channel *channel, bool host, uint64_t *ret_wanted)
{
    enum step step = STEP_ENDED;

    if (channel->view.slot)
        step = channel->latest ? peek_latest(channel, host, ret_wanted)
                               : peek_fifo(channel, host, ret_wanted);
    return step == STEP_DEAD && channel->told ? STEP_ENDED : step;
}

static enum step
take(struct getting *g, uint64_t *ret_wanted)
{
    struct caid_channel *channel = g->channel;
    uint32_t left = channel->n_slots; /* there are no more void ones at a time */
    enum step step;

    do {
        step = peek(channel, channel_waits(g->lane), ret_wanted);
        if (step == STEP_GOT)
            step = channel->latest ? take_latest(g) : take_next(g);
    } while (step == STEP_VOID && --left > 0);
    if (step == STEP_VOID)
        step = STEP_POLL;
    if (channel->latest || step == STEP_GOT || step == STEP_BROKEN)
        return step;
    pass_voids(channel);
    return step == STEP_NOTHING && g->ahead ? take_ahead(g) : step;
}

/* What was ended before it was there, and is void, is told of now. */
static int
settle_doubts(struct caid_channel *channel, struct caid_error *error)
{
    while (channel->doubts_to && channel->view.slot) {
        uint64_t sequence = channel->doubts_from;
        if (timeline_submitted(channel->view.slot) < sequence)
            return 0;
        if (channel->doubts_from++ == channel->doubts_to)
            channel->doubts_from = channel->doubts_to = 0;
        if (core_was_given_up(&channel->view, sequence,
                              (uint32_t)(sequence % channel->n_slots)))
            return fail(error, CAID_ERR_ABANDONED,
                        "channel \"%s\": frame %" PRIu64 ", which was got ahead, was given up",
                        channel_name(channel), sequence);
    }
    return 0;
}

/* Under lock. */
static int
look(struct getting *g, enum step *ret, struct fence *ret_wanted, struct caid_error *error)
{
    struct caid_channel *channel = g->channel;

    int r = channel_check(channel, error);
    if (r == 0)
        r = settle_doubts(channel, error);
    if (r < 0)
        return r;
    *ret_wanted = (struct fence){.slot = PAGE_SLOT};
    *ret = take(g, &ret_wanted->value);
    if (channel->producer && (*ret == STEP_GOT || *ret == STEP_NOTHING || *ret == STEP_LAST))
        ret_wanted->page = page_ref(channel->producer);
    return 0;
}

/* ---- getting ---- */

static int
fail_dead(const struct caid_channel *channel, struct caid_error *error)
{
    return fail(error, CAID_ERR_ABANDONED, "channel \"%s\": its producer has died",
                channel_name(channel));
}

static int
tell_death(struct caid_channel *channel, struct caid_error *error)
{
    pthread_mutex_lock(&channel->lock);
    channel->told = true;
    channel->doubts_from = channel->doubts_to = 0;
    pthread_mutex_unlock(&channel->lock);
    return fail_dead(channel, error);
}

/* Whether JOIN's answer, which is still to come or to be made, is younger than the announcement. */
static bool
is_asked(const struct getting *g)
{
    struct caid_channel *channel = g->channel;
    struct place *place = &channel->places[g->i];

    pthread_mutex_lock(&channel->lock);
    pthread_mutex_lock(&channel->client->lock);
    if (channel->join.state == CALL_IDLE && !channel->is_answered)
        place->asked = g->word;
    bool asked = place->asked == g->word;
    pthread_mutex_unlock(&channel->client->lock);
    pthread_mutex_unlock(&channel->lock);
    return asked;
}

/* The last frame of a producer that has closed is got, or looked for again: 0. */
static int
take_last(struct getting *g, bool is_safe)
{
    struct caid_channel *channel = g->channel;

    pthread_mutex_lock(&channel->lock);
    is_safe &= channel_sequence(g->word) >= channel->next;
    if (is_safe)
        fill(g, channel_sequence(g->word), channel_slot(g->word));
    else
        core_retract(announcement_of(g));
    pthread_mutex_unlock(&channel->lock);
    return is_safe;
}

/* Asks for the next producer. The last frame of one that has closed is safe if there was none when
 * the daemon looked, and it was announced before: the next one looks at the announcement. A call
 * that ends before the answer leaves it to the next call. 1: it has that frame. */
static int
rejoin(struct getting *g, bool last, struct caid_error *error)
{
    bool none = false, asked = false;
    int r;

    if (atomic_exchange(&g->channel->rejoining, true)) {
        clock_pause_ns(TURN_NS);
        r = pause_for(g, error);
    } else {
        asked = last && is_asked(g);
        r = ask(g, !last, &none, error);
        atomic_store(&g->channel->rejoining, false);
    }
    return r < 0 || !last ? r : take_last(g, none && asked);
}

/* 1: it has got the frame. 0: it is to look again. */
static int
act(struct getting *g, enum step step, const struct fence *wanted, struct caid_error *error)
{
    struct caid_channel *channel = g->channel;

    switch (step) {
    case STEP_GOT: return 1;
    case STEP_NOTHING:
        return channel_sleep(channel->client, &own_tail(channel)->waits, wanted, g->deadline_ns,
                             error);
    case STEP_POLL: return pause_for(g, error);
    case STEP_ENDED: return rejoin(g, false, error);
    case STEP_LAST: return rejoin(g, true, error);
    case STEP_DEAD: return tell_death(channel, error);
    default:
        return fail(error, CAID_ERR_PROTOCOL,
                    "channel \"%s\": its producer has written what cannot be",
                    channel_name(channel));
    }
}

/* *ret: the frame's, with a reference. */
static int
find_frame(struct getting *g, struct fence *ret, struct caid_error *error)
{
    enum step step;

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
    if (g->channel->places[g->i].ahead)
        return lane_wait_ahead(g->channel->client, g->lane, fence, error);
    return lane_wait(g->channel->client, g->lane, fence, 1, g->deadline_ns, error);
}

/* The frame is got again, if no later one has been got. */
static void
put_back(struct getting *g)
{
    struct caid_channel *channel = g->channel;
    struct channel_reader *tail = own_tail(channel);
    struct place *place = &channel->places[g->i];

    pthread_mutex_lock(&channel->lock);
    if (!place->asked)
        core_retract(announcement_of(g));
    if (g->before && channel->next == g->frame.sequence + 1) {
        channel->next = g->before;
        channel_store(&tail->missed, channel_load(&tail->missed) - g->frame.missed);
    }
    place->state = PLACE_FREE;
    place->ahead = false;
    pthread_mutex_unlock(&channel->lock);
}

static int
get(struct getting *g, struct caid_error *error)
{
    struct caid_channel *channel = g->channel;
    struct place *place = &channel->places[g->i];
    struct fence fence = {0};

    int r = find_frame(g, &fence, error);
    if (r == 0)
        r = follow(g, &fence, error);
    if (r > 0)
        r = tell_death(channel, error);
    if (r < 0) {
        fence_drop(&fence);
        put_back(g);
        return r;
    }
    pthread_mutex_lock(&channel->lock);
    place->state = PLACE_OPEN;
    place->lane = g->lane;
    place->data = fence;
    pthread_mutex_unlock(&channel->lock);
    return 0;
}

/* ---- places ---- */

/* Under lock. "latest": what has landed is free. What JOIN was asked for is gone on with first. */
static struct place *
find_place(struct caid_channel *channel, uint64_t *ret_release)
{
    struct place *found = NULL;

    *ret_release = UINT64_MAX;
    for (uint32_t i = 0; i < channel->depth; i++) {
        struct place *place = &channel->places[i];
        if (channel->latest && place->state == PLACE_ENDED) {
            if (channel_load(&channel_slot_of(channel)->done) >= place->release)
                place->state = PLACE_FREE;
            else
                *ret_release = min_u64(*ret_release, place->release);
        }
        if (place->state == PLACE_FREE && (!found || place->asked))
            found = place;
    }
    return found;
}

static enum due
due_of(struct caid_channel *channel, bool host)
{
    uint64_t unused;

    if (channel->doubts_to && channel->view.slot &&
        timeline_submitted(channel->view.slot) >= channel->doubts_from)
        return DUE_NOW;
    enum step step = peek(channel, host, &unused);
    if (step == STEP_NOTHING)
        return DUE_SUBMIT;
    if (step == STEP_POLL)
        return DUE_LAND;
    /* the last frame of a "latest" that has closed is secured by JOIN, too */
    if (step != STEP_ENDED && !(channel->latest && has_closed(channel)))
        return DUE_NOW;
    pthread_mutex_lock(&channel->client->lock);
    bool stands = channel->join.state != CALL_IDLE, is_answered = channel->is_answered;
    pthread_mutex_unlock(&channel->client->lock);
    return is_answered ? DUE_NOW : stands ? DUE_KICK : DUE_ASK;
}

enum due
get_due(struct caid_channel *channel, bool host, uint64_t *ret_submitted)
{
    uint64_t release;

    *ret_submitted = channel->view.slot ? timeline_submitted(channel->view.slot) : 0;
    if (channel_check(channel, NULL) < 0)
        return DUE_NOW;
    if (!find_place(channel, &release))
        return release == UINT64_MAX ? DUE_KICK : DUE_LAND;
    return due_of(channel, host);
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
        struct place *place = r == 0 ? find_place(channel, &fence.value) : NULL;
        if (place)
            place->state = PLACE_TAKEN;
        pthread_mutex_unlock(&channel->lock);
        if (place) {
            g->i = (uint32_t)(place - channel->places);
            return 0;
        }
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

/* ---- the end ---- */

static struct place *
find_open(struct caid_channel *channel, uint64_t sequence)
{
    for (uint32_t i = 0; i < channel->depth; i++)
        if (channel->places[i].state == PLACE_OPEN && channel->places[i].sequence == sequence)
            return &channel->places[i];
    return NULL;
}

/* Under lock, which it drops meanwhile. */
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

/* What the last signal was for comes first. */
static size_t
after_last(const struct caid_channel *channel, const struct lane *lane, struct fence *ret)
{
    if (!signal_is_behind(channel, lane))
        return 0;
    *ret = signal_fence(channel, PAGE_SLOT);
    return 1;
}

static int
release_latest(struct caid_channel *channel, struct place *place, struct lane *lane,
               struct caid_error *error)
{
    uint64_t value = timeline_submitted(channel_slot_of(channel)) + 1;
    struct fence after;
    size_t n = after_last(channel, lane, &after);

    place->state = PLACE_ENDED;
    place->release = value;
    int r = signal_value(channel, lane, &after, n, PAGE_SLOT, value, error);
    signal_note(channel, lane);
    return r;
}

/* The slot by which a frame's end is signalled that is held back. */
static uint32_t
marker_of(const struct caid_channel *channel, const struct place *place)
{
    return PAGE_SLOT + 1 + (uint32_t)(place - channel->places);
}

/* It is let go of when those before it are: till then a marker says that the stream has come to its
 * end. */
static int
hold_back(struct caid_channel *channel, const struct place *place, struct lane *lane,
          struct caid_error *error)
{
    struct fence before = signal_fence(channel, marker_of(channel, place));
    bool pending = !page_slot_has_landed(channel->page, before.slot);

    if (!lane)
        return 0;
    int r = signal_value(channel, lane, &before, pending, before.slot, before.value + 1, error);
    lane_put(lane);
    return r;
}

static int
release_fifo(struct caid_channel *channel, struct place *place, struct lane *lane,
             struct caid_error *error)
{
    struct fence after[CHANNEL_DEPTH_MAX + 1];

    place->state = PLACE_ENDED;
    uint64_t prefix = prefix_of(channel);
    if (prefix <= channel->let_go)
        return hold_back(channel, place, lane, error);
    size_t n = after_last(channel, lane, after);
    for (uint32_t i = 0; i < channel->depth; i++) {
        const struct place *other = &channel->places[i];
        uint32_t slot = marker_of(channel, other);
        if (other->state == PLACE_ENDED && other->sequence <= prefix &&
            !page_slot_has_landed(channel->page, slot))
            after[n++] = signal_fence(channel, slot);
    }
    int r = signal_value(channel, lane, after, n, PAGE_SLOT, prefix, error);
    signal_note(channel, lane);
    free_up_to(channel, prefix);
    return r;
}

/* Whether what was got is a frame, as far as that is known. Takes the place's fence. Under lock. */
static int
check_contents(struct caid_channel *channel, struct place *place, struct caid_error *error)
{
    struct fence data = place->data;
    bool ahead = place->ahead;
    enum fence_state state;

    place->data = (struct fence){0};
    place->ahead = false;
    if (!data.page)
        return 0;
    int r = fence_look(&data, false, &state, error);
    bool is_last = data.page == channel->producer;
    fence_drop(&data);
    if (r == 0 && state == FENCE_LOST) {
        channel->told |= is_last;
        return fail_dead(channel, error);
    }
    if (r == 0 && ahead && is_last) {
        if (!channel->doubts_to)
            channel->doubts_from = place->sequence;
        channel->doubts_to = place->sequence;
        r = settle_doubts(channel, error);
    }
    return r;
}

/* Takes the lane over, but for CAID_ERR_INTERRUPTED: the place stays open. Under lock, which it
 * drops meanwhile. */
static int
end_place(struct caid_channel *channel, struct place *place, struct lane *lane,
          struct caid_error *error)
{
    int r = wait_for_signals(channel, lane, error);
    if (r < 0)
        return r;
    struct lane *got_on = place->lane;
    place->lane = NULL;
    int contents = check_contents(channel, place, error);
    r = channel->latest ? release_latest(channel, place, lane, contents < 0 ? NULL : error)
                        : release_fifo(channel, place, lane, contents < 0 ? NULL : error);
    if (got_on)
        lane_put(got_on);
    return contents < 0 ? contents : r;
}

static bool
is_waited_for(const struct caid_channel *channel)
{
    return channel->view.slot && channel_load(&channel->view.table->waits);
}

/* Takes the lane over. */
static int
end(struct caid_channel *channel, uint64_t sequence, struct lane *lane,
    struct caid_error *error)
{
    bool wakes = false;
    int r;

    pthread_mutex_lock(&channel->lock);
    struct place *place = find_open(channel, sequence);
    if (!place) {
        r = fail(error, CAID_ERR_INVALID, "channel \"%s\": frame %" PRIu64 " is not open",
                 channel_name(channel), sequence);
    } else {
        r = end_place(channel, place, lane, error);
        wakes = !lane && is_waited_for(channel);
    }
    bool taken = place && place->state != PLACE_OPEN;
    pthread_mutex_unlock(&channel->lock);
    if (!taken && lane)
        lane_put(lane);
    if (wakes)
        timeline_wake(channel_slot_of(channel));
    ready_update(channel);
    return r;
}

int
caid_channel_end(struct caid_channel *channel, const struct caid_frame *frame, uint64_t stream,
                 struct caid_error *error)
{
    struct lane *lane = NULL;

    int r = CHECK_GIVEN_OF(channel, frame, error);
    if (r == 0 && stream != 0)
        r = channel_lane(channel, stream, &lane, error);
    if (r < 0)
        return r;
    return end(channel, frame->sequence, lane, error);
}

void
get_close(struct caid_channel *channel)
{
    for (uint32_t i = 0; i < channel->depth; i++) {
        struct place *place = &channel->places[i];
        struct lane *lane = place->lane;

        if (place->state != PLACE_OPEN)
            continue;
        if (lane)
            atomic_fetch_add_explicit(&lane->refs, 1, memory_order_relaxed);
        end(channel, place->sequence, lane, NULL);
    }
}
