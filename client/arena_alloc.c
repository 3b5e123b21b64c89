/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocating, and what is done for it where there is no room, in this order: what the GPU is done
 * with; what nobody has open any more of what was published; what is pending, if the GPU happens to
 * be done with it; another block. Where the daemon has none, what drains is waited for, empty blocks
 * are given back, and it is tried once more (R12 of docs/DEALLOCATION.md).
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>

#include "arena.h"
#include "base/clock.h"
#include "client.h"

/* How long what drains is looked at before a block is leased, which takes some times as long. */
#define MOMENT_NS (20 * NSEC_PER_USEC)

static bool
is_deferred(const struct caid_arena *arena)
{
    return arena->n_deferred > 0;
}

/* ---- what is here ---- */

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

/* Without an event nobody knows what is done but by waiting for all of it. */
static void
wait_blindly(struct caid_arena *arena)
{
    if (arena->blind && !is_deferred(arena))
        arena_wait(arena, NULL);
}

/* As arena_take(), while what drains might do. */
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

/* As arena_take(), after having made room of what is leased. */
static int
take_freed(struct caid_arena *arena, uint64_t nbytes, struct allocation **ret)
{
    arena_poll(arena);
    int r = arena_take(arena, nbytes, ret);
    if (r != SPACE_FULL)
        return r;
    poll_parts(arena);
    if (arena_flush(arena, NULL) == 0)
        arena_poll(arena);
    wait_blindly(arena);
    r = arena_take(arena, nbytes, ret);
    return r == SPACE_FULL ? take_drained(arena, nbytes, ret) : r;
}

/* ---- another block ---- */

/* A thread that leases a shared block makes room for others, too. */
static bool
wait_for_lease(struct caid_arena *arena, uint64_t nbytes)
{
    if (arena_is_own(arena, nbytes) || !arena->leasing)
        return false;
    arena_unlock(arena); /* sees to what has been noted so far */
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
    arena->kick |= !arena->ticking && arena->empty.n > 0; /* there was room elsewhere, by now */
    return r;
}

/* Until the driver has got back what left the arena: the client's thread unmaps it. */
static void
wait_for_closes(struct caid_arena *arena)
{
    struct caid_client *client = arena->client;

    arena_unlock(arena);
    if (client_enter(client, NULL) == 0) {
        reaper_drain(client);
        client_leave(client);
    }
    arena_lock(arena);
}

/* What drains is waited for also where nothing can be added to it. */
static int
flush_and_wait(struct caid_arena *arena, struct caid_error *error)
{
    int flushed = arena_flush(arena, error);
    int waited = arena_wait(arena, flushed < 0 ? NULL : error);

    return flushed < 0 ? flushed : waited;
}

/* Flushes all, and waits for it. What comes meanwhile may be left. */
static int
drain_all(struct caid_arena *arena, struct caid_error *error)
{
    int r = flush_and_wait(arena, error);

    if (r == 0 && arena_has_pending(arena)) /* so much was draining that it had to wait */
        r = flush_and_wait(arena, error);
    return r;
}

/* The daemon has nothing left to lease. What cannot be waited for is no room. */
static int
take_when_short(struct caid_arena *arena, uint64_t nbytes, struct allocation **ret,
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

/* ---- all of it ---- */

static int
alloc_slowly(struct caid_arena *arena, uint64_t nbytes, struct allocation **ret,
             struct caid_error *error)
{
    int r = take_freed(arena, nbytes, ret);

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

    int r = arena_check(arena, error);
    if (r == 0 && !ret)
        r = fail(error, CAID_ERR_INVALID, "ret is NULL");
    if (r == 0)
        r = arena_check_size(arena, nbytes, error);
    if (r == 0)
        r = arena_lock_by(arena, flags, error);
    if (r < 0)
        return r;
    nbytes += nbytes == 0;
    r = arena_take(arena, nbytes, &allocation);
    if (r == SPACE_FULL && (flags & CAID_ARENA_NOWAIT)) /* often, and then without error */
        r = fail(error ? &why : NULL, CAID_ERR_TIMEOUT,
                 "no room for %" PRIu64 " bytes without asking anybody", nbytes);
    else if (r == SPACE_FULL)
        r = alloc_slowly(arena, nbytes, &allocation, &why);
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

/* ---- on purpose ---- */

int
caid_arena_flush(struct caid_arena *arena, struct caid_error *error)
{
    int r = arena_check(arena, error);
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
    int r = arena_check(arena, error);
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
