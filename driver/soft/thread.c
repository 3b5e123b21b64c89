/* SPDX-License-Identifier: Apache-2.0 */
/* What each thread keeps: made when the thread first needs it, ended with the thread. */
#include "context.h"

#include <unistd.h>

#include "base/thread.h"
#include "stream.h"

struct thread *
thread_get(void)
{
    struct thread *thread = pthread_getspecific(soft->thread_key);
    if (thread)
        return thread;
    thread = calloc(1, sizeof(*thread));
    if (thread && pthread_setspecific(soft->thread_key, thread) != 0) {
        free(thread);
        return NULL;
    }
    return thread;
}

int
thread_start(void *(*run)(void *), void *arg)
{
    pthread_t thread;
    int r = thread_spawn(&thread, run, arg);
    if (r == 0)
        pthread_detach(thread);
    return r;
}

void
thread_free(void *data)
{
    struct thread *thread = data;
    struct stream *stream;
    /* In a forked child the locks of its streams may be held by threads that are not there. */
    if (soft->owner != getpid())
        return;
    while ((stream = LIST_FIRST(&thread->own_streams))) {
        LIST_REMOVE(stream, thread_link);
        stream_close(stream);
        stream_unref(stream);
    }
    for (size_t i = 0; i < thread->n_stack; i++)
        context_unref(thread->stack[i]);
    free(thread->stack);
    free(thread);
}
