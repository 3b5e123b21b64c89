/* SPDX-License-Identifier: Apache-2.0 */
#include "pollset.h"

#include <errno.h>
#include <sys/epoll.h>

int
pollset_new(void)
{
    int set = epoll_create1(EPOLL_CLOEXEC);

    return set < 0 ? -errno : set;
}

static int
control(struct poll_source *source, int op)
{
    struct epoll_event event = {.events = source->events, .data.ptr = source};

    return epoll_ctl(source->set, op, source->fd, &event) < 0 ? -errno : 0;
}

int
pollset_add(int set, struct poll_source *source, int fd)
{
    source->set = set;
    source->fd = fd;
    return control(source, EPOLL_CTL_ADD);
}

void
pollset_change(struct poll_source *source, uint32_t events)
{
    if (source->events == events)
        return;
    source->events = events;
    control(source, EPOLL_CTL_MOD);
}

void
pollset_remove(struct poll_source *source)
{
    control(source, EPOLL_CTL_DEL);
}

bool
pollset_serve(int set)
{
    struct epoll_event event;

    if (epoll_wait(set, &event, 1, 0) <= 0)
        return false;
    struct poll_source *source = event.data.ptr;
    source->ready(source, event.events);
    return true;
}
