/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caid_arena_set_create(): a set of arrays that lie in allocations. They are parts of the blocks'
 * arrays, and each pins its allocation as a part with a name does (part.c). Where the set is not
 * made whole nobody has ever reached its arrays: what the daemon was not known to have made is
 * unpinned at once, the rest when the daemon has ended it.
 */
#include "memory/set.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "arena.h"
#include "memory/array.h"
#include "session/client.h"

/* Lives as long as one of the set's parts, or the call that makes them. */
struct family {
    _Atomic size_t n;             /* of these */
    void (*gone)(void *userdata); /* NULL: none, or the set was not made */
    void *userdata;
};

static void
family_drop(struct family *family, size_t n)
{
    if (atomic_fetch_sub(&family->n, n) > n)
        return;
    if (family->gone)
        family->gone(family->userdata);
    free(family);
}

static void
part_gone(void *family)
{
    family_drop(family, 1);
}

/* A member, and what it pins. */
struct pinned {
    const struct caid_member *member;
    struct allocation *allocation;
};

/* The members by their blocks, each of which is the whole of its members. */
struct making {
    size_t n;
    struct pinned *pinned;
    struct caid_member *members; /* whose offsets are those in the blocks */
    void **allocations;
    struct family *family;
};

static void
making_deinit(struct making *making)
{
    free(making->pinned);
    free(making->members);
    free(making->allocations);
}

static int
making_init(struct making *making, size_t n, struct caid_error *error)
{
    making->n = n;
    making->pinned = calloc(n, sizeof(*making->pinned));
    making->members = calloc(n, sizeof(*making->members));
    making->allocations = calloc(n, sizeof(*making->allocations));
    return making->pinned && making->members && making->allocations
               ? 0
               : fail_errno(error, ENOMEM, "no memory for %zu members", n);
}

static void
unpin_from(struct caid_arena *arena, struct making *making, size_t first)
{
    arena_lock(arena);
    for (size_t i = first; i < making->n; i++)
        arena_unpin(making->pinned[i].allocation);
    arena_unlock(arena);
}

/* All of them, or none. */
static int
pin_all(struct caid_arena *arena, struct making *making, const struct caid_member *members,
        struct caid_error *error)
{
    size_t n = 0;
    int r = 0;

    arena_lock(arena);
    for (; r == 0 && n < making->n; n += r == 0) {
        making->pinned[n].member = &members[n];
        r = arena_pin(arena, &members[n], &making->pinned[n].allocation, error);
    }
    while (r < 0 && n-- > 0)
        arena_unpin(making->pinned[n].allocation);
    arena_unlock(arena);
    return r;
}

/* Members of a block stay in their order. */
static int
cmp_pinned(const void *x, const void *y)
{
    const struct pinned *a = x, *b = y;

    return a->allocation->block != b->allocation->block
               ? CMP((uintptr_t)a->allocation->block, (uintptr_t)b->allocation->block)
               : CMP(a->member, b->member);
}

static void
sort(struct making *making)
{
    qsort(making->pinned, making->n, sizeof(*making->pinned), cmp_pinned);
    for (size_t i = 0; i < making->n; i++) {
        struct allocation *allocation = making->pinned[i].allocation;
        making->members[i] = *making->pinned[i].member;
        making->members[i].offset -= allocation->block->ptr;
        making->allocations[i] = allocation;
    }
}

/* Stages the members of one block after the other. */
static int
stage_all(struct caid_array *set, const struct making *making, struct caid_error *error)
{
    size_t end;
    int r = 0;

    for (size_t i = 0; r == 0 && i < making->n; i = end) {
        const struct arena_block *block = making->pinned[i].allocation->block;
        const struct set_told told = {.released = arena_released,
                                      .of = making->allocations + i,
                                      .gone = part_gone,
                                      .userdata = making->family};
        for (end = i; end < making->n && making->pinned[end].allocation->block == block; end++)
            ;
        r = set_stage(set, block->array, making->members + i, end - i, &told, error);
    }
    return r;
}

static struct family *
family_new(size_t n, void (*gone)(void *userdata), void *userdata)
{
    struct family *family = malloc(sizeof(*family));

    if (family)
        *family = (struct family){.n = n, .gone = gone, .userdata = userdata};
    return family;
}

/* Makes the set of what is pinned. *ret_staged, written in any case: how many parts pin by
 * themselves. */
static int
set_of_pinned(struct making *making, void (*gone)(void *userdata), void *userdata,
              struct caid_array **ret, size_t *ret_staged, struct caid_error *error)
{
    struct family *family = making->family = family_new(making->n + 1, gone, userdata);
    struct caid_array *set;

    *ret_staged = 0;
    if (!family)
        return fail_errno(error, ENOMEM, "no memory for a set");
    sort(making);
    int r = set_new(making->pinned[0].allocation->block->array, &set, error);
    if (r < 0) {
        free(family);
        return r;
    }
    r = stage_all(set, making, error);
    *ret_staged = set->info.members;
    if (r < 0) {
        family->gone = NULL;
        array_close_now(set);
    } else {
        *ret = set;
    }
    family_drop(family, making->n - *ret_staged + 1);
    return r;
}

int
caid_arena_set_create(struct caid_arena *arena, struct caid_array **ret,
                      const struct caid_member *members, size_t n, void (*gone)(void *userdata),
                      void *userdata, struct caid_error *error)
{
    _cleanup_(making_deinit) struct making making = {0};
    size_t n_staged;

    int r = CHECK_GIVEN_OF(arena, ret, error);
    if (r == 0)
        r = client_check_given(arena->client, members, "members", error);
    if (r == 0)
        r = set_check_number(arena->client, n, error);
    if (r == 0)
        r = making_init(&making, n, error);
    if (r == 0)
        r = pin_all(arena, &making, members, error);
    if (r < 0)
        return r;
    r = set_of_pinned(&making, gone, userdata, ret, &n_staged, error);
    if (r < 0)
        unpin_from(arena, &making, n_staged);
    return r;
}
