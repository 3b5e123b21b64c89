/* SPDX-License-Identifier: Apache-2.0 */
/* The range allocator, case by case, and with each allocation failing in turn. */
#include <errno.h>

#include "base/macros.h"
#include "caid_test.h"
#include "space_map.h"

static long countdown; /* 0: none fails */

static bool
fails(void)
{
    return countdown && --countdown == 0;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);

void *
__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *
__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

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

CAID_TEST(space, rounds_up_and_takes_from_the_front)
{
    struct range *a, *b;

    start(1, 8);
    cr_assert_eq(space_take(&space, 1, 1, &a), 0);
    cr_assert_eq(space_take(&space, SPACE_UNIT + 1, SPACE_UNIT, &b), 0);
    cr_assert(range_offset(a) == 0 && range_bytes(a) == SPACE_UNIT);
    cr_assert(range_offset(b) == SPACE_UNIT && range_bytes(b) == 2 * SPACE_UNIT);
    cr_assert(a->extent == &extents[0] && !a->userdata);
    give(a);
    give(b);
    end(1);
}

CAID_TEST(space, full_is_an_answer_that_changes_nothing)
{
    struct range *range = NULL, *all;

    space_init(&space);
    cr_assert_eq(space_take(&space, 1, 1, &range), SPACE_FULL, "no extent");
    start(2, 8);
    cr_assert_eq(space_take(&space, 9 * SPACE_UNIT, 1, &range), SPACE_FULL, "none crosses");
    cr_assert_eq(space_take(&space, 8 * SPACE_UNIT + 1, 1, &range), SPACE_FULL);
    cr_assert_eq(space_take(&space, UINT64_MAX, 1, &range), SPACE_FULL);
    cr_assert_eq(space_take(&space, UINT64_MAX, UINT64_C(1) << 63, &range), SPACE_FULL);
    cr_assert_null(range);
    all = take(8);
    give(all);
    end(2);
}

CAID_TEST(space, joins_free_neighbours_on_both_sides)
{
    /* Freed in every order of three: at the end there is one free range again. */
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    for (size_t i = 0; i < ARRAY_SIZE(orders); i++) {
        start(1, 12);
        struct range *ranges[3] = {take(4), take(4), take(4)};
        cr_assert_eq(space.n_free, 0);
        for (int k = 0; k < 3; k++)
            give(ranges[orders[i][k]]);
        cr_assert_eq(space.n_free, 1);
        cr_assert(extent_is_empty(&extents[0]));
        end(1);
    }
}

CAID_TEST(space, takes_the_smallest_hole_of_the_oldest_extent)
{
    start(2, 16);
    struct range *a = take(4), *b = take(1), *c = take(2), *d = take(9);
    struct range *young = take(16);
    cr_assert_eq(young->extent, &extents[1]);
    give(young);
    give(a);
    give(c);
    struct range *e = take(2), *f = take(3), *g = take(2);
    cr_assert(e->extent == &extents[0] && e->offset_units == 5, "not the hole that fits");
    cr_assert(f->extent == &extents[0] && f->offset_units == 0);
    cr_assert_eq(g->extent, &extents[1], "one unit is left in the old one");
    struct range *left[] = {b, d, e, f, g};
    for (size_t i = 0; i < ARRAY_SIZE(left); i++)
        give(left[i]);
    end(2);
}

CAID_TEST(space, an_extent_added_later_is_younger_also_in_the_place_of_an_old_one)
{
    start(3, 4);
    space_remove(&extents[0]);
    cr_assert_eq(space_add(&space, &extents[0], 4 * SPACE_UNIT), 0);
    struct range *a = take(4), *b = take(4), *c = take(4);
    cr_assert_eq(a->extent, &extents[1]);
    cr_assert_eq(b->extent, &extents[2]);
    cr_assert_eq(c->extent, &extents[0]);
    give(a);
    give(b);
    give(c);
    end(3);
}

CAID_TEST(space, aligned_ranges_leave_the_front_free)
{
    struct range *a, *b;

    start(1, 64);
    a = take(1);
    cr_assert_eq(space_take(&space, 4 * SPACE_UNIT, 16 * SPACE_UNIT, &b), 0);
    cr_assert_eq(b->offset_units, 16);
    space_check(&space);
    cr_assert_eq(space.n_free, 2);
    struct range *front = take(15);
    cr_assert_eq(front->offset_units, 1);
    give(b);
    give(front);
    give(a);
    end(1);
}

CAID_TEST(space, an_aligned_hole_of_the_exact_size_is_found)
{
    struct range *again;

    start(1, 64);
    struct range *a = take(16), *b = take(16), *c = take(32);
    give(b);
    cr_assert_eq(space_take(&space, 16 * SPACE_UNIT, 16 * SPACE_UNIT, &again), 0);
    cr_assert_eq(again->offset_units, 16);
    give(again);
    give(a);
    give(c);
    end(1);
}

/* However many holes of the size there are that are not aligned. */
CAID_TEST(space, an_empty_extent_serves_every_alignment)
{
    struct range *ranges[128], *range;
    size_t n = 0;

    start(1, 256);
    while (n < ARRAY_SIZE(ranges)) {
        ranges[n++] = take(1); /* even units stay taken, odd ones are holes of 1 */
        struct range *odd = take(1);
        odd->userdata = ranges[n - 1];
        ranges[n - 1]->userdata = odd;
    }
    for (size_t i = 0; i < n; i++)
        give(ranges[i]->userdata);
    cr_assert_eq(space_add(&space, &extents[1], SPACE_UNIT), 0);
    cr_assert_eq(space_take(&space, SPACE_UNIT, UINT64_C(1) << 40, &range), 0);
    cr_assert(range->extent == &extents[1] && range->offset_units == 0);
    cr_assert_eq(space_take(&space, SPACE_UNIT, UINT64_C(1) << 40, &ranges[0]), SPACE_FULL);
    give(range);
    for (range = extents[0].first; range; range = extents[0].first) {
        struct range *taken = range->is_free ? range->next : range;
        if (!taken)
            break;
        give(taken);
    }
    end(2);
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

CAID_TEST(space, a_hole_that_falls_short_of_an_alignment_by_a_unit)
{
    uint64_t units[N_CUT] = {1};
    struct range *ranges[N_CUT], *range;

    for (size_t i = 1; i < N_CUT; i++)
        units[i] = i % 2 ? 1 : 3; /* holes at 1, 5, 9 and so on */
    units[N_CUT - 1] = 3;         /* the only one larger than a unit: 45, 46, 47 */
    cut(ranges, units, N_CUT);
    for (size_t i = 1; i < N_CUT; i += 2)
        give(TAKE_PTR(ranges[i]));
    cr_assert_eq(space_take(&space, SPACE_UNIT, 4 * SPACE_UNIT, &range), SPACE_FULL);
    space_check(&space);
    give_all(ranges, N_CUT);
}

CAID_TEST(space, all_of_an_empty_extent_at_once)
{
    start(2, 8);
    struct range *range = extent_take(&extents[1]);
    space_check(&space);
    cr_assert(range->extent == &extents[1] && range_offset(range) == 0);
    cr_assert_eq(range_bytes(range), 8 * SPACE_UNIT);
    cr_assert_not(extent_is_empty(&extents[1]));
    give(range);
    end(2);
}

CAID_TEST(space, an_empty_extent_is_no_hole)
{
    start(2, 8);
    cr_assert(space_holes(&space) == 0 && space_largest_hole(&space) == 0);
    struct range *a = take(2), *b = take(3);
    cr_assert_eq(space_holes(&space), 3 * SPACE_UNIT);
    give(a);
    cr_assert_eq(space_holes(&space), 5 * SPACE_UNIT);
    cr_assert_eq(space_largest_hole(&space), 3 * SPACE_UNIT);
    give(b);
    cr_assert(space_holes(&space) == 0 && space_largest_hole(&space) == 0);
    cr_assert_eq(space.bytes_empty, 16 * SPACE_UNIT);
    end(2);
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
        countdown = ++n;
        history(&map);
        failed = countdown == 0;
        countdown = 0;
        map_check(&map); /* a failed call has changed nothing */
        map_deinit(&map);
    }
    cr_assert_gt(n, 100, "the counter is not in front of the allocator");
}
