/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A forked child cannot use CUDA, and must not keep the parent's device memory from being given
 * back: with a real driver it holds none of it. So the child drops its copies of the descriptors,
 * and puts inaccessible pages where the mappings were, which keeps stray pointers harmless.
 */
#include "fork.h"

#include <sys/mman.h>

#include "memory.h"

static void
before_fork(void)
{
    pthread_mutex_lock(&soft->ranges.lock);
    pthread_mutex_lock(&soft->objects.lock);
}

static void
in_parent(void)
{
    pthread_mutex_unlock(&soft->objects.lock);
    pthread_mutex_unlock(&soft->ranges.lock);
}

/* Only system calls that are safe between fork and exec. */
static void
in_child(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    struct range *range;
    RB_FOREACH(range, range_tree, &soft->ranges.usable)
    {
        if (!range->memory)
            continue;
        mmap((void *)range->start, range->size, PROT_NONE, flags, -1, 0);
        range->memory->fd = fd_close(range->memory->fd);
    }
    for (uint32_t i = 0; i < soft->objects.n_slots; i++) {
        struct object *object = soft->objects.slots[i].object;
        if (!object || object->kind != OBJECT_MEMORY)
            continue;
        struct memory *memory = container_of(object, struct memory, object);
        memory->fd = fd_close(memory->fd);
    }
    serve_forget(&soft->watch.control);
    in_parent();
}

int
fork_watch(void)
{
    return -pthread_atfork(before_fork, in_parent, in_child);
}
