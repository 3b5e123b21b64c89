/* SPDX-License-Identifier: Apache-2.0 */
#include "space_map.h"

#include <errno.h>

#include "caid_test.h"

void
map_init(struct map *map)
{
    *map = (struct map){0};
    space_init(&map->space);
}

void
map_deinit(struct map *map)
{
    while (map->n_ranges)
        map_free(map, 0);
    for (uint32_t i = 0; i < MAP_EXTENTS; i++)
        if (map->extents[i].there)
            map_remove(map, &map->extents[i]);
    space_deinit(&map->space);
}

bool
map_add(struct map *map, uint32_t units)
{
    struct map_extent *e = map->extents;

    while (e->there)
        if (++e == map->extents + MAP_EXTENTS)
            return false;
    *e = (struct map_extent){.units = units};
    int r = space_add(&map->space, &e->extent, (uint64_t)units * SPACE_UNIT);
    cr_assert(r == 0 || r == -ENOMEM);
    e->there = r == 0;
    e->order = map->next_order++;
    return e->there;
}

void
map_remove(struct map *map, struct map_extent *e)
{
    cr_assert(map_is_empty(e) && e->extent.space == &map->space);
    space_remove(&e->extent);
    e->there = false;
}

/* Free units from `at` on; 0: it is taken. */
static uint32_t
run_at(const struct map_extent *e, uint32_t at)
{
    uint32_t n = 0;

    while (at + n < e->units && !e->by[at + n])
        n++;
    return n;
}

bool
map_is_empty(const struct map_extent *e)
{
    return run_at(e, 0) == e->units;
}

/* The smallest and the largest free run of at least that many units; 0: none. */
static uint32_t
run_find(const struct map_extent *e, uint64_t units, uint32_t *ret_largest)
{
    uint32_t smallest = 0, largest = 0, n;

    for (uint32_t at = 0; e->there && at < e->units; at += n ? n : 1) {
        n = run_at(e, at);
        if (n >= units && n && (!smallest || n < smallest))
            smallest = n;
        if (n > largest)
            largest = n;
    }
    if (ret_largest)
        *ret_largest = largest;
    return smallest;
}

/* Where a range of that size and no special alignment must come from. */
static const struct map_extent *
oldest_that_fits(const struct map *map, uint64_t units)
{
    const struct map_extent *best = NULL;

    for (uint32_t i = 0; i < MAP_EXTENTS; i++) {
        const struct map_extent *e = &map->extents[i];
        if (run_find(e, units, NULL) && (!best || e->order < best->order))
            best = e;
    }
    return best;
}

/* SPACE_FULL was answered. */
static void
check_full(const struct map *map, uint64_t units, uint64_t align_units)
{
    for (uint32_t i = 0; i < MAP_EXTENTS; i++) {
        const struct map_extent *e = &map->extents[i];
        cr_assert(!e->there || run_at(e, 0) < units, "the start of an extent would do");
        cr_assert_not(run_find(e, units + align_units - 1, NULL), "a free range would do");
    }
}

static void
check_choice(const struct map *map, const struct map_extent *e, const struct range *range)
{
    uint32_t at = range->offset_units, start = at;

    cr_assert_eq(e, oldest_that_fits(map, range->size_units), "not in the oldest extent");
    while (start && !e->by[start - 1])
        start--;
    cr_assert_eq(start, at, "not at the start of the hole");
    cr_assert_eq(run_at(e, at), run_find(e, range->size_units, NULL), "not the smallest hole");
}

static void
map_mark(struct map_extent *e, const struct range *range, const struct range *from,
         const struct range *to)
{
    uint64_t at = range_offset(range) / SPACE_UNIT, n = range_bytes(range) / SPACE_UNIT;

    cr_assert(n && at + n <= e->units);
    for (; n; at++, n--) {
        cr_assert_eq(e->by[at], from, "a unit belongs to another range");
        e->by[at] = to;
    }
}

int
map_take(struct map *map, uint64_t bytes, uint64_t alignment)
{
    uint64_t units = bytes / SPACE_UNIT + (bytes % SPACE_UNIT != 0);
    uint64_t align_units = alignment > SPACE_UNIT ? alignment / SPACE_UNIT : 1;
    struct range *range;
    int r = space_take(&map->space, bytes, alignment, &range);

    if (r == SPACE_FULL)
        check_full(map, units, align_units);
    if (r)
        return r;
    struct map_extent *e = container_of(range->extent, struct map_extent, extent);
    cr_assert_eq(range_bytes(range), units * SPACE_UNIT);
    cr_assert_eq(range_offset(range) % alignment, 0);
    cr_assert_null(range->userdata);
    if (align_units == 1)
        check_choice(map, e, range);
    map_mark(e, range, NULL, range);
    range->userdata = range;
    cr_assert_lt(map->n_ranges, MAP_RANGES);
    map->ranges[map->n_ranges++] = range;
    return 0;
}

void
map_free(struct map *map, uint32_t i)
{
    struct range *range = map->ranges[i];

    cr_assert_eq(range->userdata, range);
    map_mark(container_of(range->extent, struct map_extent, extent), range, range, NULL);
    map->ranges[i] = map->ranges[--map->n_ranges];
    space_free(range);
}

void
map_check(const struct map *map)
{
    uint64_t n = 0, bytes = 0, bytes_free = 0, holes = 0, hole = 0;

    for (uint32_t i = 0; i < MAP_EXTENTS; i++) {
        const struct map_extent *e = &map->extents[i];
        uint64_t units_free = 0;
        uint32_t largest;
        if (!e->there)
            continue;
        for (uint32_t at = 0; at < e->units; at++)
            units_free += !e->by[at];
        run_find(e, 1, &largest);
        cr_assert_eq(e->extent.bytes_free, units_free * SPACE_UNIT);
        cr_assert_eq(extent_is_empty(&e->extent), map_is_empty(e));
        n++;
        bytes += e->units * SPACE_UNIT;
        bytes_free += units_free * SPACE_UNIT;
        if (map_is_empty(e))
            continue;
        holes += units_free * SPACE_UNIT;
        if (largest > hole)
            hole = largest;
    }
    const struct space *space = &map->space;
    cr_assert(space->n_extents == n && space->n_taken == map->n_ranges);
    cr_assert(space->bytes == bytes && space->bytes_free == bytes_free);
    cr_assert_eq(space_holes(space), holes);
    cr_assert_eq(space_largest_hole(space), hole * SPACE_UNIT);
    space_check(space);
}
