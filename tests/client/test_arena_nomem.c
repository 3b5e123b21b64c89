/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Out of memory at every place of an arena's use, as test_nomem.c does for the rest: the n-th
 * allocation of the library's fails, for every n until nothing fails any more. Frees and closes
 * never fail.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena_fixture.h"
#include "base/macros.h"
#include "nomem.h"

static char own_pool[80]; /* that a client has without saying so */

static struct caid_arena_info
look(struct caid_arena *arena)
{
    struct caid_arena_info info = CAID_INIT(info);

    assert_ok(caid_arena_info(arena, &info, &error));
    return info;
}

/* Frees without fail, and what waits is not lost. */
static void
free_all(struct caid_arena *arena, const uint64_t *ptrs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_ok(caid_arena_free(arena, ptrs[i], 0, &error));
    struct caid_arena_info info = look(arena);
    cr_assert_eq(info.allocations, 0);
}

static int
use_set(struct caid_arena *arena, const uint64_t *ptrs)
{
    const int64_t shape = 100;
    const struct caid_member two[] = {
        {.key = "a", .offset = ptrs[0], .typestr = "|u1", .ndim = 1, .shape = &shape},
        {.key = "b", .offset = ptrs[2], .typestr = "|u1", .ndim = 1, .shape = &shape},
    };
    struct caid_array *set;

    int r = caid_arena_set_create(arena, &set, two, 2, NULL, NULL, &error);
    if (r == 0)
        caid_array_close(set);
    return r;
}

static int
use(struct caid_arena *arena)
{
    const uint64_t sizes[] = {100, 5000, 3 * MIB, 100, 4096, 700};
    const int64_t shape = 100;
    uint64_t ptrs[18];
    size_t n = 0;
    int r = 0;

    OPTIONS(caid_part_options, options, .typestr = "|u1", .shape = &shape, .ndim = 1);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(ptrs); i++) {
        r = caid_arena_alloc(arena, sizes[i % ARRAY_SIZE(sizes)], 0, &ptrs[n], &error);
        n += r == 0;
    }
    if (r == 0)
        r = caid_arena_publish(arena, ptrs[0], "part", &options, NULL, &error);
    if (r == 0)
        r = use_set(arena, ptrs);
    free_all(arena, ptrs, n);
    if (r == 0)
        r = caid_arena_flush(arena, &error);
    if (r == 0)
        r = caid_arena_trim(arena, &error);
    return r;
}

static int
scenario(void)
{
    struct caid_arena_options options = arena_blocks_of(4);
    struct caid_arena *arena;

    options.pool = own_pool;
    int r = caid_arena_new(f.client, &arena, &options, &error);
    if (r < 0)
        return r;
    r = use(arena);
    caid_arena_close(arena);
    return r;
}

CLIENT_TEST(arena_nomem, at_every_place)
{
    bool reached;
    int n = 0;

    arena_begin(NULL);
    struct caid_client *witness = daemon_connect(&f.daemon);
    struct caid_status status = CAID_INIT(status);
    assert_ok(caid_client_status(witness, &status, &error));
    memcpy(own_pool, status.pool, sizeof(status.pool));
    do {
        error = (struct caid_error){0};
        nomem_countdown = n + 1;
        int r = scenario();
        reached = nomem_countdown == 0;
        nomem_countdown = 0;
        if (r < 0)
            cr_assert(reached && error.code != 0 && error.message[0], "allocation %d: %d", n,
                      r);
        caid_unlink(witness, "part", NULL, NULL);
        wait_for_leases(witness, 0);
        /* The connection may have been ended by it. */
        if (caid_client_ping(f.client, &error) < 0) {
            caid_arena_close(f.arena);
            caid_client_close(f.client);
            f.client = daemon_connect(&f.daemon);
            assert_ok(caid_arena_new(f.client, &f.arena, NULL, &error));
        }
        cr_assert_lt(++n, 1000);
    } while (reached);
    cr_assert_gt(n, 40, "the scenario allocates");
    caid_client_close(witness);
    arena_end();
}
