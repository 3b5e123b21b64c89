/* SPDX-License-Identifier: Apache-2.0 */
#include "arena_tidy.h"

#include "arena.h"
#include "base/clock.h"
#include "client.h"

/* Until the thread looks, where something drains. */
#define TICK_NS (250 * NSEC_PER_MSEC)

void
arena_list_init(struct arena_list *list)
{
    LIST_INIT(&list->all);
    list->due = UINT64_MAX;
    pthread_cond_init(&list->tidied, NULL);
}

void
arena_list_add(struct caid_client *client, struct caid_arena *arena)
{
    LIST_INSERT_HEAD(&client->arenas.all, arena, of_client);
}

void
arena_list_remove(struct caid_client *client, struct caid_arena *arena)
{
    while (client->arenas.tidying == arena)
        pthread_cond_wait(&client->arenas.tidied, &client->lock);
    LIST_REMOVE(arena, of_client);
}

uint64_t
arena_due(const struct caid_client *client)
{
    return client->arenas.due;
}

static void
look_by(struct arena_list *list, uint64_t time)
{
    if (time < list->due)
        list->due = time;
}

/* When there will be something to do for it, under its lock. */
static uint64_t
due_of(const struct caid_arena *arena, uint64_t now)
{
    const struct batch *batch = TAILQ_FIRST(&arena->batches);
    uint64_t due = dealloc_deadline_ns(&arena->empty);

    return batch && batch->event && due > now + TICK_NS ? now + TICK_NS : due;
}

/* Who has the lock may be in a driver call that waits: it is come back to. */
static uint64_t
tidy(struct caid_arena *arena)
{
    uint64_t now = clock_now_ns();

    if (arena_lock_by(arena, CAID_ARENA_NOWAIT, NULL) < 0)
        return now + TICK_NS;
    arena_poll(arena);
    if (dealloc_deadline_ns(&arena->empty) <= now)
        arena_give_back(arena);
    uint64_t due = due_of(arena, now);
    arena->kick = false; /* this is what it is for */
    arena->ticking = due != UINT64_MAX;
    arena_unlock(arena);
    return due;
}

/* The arena that it is in stays in the list. */
void
arena_tidy(struct caid_client *client)
{
    struct arena_list *list = &client->arenas;
    struct caid_arena *arena;

    list->due = UINT64_MAX;
    LIST_FOREACH(arena, &list->all, of_client)
    {
        list->tidying = arena;
        pthread_mutex_unlock(&client->lock);
        uint64_t due = tidy(arena);
        pthread_mutex_lock(&client->lock);
        look_by(list, due);
        list->tidying = NULL;
        pthread_cond_broadcast(&list->tidied);
    }
}

void
arena_kick(struct caid_arena *arena)
{
    struct caid_client *client = arena->client;

    client_enter_anyway(client);
    look_by(&client->arenas, clock_now_ns() + TICK_NS);
    client_leave(client);
}
