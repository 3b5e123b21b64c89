/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#define LOOKS 64 /* at a producer that moves on, before the caller looks at its clock */

/* ---- producers ---- */

static void
entry_store(struct core_producer *producer, uint32_t slot, uint64_t sequence, bool is_void,
            const uint64_t info[CHANNEL_INFO / 8])
{
    struct channel_entry *entry = &producer->table->entries[slot];

    for (size_t i = 0; i < CHANNEL_INFO / 8; i++)
        channel_store_relaxed(&entry->info[i], info ? info[i] : 0);
    if (is_void)
        channel_store_relaxed(&entry->given_up, sequence);
    channel_store_relaxed(&entry->sequence, sequence);
    producer->sequences[slot] = is_void ? 0 : sequence;
}

static void
entry_clear(struct core_producer *producer, uint32_t slot)
{
    channel_store_relaxed(&producer->table->entries[slot].sequence, 0);
    producer->sequences[slot] = 0;
}

void
core_keep(struct core_producer *producer, uint32_t slot, uint64_t sequence,
          const uint64_t info[CHANNEL_INFO / 8])
{
    entry_store(producer, slot, sequence, false, info);
    if (sequence > channel_sequence(producer->newest))
        producer->newest = channel_word(sequence, slot);
}

void
core_begin_at(struct core_producer *producer, uint64_t last)
{
    producer->last = last;
    for (uint64_t s = last; s > 0 && last - s < producer->n_slots; s--)
        if (!producer->sequences[s % producer->n_slots])
            entry_store(producer, (uint32_t)(s % producer->n_slots), s, true, NULL);
    channel_store_relaxed(&producer->table->newest, producer->newest);
}

/* The last frame that has landed, of those that are there, takes the place of the one before. */
static uint64_t
note_landed(struct core_producer *producer)
{
    uint64_t done = channel_load(&producer->slot->done);
    uint64_t landed = producer->landed;

    for (uint32_t i = 0; i < producer->n_slots; i++)
        if (producer->sequences[i] <= done && producer->sequences[i] > channel_sequence(landed))
            landed = channel_word(producer->sequences[i], i);
    if (landed != producer->landed)
        channel_store(&producer->table->landed, producer->landed = landed);
    return done;
}

static uint64_t
bit_of(uint64_t word)
{
    return word && channel_slot(word) < CHANNEL_SLOTS_MAX ? UINT64_C(1) << channel_slot(word)
                                                          : 0;
}

/* Whether its frames have been let go of, or the reader is dead, does not count: the slots are
 * enough for all announcements. */
static uint64_t
announced_by(const struct core_reader *reader)
{
    uint64_t slots = 0;

    for (uint32_t i = 0; i < reader->depth; i++)
        slots |= bit_of(channel_load(&reader->tail->announcements[i].word));
    return slots;
}

/* Of two slots, whose frame may go rather: one of what has landed, and of the same the younger one:
 * so the producer fills few slots again and again, which are in the caches, and the older ones of
 * what is on its way land and are seen. */
static bool
is_better(uint64_t sequence, uint64_t than, uint64_t done)
{
    if ((sequence <= done) != (than <= done))
        return sequence <= done;
    return sequence > than;
}

int
core_take_slot(struct core_producer *producer, const struct core_reader *readers, size_t n)
{
    uint64_t done = note_landed(producer);
    uint64_t taken = bit_of(producer->newest) | bit_of(producer->landed);
    int best = -1;

    for (size_t i = 0; i < n; i++)
        taken |= announced_by(&readers[i]);
    for (uint32_t i = 0; i < producer->n_slots; i++)
        if (!(taken >> i & 1) &&
            (best < 0 || is_better(producer->sequences[i], producer->sequences[best], done)))
            best = (int)i;
    if (best >= 0)
        entry_clear(producer, (uint32_t)best);
    return best;
}

enum core_wait
core_fifo_wait(const struct core_producer *producer, const struct core_reader *reader,
               uint64_t sequence, uint64_t *ret_value)
{
    uint64_t value = sequence > producer->n_slots ? sequence - producer->n_slots : 0;

    *ret_value = value;
    if (reader->admitted >= value || channel_load(&reader->slot->done) >= value)
        return CORE_READY;
    return channel_load(&reader->slot->submitted) >= value ? CORE_SUBMITTED : CORE_WAITING;
}

uint32_t
core_fifo_slot(struct core_producer *producer, uint64_t sequence)
{
    uint32_t slot = (uint32_t)(sequence % producer->n_slots);

    entry_clear(producer, slot);
    return slot;
}

void
core_commit(struct core_producer *producer, uint32_t slot, uint64_t sequence, bool is_void,
            const uint64_t info[CHANNEL_INFO / 8])
{
    entry_store(producer, slot, sequence, is_void, info);
    producer->last = sequence;
    if (!is_void)
        channel_store(&producer->table->newest,
                      producer->newest = channel_word(sequence, slot));
}

/* ---- readers ---- */

static uint64_t
candidate(const struct core_view *view, bool host)
{
    uint64_t newest = channel_load(&view->table->newest);

    if (!host || channel_load(&view->slot->done) >= channel_sequence(newest))
        return newest;
    return channel_load(&view->table->landed);
}

/* A word of a slot that is none is none. */
static bool
is_there(const struct core_view *view, uint64_t word, uint64_t next)
{
    return channel_sequence(word) >= next && channel_slot(word) < view->n_slots;
}

/* One that is dead closes no more. */
static bool
has_closed(const struct core_view *view)
{
    return channel_load(&view->table->closed);
}

static enum core_step
next_of_latest(const struct core_view *view, bool host, uint64_t next, uint64_t *ret_wanted)
{
    uint64_t submitted = channel_load(&view->slot->submitted);
    bool closed = has_closed(view); /* nothing is put after that */
    uint64_t word = candidate(view, host);

    *ret_wanted = submitted + 1;
    if (submitted >= TIMELINE_DEAD && !closed)
        return CORE_DEAD;
    if (is_there(view, word, next))
        return channel_sequence(word) > submitted ? CORE_NOTHING
               : closed                           ? CORE_LAST
                                                  : CORE_GOT;
    if (host && channel_sequence(channel_load(&view->table->newest)) >= next)
        return CORE_COMES;
    return closed ? CORE_CLOSED : CORE_NOTHING;
}

static enum core_step
next_of_fifo(const struct core_view *view, bool host, uint64_t next, uint64_t *ret_wanted)
{
    bool closed = has_closed(view); /* nothing is put after that */
    uint64_t last = channel_load(host ? &view->slot->done : &view->slot->submitted);
    bool dead = last >= TIMELINE_DEAD;

    *ret_wanted = next;
    if (next <= (dead ? channel_load(&view->slot->landed) : last))
        return CORE_GOT;
    if (dead)
        return has_closed(view) ? CORE_CLOSED : CORE_DEAD;
    if (host && next <= channel_load(&view->slot->submitted))
        return CORE_COMES;
    return closed ? CORE_CLOSED : CORE_NOTHING;
}

enum core_step
core_next(const struct core_view *view, bool host, uint64_t next, uint64_t *ret_wanted)
{
    if (!view->slot)
        return CORE_CLOSED;
    return (view->latest ? next_of_latest : next_of_fifo)(view, host, next, ret_wanted);
}

enum core_step
core_secure(const struct core_view *view, struct channel_announcement *a, bool host,
            uint64_t next, uint64_t *ret)
{
    uint64_t word = candidate(view, host), announced = 0;

    for (int i = 0; i < LOOKS && word != announced && is_there(view, word, next); i++) {
        channel_store(&a->word, word);
        announced = word;
        word = candidate(view, host);
    }
    if (word != announced || !word)
        return CORE_COMES;
    uint64_t submitted = channel_load(&view->slot->submitted);
    bool closed = has_closed(view);
    if (submitted >= TIMELINE_DEAD && !closed)
        return CORE_DEAD;
    if (submitted < channel_sequence(word))
        return CORE_COMES;
    *ret = word;
    return closed ? CORE_LAST : CORE_GOT;
}

bool
core_is_newest(const struct core_view *view, bool host, uint64_t word)
{
    return candidate(view, host) == word;
}

bool
core_was_given_up(const struct core_view *view, uint64_t sequence, uint32_t slot)
{
    return channel_load(&view->table->entries[slot].given_up) == sequence;
}

enum core_entry
core_entry(const struct core_view *view, uint64_t sequence, uint32_t slot,
           uint64_t info[CHANNEL_INFO / 8])
{
    const struct channel_entry *entry = &view->table->entries[slot];

    if (channel_load(&entry->sequence) != sequence)
        return CORE_OTHER;
    if (core_was_given_up(view, sequence, slot))
        return CORE_VOID;
    for (size_t i = 0; i < CHANNEL_INFO / 8; i++)
        info[i] = channel_load(&entry->info[i]);
    return CORE_FRAME;
}
