/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the client's thread does for arenas (arena.h). While the program allocates nothing, blocks in
 * which the GPU's work ends are still to go back. The thread records no event, which would end the
 * captures of threads that know nothing of it: what is pending in an idle process stays so.
 *
 * An arena is in the list from its making to caid_arena_close(), which waits until the thread is out
 * of it.
 */
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <sys/queue.h>

struct caid_arena;
struct caid_client;

LIST_HEAD(arenas, caid_arena);

struct arena_list { /* under the client's lock */
    struct arenas all;
    uint64_t due;               /* when arena_tidy() has something to do */
    struct caid_arena *tidying; /* that the client's thread is in */
    pthread_cond_t tidied;
};

/* All under the client's lock, but for arena_kick(). */

void arena_list_init(struct arena_list *list);
void arena_list_add(struct caid_client *client, struct caid_arena *arena);
/* Waits until the client's thread is out of it. */
void arena_list_remove(struct caid_client *client, struct caid_arena *arena);

/* When arena_tidy() has something to do: a time, or UINT64_MAX. */
uint64_t arena_due(const struct caid_client *client);
/* Looks at what drains, and gives back what has been empty for long. Drops the lock meanwhile; on the
 * client's thread alone. */
void arena_tidy(struct caid_client *client);

/* Has the client's thread look in a while. Under no lock. */
void arena_kick(struct caid_arena *arena);
