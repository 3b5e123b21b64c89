/* SPDX-License-Identifier: Apache-2.0 */
#include "reaper.h"

#include <signal.h>

#include "array.h"
#include "base/clock.h"
#include "client.h"
#include "drain.h"

/* How long the thread does not look after it has done something. Long enough for some round
 * trips to the daemon, short enough for memory that somebody waits for. */
#define NAP_NS (200 * NSEC_PER_USEC)
/* How much closed memory is worth waking it. */
#define NAP_BYTES (UINT64_C(8) << 20)
/* How long until it tries again what the socket did not take. */
#define RETRY_NS NSEC_PER_MSEC
/* How long a block may wait for a moment in which no call is under way, until one is made; how
 * many bytes may. */
#define BARRIER_NS    (100 * NSEC_PER_MSEC)
#define BARRIER_BYTES (UINT64_C(256) << 20)

void
reaper_init(struct reaper *reaper)
{
    STAILQ_INIT(&reaper->queue);
    cond_init(&reaper->wake);
    cond_init(&reaper->drained);
}

/* ---- the thread ---- */

/* So that giving memory back does not end the capture of a graph by another thread. Before anything
 * that may call the driver: where that is not open yet there is nothing to call it for. Waits for
 * nothing. */
static void
leave_captures_alone(struct caid_client *client)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const struct drv *drv = client->gpu.drv;

    if (client->reaper.relaxed || !drv)
        return;
    drv->cu.cuThreadExchangeStreamCaptureMode(&mode);
    client->reaper.relaxed = true;
}

/* Who closed what is in the queue has used the driver: it is open. */
static void
reap(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;
    struct array_queue batch = STAILQ_HEAD_INITIALIZER(batch);
    struct caid_array *array;

    STAILQ_CONCAT(&batch, &reaper->queue);
    reaper->n_bytes = 0;
    pthread_mutex_unlock(&client->lock);
    leave_captures_alone(client);
    drain_arrays(client, &batch);
    pthread_mutex_lock(&client->lock);
    reaper->stuck = false;
    STAILQ_FOREACH(array, &batch, entry)
    {
        array_end_lease(array);
        reaper->n_done++;
        reaper->n_freed += !array->drain.kept;
    }
    call_flush(client);
    pthread_mutex_unlock(&client->lock);

    /* Never the client's last reference: its handle is there until the thread has been joined.
     * */
    while ((array = STAILQ_FIRST(&batch))) {
        STAILQ_REMOVE_HEAD(&batch, entry);
        array_free(array);
    }
    pthread_mutex_lock(&client->lock);
}

/* Calls that may refer to blocks come without a pause: new ones are held back until those under
 * way are answered. */
static void
make_barrier(struct caid_client *client)
{
    client->barrier = true;
    while (client->n_block_calls > 0 && !client->reaper.stopping)
        pthread_cond_wait(&client->reaper.wake, &client->lock);
    leave_captures_alone(client);
    block_tidy(client, false);
    client->barrier = false;
    pthread_cond_broadcast(&client->barrier_gone);
}

static bool
is_urgent(const struct caid_client *client, uint64_t waiting_ns)
{
    return waiting_ns >= BARRIER_NS || client->reaper.forget_all ||
           client->blocks.unmapped_bytes > BARRIER_BYTES;
}

/* Returns when there will be something to do for the blocks. */
static uint64_t
tidy(struct caid_client *client, uint64_t *waiting_since)
{
    uint64_t now = clock_now_ns();

    leave_captures_alone(client);
    block_tidy(client, client->reaper.forget_all || client->lost.code != 0);
    if (*waiting_since == 0)
        *waiting_since = now;
    if (!TAILQ_EMPTY(&client->blocks.unmapped)) {
        if (!is_urgent(client, now - *waiting_since))
            return *waiting_since + BARRIER_NS;
        make_barrier(client);
    }
    *waiting_since = 0;
    return block_due(client);
}

static uint64_t
earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The same for all that has a time. */
static uint64_t
tidy_all(struct caid_client *client, uint64_t *waiting_since)
{
    leave_captures_alone(client);
    if (page_due(client) <= clock_now_ns())
        page_tidy(client);
    leave_captures_alone(client);
    if (arena_due(client) <= clock_now_ns())
        arena_tidy(client);
    uint64_t due = tidy(client, waiting_since);
    return earlier(due, earlier(page_due(client), arena_due(client)));
}

static void
nap(struct caid_client *client, uint64_t until)
{
    struct reaper *reaper = &client->reaper;

    if (reaper->n_bytes > NAP_BYTES)
        return;
    reaper->napping = true;
    cond_wait_until(&reaper->wake, &client->lock, until);
    reaper->napping = false;
}

static void
fall_asleep(struct caid_client *client, uint64_t due)
{
    struct reaper *reaper = &client->reaper;

    reaper->asleep = true;
    reaper->due = due;
    cond_wait_until(&reaper->wake, &client->lock, due);
    reaper->asleep = false;
}

static bool
is_hurried(const struct reaper *reaper)
{
    return reaper->stopping || reaper->n_draining > 0;
}

static void
work(struct caid_client *client, uint64_t *waiting_since)
{
    struct reaper *reaper = &client->reaper;

    call_flush(client);
    bool all = reaper->forget_all;
    uint64_t due = tidy_all(client, waiting_since);
    if (all)
        reaper->forget_all = false; /* else it came meanwhile, and is for the next time */
    if (reaper->n_draining > 0)
        pthread_cond_broadcast(&reaper->drained);
    if (reaper->stopping || !STAILQ_EMPTY(&reaper->queue) || reaper->forget_all)
        return;
    if (call_has_unsent(client))
        nap(client, clock_now_ns() + RETRY_NS);
    else
        fall_asleep(client, due);
}

static void
reaper_loop(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;
    uint64_t waiting_since = 0;

    while (!reaper->stopping || !STAILQ_EMPTY(&reaper->queue)) {
        if (STAILQ_EMPTY(&reaper->queue) || reaper->forget_all) {
            work(client, &waiting_since);
            continue;
        }
        reap(client);
        if (reaper->n_draining > 0)
            pthread_cond_broadcast(&reaper->drained);
        if (!is_hurried(reaper))
            nap(client, clock_now_ns() + NAP_NS);
    }
}

static void *
reaper_main(void *arg)
{
    struct caid_client *client = arg;

    pthread_mutex_lock(&client->lock);
    reaper_loop(client);
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

/* ---- the others ---- */

/* False: not to be had. */
static bool
reaper_start(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;
    sigset_t all, before;

    if (reaper->stopping)
        return false;
    if (reaper->started)
        return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    reaper->started = pthread_create(&reaper->thread, NULL, reaper_main, client) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return reaper->started;
}

void
reaper_wake(struct caid_client *client)
{
    pthread_cond_signal(&client->reaper.wake);
}

bool
reaper_add(struct caid_client *client, struct caid_array *array)
{
    struct reaper *reaper = &client->reaper;

    if (!reaper_start(client))
        return false;
    STAILQ_INSERT_TAIL(&reaper->queue, array, entry);
    reaper->n_queued++;
    reaper->n_bytes += array->info.nbytes;
    if (reaper->asleep || (reaper->napping && reaper->n_bytes > NAP_BYTES))
        reaper_wake(client);
    return true;
}

bool
reaper_kick(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;

    if (!reaper_start(client))
        return false;
    if (reaper->asleep && (call_has_unsent(client) || block_due(client) < reaper->due ||
                           page_due(client) < reaper->due || arena_due(client) < reaper->due)) {
        reaper->due = 0; /* once is enough */
        reaper_wake(client);
    }
    return true;
}

/* Or could be made to. */
static bool
blocks_are_going(const struct block_table *blocks)
{
    return !TAILQ_EMPTY(&blocks->idle) || !TAILQ_EMPTY(&blocks->unmapped) ||
           blocks->n_freeing > 0;
}

void
reaper_drain(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;
    uint64_t n = reaper->n_queued;

    if (!reaper->started || reaper->stopping ||
        (reaper->n_done == n && !blocks_are_going(&client->blocks)))
        return;
    reaper->n_draining++;
    reaper_wake(client);
    while (reaper->n_done < n && !reaper->stuck)
        pthread_cond_wait(&reaper->drained, &client->lock);
    reaper->forget_all = true; /* also what has become idle just now */
    reaper_wake(client);
    while (reaper->forget_all && !reaper->stopping && !reaper->stuck)
        pthread_cond_wait(&reaper->drained, &client->lock);
    reaper->n_draining--;
}

bool
reaper_may_wait(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;

    pthread_mutex_lock(&client->lock);
    bool may = reaper->started && !reaper->stopping;
    if (may) {
        reaper->stuck = true;
        pthread_cond_broadcast(&reaper->drained);
    }
    pthread_mutex_unlock(&client->lock);
    return may;
}

void
reaper_stop(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;

    reaper->stopping = true;
    pthread_cond_broadcast(&reaper->drained);
    if (!reaper->started)
        return;
    reaper_wake(client);
    pthread_mutex_unlock(&client->lock);
    pthread_join(reaper->thread, NULL);
    pthread_mutex_lock(&client->lock);
}
