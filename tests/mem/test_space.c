/* SPDX-License-Identifier: Apache-2.0 */
/* The range allocator, case by case, and with each allocation failing in turn. */
#include <errno.h>

#include "base/macros.h"
#include "caid_test.h"
#include "nomem.h"
#include "space_map.h"

static struct space space;
static struct extent extents[4];

static void
start(size_t n, uint64_t units)
{
    space_init(&space);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(space_add(&space, &extents[i], units * SPACE_UNIT), 0);
}

static void
end(size_t n)
{
    space_check(&space);
    cr_assert_eq(space.n_taken, 0);
    for (size_t i = 0; i < n; i++)
        space_remove(&extents[i]);
    space_deinit(&space);
}

static struct range *
take(uint64_t units)
{
    struct range *range = NULL;

    cr_assert_eq(space_take(&space, units * SPACE_UNIT, 1, &range), 0);
    space_check(&space);
    return range;
}

static void
give(struct range *range)
{
    space_free(range);
    space_check(&space);
}

/* One extent, cut into ranges of these sizes. */
static void
cut(struct range **ranges, const uint64_t *units, size_t n)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += units[i];
    start(1, sum);
    for (size_t i = 0; i < n; i++)
        ranges[i] = take(units[i]);
}

static void
give_all(struct range **ranges, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ranges[i])
            give(ranges[i]);
    end(1);
}

#define N_CUT 24

CAID_TEST(space, a_free_start_serves_every_alignment)
{
    uint64_t units[N_CUT] = {3};
    struct range *ranges[N_CUT], *range;

    for (size_t i = 1; i < N_CUT; i++)
        units[i] = 1 + i % 2; /* many smaller holes of 2, none of them aligned */
    cut(ranges, units, N_CUT);
    for (size_t i = 1; i < N_CUT; i += 2)
        give(TAKE_PTR(ranges[i]));
    cr_assert_eq(space_take(&space, 2 * SPACE_UNIT, UINT64_C(1) << 40, &range), SPACE_FULL);
    give(TAKE_PTR(ranges[0]));
    cr_assert_eq(space_take(&space, 2 * SPACE_UNIT, UINT64_C(1) << 40, &range), 0);
    cr_assert_eq(range->offset_units, 0);
    give(range);
    give_all(ranges, N_CUT);
}

CAID_TEST(space, extents_have_a_largest_size)
{
    struct range *range;

    space_init(&space);
    cr_assert_eq(space_add(&space, &extents[0], SPACE_EXTENT_MAX + SPACE_UNIT), -EFBIG);
    cr_assert_eq(space_add(&space, &extents[0], SPACE_EXTENT_MAX), 0);
    range = take(SPACE_UNITS_MAX - 1);
    give(range);
    range = extent_take(&extents[0]);
    cr_assert_eq(range_bytes(range), SPACE_EXTENT_MAX);
    give(range);
    end(1);
}

/* ---- allocations that fail ---- */

static void
history(struct map *map)
{
    uint64_t state = 7;

    for (int i = 0; i < 400; i++) {
        uint64_t bytes = 1 + random_below(&state, 20 * SPACE_UNIT);
        uint64_t alignment = UINT64_C(1) << random_below(&state, 14);
        if (i % 20 == 0)
            map_add(map, 1 + random_below(&state, MAP_UNITS));
        if (random_below(&state, 3))
            map_take(map, bytes, alignment);
        else if (map->n_ranges)
            map_free(map, random_below(&state, map->n_ranges));
    }
}

CAID_TEST(space, every_allocation_fails_once)
{
    static struct map map;
    long n = 0;
    bool failed = true;

    while (failed) {
        map_init(&map);
        nomem_countdown = ++n;
        history(&map);
        failed = nomem_countdown == 0;
        nomem_countdown = 0;
        map_check(&map); /* a failed call has changed nothing */
        map_deinit(&map);
    }
    cr_assert_gt(n, 100, "the counter is not in front of the allocator");
}
