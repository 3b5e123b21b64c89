/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The deallocation queue, as dealloc.h describes it. Each owner has a list of its entries in the
 * order in which they came; two trees, of the owners that hold back and of those that do not, are
 * sorted by the first entry of each. So the oldest entry of all is found, and a whole owner is
 * deferred, in O(log n) of the owners.
 */
#include "dealloc.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static int
owner_compare(const struct dealloc_owner *a, const struct dealloc_owner *b)
{
    return CMP(TAILQ_FIRST(&a->entries)->seq, TAILQ_FIRST(&b->entries)->seq);
}

RB_GENERATE_STATIC(dealloc_owners, dealloc_owner, node, owner_compare)

static struct dealloc_owners *
owner_tree(struct dealloc *q, const struct dealloc_owner *owner)
{
    return owner->deferred ? &q->deferred : &q->ready;
}

void
dealloc_init(struct dealloc *q, const struct dealloc_limits *limits)
{
    *q = (struct dealloc){.limits = *limits,
                          .ready = RB_INITIALIZER(&q->ready),
                          .deferred = RB_INITIALIZER(&q->deferred)};
}

void
dealloc_owner_init(struct dealloc_owner *owner)
{
    *owner = (struct dealloc_owner){0};
    TAILQ_INIT(&owner->entries);
}

uint64_t
dealloc_ratio_bytes(uint64_t capacity, double ratio)
{
    double bytes = (double)capacity * ratio;

    if (!(bytes > 0)) /* or not a number */
        return 0;
    return bytes < 0x1p64 ? (uint64_t)bytes : UINT64_MAX;
}

/* ---- entries ---- */

static bool
over_limit(const struct dealloc *q, uint64_t n, uint64_t bytes)
{
    return n > q->limits.max_count || bytes > q->limits.max_bytes;
}

bool
dealloc_would_flush(const struct dealloc *q, const struct dealloc_owner *owner, uint64_t bytes)
{
    uint64_t n_more = owner->deferred ? 0 : 1, more = owner->deferred ? 0 : bytes;

    return !q->flushing &&
           over_limit(q, q->n - q->n_deferred + n_more, q->bytes - q->bytes_deferred + more);
}

bool
dealloc_add(struct dealloc *q, struct dealloc_owner *owner, struct dealloc_entry *entry,
            uint64_t bytes, uint64_t now_ns)
{
    *entry = (struct dealloc_entry){.owner = owner,
                                    .seq = q->next_seq++,
                                    .at_ns = now_ns,
                                    .bytes = bytes};
    TAILQ_INSERT_TAIL(&owner->entries, entry, link);
    if (!owner->n)
        RB_INSERT(dealloc_owners, owner_tree(q, owner), owner);
    owner->n++;
    owner->bytes += bytes;
    q->n++;
    q->bytes += bytes;
    if (owner->deferred) {
        q->n_deferred++;
        q->bytes_deferred += bytes;
    }
    return !q->flushing && over_limit(q, q->n - q->n_deferred, q->bytes - q->bytes_deferred);
}

void
dealloc_remove(struct dealloc *q, struct dealloc_entry *entry)
{
    struct dealloc_owner *owner = entry->owner;
    bool first = TAILQ_FIRST(&owner->entries) == entry;

    if (first) /* it gives the owner its place in the tree */
        RB_REMOVE(dealloc_owners, owner_tree(q, owner), owner);
    TAILQ_REMOVE(&owner->entries, entry, link);
    if (first && !TAILQ_EMPTY(&owner->entries))
        RB_INSERT(dealloc_owners, owner_tree(q, owner), owner);
    owner->n--;
    owner->bytes -= entry->bytes;
    q->n--;
    q->bytes -= entry->bytes;
    if (owner->deferred) {
        q->n_deferred--;
        q->bytes_deferred -= entry->bytes;
    }
    entry->owner = NULL;
}

/* ---- flushing ---- */

void
dealloc_begin(struct dealloc *q)
{
    if (q->flushing)
        return;
    q->flushing = true;
    q->gave = false;
}

/* The first entry of the owner, taken out; the end of the flush where there is no owner. */
static struct dealloc_entry *
take_first(struct dealloc *q, struct dealloc_owner *owner)
{
    struct dealloc_entry *entry;

    assert(!q->out);
    if (!q->flushing)
        return NULL;
    if (!owner) {
        q->flushing = false;
        return NULL;
    }
    entry = TAILQ_FIRST(&owner->entries);
    dealloc_remove(q, entry);
    q->out = true;
    if (!q->gave)
        q->n_flushes++;
    q->gave = true;
    return entry;
}

struct dealloc_entry *
dealloc_next(struct dealloc *q)
{
    return take_first(q, RB_MIN(dealloc_owners, &q->ready));
}

struct dealloc_entry *
dealloc_next_overriding(struct dealloc *q, const struct dealloc_owner *own)
{
    struct dealloc_owner *ready = RB_MIN(dealloc_owners, &q->ready);
    struct dealloc_owner *deferred = RB_MIN(dealloc_owners, &q->deferred);

    if (deferred && deferred == own)
        deferred = RB_NEXT(dealloc_owners, &q->deferred, deferred);
    if (!ready || (deferred && owner_compare(deferred, ready) < 0))
        return take_first(q, deferred);
    return take_first(q, ready);
}

struct dealloc_entry *
dealloc_next_of(struct dealloc *q, struct dealloc_owner *owner)
{
    return take_first(q, owner->n && !owner->deferred ? owner : NULL);
}

void
dealloc_done(struct dealloc *q, uint64_t bytes, int error)
{
    assert(q->out);
    q->out = false;
    if (!error) {
        q->n_freed++;
        return;
    }
    q->n_quarantined++;
    q->bytes_quarantined += bytes;
    q->flushing = false;
}

/* ---- holding back ---- */

void
dealloc_hold(struct dealloc *q, struct dealloc_owner *owner)
{
    assert(owner->deferred < UINT32_MAX);
    if (owner->deferred++ || !owner->n)
        return;
    RB_REMOVE(dealloc_owners, &q->ready, owner);
    RB_INSERT(dealloc_owners, &q->deferred, owner);
    q->n_deferred += owner->n;
    q->bytes_deferred += owner->bytes;
}

void
dealloc_unhold(struct dealloc *q, struct dealloc_owner *owner)
{
    assert(owner->deferred);
    if (--owner->deferred || !owner->n)
        return;
    RB_REMOVE(dealloc_owners, &q->deferred, owner);
    RB_INSERT(dealloc_owners, &q->ready, owner);
    q->n_deferred -= owner->n;
    q->bytes_deferred -= owner->bytes;
}

/* ---- age ---- */

uint64_t
dealloc_deadline_ns(const struct dealloc *q)
{
    struct dealloc_owners ready = q->ready;
    const struct dealloc_owner *owner = RB_MIN(dealloc_owners, &ready);
    uint64_t deadline;

    if (!owner || __builtin_add_overflow(TAILQ_FIRST(&owner->entries)->at_ns,
                                         q->limits.max_age_ns, &deadline))
        return UINT64_MAX;
    return deadline;
}
