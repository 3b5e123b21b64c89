/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations of an arena: takes room in a block, finds it by address, and gives it back (arena.h).
 * */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "arena.h"
#include "session/client.h"

static int
allocation_cmp(const struct allocation *a, const struct allocation *b)
{
    return CMP(a->ptr, b->ptr);
}

RB_GENERATE(allocation_tree, allocation, by_address, allocation_cmp)

struct allocation *
arena_find(struct caid_arena *arena, uint64_t ptr)
{
    struct allocation *at = RB_ROOT(&arena->allocations), *below = NULL;

    while (at) {
        if (at->ptr <= ptr) {
            below = at;
            at = RB_RIGHT(at, by_address);
        } else {
            at = RB_LEFT(at, by_address);
        }
    }
    return below && ptr - below->ptr < below->nbytes ? below : NULL;
}

int
arena_find_used(struct caid_arena *arena, uint64_t ptr, struct allocation **ret,
                struct caid_error *error)
{
    struct allocation *allocation = arena_find(arena, ptr);

    if (!allocation || allocation->freed)
        return fail(error, CAID_ERR_NOT_FOUND,
                    "%#" PRIx64 " is not in an allocation of the arena", ptr);
    *ret = allocation;
    return 0;
}

bool
arena_is_own(const struct caid_arena *arena, uint64_t nbytes)
{
    return nbytes > arena->block_bytes / 2;
}

/* The block that a range was taken of has been waiting, maybe, as empty. */
static struct arena_block *
block_of(const struct range *range)
{
    return container_of(range->extent, struct arena_block, extent);
}

/* Takes room for an allocation. *ret_range NULL: it has a block of its own. */
static int
take_room(struct caid_arena *arena, uint64_t nbytes, struct arena_block **ret_block,
          struct range **ret_range)
{
    if (arena_is_own(arena, nbytes)) {
        *ret_range = NULL;
        *ret_block = arena_find_spare(arena, nbytes);
        return *ret_block ? 0 : SPACE_FULL;
    }
    int r = space_take(&arena->space, nbytes, SPACE_UNIT, ret_range);
    if (r == 0)
        *ret_block = block_of(*ret_range);
    return r;
}

int
arena_take(struct caid_arena *arena, uint64_t nbytes, struct allocation **ret)
{
    struct arena_block *block;
    struct range *range;

    int r = take_room(arena, nbytes, &block, &range);
    if (r != 0)
        return r;
    struct allocation *allocation = malloc(sizeof(*allocation));
    if (!allocation) {
        if (range)
            space_free(range);
        return -ENOMEM;
    }
    *allocation = (struct allocation){.block = block,
                                      .range = range,
                                      .ptr = block->ptr + (range ? range_offset(range) : 0),
                                      .nbytes = nbytes};
    if (block->empty)
        arena_block_fill(block);
    RB_INSERT(allocation_tree, &arena->allocations, allocation);
    arena->n_allocs++;
    arena->n_allocations++;
    arena->allocated += nbytes;
    *ret = allocation;
    return 0;
}

/* The driver is not asked; what waits longer is of no use to a stream that has gone on. */
#define TAKE_BACK_LOOKS 16

int
arena_take_back(struct caid_arena *arena, uint64_t nbytes, struct arena_lane lane,
                struct allocation **ret)
{
    struct dealloc_entry *entry;
    int n = 0;

    if (!lane.stream || arena->n_deferred > 0)
        return SPACE_FULL;
    TAILQ_FOREACH_REVERSE(entry, &arena->freed_owner.entries, dealloc_entries, link) {
        struct allocation *a = container_of(entry, struct allocation, entry);
        if (a->nbytes == nbytes && a->lane.stream == lane.stream &&
            a->lane.thread == lane.thread) {
            dealloc_remove(&arena->freed, entry);
            a->freed = false;
            arena->n_allocs++;
            arena->n_allocations++;
            arena->allocated += nbytes;
            *ret = a;
            return 0;
        }
        if (++n == TAKE_BACK_LOOKS)
            break;
    }
    return SPACE_FULL;
}

void
arena_reclaim(struct allocation *allocation)
{
    struct arena_block *block = allocation->block;

    RB_REMOVE(allocation_tree, &block->arena->allocations, allocation);
    if (allocation->range)
        space_free(allocation->range);
    free(allocation);
    if (block->own || extent_is_empty(&block->extent))
        arena_block_empty(block);
}
