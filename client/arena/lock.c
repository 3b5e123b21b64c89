/* SPDX-License-Identifier: Apache-2.0 */
/* An arena's lock, and the work that is left for when it is unlocked (arena.h). */
#include "arena.h"

#include "base/clock.h"
#include "memory/array.h"
#include "session/client.h"

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
    struct caid_client *client = arena->client;
    bool kick = arena->kick;
    uint64_t n = 0;

    TAILQ_CONCAT(&leaving, &arena->leaving, link);
    TAILQ_FOREACH(block, &leaving, link)
        n++;
    arena->n_leaving += n;
    arena->kick = false;
    arena->ticking |= kick;
    pthread_mutex_unlock(&arena->lock);
    while ((block = TAILQ_FIRST(&leaving))) {
        TAILQ_REMOVE(&leaving, block, link);
        array_close_now(block->array);
        free(block);
    }
    if (n > 0) {
        pthread_mutex_lock(&arena->lock);
        arena->n_leaving -= n;
        pthread_cond_broadcast(&arena->closed);
        pthread_mutex_unlock(&arena->lock);
    }
    if (kick) {
        client_enter_anyway(client);
        arena_look_by(client->arenas, clock_now_ns() + ARENA_TICK_NS);
        client_leave(client);
    }
}
