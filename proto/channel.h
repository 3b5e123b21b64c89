/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels in memory that processes share: what is behind the slots of the pages (timeline.h) of
 * those who take part. The producer's page has a table of frames, a reader's what it has announced.
 * Everybody writes his own page alone, and checks what he reads from another's.
 *
 * A frame has a sequence, from 1, which is used once, and lies in a slot of the channel's array. A
 * word is both of them. Slot 0 of the producer's page counts sequences. Slot 0 of a reader's page
 * counts, in a channel "fifo", the sequence up to which the reader has let go of all frames; in a
 * channel "latest", the frames that it has let go of, in that order. All orders between processes
 * are those of the sequentially consistent operations on these words (client/channel/core.h).
 */
#pragma once

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#include "timeline.h"

#define CHANNEL_SLOTS_MAX    64
#define CHANNEL_READERS_MAX  64
#define CHANNEL_DEPTH_MAX    16
#define CHANNEL_INFO         64 /* bytes of the user's for each frame */
#define CHANNEL_SEQUENCE_MAX ((UINT64_C(1) << 54) - 1)

static inline uint64_t
channel_word(uint64_t sequence, uint32_t slot)
{
    return sequence << 8 | slot;
}

static inline uint64_t
channel_sequence(uint64_t word)
{
    return word >> 8;
}

static inline uint32_t
channel_slot(uint64_t word)
{
    return word & 0xff;
}

/* What a slot of the array has. */
struct channel_entry {
    _Atomic uint64_t sequence; /* 0: none, or it is being filled */
    _Atomic uint64_t
        given_up; /* the last sequence here whose put was: there is no such frame */
    _Atomic uint64_t info[CHANNEL_INFO / 8];
    uint64_t unused[6];
};

/* Behind the slots of the producer's page. */
struct channel_table {
    _Atomic uint64_t newest; /* word of the last frame that was submitted; 0: none */
    uint64_t unused_0[7];
    _Atomic uint64_t
        landed; /* word of the last one that the producer has seen landed; 0: none */
    _Atomic uint64_t closed; /* the producer has left */
    _Atomic uint64_t waits;  /* its threads that sleep until a reader lets go of a frame */
    uint64_t unused_1[5];
    struct channel_entry entries[]; /* one for each slot of the array */
};

/* A frame that a reader uses: the producer leaves its slot alone until another word is here. */
struct channel_announcement {
    _Atomic uint64_t word; /* 0: none */
};

/* Behind the slots of a reader's page. */
struct channel_reader {
    _Atomic uint64_t got;    /* sequence of the last frame that it got; 0: none */
    _Atomic uint64_t missed; /* frames that it did not get, of those since it was let in */
    _Atomic uint64_t waits;  /* its threads that sleep until a frame is submitted */
    uint64_t unused[5];
    struct channel_announcement announcements[CHANNEL_DEPTH_MAX];
};

static_assert(sizeof(struct channel_entry) == 128, "an entry has two cache lines");

#define CHANNEL_TABLE_BYTES(n_slots) \
    (sizeof(struct channel_table) + (n_slots) * sizeof(struct channel_entry))
#define CHANNEL_TAIL_MAX CHANNEL_TABLE_BYTES(CHANNEL_SLOTS_MAX)

static inline struct channel_table *
channel_table_of(struct timeline_slot *slots)
{
    return (struct channel_table *)((char *)slots + TIMELINE_PAGE_BYTES);
}

static inline struct channel_reader *
channel_reader_of(struct timeline_slot *slots)
{
    return (struct channel_reader *)((char *)slots + TIMELINE_PAGE_BYTES);
}
