/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The deallocation queue: no free is immediate. Entries wait in the order in which they came and
 * are freed together when too many of them or too many bytes have gathered, when the oldest has
 * waited too long, or when memory is wanted. The rules are those of Numba's
 * numba.cuda.cudadrv.driver._PendingDeallocs, by number R1 to R17 in docs/DEALLOCATION.md, which
 * also lists where this queue departs from them and why.
 *
 * Entries belong to owners (the daemon: uids). An owner may hold its entries back, nested
 * (`defer_cleanup`): they are then neither freed nor counted against the limits, unless a flush
 * overrides it.
 *
 * Pure: no clock, no allocation, no call back. A flush is a loop of its user's, so that freeing
 * may take its time (a driver call off the loop) and may fail:
 *
 *     dealloc_begin(q, ...);
 *     while ((e = dealloc_next(q)))
 *         dealloc_done(q, e, free_it(e));     // at once, or when the result comes
 *
 * Lifetimes: entries are embedded in what is to be freed and must stay where they are from
 * dealloc_add() to dealloc_next() or dealloc_remove(); owners outlive their entries.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/tree.h"

struct dealloc_owner;

struct dealloc_entry {
    TAILQ_ENTRY(dealloc_entry) link; /* owner->entries, oldest first */
    struct dealloc_owner *owner;
    uint64_t seq; /* its place in the order of all */
    uint64_t at_ns;
    uint64_t bytes; /* 0: unknown; it counts as an entry all the same (R5) */
};

/* One for each queue that it has entries in. Embedded in the owner's object; it may go when it has
 * none, also while it is deferred. */
struct dealloc_owner {
    RB_ENTRY(dealloc_owner)
    node; /* queue->ready or queue->deferred, by the head's seq: not empty */
    TAILQ_HEAD(dealloc_entries, dealloc_entry) entries;
    uint64_t n, bytes;
    uint32_t deferred; /* depth */
};

struct dealloc_limits {
    uint64_t max_count;  /* flush when more entries than this wait (R2) */
    uint64_t max_bytes;  /* flush when more bytes than this wait (R3): dealloc_ratio_bytes() */
    uint64_t max_age_ns; /* flush when the oldest has waited this long; UINT64_MAX: never */
};

RB_HEAD(dealloc_owners, dealloc_owner);

struct dealloc {
    struct dealloc_limits limits;   /* read at every add (R4): may be changed at any time */
    struct dealloc_owners ready;    /* those that have entries and do not hold them back */
    struct dealloc_owners deferred; /* those that have entries and do */
    uint64_t n, bytes;              /* of all entries */
    uint64_t n_deferred, bytes_deferred; /* of those that are deferred */
    uint64_t next_seq;
    bool flushing; /* from dealloc_begin() until an entry is asked for in vain, or one fails */
    bool out;      /* dealloc_next() gave an entry that dealloc_done() has not heard of */
    bool gave;     /* this flush has given an entry out */
    /* ever */
    uint64_t n_flushes; /* those that found something to free */
    uint64_t n_freed, n_quarantined, bytes_quarantined;
};

void dealloc_init(struct dealloc *q, const struct dealloc_limits *limits);
void dealloc_owner_init(struct dealloc_owner *owner);

/* int(capacity * ratio), as Numba reckons it (R3). Of a ratio below 0, 0; of a product that no
 * uint64_t holds, UINT64_MAX. */
uint64_t dealloc_ratio_bytes(uint64_t capacity, double ratio);

/* Appends. Returns whether a flush is wanted now: strictly more than a limit allows waits that is
 * not deferred (R1-R3), and no flush is under way. */
bool dealloc_add(struct dealloc *q, struct dealloc_owner *owner, struct dealloc_entry *entry,
                 uint64_t bytes, uint64_t now_ns);
/* Whether dealloc_add() of so many bytes would want a flush. */
bool dealloc_would_flush(const struct dealloc *q, const struct dealloc_owner *owner,
                         uint64_t bytes);
/* Takes an entry out that serves a new allocation instead of being freed. */
void dealloc_remove(struct dealloc *q, struct dealloc_entry *entry);

/* Starts a flush; one that is under way goes on. */
void dealloc_begin(struct dealloc *q);
/* The oldest entry that is not deferred, taken out; NULL: the flush is at its end, and over, or
 * there is none. What is added meanwhile belongs to it (R16). One entry is out at a time. */
struct dealloc_entry *dealloc_next(struct dealloc *q);
/* As dealloc_next(), but entries of owners that hold them back come as well; `own` (may be NULL)
 * is the owner whose holding back is respected nevertheless. */
struct dealloc_entry *dealloc_next_overriding(struct dealloc *q,
                                              const struct dealloc_owner *own);
/* As dealloc_next(), but entries of this owner alone. */
struct dealloc_entry *dealloc_next_of(struct dealloc *q, struct dealloc_owner *owner);
/* What became of the entry, of that many bytes, that dealloc_next() gave out. error: it counts as
 * quarantined, the flush is over, and what is left stays queued (departing from R7 in that all
 * counters stay exact). */
void dealloc_done(struct dealloc *q, uint64_t bytes, int error);

/* Nested (R8). Ending it flushes nothing (R9). */
void dealloc_hold(struct dealloc *q, struct dealloc_owner *owner);
void dealloc_unhold(struct dealloc *q, struct dealloc_owner *owner);

/* When the oldest entry that is not deferred will have waited for max_age_ns; UINT64_MAX: never.
 * now_ns must not have run backwards from one dealloc_add() to the next. */
uint64_t dealloc_deadline_ns(const struct dealloc *q);
