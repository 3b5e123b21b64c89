/* SPDX-License-Identifier: Apache-2.0 */
#include "mem_check.h"

#include <sys/param.h>

static int
range_compare(const struct range *a, const struct range *b)
{
    return a->size_units != b->size_units ? CMP(a->size_units, b->size_units)
                                          : CMP(a->offset_units, b->offset_units);
}

static int
owner_compare(const struct dealloc_owner *a, const struct dealloc_owner *b)
{
    return CMP(TAILQ_FIRST(&a->entries)->seq, TAILQ_FIRST(&b->entries)->seq);
}

RB_GENERATE_STATIC(free_ranges, range, by_size, range_compare)
RB_GENERATE_STATIC(dealloc_owners, dealloc_owner, node, owner_compare)

/* ---- space ---- */

/* Adds what it finds to the sums of `found`. */
static void
check_extent(const struct extent *extent, struct space *found)
{
    uint64_t units = 0, bytes_free = 0;
    const struct range *range, *prev = NULL;

    for (range = extent->first; range; prev = range, range = range->next) {
        CHECK(range->extent == extent && range->prev == prev);
        CHECK(range->offset_units == units && range->size_units);
        CHECK(!(range->is_free && prev && prev->is_free));
        units += range->size_units;
        if (range->is_free) {
            found->n_free++;
            bytes_free += range_bytes(range);
        } else {
            found->n_taken++;
        }
    }
    CHECK(units * SPACE_UNIT == extent->bytes);
    CHECK(bytes_free == extent->bytes_free);
    CHECK(extent_is_empty(extent) == (extent->first->is_free && !extent->first->next));
    found->n_extents++;
    found->bytes += extent->bytes;
    found->bytes_free += bytes_free;
    found->bytes_empty += extent_is_empty(extent) ? extent->bytes : 0;
}

/* Whether the tree holds the free ranges, all of them, in their order. */
static uint64_t
check_free(const struct extent *extent)
{
    struct free_ranges free_here = extent->free;
    const struct range *prev = NULL;
    struct range *range;
    uint64_t n = 0;

    RB_FOREACH(range, free_ranges, &free_here) {
        CHECK(range->is_free && range->extent == extent);
        CHECK(!prev || range_compare(prev, range) < 0);
        prev = range;
        n++;
    }
    return n;
}

static uint32_t
largest_free(const struct extent *extent)
{
    struct free_ranges free_here = extent->free;
    const struct range *range = RB_MAX(free_ranges, &free_here);

    return range ? range->size_units : 0;
}

static void
check_slots(const struct space *space)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < space->n_slots; i++) {
        const struct extent *extent = space->slots[i];
        CHECK(!extent || (extent->space == space && extent->slot == i && i < space->next_slot));
        CHECK(space->most[space->n_slots + i] == (extent ? largest_free(extent) : 0));
        CHECK(i == 0 || space->most[i] == MAX(space->most[2 * i], space->most[2 * i + 1]));
        n += extent != NULL;
    }
    CHECK(n == space->n_extents && !n == !space->slots);
}

void
space_check(const struct space *space)
{
    struct space found = {0};
    const struct extent *extent;
    uint64_t in_trees = 0;
    uint32_t slot = 0;

    TAILQ_FOREACH(extent, &space->extents, link) {
        CHECK(extent->slot >= slot);
        slot = extent->slot + 1;
        check_extent(extent, &found);
        in_trees += check_free(extent);
    }
    CHECK(found.n_extents == space->n_extents && in_trees == space->n_free);
    CHECK(found.n_free == space->n_free && found.n_taken == space->n_taken);
    CHECK(found.bytes == space->bytes && found.bytes_free == space->bytes_free);
    CHECK(found.bytes_empty == space->bytes_empty);
    check_slots(space);
}

/* ---- dealloc ---- */

static void
check_owner(const struct dealloc *q, const struct dealloc_owner *owner)
{
    const struct dealloc_entry *entry, *prev = NULL;
    uint64_t n = 0, bytes = 0;

    TAILQ_FOREACH(entry, &owner->entries, link) {
        CHECK(entry->owner == owner && entry->seq < q->next_seq);
        CHECK(!prev || prev->seq < entry->seq);
        CHECK(!prev || prev->at_ns <= entry->at_ns);
        prev = entry;
        n++;
        bytes += entry->bytes;
    }
    CHECK(n && n == owner->n && bytes == owner->bytes);
}

static void
check_owners(const struct dealloc *q, struct dealloc_owners tree, bool held, uint64_t *ret_n,
             uint64_t *ret_bytes)
{
    struct dealloc_owner *owner, *prev = NULL;

    *ret_n = *ret_bytes = 0;
    RB_FOREACH(owner, dealloc_owners, &tree) {
        check_owner(q, owner);
        CHECK(!prev || owner_compare(prev, owner) < 0);
        CHECK((owner->deferred > 0) == held);
        prev = owner;
        *ret_n += owner->n;
        *ret_bytes += owner->bytes;
    }
}

void
dealloc_check(const struct dealloc *q)
{
    uint64_t n_ready, n_deferred, bytes_ready, bytes_deferred;

    check_owners(q, q->ready, false, &n_ready, &bytes_ready);
    check_owners(q, q->deferred, true, &n_deferred, &bytes_deferred);
    CHECK(n_deferred == q->n_deferred && bytes_deferred == q->bytes_deferred);
    CHECK(n_ready + n_deferred == q->n && bytes_ready + bytes_deferred == q->bytes);
}
