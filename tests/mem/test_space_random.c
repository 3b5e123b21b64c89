/* SPDX-License-Identifier: Apache-2.0 */
/* Random histories: against a map of every unit, and long ones for their figures. */
#include <stdio.h>

#include "caid_test.h"
#include "space_map.h"

static uint64_t
random_bytes(uint64_t *state)
{
    uint32_t most = 1U << random_below(state, 8); /* units: small ones more often */

    return 1 + random_below(state, most * SPACE_UNIT);
}

static uint64_t
random_alignment(uint64_t *state)
{
    return random_below(state, 3) ? SPACE_UNIT : UINT64_C(1) << random_below(state, 17);
}

static void
step(struct map *map, uint64_t *state)
{
    uint32_t what = random_below(state, 100);
    struct map_extent *e = &map->extents[random_below(state, MAP_EXTENTS)];

    if (what < 5) {
        map_add(map, 1 + random_below(state, MAP_UNITS));
    } else if (what < 12) {
        if (e->there && map_is_empty(e))
            map_remove(map, e);
    } else if (what < 60 && map->n_ranges < MAP_RANGES) {
        cr_assert_geq(map_take(map, random_bytes(state), random_alignment(state)), 0);
    } else if (map->n_ranges) {
        map_free(map, random_below(state, map->n_ranges));
    }
}

CAID_TEST(space_random, agrees_with_a_map_of_all_units)
{
    static struct map map;

    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15);
        map_init(&map);
        for (int i = 0; i < 1000; i++) {
            step(&map, &state);
            map_check(&map);
        }
        map_deinit(&map);
    }
}

/* ---- figures: what a pool would see ---- */

#define BLOCK      (UINT64_C(32) << 20)
#define N_BLOCKS   256
#define N_LIVE_MAX 20000

struct trace {
    struct space space;
    struct extent blocks[N_BLOCKS];
    uint32_t n_blocks;
    struct range *live[N_LIVE_MAX];
    uint32_t n_live;
    uint64_t state;
    uint64_t fixed; /* bytes of each; 0: from 512 bytes to 2 MiB, small ones more often */
};

static void
trace_take(struct trace *t)
{
    uint64_t bytes = t->fixed ? t->fixed : (UINT64_C(1) << random_below(&t->state, 12)) * 512;

    if (!t->fixed)
        bytes += random_below(&t->state, (uint32_t)bytes);
    while (space_take(&t->space, bytes, 512, &t->live[t->n_live])) {
        cr_assert_lt(t->n_blocks, N_BLOCKS);
        cr_assert_eq(space_add(&t->space, &t->blocks[t->n_blocks++], BLOCK), 0);
    }
    t->n_live++;
}

static void
trace_free(struct trace *t)
{
    uint32_t i = random_below(&t->state, t->n_live);

    space_free(t->live[i]);
    t->live[i] = t->live[--t->n_live];
}

/* Goes to that many arrays, then replaces each of them, most of them many times. */
static void
trace_go(struct trace *t, uint32_t n_live)
{
    while (t->n_live < n_live)
        trace_take(t);
    while (t->n_live > n_live)
        trace_free(t);
    for (uint32_t i = 0; i < 16 * n_live; i++) {
        trace_free(t);
        trace_take(t);
    }
    space_check(&t->space);
}

/* Per cent of the blocks that are in use. */
static double
trace_packing(const struct trace *t)
{
    const struct space *s = &t->space;

    return 100.0 * (double)(s->bytes - s->bytes_free) / (double)(s->bytes - s->bytes_empty);
}

static uint32_t
trace_empty(const struct trace *t)
{
    return (uint32_t)(t->space.bytes_empty / BLOCK);
}

static void
trace_print(const struct trace *t, const char *what)
{
    printf("%-8s %6u arrays: %3u of %3u blocks empty, the others %.1f %% full, "
           "largest hole %.1f MiB, %lu free ranges\n",
           what, t->n_live, trace_empty(t), t->n_blocks, trace_packing(t),
           (double)space_largest_hole(&t->space) / (1 << 20), (unsigned long)t->space.n_free);
}

static void
trace_end(struct trace *t)
{
    while (t->n_live)
        trace_free(t);
    cr_assert_eq(t->space.bytes_empty, t->space.bytes);
    cr_assert_eq(t->space.n_free, t->n_blocks, "not all free ranges were joined");
    while (t->n_blocks)
        space_remove(&t->blocks[--t->n_blocks]);
    space_deinit(&t->space);
}

/* Grows, shrinks to a fifth, and must not stay spread over the blocks of its peak. */
static void
run_trace(uint64_t fixed, uint32_t n_live, const char *what)
{
    static struct trace trace;

    trace = (struct trace){.state = 88172645463325252, .fixed = fixed};
    space_init(&trace.space);
    trace_go(&trace, n_live);
    trace_print(&trace, what);
    uint32_t peak = trace.n_blocks;
    cr_assert_gt(trace_packing(&trace), 85.0);
    trace_go(&trace, n_live / 5);
    trace_print(&trace, what);
    cr_assert_gt(trace_empty(&trace), peak * 7 / 10, "young blocks did not run empty");
    cr_assert_eq(trace.n_blocks, peak);
    trace_go(&trace, n_live);
    trace_print(&trace, what);
    cr_assert_leq(trace.n_blocks, peak + 2, "it grows with every turn");
    trace_end(&trace);
}

CAID_TEST(space_random, young_blocks_run_empty_mixed_sizes)
{
    run_trace(0, 10000, "mixed");
}

CAID_TEST(space_random, young_blocks_run_empty_equal_sizes)
{
    run_trace(64 << 10, 10000, "64 KiB");
}
