/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of allocations under a name. A part pins its allocation, from before the daemon is asked
 * until nobody can reach the part.
 */
#include <inttypes.h>

#include "arena.h"
#include "geometry.h"
#include "memory/array.h"
#include "memory/part.h"
#include "session/client.h"

void
arena_unpin(struct allocation *allocation)
{
    struct caid_arena *arena = allocation->block->arena;

    arena->n_parts--;
    if (--allocation->n_parts == 0 && allocation->freed)
        dealloc_add(&arena->freed, &arena->freed_owner, &allocation->entry, allocation->nbytes,
                    0);
}

void
arena_released(void *userdata)
{
    struct allocation *allocation = userdata;
    struct caid_arena *arena = allocation->block->arena;

    arena_lock(arena);
    arena_unpin(allocation);
    arena_unlock(arena);
}

/* The bytes that the part spans. Who asks the daemon reports what else is wrong with its shape. */
static bool
find_span(const struct caid_member *array, uint64_t *ret)
{
    const uint32_t ndim = array->ndim, n_strides = array->strides ? ndim : 0;
    char why[GEOMETRY_WHY_MAX];
    struct geometry geometry;

    if (!array->typestr || (ndim > 0 && !array->shape) ||
        geometry_init(&geometry, MSG_STR(array->typestr), (struct msg_i64s){array->shape, ndim},
                      (struct msg_i64s){array->strides, n_strides}, why) < 0 ||
        geometry.nbytes == 0)
        return false;
    *ret = geometry.span;
    return true;
}

int
arena_pin(struct caid_arena *arena, const struct caid_member *array, struct allocation **ret,
          struct caid_error *error)
{
    const uint64_t ptr = array->offset;
    struct allocation *allocation;
    uint64_t span = 1;

    int r = arena_find_used(arena, ptr, &allocation, error);
    if (r < 0)
        return r;
    uint64_t left = allocation->nbytes - (ptr - allocation->ptr);
    if (find_span(array, &span) && span > left)
        return fail(error, CAID_ERR_INVALID,
                    "the part has %" PRIu64 " bytes, of which %" PRIu64
                    " are in the allocation at %#" PRIx64,
                    span, left, allocation->ptr);
    allocation->n_parts++;
    arena->n_parts++;
    *ret = allocation;
    return 0;
}

/* Publishes a part of the pinned allocation. Where it is not known whether there is a part, the
 * allocation stays pinned for good. */
static int
allocation_publish(struct allocation *allocation, uint64_t ptr, const char *name,
                   const struct caid_part_options *options, uint64_t *ret_generation,
                   struct caid_error *error)
{
    const struct part_hook hook = {.released = arena_released, .userdata = allocation};
    const struct arena_block *block = allocation->block;
    bool unknown;

    int r = part_publish(block->array, ptr - block->ptr, name, options, &hook, ret_generation,
                         &unknown, error);
    if (r < 0 && !unknown)
        arena_released(allocation);
    return r;
}

int
caid_arena_publish(struct caid_arena *arena, uint64_t ptr, const char *name,
                   const struct caid_part_options *options, uint64_t *ret_generation,
                   struct caid_error *error)
{
    struct caid_part_options opts;
    struct allocation *allocation = NULL;

    int r = CHECK_GIVEN_OF(arena, options, error);
    if (r == 0)
        r = options_read(&opts, sizeof(opts), options, error);
    if (r < 0)
        return r;
    const struct caid_member part = {.offset = ptr,
                                     .typestr = opts.typestr,
                                     .ndim = opts.ndim,
                                     .shape = opts.shape,
                                     .strides = opts.strides};
    arena_lock(arena);
    r = arena_pin(arena, &part, &allocation, error);
    arena_unlock(arena);
    return r < 0 ? r : allocation_publish(allocation, ptr, name, &opts, ret_generation, error);
}

void
arena_forget_parts(struct allocation *allocation)
{
    struct caid_arena *arena = allocation->block->arena;

    arena_lock(arena);
    bool has_parts = allocation->n_parts > 0;
    arena_unlock(arena);
    if (has_parts)
        part_forget(arena->client, allocation);
}
