/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A forked child cannot use CUDA, and must not keep the parent's device memory from being given
 * back: with a real driver it holds none of it. So the child drops its copies of the descriptors,
 * and puts inaccessible pages where the mappings were, which keeps stray pointers harmless.
 */
#include "fork.h"

#include <sys/mman.h>

#include "memory.h"
#include "pool.h"

static void
before_fork(void)
{
    pthread_mutex_lock(&soft->ranges.lock);
    pthread_mutex_lock(&soft->objects.lock);
    event_ipc_before_fork();
    share_before_fork();
}

static void
unlock_tables(void)
{
    pthread_mutex_unlock(&soft->objects.lock);
    pthread_mutex_unlock(&soft->ranges.lock);
}

static void
in_parent(void)
{
    share_in_parent();
    event_ipc_in_parent();
    unlock_tables();
}

/* In the child only system calls that are safe between fork and exec are made. */

static void
memory_forget(struct memory *memory)
{
    if (memory)
        memory->fd = fd_close(memory->fd);
}

static void
ranges_forget(struct range_tree *tree)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    struct range *range;
    RB_FOREACH(range, range_tree, tree)
    {
        if (!range->memory)
            continue;
        mmap((void *)range->start, range->size, PROT_NONE, flags, -1, 0);
        memory_forget(range->memory);
    }
}

static void
object_forget(struct object *object)
{
    if (object && object->kind == OBJECT_MEMORY)
        memory_forget(container_of(object, struct memory, object));
    if (object && object->kind == OBJECT_POOL)
        memory_forget(container_of(object, struct pool, object)->heap.memory);
}

static void
in_child(void)
{
    ranges_forget(&soft->ranges.usable);
    ranges_forget(&soft->ranges.pieces);
    for (uint32_t i = 0; i < soft->objects.n_slots; i++)
        object_forget(soft->objects.slots[i].object);
    serve_forget(&soft->watch.control);
    share_in_child();
    event_ipc_in_child();
    unlock_tables();
}

int
fork_watch(void)
{
    return -pthread_atfork(before_fork, in_parent, in_child);
}
