/* SPDX-License-Identifier: Apache-2.0 */
#include "reaper.h"

#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "client.h"
#include "feature.h"
#include "interrupt.h"

/* The nap of the thread after it has done something: long enough for some round trips to the
 * daemon, short enough for somebody who waits for memory. */
#define NAP_NS (200 * NSEC_PER_USEC)
/* So much closed memory ends a nap. */
#define NAP_BYTES (UINT64_C(8) << 20)
/* The time until it tries again to send what the socket did not take. */
#define RETRY_NS NSEC_PER_MSEC
/* Between two looks for late replies where the socket cannot be waited for. */
#define LATE_TICK_NS (100 * NSEC_PER_MSEC)

void
reaper_init(struct reaper *reaper)
{
    STAILQ_INIT(&reaper->queue);
    reaper->wake_fd = -1;
}

/* ---- the thread ---- */

/* After this, giving memory back does not end the capture of a graph by another thread. It is
 * called before anything that may call the driver; while the driver is not open, nothing does. It
 * does not wait. */
void
reaper_leave_captures_alone(struct caid_client *client)
{
    const struct drv *drv = client->gpu.drv;

    if (client->reaper.relaxed || !drv)
        return;
    gpu_relax(drv);
    client->reaper.relaxed = true;
}

/* The driver is open here: the program has used it for the memory that is in the queue. */
static void
reap(struct caid_client *client)
{
    struct reaped_queue batch = STAILQ_HEAD_INITIALIZER(batch);
    struct reaper *reaper = &client->reaper;
    uint64_t n = reaper->n_queued;

    STAILQ_CONCAT(&batch, &reaper->queue);
    reaper->n_bytes = 0;
    pthread_mutex_unlock(&client->lock);
    reaper_leave_captures_alone(client);
    FEATURES_DO(client, reap, client, &batch);
    pthread_mutex_lock(&client->lock);
    reaper->stuck = false;
    reaper->n_done = n;
}

static void
reaper_tidy(struct caid_client *client, bool all)
{
    for (const struct feature *const *feature = client->features; *feature; feature++)
        if ((*feature)->tidy) {
            reaper_leave_captures_alone(client);
            (*feature)->tidy(client, all);
        }
}

uint64_t
reaper_due(const struct caid_client *client)
{
    uint64_t due = UINT64_MAX;

    for (const struct feature *const *feature = client->features; *feature; feature++)
        if ((*feature)->due && (*feature)->due(client) < due)
            due = (*feature)->due(client);
    return due;
}

static void
nap(struct caid_client *client, uint64_t until)
{
    struct reaper *reaper = &client->reaper;

    if (reaper->n_bytes > NAP_BYTES)
        return;
    reaper->napping = true;
    wake_wait(&reaper->wake, &client->lock, until);
    reaper->napping = false;
}

/* Where the socket cannot be waited for, it is looked at now and then. */
static void
await_late(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;

    if (reaper->wake_fd < 0)
        reaper->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    reaper->polls = reaper->wake_fd >= 0 && !client->away;
    if (reaper->polls)
        call_await_late(client, reaper->wake_fd, reaper->due);
    else
        wake_wait(&reaper->wake, &client->lock,
                  min_u64(reaper->due, clock_now_ns() + LATE_TICK_NS));
    reaper->polls = false;
}

static void
fall_asleep(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;

    reaper->asleep = true;
    reaper->looks = client->n_late > 0;
    reaper->due = reaper_due(client);
    if (reaper->looks)
        await_late(client);
    else
        wake_wait(&reaper->wake, &client->lock, reaper->due);
    reaper->asleep = reaper->looks = false;
}

static bool
is_hurried(const struct reaper *reaper)
{
    return reaper->stopping || reaper->n_draining > 0;
}

static void
work(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;

    call_flush(client);
    bool all = reaper->forget_all;
    reaper_tidy(client, all || client->lost.code != 0);
    if (all)
        reaper->forget_all = false; /* one that was set meanwhile stays for the next time */
    if (reaper->n_draining > 0)
        wake_all(&reaper->drained);
    if (reaper->stopping || !STAILQ_EMPTY(&reaper->queue) || reaper->forget_all)
        return;
    if (call_has_unsent(client))
        nap(client, clock_now_ns() + RETRY_NS);
    else
        fall_asleep(client);
}

static void
reaper_loop(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;

    while (!reaper->stopping || !STAILQ_EMPTY(&reaper->queue)) {
        if (STAILQ_EMPTY(&reaper->queue) || reaper->forget_all) {
            work(client);
            continue;
        }
        reap(client);
        if (reaper->n_draining > 0)
            wake_all(&reaper->drained);
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

/* Starts the thread, if it does not run. false: it cannot be started. */
static bool
reaper_start(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;

    if (reaper->stopping)
        return false;
    if (!reaper->started)
        reaper->started = thread_spawn(&reaper->thread, reaper_main, client) == 0;
    return reaper->started;
}

void
reaper_wake(struct caid_client *client)
{
    wake_all(&client->reaper.wake);
    if (client->reaper.polls)
        eventfd_write(client->reaper.wake_fd, 1);
}

bool
reaper_add(struct caid_client *client, struct reaped *closed)
{
    struct reaper *reaper = &client->reaper;

    if (!reaper_start(client))
        return false;
    STAILQ_INSERT_TAIL(&reaper->queue, closed, entry);
    reaper->n_queued++;
    reaper->n_bytes += closed->nbytes;
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
    if (reaper->asleep && (call_has_unsent(client) || reaper_due(client) < reaper->due)) {
        reaper->due = 0; /* it is woken once */
        reaper_wake(client);
    }
    return true;
}

static int
wait_for_drained(struct caid_client *client, struct caid_error *error)
{
    if (wake_wait(&client->reaper.drained, &client->lock,
                  interrupt_look_by(client, UINT64_MAX)) == 0)
        return 0;
    return call_ask_interrupt(client, error);
}

int
reaper_drain(struct caid_client *client, bool idle, struct caid_error *error)
{
    struct reaper *reaper = &client->reaper;
    uint64_t n = reaper->n_queued;
    int r = 0;

    if (!reaper->started || reaper->stopping || (reaper->n_done == n && !idle))
        return 0;
    reaper->n_draining++;
    reaper_wake(client);
    while (r == 0 && reaper->n_done < n && !reaper->stuck)
        r = wait_for_drained(client, error);
    reaper->forget_all = true; /* also blocks that have just become idle */
    reaper_wake(client);
    while (r == 0 && reaper->forget_all && !reaper->stopping && !reaper->stuck)
        r = wait_for_drained(client, error);
    reaper->n_draining--;
    return r;
}

bool
reaper_may_wait(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;

    pthread_mutex_lock(&client->lock);
    bool may = reaper->started && !reaper->stopping;
    if (may) {
        reaper->stuck = true;
        wake_all(&reaper->drained);
    }
    pthread_mutex_unlock(&client->lock);
    return may;
}

void
reaper_stop(struct caid_client *client)
{
    struct reaper *reaper = &client->reaper;

    reaper->stopping = true;
    wake_all(&reaper->drained);
    if (!reaper->started)
        return;
    reaper_wake(client);
    pthread_mutex_unlock(&client->lock);
    pthread_join(reaper->thread, NULL);
    pthread_mutex_lock(&client->lock);
}
