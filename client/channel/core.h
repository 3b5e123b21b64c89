/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of channels, without what surrounds it: no client, no driver, no waiting. All that
 * it knows of other processes are words that they write (proto/channel.h). Loads, and the three
 * stores whose order counts (an announcement, the newest, the landed), are sequentially consistent.
 * All other stores are relaxed: they are seen with the next one of those, or with the value of slot
 * 0, which the caller stores by release. No fences. One test compiles it with loads and stores of
 * its own, and goes through all orders that processors with store buffers, streams and deaths can
 * bring about; another one holds it against ThreadSanitizer (tests/channel).
 *
 * latest. What a reader has secured, no producer fills. A reader announces a word, and then looks
 * whether that is still the newest (or, for the host, the landed) one of a living producer. If it
 * is, the announcement comes before the store that makes another one the newest, and so before the
 * producer's next look at all announcements, which comes after that store. Till then the slot is
 * safe, since the producer takes neither the newest nor the landed one. `done` alone would not
 * secure a frame: one that is submitted may be filled again before it has landed.
 *
 * A producer looks at all announcements once for each frame, and then has a slot: an announcement
 * takes one slot at most, and there are more slots than announcements (CORE_SPARE). So no reader
 * can make it look again, or wait. An announcement stands until another one takes its place, also
 * when its frame has been let go of, or its reader is dead: its slot is one that nobody misses.
 *
 * The next producer looks after the former is dead or has closed its table, which the reader looks
 * at, too, after it has announced.
 *
 * fifo. Frame s lies in slot s % n. It is filled when all readers have let go of s - n.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel.h"

#ifdef CHANNEL_OPS
#    include CHANNEL_OPS
#else
#    define channel_load(p)         atomic_load(p)
#    define channel_store(p, value) atomic_store((p), (value))
#    define channel_store_relaxed(p, value) \
        atomic_store_explicit((p), (value), memory_order_relaxed)
#endif

/* Slots of a channel "latest" beyond those that readers may announce: for the newest, the landed,
 * and the one that is filled. Where the host fills, the newest has landed. */
#define CORE_SPARE      3
#define CORE_SPARE_HOST 2

/* A producer's view of a reader. */
struct core_reader {
    const struct timeline_slot *slot;
    const struct channel_reader *tail;
    uint32_t depth;
    uint64_t admitted; /* fifo: it has let go of all up to this */
};

struct core_producer {
    struct timeline_slot *slot;
    struct channel_table *table;
    uint32_t n_slots;
    uint64_t last;                         /* the highest sequence that was used */
    uint64_t newest, landed;               /* as in the table */
    uint64_t sequences[CHANNEL_SLOTS_MAX]; /* of the frame in each slot; 0: none */
};

/* A frame that the former producer has left whole. */
void core_keep(struct core_producer *producer, uint32_t slot, uint64_t sequence,
               const uint64_t info[CHANNEL_INFO / 8]);
/* After all frames have been kept: goes on after `last`, which slot 0 has, too, before anybody
 * knows the page. fifo: sequences that are not kept are void. */
void core_begin_at(struct core_producer *producer, uint64_t last);

/* latest: a slot for the next frame, which nobody sees from now on. -1: none, since readers have
 * announced more than they may. */
int core_take_slot(struct core_producer *producer, const struct core_reader *readers, size_t n);

/* fifo: what the frame of this sequence has to wait for, of one reader. */
enum core_wait {
    CORE_READY,
    CORE_SUBMITTED, /* value of the reader's slot 0 is on its way: a stream can wait for it */
    CORE_WAITING,   /* nor is it submitted */
};
enum core_wait core_fifo_wait(const struct core_producer *producer,
                              const struct core_reader *reader, uint64_t sequence,
                              uint64_t *ret_value);
/* fifo: the slot of a sequence, which nobody sees from now on. */
uint32_t core_fifo_slot(struct core_producer *producer, uint64_t sequence);

/* The frame is there, or is void, when slot 0 has its sequence, which the caller submits next. */
void core_commit(struct core_producer *producer, uint32_t slot, uint64_t sequence, bool is_void,
                 const uint64_t info[CHANNEL_INFO / 8]);

/* ---- readers ---- */

/* A reader's view of a producer, which writes what it likes. */
struct core_view {
    const struct timeline_slot *slot; /* NULL: no producer is known */
    const struct channel_table *table;
    uint32_t n_slots;
    bool latest;
};

/* What a reader finds that is to get `next`, or, of a channel "latest", what is not older. */
enum core_step {
    CORE_GOT,     /* a frame. latest: core_secure() has secured it */
    CORE_NOTHING, /* not before *ret_wanted is submitted, or the producer closes or dies */
    CORE_COMES,   /* it has to land yet; or frames come faster than we look */
    CORE_LAST,   /* latest: a frame, but the producer has closed: announced, it is not secure */
    CORE_CLOSED, /* there is nothing more */
    CORE_DEAD,   /* so is the producer; fifo: and there is no more that had landed */
};

/* Takes nothing. `host`: what has landed, else what is submitted. */
enum core_step core_next(const struct core_view *view, bool host, uint64_t next,
                         uint64_t *ret_wanted);
/* latest: announces what core_next() has found, or what is newer by now. *ret: its word, of which
 * the slot is below n_slots. An announcement stays, also of what is not got. */
enum core_step core_secure(const struct core_view *view, struct channel_announcement *a,
                           bool host, uint64_t next, uint64_t *ret);

/* latest: whether core_secure() would find no other one now. */
bool core_is_newest(const struct core_view *view, bool host, uint64_t word);

/* fifo: whether the put of a submitted sequence was given up, also when its slot has another frame
 * by now; but not if that one was given up, too. */
bool core_was_given_up(const struct core_view *view, uint64_t sequence, uint32_t slot);

enum core_entry {
    CORE_FRAME,
    CORE_VOID,
    CORE_OTHER, /* there is another frame, or none: of a frame that is not let go of, a fault */
};
/* What the table says of a submitted frame that this reader keeps. */
enum core_entry core_entry(const struct core_view *view, uint64_t sequence, uint32_t slot,
                           uint64_t info[CHANNEL_INFO / 8]);
