/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is not known of arrays until the clients of an earlier core have resumed: former.h. A block
 * has the doubts of the arrays in it, a pool those of its arrays without bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct use;

/* Where several connections write an array, or one does in a range, the journal says of each no
 * more than its number modulo FORMER_BITS. Each of them has to come back with what it was writing,
 * and with streams that store what they had submitted, or to forget the block while its context is
 * alive. If one does not, the array is abandoned; so it may be for another connection with the same
 * bit, but for none that has not got its block. */
#define FORMER_BITS 55

static inline uint64_t
former_bit(uint64_t number)
{
    return UINT64_C(1) << number % FORMER_BITS;
}

enum doubt {
    DOUBT_NONE,
    DOUBT_PLACE,   /* who uses the place of a part */
    DOUBT_STREAMS, /* whether streams still signal */
    DOUBT_HOLDERS, /* who has the array, and who was writing it */
    N_DOUBTS
};

struct doubts {
    LIST_HEAD(, use) of[N_DOUBTS];
    bool is_known; /* in core->known: some may be settled, since a client has resumed or gone */
    LIST_ENTRY(doubts) of_core;
};

LIST_HEAD(known_doubts, doubts);

static inline void
doubts_know(struct known_doubts *known, struct doubts *doubts)
{
    if (!doubts->is_known)
        LIST_INSERT_HEAD(known, doubts, of_core);
    doubts->is_known = true;
}

/* Takes it out of core->known: nothing is left to settle, or its block or pool goes. */
static inline void
doubts_leave(struct doubts *doubts)
{
    if (doubts->is_known)
        LIST_REMOVE(doubts, of_core);
    doubts->is_known = false;
}
