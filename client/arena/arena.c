/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "memory/array.h"
#include "memory/block.h"
#include "memory/part.h"
#include "session/client.h"
#include "session/feature.h"

#define DEFAULT_BLOCK       (UINT64_C(32) << 20)
#define DEFAULT_GRANULARITY (UINT64_C(2) << 20)
#define DEFAULT_COUNT       10
#define DEFAULT_RATIO       0.2
#define DEFAULT_AGE_NS      (2 * NSEC_PER_SEC)
/* So long draining batches are polled before a block is leased, which takes several times as long.
 * */
#define MOMENT_NS (20 * NSEC_PER_USEC)

/* ---- making ---- */

/* The daemon rounds blocks up to this. */
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

/* Sets the limits of both queues. */
static void
set_limits(struct caid_arena *arena, uint64_t count, uint64_t bytes)
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
        set_limits(arena, 0, 0);
    else
        set_limits(arena, count ? count : DEFAULT_COUNT,
                   dealloc_ratio_bytes(arena->capacity, ratio != 0 ? ratio : DEFAULT_RATIO));
}

static int
init_fixed(struct caid_arena *arena, const struct caid_arena_options *options,
           struct caid_error *error)
{
    const struct caid_device *device = arena->client->devices[options->device];

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
    pthread_cond_init(&arena->closed, NULL);
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

    int r = client_check_given(client, ret, "ret", error);
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
    LIST_INSERT_HEAD(&client->arenas->all, arena, of_client);
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

    RB_FOREACH_SAFE(allocation, allocation_tree, &arena->allocations, next) {
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
    /* In a child they stay: a thread of the parent may wait there, and destroying would wait for
     * it. */
    if (!fork_guard_crossed(&arena->client->guard)) {
        pthread_cond_destroy(&arena->leased);
        pthread_cond_destroy(&arena->closed);
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
        /* If a thread of the parent had the lock, the arena is left as it is. */
        if (pthread_mutex_trylock(&arena->lock) == 0) {
            pthread_mutex_unlock(&arena->lock);
            free_all(arena);
        }
        return;
    }
    pthread_mutex_lock(&client->lock);
    while (client->arenas->tidying == arena)
        pthread_cond_wait(&client->arenas->tidied, &client->lock);
    LIST_REMOVE(arena, of_client);
    pthread_mutex_unlock(&client->lock);
    RB_FOREACH(allocation, allocation_tree,
               &arena->allocations) /* nobody changes it any more */
        arena_forget_parts(allocation);
    free_all(arena);
}

/*
 * ---- allocating ----
 *
 * Where there is no room, an allocation tries in this order: batches that the GPU is done with;
 * published parts that nobody can reach any more; pending memory, if the GPU happens to be done
 * with it; another block. Where the daemon has no block, it waits for the draining batches, gives
 * empty blocks back, and tries once more (R12 of docs/DEALLOCATION.md).
 */

static bool
is_deferred(const struct caid_arena *arena)
{
    return arena->n_deferred > 0;
}

/* Asks the client, not the daemon, whether parts are gone. */
static void
poll_parts(struct caid_arena *arena)
{
    if (arena->n_parts == 0)
        return;
    arena_unlock(arena);
    part_poll(arena->client);
    arena_lock(arena);
}

/* As arena_take(), for a moment in which draining batches may make enough room. */
static int
take_drained(struct caid_arena *arena, uint64_t nbytes, struct allocation **ret)
{
    uint64_t until = clock_now_ns() + MOMENT_NS;
    int r = SPACE_FULL;

    while (r == SPACE_FULL && arena->draining_bytes >= nbytes && clock_now_ns() < until) {
        arena_unlock(arena);
        sched_yield();
        arena_lock(arena);
        arena_poll(arena);
        r = arena_take(arena, nbytes, ret);
    }
    return r;
}

/* Flushes, and reuses the memory that the GPU happens to be done with. */
static void
make_reusable(struct caid_arena *arena)
{
    if (arena_flush(arena, NULL) == 0)
        arena_poll(arena);
    if (arena->blind && !is_deferred(arena))
        arena_wait(arena, NULL); /* blind batches end only by a wait */
}

/* As arena_take(), after making room in the blocks that are leased. */
static int
take_freed(struct caid_arena *arena, uint64_t nbytes, uint32_t flags, struct allocation **ret)
{
    arena_poll(arena);
    int r = arena_take(arena, nbytes, ret);
    if (r != SPACE_FULL)
        return r;
    poll_parts(arena);
    if (!(flags & CAID_ARENA_LEASE_FIRST))
        make_reusable(arena);
    r = arena_take(arena, nbytes, ret);
    return r == SPACE_FULL ? take_drained(arena, nbytes, ret) : r;
}

/* Waits for a thread that leases a shared block: that makes room for this one, too. */
static bool
wait_for_lease(struct caid_arena *arena, uint64_t nbytes)
{
    if (arena_is_own(arena, nbytes) || !arena->leasing)
        return false;
    arena_unlock(arena); /* does what has been noted so far */
    arena_lock(arena);
    while (arena->leasing)
        pthread_cond_wait(&arena->leased, &arena->lock);
    return true;
}

/* As arena_take(), from a new block of at least so many bytes. */
static int
take_leased(struct caid_arena *arena, uint64_t nbytes, uint64_t block_bytes,
            struct allocation **ret, struct caid_error *error)
{
    int r = arena_lease(arena, block_bytes, arena_is_own(arena, nbytes), error);
    if (r < 0)
        return r;
    r = arena_take(arena, nbytes, ret);
    arena->kick |= !arena->ticking && arena->empty.n > 0; /* the room came from another block */
    return r;
}

/* Waits until all blocks that have left the arena are unmapped, which the client's thread does. */
static void
wait_for_closes(struct caid_arena *arena)
{
    arena_unlock(arena);
    block_drain(arena->client, NULL);
    arena_lock(arena);
    while (arena->n_leaving > 0)
        pthread_cond_wait(&arena->closed, &arena->lock);
}

/* Waits for the draining batches also if the flush has failed. */
static int
flush_and_wait(struct caid_arena *arena, struct caid_error *error)
{
    int flushed = arena_flush(arena, error);
    int waited = arena_wait(arena, flushed < 0 ? NULL : error);

    return flushed < 0 ? flushed : waited;
}

/* Flushes everything, and waits for it. Memory that is freed meanwhile may be left. */
static int
drain_all(struct caid_arena *arena, struct caid_error *error)
{
    int r = flush_and_wait(arena, error);

    if (r == 0 &&
        arena_has_pending(arena)) /* too many batches were draining for the first flush */
        r = flush_and_wait(arena, error);
    return r;
}

/* The daemon has no memory left. Makes room in the arena; batches that cannot be waited for give
 * none. */
static int
make_room(struct caid_arena *arena, uint64_t nbytes, struct allocation **ret,
          struct caid_error *error)
{
    drain_all(arena, NULL);
    int r = arena_take(arena, nbytes, ret);
    if (r != SPACE_FULL)
        return r;
    arena_give_back(arena);
    wait_for_closes(arena);
    return take_leased(arena, nbytes, nbytes, ret, error);
}

/* Tries again where other threads have taken the room that was made, or have freed memory since. */
static int
take_when_short(struct caid_arena *arena, uint64_t nbytes, struct allocation **ret,
                struct caid_error *error)
{
    uint64_t n_allocs, n_freed;
    int r;

    do {
        n_allocs = arena->n_allocs;
        n_freed = n_allocs - arena->n_allocations;
        r = make_room(arena, nbytes, ret, error);
    } while (r < 0 && code_is_short(error->code) &&
             (arena->n_allocs != n_allocs || n_allocs - arena->n_allocations != n_freed));
    return r;
}

static int
take_more(struct caid_arena *arena, uint64_t nbytes, struct allocation **ret,
          struct caid_error *error)
{
    uint64_t block_bytes = arena_is_own(arena, nbytes) ? nbytes : arena->block_bytes;
    struct caid_error why = {0};

    int r = take_leased(arena, nbytes, block_bytes, ret, &why);
    if (r < 0 && code_is_short(why.code) && !is_deferred(arena))
        r = take_when_short(arena, nbytes, ret, &why);
    return r < 0 && why.code ? fail_again(error, &why) : r;
}

static int
alloc_slowly(struct caid_arena *arena, uint64_t nbytes, uint32_t flags, struct allocation **ret,
             struct caid_error *error)
{
    int r = take_freed(arena, nbytes, flags, ret);

    while (r == SPACE_FULL) {
        if (!wait_for_lease(arena, nbytes))
            return take_more(arena, nbytes, ret, error);
        r = arena_take(arena, nbytes, ret);
    }
    return r;
}

int
caid_arena_alloc(struct caid_arena *arena, uint64_t nbytes, uint32_t flags, uint64_t *ret,
                 struct caid_error *error)
{
    struct caid_error why = {0};
    struct allocation *allocation;
    struct arena_lane lane = {0};

    int r = CHECK_GIVEN_OF(arena, ret, error);
    if (r == 0)
        r = client_check_awake(arena->client, error);
    if (r == 0)
        r = arena_check_size(arena, nbytes, error);
    if (r == 0 && (flags & CAID_ARENA_ORDERED))
        lane = arena_lane(arena);
    if (r == 0)
        r = arena_lock_by(arena, flags & ~(CAID_ARENA_LEASE_FIRST | CAID_ARENA_ORDERED), error);
    if (r < 0)
        return r;
    nbytes += nbytes == 0;
    r = arena_take_back(arena, nbytes, lane, &allocation);
    if (r == SPACE_FULL)
        r = arena_take(arena, nbytes, &allocation);
    if (r == SPACE_FULL && (flags & CAID_ARENA_NOWAIT)) /* frequent, with error NULL */
        r = fail(error ? &why : NULL, CAID_ERR_TIMEOUT,
                 "no room for %" PRIu64 " bytes without asking anybody", nbytes);
    else if (r == SPACE_FULL)
        r = alloc_slowly(arena, nbytes, flags, &allocation, &why);
    if (r == 0)
        *ret = allocation->ptr;
    arena_unlock(arena);
    if (r == 0)
        return 0;
    if (r == -ENOMEM && !why.code)
        return fail_errno(error, ENOMEM, "no memory for an allocation");
    if (error)
        *error = why;
    return r;
}

/* ---- freeing ---- */

/* Beyond a limit all that waits is flushed; where that fails it waits on. */
static void
free_locked(struct caid_arena *arena, struct allocation *allocation, struct arena_lane lane)
{
    allocation->freed = true;
    allocation->lane = allocation->n_parts == 0 ? lane : (struct arena_lane){0};
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
    struct arena_lane lane = {0};

    int r = CHECK_CLIENT_OF(arena, error);
    if (r == 0 && (flags & CAID_ARENA_ORDERED))
        lane = arena_lane(arena);
    if (r == 0)
        r = arena_lock_by(arena, flags & ~CAID_ARENA_ORDERED, error);
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
        free_locked(arena, allocation, lane);
    arena_unlock(arena);
    return r;
}

/* ---- flush, trim ---- */

int
caid_arena_flush(struct caid_arena *arena, struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(arena, error);
    if (r < 0)
        return r;
    arena_lock(arena);
    r = arena_flush(arena, error);
    if (r == 0)
        arena_poll(arena);
    arena_unlock(arena);
    return r;
}

int
caid_arena_trim(struct caid_arena *arena, struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(arena, error);
    if (r < 0)
        return r;
    arena_lock(arena);
    poll_parts(arena);
    if (!is_deferred(arena)) {
        r = drain_all(arena, error);
        arena_give_back(arena);
        wait_for_closes(arena);
    }
    arena_unlock(arena);
    return r;
}

/* ---- figures and limits ---- */

int
caid_arena_find(struct caid_arena *arena, uint64_t ptr, struct caid_allocation *ret,
                struct caid_error *error)
{
    struct caid_allocation found = {0};

    int r = CHECK_CLIENT_OF(arena, error);
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

    int r = CHECK_GIVEN_OF(arena, ret, error);
    if (r < 0)
        return r;
    arena_lock(arena);
    r = arena_find_used(arena, ptr, &allocation, error);
    if (r == 0) /* no call to the daemon or the driver */
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

    int r = CHECK_CLIENT_OF(arena, error);
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
    int r = CHECK_CLIENT_OF(arena, error);
    if (r < 0)
        return r;
    arena_lock(arena);
    set_limits(arena, count, dealloc_ratio_bytes(capacity, ratio));
    arena_unlock(arena);
    return 0;
}

int
caid_arena_defer_begin(struct caid_arena *arena, struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(arena, error);
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
    int r = CHECK_CLIENT_OF(arena, error);
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

/* ---- for the client's thread ---- */

void
arena_list_init(struct arena_list *list)
{
    LIST_INIT(&list->all);
    list->due = UINT64_MAX;
    pthread_cond_init(&list->tidied, NULL);
}

static uint64_t
due(const struct caid_client *client)
{
    return client->arenas->due;
}

/* When the client's thread has something to do for the arena. Under its lock. */
static uint64_t
due_of(const struct caid_arena *arena, uint64_t now)
{
    const struct batch *batch = TAILQ_FIRST(&arena->batches);
    uint64_t due_ns = dealloc_deadline_ns(&arena->empty);

    return batch && batch->event && due_ns > now + ARENA_TICK_NS ? now + ARENA_TICK_NS : due_ns;
}

/* If another thread has the lock, it may be in a driver call that waits: the arena is skipped, and
 * looked at again later. */
static uint64_t
tidy_arena(struct caid_arena *arena)
{
    uint64_t now = clock_now_ns();

    if (arena_lock_by(arena, CAID_ARENA_NOWAIT, NULL) < 0)
        return now + ARENA_TICK_NS;
    arena_poll(arena);
    if (dealloc_deadline_ns(&arena->empty) <= now)
        arena_give_back(arena);
    uint64_t due_ns = due_of(arena, now);
    arena->kick = false; /* the thread has looked */
    arena->ticking = due_ns != UINT64_MAX;
    arena_unlock(arena);
    return due_ns;
}

/* The arena that the thread is in stays in the list. */
static void
arenas_tidy(struct caid_client *client, bool all UNUSED)
{
    struct arena_list *list = client->arenas;
    struct caid_arena *arena;

    if (list->due > clock_now_ns())
        return;
    list->due = UINT64_MAX;
    LIST_FOREACH(arena, &list->all, of_client) {
        list->tidying = arena;
        pthread_mutex_unlock(&client->lock);
        uint64_t due_ns = tidy_arena(arena);
        pthread_mutex_lock(&client->lock);
        arena_look_by(list, due_ns);
        list->tidying = NULL;
        pthread_cond_broadcast(&list->tidied);
    }
}

const struct feature arena_feature = {.due = due, .tidy = arenas_tidy};
