/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of an arena: leases them from the daemon, keeps empty ones for a while, and gives them
 * back. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "arena.h"
#include "base/clock.h"
#include "memory/array.h"
#include "memory/block.h"
#include "session/client.h"

/* An empty block may serve an allocation that is smaller by at most this part of the block. */
#define SLACK_PART 4

static int
block_cmp(const struct arena_block *a, const struct arena_block *b)
{
    return a->bytes != b->bytes ? CMP(a->bytes, b->bytes) : CMP(a->ptr, b->ptr);
}

RB_GENERATE_STATIC(arena_block_tree, arena_block, by_size, block_cmp)

/* ---- leasing ---- */

int
arena_check_size(const struct caid_arena *arena, uint64_t bytes, struct caid_error *error)
{
    const struct caid_device *device = arena->client->devices[arena->device];

    if (bytes <= device->total && bytes <= INT64_MAX - arena->granularity)
        return 0;
    return fail(error, CAID_ERR_NO_MEMORY, "%" PRIu64 " bytes: device %d (%s) has %" PRIu64,
                bytes, arena->device, device->name, device->total);
}

static int
create_array(const struct caid_arena *arena, uint64_t bytes, struct caid_array **ret,
             struct caid_error *error)
{
    struct caid_create_options options = CAID_INIT(options);

    const int64_t n = (int64_t)ALIGN_UP(bytes, arena->granularity);
    options.typestr = "|u1";
    options.shape = &n;
    options.ndim = 1;
    options.device = arena->device;
    options.pool = arena->pool;
    options.memory = arena->memory;
    options.flags = CAID_ARRAY_EXCLUSIVE;
    return caid_array_create(arena->client, ret, &options, error);
}

/* Leasing maps memory, which must not end a capture of this thread. */
static int
create_relaxed(const struct caid_arena *arena, uint64_t bytes, struct caid_array **ret,
               struct caid_error *error)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const struct drv *drv;

    int r = gpu_driver(arena->client, &drv, error);
    if (r < 0)
        return r;
    CUresult result = drv->cu.cuThreadExchangeStreamCaptureMode(&mode);
    r = create_array(arena, bytes, ret, error);
    if (result == CUDA_SUCCESS)
        drv->cu.cuThreadExchangeStreamCaptureMode(&mode);
    return r;
}

/* Whether the array is as large as was asked for, and no other array lies in its block: else memory
 * might be handed out twice. */
static bool
is_ours_alone(const struct caid_arena *arena, const struct caid_array *array, uint64_t bytes)
{
    pthread_mutex_lock(&arena->client->lock);
    bool alone = array->block && array->block->leases == 1;
    pthread_mutex_unlock(&arena->client->lock);
    return alone && array->info.nbytes == ALIGN_UP(bytes, arena->granularity);
}

static int
check_array(const struct caid_arena *arena, const struct caid_array *array, uint64_t bytes,
            CUcontext *ret_context, struct caid_error *error)
{
    if (!is_ours_alone(arena, array, bytes))
        return client_violated(arena->client, "create", error);
    return gpu_context(arena->client, array->place, ret_context, error);
}

/* A block that is not in the arena yet. */
static struct arena_block *
block_new(struct caid_arena *arena, uint64_t bytes, CUcontext *ret_context,
          struct caid_error *error)
{
    _cleanup_free_ struct arena_block *block = calloc(1, sizeof(*block));
    struct caid_array *array;

    if (!block) {
        fail_errno(error, ENOMEM, "no memory for a block");
        return NULL;
    }
    if (create_relaxed(arena, bytes, &array, error) < 0)
        return NULL;
    if (check_array(arena, array, bytes, ret_context, error) < 0) {
        array_close_now(array);
        return NULL;
    }
    block->arena = arena;
    block->array = array;
    block->ptr = array->info.ptr;
    block->bytes = array->info.nbytes;
    return TAKE_PTR(block);
}

/* Puts the block into the queue of empty ones. Returns whether that exceeds the limits. */
static bool
wait_empty(struct arena_block *block)
{
    struct caid_arena *arena = block->arena;

    if (block->own)
        RB_INSERT(arena_block_tree, &arena->spare_blocks, block);
    block->empty = true;
    return dealloc_add(&arena->empty, &arena->empty_owner, &block->emptied, block->bytes,
                       clock_now_ns());
}

/* Adds the block to the arena; on failure it leaves. */
static int
add_block(struct caid_arena *arena, struct arena_block *block, CUcontext context,
          struct caid_error *error)
{
    if (!block->own && space_add(&arena->space, &block->extent, block->bytes) < 0) {
        TAILQ_INSERT_TAIL(&arena->leaving, block, link);
        return fail_errno(error, ENOMEM, "no memory for a block");
    }
    arena->context = context;
    TAILQ_INSERT_TAIL(&arena->blocks, block, link);
    arena->n_blocks++;
    arena->n_leased++;
    arena->bytes += block->bytes;
    wait_empty(block); /* the limits do not count: the block is needed now */
    return 0;
}

int
arena_lease(struct caid_arena *arena, uint64_t bytes, bool own, struct caid_error *error)
{
    struct caid_error why = {0};
    CUcontext context = NULL;

    arena->leasing |= !own;
    arena_unlock(arena);
    struct arena_block *block = block_new(arena, bytes, &context, &why);
    arena_lock(arena);
    if (!own) {
        arena->leasing = false;
        pthread_cond_broadcast(&arena->leased);
    }
    if (!block)
        return fail_again(error, &why);
    block->own = own;
    return add_block(arena, block, context, error);
}

/* ---- empty ones ---- */

struct arena_block *
arena_find_spare(struct caid_arena *arena, uint64_t bytes)
{
    struct arena_block key = {.bytes = bytes};
    struct arena_block *block = RB_NFIND(arena_block_tree, &arena->spare_blocks, &key);

    return block && block->bytes - bytes <= bytes / SLACK_PART + arena->granularity ? block
                                                                                    : NULL;
}

void
arena_block_fill(struct arena_block *block)
{
    struct caid_arena *arena = block->arena;

    dealloc_remove(&arena->empty, &block->emptied);
    block->empty = false;
    if (block->own)
        RB_REMOVE(arena_block_tree, &arena->spare_blocks, block);
}

void
arena_block_empty(struct arena_block *block)
{
    struct caid_arena *arena = block->arena;

    arena->kick |= !arena->ticking;
    if (wait_empty(block))
        arena_give_back(arena);
}

static void
arena_block_leave(struct arena_block *block)
{
    struct caid_arena *arena = block->arena;

    if (block->own)
        RB_REMOVE(arena_block_tree, &arena->spare_blocks, block);
    else
        space_remove(&block->extent);
    TAILQ_REMOVE(&arena->blocks, block, link);
    arena->n_blocks--;
    arena->bytes -= block->bytes;
    TAILQ_INSERT_TAIL(&arena->leaving, block, link);
}

void
arena_give_back(struct caid_arena *arena)
{
    struct dealloc_entry *entry;

    dealloc_begin(&arena->empty);
    while ((entry = dealloc_next(&arena->empty))) {
        arena_block_leave(container_of(entry, struct arena_block, emptied));
        dealloc_done(&arena->empty, entry->bytes, 0);
    }
}

void
arena_block_close(struct arena_block *block)
{
    struct caid_arena *arena = block->arena;

    if (!block->own)
        space_remove(&block->extent);
    if (block->empty && !fork_guard_crossed(&arena->client->guard))
        array_close_now(block->array);
    else
        caid_array_close(block->array);
    free(block);
}
