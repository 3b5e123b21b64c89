/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What those who take part in a channel do around core.c, as the client and the daemon do it. A
 * letter of a script is a call.
 *
 * Producers: P puts a frame, V gives a put up, T takes a slot for nothing, M lets in who
 * wants to be, C closes; J joins when the former has gone.
 * Readers: J is let in, G gets a frame, E ends the oldest that is open, e the youngest, L leaves; H
 * announces any slot without end. The daemon: K marks the pages of a process that has exited.
 */
#include "explore.h"

#define ALL_READERS(i)                \
    for (int i = 0; i < READERS; i++) \
        if (scenario->scripts[READER + i])

#define WAIT(may_stay, ...)                                                               \
    explore_await(may_stay, sizeof((struct until[]){__VA_ARGS__}) / sizeof(struct until), \
                  (struct until[]){__VA_ARGS__})

void
begin_party(int party, struct local *local)
{
    if (party == FIRST)
        ALL_READERS(i)
    if (!(scenario->late >> i & 1))
        local->counted |= (uint8_t)(1 << i);
}

/* ---- producers ---- */

static struct core_producer
producer(void)
{
    struct core_producer p = {
        .slot = &area.producers[me],
        .table = table_of(me),
        .n_slots = scenario->n_slots,
        .last = own->last,
        .newest = own->newest,
        .landed = own->landed,
    };
    for (uint32_t i = 0; i < p.n_slots; i++)
        p.sequences[i] = own->sequences[i];
    return p;
}

static void
keep(const struct core_producer *p)
{
    own->last = (uint16_t)p->last;
    own->newest = (uint16_t)p->newest;
    own->landed = (uint16_t)p->landed;
    for (uint32_t i = 0; i < p->n_slots; i++)
        own->sequences[i] = (uint16_t)p->sequences[i];
}

static struct core_reader
reader_of(int i)
{
    return (struct core_reader){
        .slot = &area.readers[i],
        .tail = &area.tails[i],
        .depth = scenario->depths[i],
        .admitted = own->admitted[i],
    };
}

/* What the client's thread has heard of: who wants to be let in, who has left. */
static void
take_members(void)
{
    ALL_READERS(i)
    {
        if (!(scenario->late >> i & 1))
            continue;
        if (!(own->counted >> i & 1)) {
            if (!explore_sync(&area.asked[i]))
                continue;
            own->counted |= (uint8_t)(1 << i);
            own->admitted[i] = own->last;
            explore_store(&area.let_in[i], own->last + 1u);
        } else if (explore_sync(&area.left[i])) {
            own->counted &= (uint8_t) ~(1 << i);
        }
    }
}

static int
take_slot(struct core_producer *p, uint64_t sequence)
{
    struct core_reader readers[READERS];
    size_t n = 0;

    ALL_READERS(i)
    if (own->counted >> i & 1)
        readers[n++] = reader_of(i);
    int slot = core_take_slot(p, readers, n);
    if (slot < 0)
        broken("no slot is free");
    if (is_new())
        must_be_unused((uint32_t)slot, sequence);
    poke(&area.contents[slot], TORN);
    return slot;
}

/* The wait of the host, or of the stream, for one reader. */
static void
wait_for_reader(struct core_producer *p, int i, uint64_t sequence)
{
    struct core_reader reader = reader_of(i);
    enum core_wait wait;
    uint64_t value;

    while (own->counted >> i & 1 &&
           (wait = core_fifo_wait(p, &reader, sequence, &value)) != CORE_READY) {
        if (wait == CORE_SUBMITTED && !scenario->host_producers) {
            enqueue(WORK_WAIT, &area.readers[i].done, value, 0, 0, 0);
            return;
        }
        if (wait == CORE_SUBMITTED)
            WAIT(false, {&area.readers[i].done, value}, {&area.left[i], 1});
        else
            WAIT(false, {&area.readers[i].submitted, value}, {&area.left[i], 1});
        take_members();
    }
}

static int
take_fifo_slot(struct core_producer *p, uint64_t sequence)
{
    ALL_READERS(i)
    wait_for_reader(p, i, sequence);
    int slot = (int)core_fifo_slot(p, sequence);
    if (!scenario->host_producers) {
        enqueue(WORK_BEGIN, NULL, 0, (uint32_t)slot, sequence, 0);
        return slot;
    }
    if (is_new())
        must_be_unused((uint32_t)slot, sequence);
    poke(&area.contents[slot], TORN);
    return slot;
}

static void
put(bool is_void, bool is_left)
{
    take_members();
    struct core_producer p = producer();
    uint64_t sequence = p.last + 1;
    int slot = scenario->fifo ? take_fifo_slot(&p, sequence) : take_slot(&p, sequence);
    uint64_t info[CHANNEL_INFO / 8] = {sequence};

    if (scenario->mortals >> me & 1)
        explore_pause(); /* the user fills it */
    if (is_left) {
        keep(&p);
        return;
    }
    if (scenario->host_producers && !is_void)
        explore_store_relaxed(&area.contents[slot], sequence);
    core_commit(&p, (uint32_t)slot, sequence, is_void, info);
    if (scenario->host_producers)
        explore_store_release(&p.slot->done, sequence);
    else
        enqueue(WORK_FILL, &p.slot->done, sequence, (uint32_t)slot, is_void ? 0 : sequence, me);
    explore_hide(!scenario->fifo && !scenario->scripts[SECOND]);
    explore_store_release(&p.slot->submitted, sequence);
    explore_hide(false);
    keep(&p);
}

/* It lets in who comes later. */
static void
serve(void)
{
    ALL_READERS(i)
    if (scenario->late >> i & 1)
        WAIT(true, {&area.asked[i], 1});
    take_members();
}

/* All that it has filled has landed before the daemon hears of it. */
static void
close_channel(void)
{
    WAIT(false, {&area.producers[me].done, own->last});
    explore_store(&table_of(me)->closed, 1);
    explore_store(&area.departed, 1);
}

static void
keep_frames(struct core_producer *p)
{
    const struct timeline_slot *slot = &area.producers[FIRST];
    uint64_t done = peek(&slot->done);
    uint64_t last = done == TIMELINE_DEAD ? peek(&slot->landed) : done;
    uint64_t landed = last;

    for (uint32_t i = 0; i < p->n_slots; i++) {
        const struct channel_entry *entry = &table_of(FIRST)->entries[i];
        uint64_t sequence = peek(&entry->sequence), info[CHANNEL_INFO / 8] = {sequence};
        if (sequence && sequence <= landed && peek(&entry->given_up) != sequence) {
            if (peek(&area.contents[i]) != sequence || peek(&entry->info[0]) != sequence)
                broken("frame %d is kept, and not whole", (int)sequence);
            core_keep(p, i, sequence, info);
        }
        if (sequence > last)
            last = sequence;
    }
    core_begin_at(p, last);
    if (!scenario->fifo && p->newest < peek(&table_of(FIRST)->landed))
        broken("the last frame that has landed is not kept");
}

/* It is heard of after it has all of its page. */
static void
take_over(void)
{
    WAIT(true, {&area.producers[FIRST].done, TIMELINE_DEAD}, {&area.departed, 1});
    struct core_producer p = producer();
    explore_hide(true);
    keep_frames(&p);
    explore_hide(false);
    poke(&p.slot->done, p.last);
    poke(&p.slot->submitted, p.last);
    keep(&p);
    ALL_READERS(i)
    own->counted |= (uint8_t)(1 << i);
    explore_store(&area.joined, 1);
}

/* ---- readers ---- */

static int
reader(void)
{
    return me - READER;
}

static bool
is_host(void)
{
    return scenario->hosts >> reader() & 1;
}

static struct core_view
view(void)
{
    return (struct core_view){
        .slot = &area.producers[own->view],
        .table = table_of(own->view),
        .n_slots = scenario->n_slots,
        .latest = !scenario->fifo,
    };
}

static void
join(void)
{
    explore_store(&area.asked[reader()], 1);
    WAIT(false, {&area.let_in[reader()], 1});
    own->value = (uint16_t)(explore_sync(&area.let_in[reader()]) - 1);
    own->seen = own->value;
}

/* The producer has gone: the next one, if there is one. */
static void
go_to_next(void)
{
    if (own->view == FIRST && scenario->scripts[SECOND]) {
        WAIT(false, {&area.joined, 1});
        own->view = SECOND;
    } else {
        own->over = true;
    }
}

void
frame_is_there(uint32_t slot, uint64_t sequence, int by)
{
    const struct timeline_slot *p = &area.producers[by];

    if (peek(&p->done) == TIMELINE_DEAD && peek(&p->landed) < sequence)
        return; /* it has not landed, which the fence says */
    if (peek(&area.contents[slot]) != sequence)
        broken("slot %u has not frame %u, but %#x", (unsigned)slot, (unsigned)sequence,
               (unsigned)peek(&area.contents[slot]));
}

void
check_waits(const struct local *r, const struct local *p)
{
    uint64_t last = scenario->fifo ? p->last : channel_sequence(p->newest);

    if (last > r->seen)
        broken("a reader waits, and has not got frame %u", (unsigned)last);
}

static bool
is_open(int announcement)
{
    for (int i = 0; i < own->n_open; i++)
        if (own->order[i] == announcement)
            return true;
    return false;
}

/* An announcement that may be used, after a wait for an own one to land if need be. */
static int
free_announcement(void)
{
    int i;

    for (i = 0; is_open(i); i++)
        ;
    if (own->releases[i])
        WAIT(false, {&area.readers[reader()].done, own->releases[i]});
    return i;
}

static void
use(int announcement, uint64_t word)
{
    uint64_t sequence = channel_sequence(word), info[CHANNEL_INFO / 8];
    uint32_t slot = channel_slot(word);
    struct core_view v = view();

    if (sequence <= own->seen)
        broken("%u comes after %u", (unsigned)sequence, (unsigned)own->seen);
    hold(slot, sequence);
    explore_hide(true);
    if (is_new() && (core_entry(&v, sequence, slot, info) != CORE_FRAME || info[0] != sequence))
        broken("the table has no frame %u in slot %u", (unsigned)sequence, (unsigned)slot);
    explore_hide(false);
    if (is_host() && is_new())
        frame_is_there(slot, sequence, own->view);
    own->order[own->n_open++] = (uint8_t)announcement;
    own->words[announcement] = (uint16_t)word;
    own->views[announcement] = own->view;
    own->seen = (uint16_t)sequence;
}

/* Whether an announcement that a producer which has closed may not have seen is safe: the next one
 * is not there, and sees it. */
static bool
is_before_next(void)
{
    return explore_load(&table_of(own->view)->closed) && !explore_sync(&area.joined);
}

static void
end_latest(int at)
{
    int i = own->order[at];
    struct timeline_slot *slot = &area.readers[reader()];
    uint64_t sequence = channel_sequence(own->words[i]);
    uint32_t frame = channel_slot(own->words[i]);

    own->releases[i] = ++own->value;
    own->n_open--;
    for (int j = at; j < own->n_open; j++)
        own->order[j] = own->order[j + 1];
    if (is_host() && is_new()) {
        frame_is_there(frame, sequence, own->views[i]);
        let_go(me, frame, sequence);
    }
    if (is_host())
        explore_store_release(&slot->done, own->value);
    else
        enqueue(WORK_RELEASE, &slot->done, own->value, frame, sequence, own->views[i]);
}

static void
signal_let_go(void)
{
    struct timeline_slot *slot = &area.readers[reader()];

    if (is_host())
        explore_store_release(&slot->done, own->value);
    else
        enqueue(WORK_RELEASE_ALL, &slot->done, own->value, 0, 0, 0);
    explore_store_release(&slot->submitted, own->value);
}

/* Sequences are let go of in their order. */
static void
let_go_of(uint64_t sequence)
{
    own->gone |= (uint8_t)(1 << (sequence - own->value - 1));
    if (!(own->gone & 1))
        return;
    for (; own->gone & 1; own->gone >>= 1)
        own->value++;
    signal_let_go();
}

/* The first one has put it, and it has landed. */
static void
must_be_void(uint64_t sequence)
{
    const struct channel_entry *entry = &table_of(FIRST)->entries[sequence % scenario->n_slots];

    if (own->view == SECOND && sequence <= peek(&area.producers[FIRST].landed) &&
        (peek(&entry->sequence) != sequence || peek(&entry->given_up) != sequence))
        broken("frame %u is lost", (unsigned)sequence);
}

static void
use_fifo(uint64_t sequence, uint64_t info)
{
    uint32_t slot = (uint32_t)(sequence % scenario->n_slots);
    int i;

    for (i = 0; is_open(i); i++)
        ;
    if (info != sequence)
        broken("frame %u has another's bytes", (unsigned)sequence);
    hold(slot, sequence);
    if (is_host() && is_new())
        frame_is_there(slot, sequence, own->view);
    own->order[own->n_open++] = (uint8_t)i;
    own->words[i] = (uint16_t)sequence;
    own->views[i] = own->view;
}

static void
take_fifo(uint64_t sequence)
{
    struct core_view v = view();
    uint64_t info[CHANNEL_INFO / 8];

    switch (core_entry(&v, sequence, (uint32_t)(sequence % v.n_slots), info)) {
    case CORE_FRAME: use_fifo(sequence, info[0]); break;
    case CORE_VOID:
        must_be_void(sequence);
        let_go_of(sequence);
        explore_again();
        break;
    case CORE_OTHER: broken("frame %u is not there", (unsigned)sequence);
    }
    own->seen = (uint16_t)sequence;
}

static void
end_fifo(int at)
{
    int i = own->order[at];
    uint64_t sequence = own->words[i];
    uint32_t slot = (uint32_t)(sequence % scenario->n_slots);

    own->n_open--;
    for (int j = at; j < own->n_open; j++)
        own->order[j] = own->order[j + 1];
    if (!is_host())
        enqueue(WORK_USE, NULL, 0, slot, sequence, own->views[i]);
    else if (is_new())
        let_go(me, slot, sequence);
    let_go_of(sequence);
}

static void
leave(void)
{
    WAIT(false, {&area.readers[reader()].done, own->value});
    explore_store(&area.left[reader()], 1);
}

/* Until a reader finds another thing. */
static void
wait_for_more(const struct core_view *v, enum core_step step, uint64_t wanted)
{
    uint64_t next = own->seen + 1u;

    if (step == CORE_NOTHING) {
        WAIT(true, {&v->slot->submitted, wanted}, {&v->table->closed, 1});
    } else if (scenario->fifo) {
        WAIT(false, {&v->slot->done, next});
    } else if (is_host()) {
        uint64_t newest = explore_load(&v->table->newest);
        uint64_t sequence = channel_sequence(newest);
        WAIT(true, {&v->table->newest, newest + 1}, {&v->table->landed, channel_word(next, 0)},
             {&v->slot->done, sequence >= next ? sequence : TIMELINE_DEAD},
             {&v->table->closed, 1});
    } else {
        WAIT(true, {&v->table->newest, channel_word(next, 0)});
    }
}

/* A core_next() before core_secure() is for producers that go: else that finds the same. */
static enum core_step
look(const struct core_view *v, int i, uint64_t *ret_wanted, uint64_t *ret_word)
{
    struct channel_announcement *a = &area.tails[reader()].announcements[i];
    enum core_step step = CORE_GOT;
    uint64_t next = own->seen + 1u;

    *ret_wanted = next;
    *ret_word = channel_word(next, (uint32_t)(next % scenario->n_slots));
    if (scenario->fifo || scenario->scripts[SECOND])
        step = core_next(v, is_host(), next, ret_wanted);
    if (v->latest && (step == CORE_GOT || step == CORE_LAST))
        step = core_secure(v, a, is_host(), next, ret_word);
    return step == CORE_LAST && is_before_next() ? CORE_GOT : step;
}

/* The last frame of a producer that has closed. */
static uint64_t
last_of(const struct core_view *v)
{
    uint64_t submitted = peek(&v->slot->submitted);

    if (v->latest)
        return channel_sequence(peek(&v->table->newest));
    return submitted < TIMELINE_DEAD ? submitted : peek(&v->slot->landed);
}

static void
get(void)
{
    struct core_view v = view();
    uint64_t wanted, word;

    if (own->over)
        return;
    int i = free_announcement();
    enum core_step step = look(&v, i, &wanted, &word);
    if (step == CORE_GOT) {
        if (scenario->fifo)
            take_fifo(channel_sequence(word));
        else
            use(i, word);
        return;
    }
    if (step == CORE_DEAD && peek(&v.table->closed))
        broken("a reader is told of the death of one that had closed");
    if (step == CORE_CLOSED && last_of(&v) > own->seen)
        broken("a reader leaves frame %u behind", (unsigned)last_of(&v));
    if (step == CORE_NOTHING || step == CORE_COMES)
        wait_for_more(&v, step, wanted);
    else
        go_to_next();
    explore_again();
}

static void
end(bool youngest)
{
    int at = youngest ? own->n_open - 1 : 0;

    if (!own->n_open)
        return;
    if (scenario->fifo)
        end_fifo(at);
    else
        end_latest(at);
}

/* Of its own page it may say what it likes. */
static void
announce_anything(void)
{
    explore_store(&area.tails[reader()].announcements[0].word, channel_word(1, own->value));
    own->value = (uint16_t)((own->value + 1) % scenario->n_slots);
    explore_again();
}

/* ---- the daemon ---- */

static void
mark_dead(void)
{
    int victim = me == KILLER ? FIRST : READER + me - KILLER - 1;
    struct timeline_slot *slot = victim == FIRST ? &area.producers[FIRST]
                                                 : &area.readers[victim - READER];

    WAIT(true, {&area.exited[victim], 1});
    poke(&slot->landed, peek(&slot->done));
    explore_store(&slot->submitted, TIMELINE_DEAD_SUBMITTED);
    explore_store(&slot->done, TIMELINE_DEAD);
}

void
act(int party, char letter)
{
    bool is_producer = party < READER;

    switch (letter) {
    case 'P': put(false, false); break;
    case 'V': put(true, false); break;
    case 'T': put(false, true); break;
    case 'M': serve(); break;
    case 'C': close_channel(); break;
    case 'J': is_producer ? take_over() : join(); break;
    case 'G': get(); break;
    case 'E': end(false); break;
    case 'e': end(true); break;
    case 'L': leave(); break;
    case 'H': announce_anything(); break;
    case 'K': mark_dead(); break;
    default: broken("no such letter: %c", letter);
    }
}
