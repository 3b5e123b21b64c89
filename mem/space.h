/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The range allocator: sub-allocation in blocks. A space is a set of extents (one for each block)
 * in which ranges are handed out; a range never crosses an extent. Pure: it knows sizes and
 * offsets, and touches no memory that they stand for.
 *
 * Invariants
 *   The ranges of an extent, free and taken, tile it in the order of their offsets, without gaps.
 *   No two neighbours are free: space_free() joins them.
 *   Offsets and sizes are multiples of SPACE_UNIT.
 *   A range is taken from the oldest extent that has a free range large enough, and there from the
 *   smallest such: old blocks fill up and young ones run empty, so that they can be given back.
 *   (The smallest in all extents packs a few per cent denser at the peak, but never lets go of a
 *   block: tests/mem/test_space_random.c prints both.)
 * Taking and freeing are O(log n) in the free ranges of an extent and in the extents. Freeing
 * allocates nothing and cannot fail.
 *
 * Lifetimes: the space and the extents are embedded in their owners' objects and must stay where
 * they are; ranges are the space's, lent to the caller from space_take() to space_free().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/tree.h"

#define SPACE_UNIT 512 /* bytes */
#define SPACE_FULL 1   /* no free range is large enough */

#define SPACE_UNITS_MAX ((UINT32_C(1) << 31) - 1) /* of an extent */
#define SPACE_EXTENT_MAX \
    ((uint64_t)SPACE_UNITS_MAX * SPACE_UNIT) /* bytes: 1 TiB less one unit */

struct extent;

struct range { /* a million of them must be cheap: 64 bytes */
    struct extent *extent;
    struct range *prev, *next; /* by offset; NULL at the extent's ends */
    uint32_t offset_units;
    uint32_t size_units : 31;
    uint32_t is_free : 1;

    union {
        RB_ENTRY(range) by_size; /* while it is free: extent->free */

        struct { /* while it is taken: the caller's */
            void *userdata;
            struct range *link;
        };
    };
};

_Static_assert(sizeof(struct range) <= 64, "there are as many ranges as arrays");

RB_HEAD(free_ranges, range);

struct space {
    TAILQ_HEAD(, extent) extents;        /* oldest first */
    uint64_t n_extents, n_free, n_taken; /* n_free, n_taken: ranges */
    uint64_t bytes, bytes_free;          /* of all extents */
    uint64_t bytes_empty;                /* of the extents in which nothing is taken */

    /* Finds the oldest extent that has so many units in one piece. One allocation, there while
     * there are extents. */
    struct extent **slots; /* by age; NULL: taken out, or not in use yet */
    uint32_t *most;        /* [n_slots + i]: units of the largest free range in slots[i];
                              [i] below: the larger one of [2 * i] and [2 * i + 1] */
    uint32_t n_slots;      /* a power of 2 */
    uint32_t next_slot;
};

struct extent {
    struct space *space;
    TAILQ_ENTRY(extent) link;
    struct range *first;
    struct free_ranges free; /* by size, then by offset */
    uint32_t slot;
    uint64_t bytes;
    uint64_t bytes_free;
};

void space_init(struct space *space);
/* No extent may be left. */
void space_deinit(struct space *space);

/* Adds an extent of that many bytes (> 0), a multiple of SPACE_UNIT, all of it free. -EFBIG: more
 * than SPACE_EXTENT_MAX; -ENOMEM. */
int space_add(struct space *space, struct extent *extent, uint64_t bytes);
/* Takes out an extent in which nothing is taken. */
void space_remove(struct extent *extent);
/* Whether nothing is taken in it. */
bool extent_is_empty(const struct extent *extent);

/*
 * Takes a range of at least `bytes` (> 0), rounded up to SPACE_UNIT, whose offset is a multiple of
 * alignment, a power of 2. SPACE_FULL; -ENOMEM. Nothing changes then.
 * With an alignment above SPACE_UNIT the search is O(log n) in each extent, but may pass several;
 * SPACE_FULL may come where a hole would just do, but never where an extent is empty, or has its
 * start free, and the range fits there, nor where a free range is large enough wherever it lies
 * (bytes + alignment - SPACE_UNIT).
 */
int space_take(struct space *space, uint64_t bytes, uint64_t alignment, struct range **ret);
/* Takes all of an empty extent, for a block of one array. It cannot fail: nothing is split. */
struct range *extent_take(struct extent *extent);
/* Takes so many bytes at that offset of the extent, out of a range that is free there. SPACE_FULL:
 * it is not; -ENOMEM. The range behind it, where there is one, is (*ret)->next. */
int range_take_at(struct range *free, uint64_t offset, uint64_t bytes, struct range **ret);
void space_free(struct range *range);

uint64_t range_offset(const struct range *range);
uint64_t range_bytes(const struct range *range);
/* Bytes of the largest free range of the extents that are not empty, 0 where there is none, and
 * the sum of all such free ranges (the holes). O(n) in the extents; O(1). */
uint64_t space_largest_hole(const struct space *space);
uint64_t space_holes(const struct space *space);
