/* SPDX-License-Identifier: Apache-2.0 */
#include "boot_timer.h"

#include <sys/timerfd.h>

#include "base/clock.h"
#include "base/macros.h"

/* Where nothing can be read, the timer has been set anew meanwhile. */
static void
on_readable(uv_poll_t *poll, int status UNUSED, int events UNUSED)
{
    struct boot_timer *timer = poll->data;
    uint64_t n;

    if (read(timer->fd, &n, sizeof(n)) < 0)
        return;
    timer->at_ns = UINT64_MAX;
    timer->fired(timer->userdata);
}

int
boot_timer_init(struct boot_timer *timer, uv_loop_t *loop, void (*fired)(void *userdata),
                void *userdata)
{
    int r;

    timer->at_ns = UINT64_MAX;
    timer->fired = fired;
    timer->userdata = userdata;
    timer->fd = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
    if (timer->fd < 0)
        return -errno;
    r = uv_poll_init(loop, &timer->poll, timer->fd);
    if (r < 0)
        return r;
    timer->poll.data = timer;
    return uv_poll_start(&timer->poll, UV_READABLE, on_readable);
}

void
boot_timer_deinit(struct boot_timer *timer)
{
    timer->fd = fd_close(timer->fd);
}

void
boot_timer_set(struct boot_timer *timer, uint64_t at_ns)
{
    struct itimerspec spec = {0}; /* zero stops the timer */

    if (at_ns == timer->at_ns)
        return;
    timer->at_ns = at_ns;
    if (at_ns != UINT64_MAX)
        spec.it_value = (struct timespec){.tv_sec = (time_t)(at_ns / NSEC_PER_SEC),
                                          .tv_nsec = (long)(at_ns % NSEC_PER_SEC)};
    timerfd_settime(timer->fd, TFD_TIMER_ABSTIME, &spec, NULL);
}
