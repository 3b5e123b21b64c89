/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A forked child cannot use CUDA, and must not keep the parent's device memory from being given
 * back: with a real driver it holds none of it. So the child drops its copies of the descriptors,
 * and puts inaccessible pages where the mappings were, which keeps stray pointers harmless. What
 * has MADV_DONTFORK, managed memory and the pages of events, is not inherited at all: in the child
 * its addresses are free.
 *
 * The locks that are taken here keep what they protect whole in the child, and are free there.
 */
#include "fork.h"

#include <sys/mman.h>

#include "memory.h"

static void
before_fork(void)
{
    pthread_mutex_lock(&soft->ranges.lock);
    pthread_mutex_lock(&soft->objects.lock);
    pthread_mutex_lock(&soft->ipc_events.lock);
    pthread_mutex_lock(&soft->share.lock);
    pthread_mutex_lock(&soft->memories.lock);
    pthread_mutex_lock(&soft->watch.faults.lock); /* a child's calls meet the rules, too */
}

static void
after_fork(void)
{
    pthread_mutex_unlock(&soft->watch.faults.lock);
    pthread_mutex_unlock(&soft->memories.lock);
    pthread_mutex_unlock(&soft->share.lock);
    pthread_mutex_unlock(&soft->ipc_events.lock);
    pthread_mutex_unlock(&soft->objects.lock);
    pthread_mutex_unlock(&soft->ranges.lock);
}

/* In the child only system calls that are safe between fork and exec are made. */

static void
ranges_forget(struct range_tree *tree)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    struct range *range;
    RB_FOREACH(range, range_tree, tree) {
        if (range->memory)
            mmap((void *)range->start, range->size, PROT_NONE, flags, -1, 0);
    }
}

static void
in_child(void)
{
    ranges_forget(&soft->ranges.usable);
    ranges_forget(&soft->ranges.freed);
    memory_in_child();
    serve_forget(&soft->watch.control);
    share_in_child();
    event_ipc_in_child();
    after_fork();
}

int
fork_watch(void)
{
    return -pthread_atfork(before_fork, after_fork, in_child);
}
