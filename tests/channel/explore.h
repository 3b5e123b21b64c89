/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All orders in which the parties to a channel can come, with the real client/channel/core.c: depth
 * first, each state once. A party is a CPU, which runs a script (actors.c), its store buffer, and
 * its stream, which does later what was enqueued. A step is one load, one store that waits until it
 * is seen, one store that leaves a buffer, one entry of a stream, or a death.
 *
 * A CPU that is interrupted at a load is not kept: what it has loaded since its present call began
 * is, and the call runs again from its beginning with that, up to the next load. So a state is
 * plain data, and two that are equal go on in the same way.
 *
 * Store buffers. A sequentially consistent store is seen before its CPU goes on, as an x86
 * processor does it. All others wait in the buffer, and leave it in their order, or, where the
 * scenario is `weak`, a relaxed one in any order. Loads are done in their order: core.c has none
 * that are weaker than that.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/core.h"

#define SLOTS   8 /* of the array, at most */
#define READERS 3
#define DEPTH   2

enum {
    FIRST,  /* producer */
    SECOND, /* the one that takes over */
    READER, /* and those after it */
    KILLER =
        READER + READERS, /* the daemon, as to the producer; and those after it: the readers */
    PARTIES = KILLER + 1 + READERS,
};

/* What parties share. Its addresses alone are used: the words are in struct state. */
struct area {
    struct timeline_slot producers[2];
    _Alignas(64) char tables[2][CHANNEL_TABLE_BYTES(SLOTS)];
    struct timeline_slot readers[READERS];
    struct channel_reader tails[READERS];
    uint64_t contents[SLOTS]; /* of the array: a sequence, or TORN */
    uint64_t exited[PARTIES]; /* a process */
    uint64_t pause;
    uint64_t departed, joined; /* the first producer, the second: said by the daemon */
    uint64_t asked[READERS], let_in[READERS], left[READERS];
};
extern struct area area;

static inline struct channel_table *
table_of(int producer)
{
    return (struct channel_table *)area.tables[producer];
}

#define TORN 0xff

struct scenario {
    const char *name;
    const char *scripts[PARTIES]; /* actors.h; NULL: the party is not there */
    uint32_t n_slots;
    uint32_t depths[READERS];
    bool fifo;
    bool host_producers; /* they fill, and signal, by the CPU */
    uint32_t hosts;      /* bit i: reader i uses frames by the CPU */
    uint32_t mortals;    /* bit i: party i may die at any step */
    uint32_t late;       /* bit i: reader i is not there from the beginning: it joins */
    bool is_long;
    bool weak; /* relaxed stores leave a buffer in any order */
};
extern const struct scenario *scenario;

/* A party's own. */
struct local {
    union {
        struct {
            uint16_t last, newest, landed, sequences[SLOTS];
            uint16_t admitted[READERS];
            uint8_t counted; /* bit i: reader i is let in */
        };

        struct {
            uint16_t seen;  /* sequence of the last frame that it got */
            uint16_t value; /* of the last signal */
            uint16_t words[DEPTH], releases[DEPTH];
            uint8_t views[DEPTH];
            uint8_t order[DEPTH]; /* announcements that are open, the oldest first */
            uint8_t n_open, view;
            uint8_t gone; /* fifo: bit i: value + 1 + i is let go of, out of order */
            bool over;    /* it gets no more frames */
        };
    };
};

extern struct local *own; /* of the party that runs */
extern int me;

/* Broken: says how it came to this, and ends the program. */
_Noreturn void broken(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What a script does beside core.c. */
void explore_store_release(void *p, uint64_t value); /* leaves the buffer in its order */
uint64_t explore_sync(const void *p); /* a load after all own stores: of what a message tells */
uint64_t peek(const void *p); /* what is there now: for a check, or of what no longer changes */
void poke(void *p, uint64_t value);

/* What nobody else sees yet, or can change: core.c's loads and stores are no steps. */
void explore_hide(bool hidden);

/* The letter of the script once more. */
void explore_again(void);

/* A step by itself: the party may die here, or others go on. */
void explore_pause(void);

/* Whether the call comes to here for the first time: what has an effect is done then alone. */
bool is_new(void);

/* Sleeps until one of the words is at least that. */
struct until {
    const void *p;
    uint64_t value;
};

void explore_await(bool may_stay, size_t n, const struct until until[]);

/* The reader uses a frame, or does not any more. */
void hold(uint32_t slot, uint64_t sequence);
void let_go(int party, uint32_t slot, uint64_t sequence);
/* By a frame before this one. */
void must_be_unused(uint32_t slot, uint64_t sequence);

/* For the party's stream. */
enum work {
    WORK_WAIT,        /* until *p is at least value */
    WORK_BEGIN,       /* fill slot */
    WORK_FILL,        /* slot has `sequence` (0: it is void), and *p has value */
    WORK_USE,         /* slot, which has `sequence` by the producer `view` */
    WORK_RELEASE,     /* the same, and then *p has value: slot is let go of */
    WORK_RELEASE_ALL, /* fifo: *p has value, up to which all are let go of */
};

void enqueue(enum work work, void *p, uint64_t value, uint32_t slot, uint64_t sequence,
             int view);

void explore(const struct scenario *scenario, size_t *ret_states);

/* ---- actors.c ---- */

void begin_party(int party, struct local *local);
/* A reader that waits has got all that this producer has left there. */
void check_waits(const struct local *reader, const struct local *producer);
/* Does what a letter of a script says. */
void act(int party, char letter);
void frame_is_there(uint32_t slot, uint64_t sequence, int view);
