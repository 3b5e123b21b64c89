/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas: making, allocating, freeing. What happens where there is no room: arena_alloc.c. */
#include "arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "client.h"

#define DEFAULT_BLOCK       (UINT64_C(32) << 20)
#define DEFAULT_GRANULARITY (UINT64_C(2) << 20)
#define DEFAULT_COUNT       10
#define DEFAULT_RATIO       0.2
#define DEFAULT_AGE_NS      (2 * NSEC_PER_SEC)

static int
allocation_cmp(const struct allocation *a, const struct allocation *b)
{
    return CMP(a->ptr, b->ptr);
}

RB_GENERATE_STATIC(allocation_tree, allocation, by_address, allocation_cmp)

int
arena_check(const struct caid_arena *arena, struct caid_error *error)
{
    return arena ? client_check(arena->client, error)
                 : fail(error, CAID_ERR_INVALID, "arena is NULL");
}

void
arena_lock(struct caid_arena *arena)
{
    pthread_mutex_lock(&arena->lock);
}

int
arena_lock_by(struct caid_arena *arena, uint32_t flags, struct caid_error *error)
{
    if (flags & ~(uint32_t)CAID_ARENA_NOWAIT)
        return fail(error, CAID_ERR_INVALID, "unknown flags %#x",
                    flags & ~(uint32_t)CAID_ARENA_NOWAIT);
    if (!(flags & CAID_ARENA_NOWAIT))
        arena_lock(arena);
    else if (pthread_mutex_trylock(&arena->lock) != 0)
        return fail(error, CAID_ERR_TIMEOUT, "another thread is using the arena");
    return 0;
}

void
arena_unlock(struct caid_arena *arena)
{
    struct arena_blocks leaving = TAILQ_HEAD_INITIALIZER(leaving);
    struct arena_block *block;
    bool kick = arena->kick;

    TAILQ_CONCAT(&leaving, &arena->leaving, link);
    arena->kick = false;
    arena->ticking |= kick;
    pthread_mutex_unlock(&arena->lock);
    while ((block = TAILQ_FIRST(&leaving))) {
        TAILQ_REMOVE(&leaving, block, link);
        array_close_now(block->array);
        free(block);
    }
    if (kick)
        arena_kick(arena);
}

/* ---- making ---- */

/* What the daemon rounds blocks up to. */
static uint64_t
granularity_of(const struct caid_device *device)
{
    uint64_t granularity = device->granularity;
    return granularity && granularity % SPACE_UNIT == 0 ? granularity : DEFAULT_GRANULARITY;
}

static int
set_block_bytes(struct caid_arena *arena, uint64_t bytes, struct caid_error *error)
{
    if (bytes > SPACE_EXTENT_MAX - arena->granularity)
        return fail(error, CAID_ERR_INVALID, "block_size %" PRIu64 ": at most %" PRIu64, bytes,
                    SPACE_EXTENT_MAX - arena->granularity);
    arena->block_bytes = ALIGN_UP(bytes ? bytes : DEFAULT_BLOCK, arena->granularity);
    return 0;
}

static int
set_memory(struct caid_arena *arena, const char *memory, struct caid_error *error)
{
    static const char *const kinds[] = {"device", "legacy"};

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (strcmp(memory ? memory : kinds[0], kinds[i]) == 0) {
            arena->memory = kinds[i];
            return 0;
        }
    return fail(error, CAID_ERR_INVALID,
                "memory \"%.40s\": an arena is of \"device\" or \"legacy\"", memory);
}

void
arena_limit(struct caid_arena *arena, uint64_t count, uint64_t bytes)
{
    arena->freed.limits.max_count = arena->empty.limits.max_count = count;
    arena->freed.limits.max_bytes = arena->empty.limits.max_bytes = bytes;
}

static void
init_queues(struct caid_arena *arena, const struct caid_arena_options *options)
{
    const struct dealloc_limits none = {.max_age_ns = UINT64_MAX};
    uint64_t age_ns = options->max_pending_age_ns;
    double ratio = options->max_pending_ratio;
    uint64_t count = options->max_pending_count;

    dealloc_init(&arena->freed, &none);
    dealloc_init(&arena->empty, &none);
    dealloc_owner_init(&arena->freed_owner);
    dealloc_owner_init(&arena->empty_owner);
    arena->empty.limits.max_age_ns = age_ns ? age_ns : DEFAULT_AGE_NS;
    if (ratio < 0)
        arena_limit(arena, 0, 0);
    else
        arena_limit(arena, count ? count : DEFAULT_COUNT,
                    dealloc_ratio_bytes(arena->capacity, ratio != 0 ? ratio : DEFAULT_RATIO));
}

static int
init_fixed(struct caid_arena *arena, const struct caid_arena_options *options,
           struct caid_error *error)
{
    const struct caid_device *device = &arena->client->devices[options->device];

    arena->device = options->device;
    arena->granularity = granularity_of(device);
    arena->capacity = device->total;
    int r = set_block_bytes(arena, options->block_size, error);
    if (r == 0)
        r = set_memory(arena, options->memory, error);
    if (r == 0 && options->pool && !(arena->pool = strdup(options->pool)))
        r = fail_errno(error, ENOMEM, "no memory for an arena");
    return r;
}

static void
init_empty(struct caid_arena *arena, const struct caid_arena_options *options)
{
    pthread_mutex_init(&arena->lock, NULL);
    pthread_cond_init(&arena->leased, NULL);
    TAILQ_INIT(&arena->blocks);
    TAILQ_INIT(&arena->batches);
    TAILQ_INIT(&arena->spare_batches);
    TAILQ_INIT(&arena->leaving);
    RB_INIT(&arena->spare_blocks);
    RB_INIT(&arena->allocations);
    space_init(&arena->space);
    init_queues(arena, options);
}

static void
arena_free(struct caid_arena *arena)
{
    struct caid_client *client = arena->client;

    free(arena->pool);
    free(arena);
    client_unref(client);
}

int
caid_arena_new(struct caid_client *client, struct caid_arena **ret,
               const struct caid_arena_options *options, struct caid_error *error)
{
    struct caid_arena_options opts;
    const char *uuid;

    int r = client_check(client, error);
    if (r == 0 && !ret)
        r = fail(error, CAID_ERR_INVALID, "ret is NULL");
    if (r == 0)
        r = options_read(&opts, sizeof(opts), options, error);
    if (r == 0)
        r = check_pool(opts.pool, error);
    if (r == 0)
        r = client_device_uuid(client, opts.device, &uuid, error);
    if (r < 0)
        return r;
    struct caid_arena *arena = calloc(1, sizeof(*arena));
    if (!arena)
        return fail_errno(error, ENOMEM, "no memory for an arena");
    arena->client = client_ref(client);
    r = init_fixed(arena, &opts, error);
    if (r < 0) {
        arena_free(arena);
        return r;
    }
    init_empty(arena, &opts);
    pthread_mutex_lock(&client->lock);
    arena_list_add(client, arena);
    pthread_mutex_unlock(&client->lock);
    *ret = arena;
    return 0;
}

/* ---- ending ---- */

/* Nobody else uses the arena any more. */
static void
free_all(struct caid_arena *arena)
{
    struct allocation *allocation, *next;
    struct arena_block *block;

    RB_FOREACH_SAFE(allocation, allocation_tree, &arena->allocations, next)
    {
        RB_REMOVE(allocation_tree, &arena->allocations, allocation);
        if (allocation->range)
            space_free(allocation->range);
        free(allocation);
    }
    while ((block = TAILQ_FIRST(&arena->blocks))) {
        TAILQ_REMOVE(&arena->blocks, block, link);
        arena_block_close(block);
    }
    arena_free_batches(arena);
    space_deinit(&arena->space);
    /* A thread of the parent's may wait there, which destroying would wait for. */
    if (!fork_guard_crossed(&arena->client->guard)) {
        pthread_cond_destroy(&arena->leased);
        pthread_mutex_destroy(&arena->lock);
    }
    arena_free(arena);
}

void
caid_arena_close(struct caid_arena *arena)
{
    struct allocation *allocation;

    if (!arena)
        return;
    struct caid_client *client = arena->client;
    if (fork_guard_crossed(&client->guard)) {
        /* Where a thread of the parent's was in it, it is left as it is. */
        if (pthread_mutex_trylock(&arena->lock) == 0) {
            pthread_mutex_unlock(&arena->lock);
            free_all(arena);
        }
        return;
    }
    pthread_mutex_lock(&client->lock);
    arena_list_remove(client, arena);
    pthread_mutex_unlock(&client->lock);
    RB_FOREACH(allocation, allocation_tree, &arena->allocations) /* which stands still by now */
    arena_forget_parts(allocation);
    free_all(arena);
}

/* ---- allocations ---- */

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

/* Room for an allocation of either kind: *ret_range is NULL where it has the block to itself. */
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

/* Beyond a limit all that waits is flushed; where that fails it waits on. */
static void
free_locked(struct caid_arena *arena, struct allocation *allocation)
{
    allocation->freed = true;
    arena->n_allocations--;
    arena->allocated -= allocation->nbytes;
    if (allocation->n_parts > 0)
        return;
    if (dealloc_add(&arena->freed, &arena->freed_owner, &allocation->entry, allocation->nbytes,
                    0) &&
        arena_flush(arena, NULL) == 0)
        arena_poll(arena);
}

static bool
asks_driver(const struct caid_arena *arena, const struct allocation *allocation)
{
    return allocation->n_parts == 0 &&
           dealloc_would_flush(&arena->freed, &arena->freed_owner, allocation->nbytes);
}

int
caid_arena_free(struct caid_arena *arena, uint64_t ptr, uint32_t flags,
                struct caid_error *error)
{
    int r = arena_check(arena, error);
    if (r == 0)
        r = arena_lock_by(arena, flags, error);
    if (r < 0)
        return r;
    struct allocation *allocation = arena_find(arena, ptr);
    if (!allocation || allocation->ptr != ptr || allocation->freed)
        r = fail(error, CAID_ERR_INVALID, "%#" PRIx64 " %s", ptr,
                 allocation && allocation->freed ? "has been freed already"
                                                 : "is not where an allocation starts");
    else if ((flags & CAID_ARENA_NOWAIT) && asks_driver(arena, allocation))
        r = fail(error, CAID_ERR_TIMEOUT, "the driver would have to be asked");
    else
        free_locked(arena, allocation);
    arena_unlock(arena);
    return r;
}
