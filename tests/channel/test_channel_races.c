/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.c, by threads that share plain words, under ThreadSanitizer: what comes of the words of a
 * frame before what is said by stores and loads, and not by luck. The explorer goes through all
 * orders of whole operations; here is what each of them orders.
 *
 * The producer and two readers are the host. The one that is slow has two frames at a time.
 */
#include <err.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/macros.h"
#include "channel/core.h"

#define FRAMES  20000
#define WORDS   8
#define DEPTH   2
#define READERS 2
#define SLOTS   (1 + DEPTH + CORE_SPARE_HOST)
#define AHEAD   4 /* frames, before the producer waits until a reader gets one */

static struct {
    struct timeline_slot producer, readers[READERS];
    struct channel_reader tails[READERS];

    union {
        struct channel_table table;
        char room[CHANNEL_TABLE_BYTES(SLOTS)];
    };

    uint64_t frames[SLOTS][WORDS];
} area;

static bool latest;
static _Atomic unsigned n_gets; /* relaxed: it orders nothing */

/* As the client signals on the host. */
static void
signal_value(struct timeline_slot *slot, uint64_t value)
{
    atomic_store(&slot->done, value);
    atomic_store(&slot->submitted, value);
}

static unsigned
count_gets(unsigned more)
{
    return atomic_fetch_add_explicit(&n_gets, more, memory_order_relaxed) + more;
}

/* ---- the producer ---- */

static uint32_t
take(struct core_producer *p, const struct core_reader readers[READERS])
{
    uint64_t value;

    if (latest) {
        int slot = core_take_slot(p, readers, READERS);
        if (slot < 0)
            errx(1, "no slot is free");
        return (uint32_t)slot;
    }
    for (int i = 0; i < READERS; i++)
        while (core_fifo_wait(p, &readers[i], p->last + 1, &value) != CORE_READY)
            sched_yield();
    return core_fifo_slot(p, p->last + 1);
}

static void *
produce(void *unused UNUSED)
{
    struct core_producer p = {.slot = &area.producer, .table = &area.table, .n_slots = SLOTS};
    struct core_reader readers[READERS];
    unsigned seen = count_gets(0);

    for (uint32_t i = 0; i < READERS; i++)
        readers[i] = (struct core_reader){.slot = &area.readers[i],
                                          .tail = &area.tails[i],
                                          .depth = 1 + i};
    core_begin_at(&p, 0);
    while (p.last < FRAMES) {
        uint64_t sequence = p.last + 1, info[CHANNEL_INFO / 8] = {sequence};
        uint32_t slot = take(&p, readers);
        bool is_void = sequence % 7 == 0;
        for (int i = 0; i < WORDS; i++)
            area.frames[slot][i] = sequence;
        core_commit(&p, slot, sequence, is_void, info);
        signal_value(&area.producer, sequence);
        while (sequence % AHEAD == 0 && count_gets(0) == seen)
            sched_yield();
        seen = sequence % AHEAD ? seen : count_gets(0);
    }
    return NULL;
}

/* ---- readers ---- */

struct reader {
    uint32_t index, depth;
    struct core_view view;
    uint64_t last;           /* sequence that it got */
    uint64_t words[DEPTH];   /* open, the last one first; 0: none */
    uint64_t n_got, n_ended; /* frames */
};

/* Takes the place of the oldest. Whether there was a frame. */
static bool
get_latest(struct reader *r)
{
    uint32_t place = (uint32_t)(r->n_got % r->depth);

    return core_secure(&r->view, &area.tails[r->index].announcements[place], true, r->last + 1,
                       &r->words[place]) == CORE_GOT;
}

static bool
get_fifo(struct reader *r)
{
    uint64_t wanted;

    if (core_next(&r->view, true, r->last + 1, &wanted) != CORE_GOT)
        return false;
    r->words[r->n_got % r->depth] =
        channel_word(r->last + 1, (uint32_t)((r->last + 1) % SLOTS));
    return true;
}

static void
check(struct reader *r, uint64_t word)
{
    const uint64_t *words = area.frames[channel_slot(word)];
    uint64_t info[CHANNEL_INFO / 8], sequence = channel_sequence(word);
    enum core_entry entry = core_entry(&r->view, sequence, channel_slot(word), info);

    if (entry != (sequence % 7 ? CORE_FRAME : CORE_VOID) ||
        (entry == CORE_FRAME && info[0] != sequence))
        errx(1, "frame %d has another's entry", (int)sequence);
    for (int i = 0; i < WORDS; i++)
        if (words[i] != sequence)
            errx(1, "frame %d has %d at %d", (int)sequence, (int)words[i], i);
}

/* Ends the frames but for the newest `keep`: each is looked at once more. */
static void
end_all_but(struct reader *r, uint64_t keep)
{
    while (r->n_got - r->n_ended > keep) {
        uint64_t word = r->words[r->n_ended++ % r->depth];
        check(r, word);
        signal_value(&area.readers[r->index], latest ? r->n_ended : channel_sequence(word));
    }
}

static void *
consume(void *arg)
{
    struct reader *r = arg;

    while (r->last < FRAMES) {
        if (!(latest ? get_latest : get_fifo)(r)) {
            sched_yield();
            continue;
        }
        uint64_t word = r->words[r->n_got++ % r->depth];
        r->last = channel_sequence(word);
        count_gets(1);
        check(r, word);
        end_all_but(r, r->depth - 1);
    }
    return NULL;
}

static void
run(bool is_latest)
{
    struct reader readers[READERS] = {0};
    pthread_t threads[READERS + 1];

    memset(&area, 0, sizeof(area));
    latest = is_latest;
    pthread_create(&threads[READERS], NULL, produce, NULL);
    for (uint32_t i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.index = i,
                                     .depth = 1 + i,
                                     .view = {&area.producer, &area.table, SLOTS, is_latest}};
        pthread_create(&threads[i], NULL, consume, &readers[i]);
    }
    for (int i = 0; i <= READERS; i++)
        pthread_join(threads[i], NULL);
    printf("%s: %d frames, %d and %d got\n", latest ? "latest" : "fifo", FRAMES,
           (int)readers[0].n_got, (int)readers[1].n_got);
}

int
main(void)
{
    run(true);
    run(false);
}
