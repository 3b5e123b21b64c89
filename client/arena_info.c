/* SPDX-License-Identifier: Apache-2.0 */
/* What an arena tells, and what it is told of its queues. */
#include <inttypes.h>

#include "arena.h"
#include "array.h"
#include "client.h"

int
caid_arena_find(struct caid_arena *arena, uint64_t ptr, struct caid_allocation *ret,
                struct caid_error *error)
{
    struct caid_allocation found = {0};

    int r = arena_check(arena, error);
    if (r < 0)
        return r;
    arena_lock(arena);
    const struct allocation *allocation = arena_find(arena, ptr);
    if (allocation) {
        const struct arena_block *block = allocation->block;
        found.ptr = allocation->ptr;
        found.nbytes = allocation->nbytes;
        found.block = block->array->info.block;
        found.offset = block->array->info.offset + (allocation->ptr - block->ptr);
    }
    arena_unlock(arena);
    if (!found.ptr)
        return fail(error, CAID_ERR_NOT_FOUND, "%#" PRIx64 " is not in the arena's memory",
                    ptr);
    return result_write(ret, &found, sizeof(found), error);
}

int
caid_arena_ipc_handle(struct caid_arena *arena, uint64_t ptr, struct caid_ipc_handle *ret,
                      struct caid_error *error)
{
    struct caid_ipc_handle handle;
    struct allocation *allocation;

    int r = arena_check(arena, error);
    if (r == 0 && !ret)
        r = fail(error, CAID_ERR_INVALID, "ret is NULL");
    if (r < 0)
        return r;
    arena_lock(arena);
    r = arena_find_used(arena, ptr, &allocation, error);
    if (r == 0) /* which asks nobody */
        r = caid_array_ipc_handle(allocation->block->array, &handle, error);
    if (r == 0)
        handle.offset += ptr - allocation->block->ptr;
    arena_unlock(arena);
    if (r == 0)
        *ret = handle;
    return r;
}

int
caid_arena_info(struct caid_arena *arena, struct caid_arena_info *ret, struct caid_error *error)
{
    struct caid_arena_info info;

    int r = arena_check(arena, error);
    if (r < 0)
        return r;
    arena_lock(arena);
    info = (struct caid_arena_info){
        .blocks = arena->n_blocks,
        .bytes = arena->bytes,
        .allocations = arena->n_allocations,
        .allocated = arena->allocated,
        .pending = arena->freed.n,
        .pending_bytes = arena->freed.bytes,
        .draining = arena->draining,
        .draining_bytes = arena->draining_bytes,
        .published = arena->n_parts,
        .empty_blocks = arena->empty.n,
        .empty_bytes = arena->empty.bytes,
        .n_allocs = arena->n_allocs,
        .n_leased = arena->n_leased,
        .n_flushes = arena->freed.n_flushes,
    };
    arena_unlock(arena);
    return result_write(ret, &info, sizeof(info), error);
}

int
caid_arena_set_limits(struct caid_arena *arena, uint64_t count, double ratio, uint64_t capacity,
                      struct caid_error *error)
{
    int r = arena_check(arena, error);
    if (r < 0)
        return r;
    arena_lock(arena);
    arena_limit(arena, count, dealloc_ratio_bytes(capacity, ratio));
    arena_unlock(arena);
    return 0;
}

int
caid_arena_defer_begin(struct caid_arena *arena, struct caid_error *error)
{
    int r = arena_check(arena, error);
    if (r < 0)
        return r;
    arena_lock(arena);
    if (arena->n_deferred == UINT32_MAX) {
        r = fail(error, CAID_ERR_LIMIT, "deferred %" PRIu32 " times", arena->n_deferred);
    } else {
        arena->n_deferred++;
        dealloc_hold(&arena->freed, &arena->freed_owner);
        dealloc_hold(&arena->empty, &arena->empty_owner);
    }
    arena_unlock(arena);
    return r;
}

int
caid_arena_defer_end(struct caid_arena *arena, struct caid_error *error)
{
    int r = arena_check(arena, error);
    if (r < 0)
        return r;
    arena_lock(arena);
    if (arena->n_deferred == 0) {
        r = fail(error, CAID_ERR_INVALID, "the arena is not deferred");
    } else {
        arena->n_deferred--;
        dealloc_unhold(&arena->freed, &arena->freed_owner);
        dealloc_unhold(&arena->empty, &arena->empty_owner);
        arena->kick |= !arena->ticking && arena->empty.n > 0;
    }
    arena_unlock(arena);
    return r;
}
