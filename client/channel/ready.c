/* SPDX-License-Identifier: Apache-2.0 */
#include "ready.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/thread.h"
#include "port.h"
#include "session/client.h"

/* Between two looks at what the GPU is to store. */
#define LOOK_MIN_NS (20 * NSEC_PER_USEC)
#define LOOK_MAX_NS (500 * NSEC_PER_USEC)
/* After which a get is to ask for the next producer. */
#define ASK_NS (2 * NSEC_PER_MSEC)

void
ready_init(struct ready *ready)
{
    atomic_init(&ready->fd, -1);
}

void
ready_kick(struct caid_channel *channel)
{
    atomic_fetch_add(&channel->ready.kicks, 1);
    syscall(SYS_futex, &channel->ready.kicks, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Under lock. */
static void
set_raised(struct ready *ready, bool raised)
{
    eventfd_t count;

    if (ready->raised == raised)
        return;
    ready->raised = raised;
    if (raised)
        eventfd_write(ready->fd, 1);
    else
        (void)eventfd_read(ready->fd, &count);
}

void
ready_update(struct caid_channel *channel)
{
    struct ready *ready = &channel->ready;
    uint64_t unused;

    if (atomic_load_explicit(&ready->fd, memory_order_relaxed) < 0)
        return;
    pthread_mutex_lock(&channel->lock);
    if (get_due(channel, !ready->by_stream, &unused) != DUE_NOW)
        set_raised(ready, false);
    pthread_mutex_unlock(&channel->lock);
    ready_kick(channel);
}

void
ready_got(struct caid_channel *channel, bool by_stream)
{
    atomic_store_explicit(&channel->ready.by_stream, by_stream, memory_order_relaxed);
    ready_update(channel);
}

/* ---- the thread ---- */

static void
sleep_on(const void *word, int op, uint64_t was, uint64_t ns)
{
    const struct timespec left = {.tv_sec = (time_t)(ns / NSEC_PER_SEC),
                                  .tv_nsec = (long)(ns % NSEC_PER_SEC)};

    syscall(SYS_futex, word, op, (uint32_t)was, ns == UINT64_MAX ? NULL : &left, NULL, 0);
}

/* Under lock, which it drops meanwhile. */
static void
await_kick(struct caid_channel *channel, uint32_t was, uint64_t ns)
{
    pthread_mutex_unlock(&channel->lock);
    sleep_on(&channel->ready.kicks, FUTEX_WAIT_PRIVATE, was, ns);
    pthread_mutex_lock(&channel->lock);
}

/* Until the producer submits more than it had. */
static void
await_submission(struct caid_channel *channel, uint64_t was)
{
    struct page *page = page_ref(channel->producer);
    _Atomic uint64_t *waits = &channel_reader_of(channel->page->slots)->waits;

    channel->ready.awaited = page;
    pthread_mutex_unlock(&channel->lock);
    atomic_fetch_add(waits, 1);
    sleep_on(&page->slots[PAGE_SLOT].submitted, FUTEX_WAIT, was, CHANNEL_SLICE_NS);
    atomic_fetch_sub(waits, 1);
    pthread_mutex_lock(&channel->lock);
    channel->ready.awaited = NULL;
    page_unref(page);
}

/* Raises the fd, or sleeps. */
static void
look(struct caid_channel *channel, uint64_t *pause_ns)
{
    struct ready *ready = &channel->ready;
    uint32_t kicks = atomic_load(&ready->kicks);
    uint64_t was, pause = LOOK_MIN_NS;

    if (ready->raised) {
        await_kick(channel, kicks, UINT64_MAX);
        return;
    }
    switch (get_due(channel, !ready->by_stream, &was)) {
    case DUE_NOW: set_raised(ready, true); break;
    case DUE_SUBMIT: await_submission(channel, was); break;
    case DUE_LAND:
        await_kick(channel, kicks, *pause_ns);
        pause = min_u64(2 * *pause_ns, LOOK_MAX_NS);
        break;
    case DUE_ASK:
        await_kick(channel, kicks, ASK_NS);
        if (kicks == atomic_load(&ready->kicks))
            set_raised(ready, true);
        break;
    case DUE_KICK: await_kick(channel, kicks, UINT64_MAX); break;
    }
    *pause_ns = pause;
}

static void *
ready_run(void *arg)
{
    struct caid_channel *channel = arg;
    uint64_t pause_ns = LOOK_MIN_NS;

    pthread_mutex_lock(&channel->lock);
    while (!channel->ready.ends)
        look(channel, &pause_ns);
    pthread_mutex_unlock(&channel->lock);
    return NULL;
}

/* ---- the fd ---- */

static int
start(struct caid_channel *channel, struct caid_error *error)
{
    _cleanup_fd_ int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    if (fd < 0)
        return fail_errno(error, errno, "cannot make an eventfd");
    int r = thread_spawn(&channel->ready.thread, ready_run, channel);
    if (r < 0)
        return fail_errno(error, -r, "cannot start a thread");
    channel->ready.fd = TAKE_FD(fd);
    return 0;
}

int
caid_channel_get_fd(struct caid_channel *channel, struct caid_error *error)
{
    int r = CHECK_CLIENT_OF(channel, error);
    if (r == 0)
        r = get_check_reader(channel, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&channel->lock);
    if (channel->ready.fd < 0)
        r = start(channel, error);
    int fd = channel->ready.fd;
    pthread_mutex_unlock(&channel->lock);
    return r < 0 ? r : fd;
}

/* The producer's page is mapped for reading alone, which is enough to wake. */
void
ready_close(struct caid_channel *channel)
{
    struct ready *ready = &channel->ready;

    if (ready->fd < 0)
        return;
    pthread_mutex_lock(&channel->lock);
    ready->ends = true;
    set_raised(ready, true);
    if (ready->awaited)
        timeline_wake(&ready->awaited->slots[PAGE_SLOT]);
    pthread_mutex_unlock(&channel->lock);
    ready_kick(channel);
    pthread_join(ready->thread, NULL);
    ready->fd = fd_close(ready->fd);
}
