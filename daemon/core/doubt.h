/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is not known of arrays, since clients of an earlier core have to do with them: former.h. A
 * block has the doubts of what lies in it, a pool those of its arrays without bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

struct use;

enum doubt {
    DOUBT_NONE,
    DOUBT_PLACE,   /* who uses the place of a part */
    DOUBT_STREAMS, /* what streams do with it */
    DOUBT_HOLDERS, /* who has it, and who was writing it */
    N_DOUBTS
};

struct doubts {
    LIST_HEAD(, use) of[N_DOUBTS];
    bool is_known; /* somebody less is concerned: some may be settled */
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

/* There is nothing to settle, or what they are of goes. */
static inline void
doubts_leave(struct doubts *doubts)
{
    if (doubts->is_known)
        LIST_REMOVE(doubts, of_core);
    doubts->is_known = false;
}
