/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The range allocator, as space.h describes it. A free range that is split keeps its object for
 * what stays free of it, or for what is taken when nothing stays; so a take allocates one object
 * at most, and a second one where an alignment leaves something in front.
 */
#include "space.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/macros.h"

/* Free ranges looked at for one that has the size asked for and happens to be aligned. */
#define ALIGNED_LOOKS 8

static int
range_compare(const struct range *a, const struct range *b)
{
    if (a->size_units != b->size_units)
        return CMP(a->size_units, b->size_units);
    return CMP(a->offset_units, b->offset_units);
}

RB_GENERATE_STATIC(free_ranges, range, by_size, range_compare)

static struct range *
range_new(struct extent *extent)
{
    struct range *range = malloc(sizeof(*range));

    if (range)
        *range = (struct range){.extent = extent};
    return range;
}

static void
set_size(struct range *range, uint64_t units)
{
    assert(units && units <= SPACE_UNITS_MAX);
    range->size_units = units & SPACE_UNITS_MAX;
}

static void
tree_insert(struct range *range)
{
    range->is_free = true;
    RB_INSERT(free_ranges, &range->extent->free, range);
    range->extent->space->n_free++;
}

static void
tree_remove(struct range *range)
{
    RB_REMOVE(free_ranges, &range->extent->free, range);
    range->extent->space->n_free--;
    range->is_free = false;
}

/* The smallest free range of at least that many units. */
static struct range *
tree_find(const struct extent *extent, uint64_t units)
{
    struct range *range = RB_ROOT(&extent->free), *found = NULL;

    while (range) {
        if (range->size_units >= units) {
            found = range;
            range = RB_LEFT(range, by_size);
        } else {
            range = RB_RIGHT(range, by_size);
        }
    }
    return found;
}

static uint32_t
tree_most(const struct extent *extent)
{
    struct free_ranges free_here = extent->free;
    const struct range *range = RB_MAX(free_ranges, &free_here);

    return range ? range->size_units : 0;
}

/* ---- the slots ---- */

static uint32_t
larger(const uint32_t *pair)
{
    return pair[0] > pair[1] ? pair[0] : pair[1];
}

/* Units of the extent's largest free range. */
static uint32_t
slot_most(const struct extent *extent)
{
    return extent->space->most[extent->space->n_slots + extent->slot];
}

/* The extent's free ranges, or whether it is there, have changed. */
static void
slot_update(struct space *space, uint32_t slot, uint32_t units)
{
    uint32_t i = space->n_slots + slot;

    space->most[i] = units;
    for (i /= 2; i; i /= 2) {
        units = larger(&space->most[2 * i]);
        if (space->most[i] == units)
            break;
        space->most[i] = units;
    }
}

/* Numbers the extents afresh, with as many slots to spare as there are extents. */
static int
slots_renew(struct space *space)
{
    _cleanup_free_ struct extent **slots = NULL;
    struct extent *extent;
    uint32_t n = 1, i = 0;

    while (n < 2 * space->n_extents)
        n *= 2;
    slots = calloc(n, sizeof(*slots) + 2 * sizeof(*space->most));
    if (!slots)
        return -ENOMEM;
    free(space->slots);
    space->slots = TAKE_PTR(slots);
    space->most = (uint32_t *)(void *)(space->slots + n);
    space->n_slots = n;
    TAILQ_FOREACH(extent, &space->extents, link) {
        extent->slot = i++;
        space->slots[extent->slot] = extent;
        slot_update(space, extent->slot, tree_most(extent));
    }
    space->next_slot = i;
    return 0;
}

/* The oldest extent, from that slot on, with a free range of at least that many units. */
static struct extent *
find_extent(const struct space *space, uint32_t from, uint64_t units)
{
    uint32_t i = space->n_slots + from;

    if (from >= space->n_slots)
        return NULL;
    for (;;) {
        while (!(i & 1)) /* the largest group of slots that starts here */
            i /= 2;
        if (space->most[i] >= units)
            break;
        i++;
        if (!(i & (i - 1))) /* that was the last slot */
            return NULL;
    }
    while (i < space->n_slots) {
        i *= 2;
        i += space->most[i] < units;
    }
    return space->slots[i - space->n_slots];
}

/* ---- the tiling ---- */

static void
link_before(struct range *range, struct range *next)
{
    range->prev = next->prev;
    range->next = next;
    if (next->prev)
        next->prev->next = range;
    else
        next->extent->first = range;
    next->prev = range;
}

/* Joins the next neighbour to the range, and frees the neighbour. */
static void
absorb_next(struct range *range)
{
    struct range *next = range->next;

    set_size(range, (uint64_t)range->size_units + next->size_units);
    range->next = next->next;
    if (range->next)
        range->next->prev = range;
    free(next);
}

/* ---- the sums ---- */

/* The range is out of the tree, and what is left of the one it came from, of `from_units`, is in
 * it again. */
static void
count_taken(struct range *range, uint32_t from_units)
{
    struct extent *extent = range->extent;
    struct space *space = extent->space;
    uint64_t bytes = range_bytes(range);

    if (extent_is_empty(extent))
        space->bytes_empty -= extent->bytes;
    extent->bytes_free -= bytes;
    space->bytes_free -= bytes;
    space->n_taken++;
    if (from_units == slot_most(extent)) /* else the largest is what it was */
        slot_update(space, extent->slot, tree_most(extent));
    range->userdata = NULL;
}

/* That many bytes have become part of the range, which is in the tree. */
static void
count_freed(const struct range *range, uint64_t bytes)
{
    struct extent *extent = range->extent;
    struct space *space = extent->space;

    extent->bytes_free += bytes;
    space->bytes_free += bytes;
    space->n_taken--;
    if (extent_is_empty(extent))
        space->bytes_empty += extent->bytes;
    if (range->size_units > slot_most(extent))
        slot_update(space, extent->slot, range->size_units);
}

/* ---- spaces and extents ---- */

void
space_init(struct space *space)
{
    *space = (struct space){0};
    TAILQ_INIT(&space->extents);
}

void
space_deinit(struct space *space)
{
    assert(!space->n_extents && !space->slots);
}

int
space_add(struct space *space, struct extent *extent, uint64_t bytes)
{
    struct range *range;

    assert(bytes && bytes % SPACE_UNIT == 0);
    if (bytes > SPACE_EXTENT_MAX)
        return -EFBIG;
    range = range_new(extent);
    if (!range)
        return -ENOMEM;
    if (space->next_slot == space->n_slots && slots_renew(space) < 0) {
        free(range);
        return -ENOMEM;
    }
    set_size(range, bytes / SPACE_UNIT);
    *extent = (struct extent){.space = space,
                              .first = range,
                              .slot = space->next_slot++,
                              .bytes = bytes,
                              .bytes_free = bytes};
    TAILQ_INSERT_TAIL(&space->extents, extent, link);
    space->slots[extent->slot] = extent;
    tree_insert(range);
    slot_update(space, extent->slot, range->size_units);
    space->n_extents++;
    space->bytes += bytes;
    space->bytes_free += bytes;
    space->bytes_empty += bytes;
    return 0;
}

void
space_remove(struct extent *extent)
{
    struct space *space = extent->space;

    assert(extent_is_empty(extent));
    tree_remove(extent->first);
    free(TAKE_PTR(extent->first));
    TAILQ_REMOVE(&space->extents, extent, link);
    space->slots[extent->slot] = NULL;
    slot_update(space, extent->slot, 0);
    space->n_extents--;
    space->bytes -= extent->bytes;
    space->bytes_free -= extent->bytes;
    space->bytes_empty -= extent->bytes;
    extent->space = NULL;
    if (space->n_extents)
        return;
    free(TAKE_PTR(space->slots));
    space->most = NULL;
    space->n_slots = space->next_slot = 0;
}

bool
extent_is_empty(const struct extent *extent)
{
    return extent->bytes_free == extent->bytes;
}

/* ---- taking and freeing ---- */

/* Units in front of the first aligned offset in a range. */
static uint64_t
front_units(const struct range *range, uint64_t align_units)
{
    return -(uint64_t)range->offset_units & (align_units - 1);
}

static bool
fits(const struct range *range, uint64_t units, uint64_t align_units)
{
    return front_units(range, align_units) + units <= range->size_units;
}

/* A free range of the extent that has so many units at an aligned offset; NULL: none was found.
 * The extent has a free range of that many units. */
static struct range *
find_in(const struct extent *extent, uint64_t units, uint64_t align_units)
{
    struct range *range = tree_find(extent, units);

    for (int n = 0; range && n < ALIGNED_LOOKS; n++) {
        if (fits(range, units, align_units))
            return range;
        range = RB_NEXT(free_ranges, &extent->free, range);
    }
    range = range ? tree_find(extent, units + align_units - 1) : NULL;
    if (range)
        return range;
    /* At the start every alignment is met. */
    return extent->first->is_free && extent->first->size_units >= units ? extent->first : NULL;
}

static struct range *
find_range(const struct space *space, uint64_t units, uint64_t align_units)
{
    const struct extent *extent = find_extent(space, 0, units);
    struct range *range = NULL;

    while (extent && !(range = find_in(extent, units, align_units)))
        extent = find_extent(space, extent->slot + 1, units);
    return range;
}

/* Cuts `units` off the start of a free range that is not in the tree: they become `part`. */
static void
cut_front(struct range *range, struct range *part, uint32_t units)
{
    part->offset_units = range->offset_units;
    set_size(part, units);
    link_before(part, range);
    range->offset_units += units;
    set_size(range, range->size_units - units);
}

/* Takes `units` out of a free range, after `front` that stay free. */
static int
take_from(struct range *range, uint32_t front, uint32_t units, struct range **ret)
{
    _cleanup_free_ struct range *before = NULL;
    struct range *taken = NULL;
    uint32_t from_units = range->size_units;
    bool rest = front + units < from_units;

    if (front && !(before = range_new(range->extent)))
        return -ENOMEM;
    if (rest && !(taken = range_new(range->extent)))
        return -ENOMEM;
    tree_remove(range);
    if (front) {
        cut_front(range, before, front);
        tree_insert(TAKE_PTR(before));
    }
    if (rest) {
        cut_front(range, taken, units);
        tree_insert(range);
    } else {
        taken = range;
    }
    count_taken(taken, from_units);
    *ret = taken;
    return 0;
}

int
space_take(struct space *space, uint64_t bytes, uint64_t alignment, struct range **ret)
{
    uint64_t units = bytes / SPACE_UNIT + (bytes % SPACE_UNIT != 0);
    uint64_t align_units = alignment > SPACE_UNIT ? alignment / SPACE_UNIT : 1;
    struct range *range;

    assert(bytes && alignment && !(alignment & (alignment - 1)));
    range = find_range(space, units, align_units);
    if (!range)
        return SPACE_FULL;
    return take_from(range, (uint32_t)front_units(range, align_units), (uint32_t)units, ret);
}

int
range_take_at(struct range *free, uint64_t offset, uint64_t bytes, struct range **ret)
{
    uint64_t start = range_offset(free), units = bytes / SPACE_UNIT + (bytes % SPACE_UNIT != 0);

    if (!free->is_free || offset % SPACE_UNIT || offset < start ||
        offset - start > range_bytes(free) ||
        units * SPACE_UNIT > range_bytes(free) - (offset - start))
        return SPACE_FULL;
    return take_from(free, (uint32_t)((offset - start) / SPACE_UNIT), (uint32_t)units, ret);
}

struct range *
extent_take(struct extent *extent)
{
    struct range *range = extent->first;

    assert(extent_is_empty(extent));
    tree_remove(range);
    count_taken(range, range->size_units);
    return range;
}

void
space_free(struct range *range)
{
    uint64_t bytes = range_bytes(range);

    assert(!range->is_free);
    if (range->next && range->next->is_free) {
        tree_remove(range->next);
        absorb_next(range);
    }
    if (range->prev && range->prev->is_free) {
        range = range->prev;
        tree_remove(range);
        absorb_next(range);
    }
    tree_insert(range);
    count_freed(range, bytes);
}

/* ---- questions ---- */

uint64_t
range_offset(const struct range *range)
{
    return (uint64_t)range->offset_units * SPACE_UNIT;
}

uint64_t
range_bytes(const struct range *range)
{
    return (uint64_t)range->size_units * SPACE_UNIT;
}

uint64_t
space_largest_hole(const struct space *space)
{
    const struct extent *extent;
    uint32_t units, largest = 0;

    TAILQ_FOREACH(extent, &space->extents, link) {
        units = slot_most(extent);
        if (!extent_is_empty(extent) && units > largest)
            largest = units;
    }
    return (uint64_t)largest * SPACE_UNIT;
}

uint64_t
space_holes(const struct space *space)
{
    return space->bytes_free - space->bytes_empty;
}
