/* SPDX-License-Identifier: Apache-2.0 */
#include "pollset.h"

#include <errno.h>

#include "base/macros.h"

#define N_EVENTS 512
#define N_TIMES  8 /* calls of epoll_wait(2) in a turn, at most: 4,096 events */

int
pollset_init(struct pollset *set)
{
    set->fd = epoll_create1(EPOLL_CLOEXEC);
    return set->fd < 0 ? -errno : 0;
}

void
pollset_deinit(struct pollset *set)
{
    set->fd = fd_close(set->fd);
}

static int
control(struct pollset *set, struct poll_source *source, int op)
{
    struct epoll_event event = {.events = source->events, .data.ptr = source};

    return epoll_ctl(set->fd, op, source->fd, &event) < 0 ? -errno : 0;
}

int
pollset_add(struct pollset *set, struct poll_source *source, int fd)
{
    source->fd = fd;
    return control(set, source, EPOLL_CTL_ADD);
}

void
pollset_change(struct pollset *set, struct poll_source *source, uint32_t events)
{
    if (source->events == events)
        return;
    source->events = events;
    control(set, source, EPOLL_CTL_MOD);
}

void
pollset_remove(struct pollset *set, struct poll_source *source)
{
    if (source->fd >= 0)
        control(set, source, EPOLL_CTL_DEL);
    source->fd = -1;
}

static int
pollset_dispatch(struct pollset *set, int timeout_ms)
{
    struct epoll_event events[N_EVENTS];
    int n = epoll_wait(set->fd, events, N_EVENTS, timeout_ms);

    for (int i = 0; i < n; i++) {
        struct poll_source *source = events[i].data.ptr;
        source->ready(source, events[i].events);
    }
    return n;
}

void
pollset_wait(struct pollset *set, int timeout_ms)
{
    for (int i = 0; i < N_TIMES && pollset_dispatch(set, i == 0 ? timeout_ms : 0) == N_EVENTS;
         i++)
        ;
}
