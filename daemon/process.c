/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include <poll.h>

#include "base/macros.h"
#include "conns.h"

static void
on_closed(uv_handle_t *handle)
{
    free(container_of(handle, struct process, poll));
}

static void
on_exit_seen(uv_poll_t *handle, int status UNUSED, int events UNUSED)
{
    struct process *p = handle->data;
    struct conns *set = p->set;
    uint64_t conn_id = p->conn_id;

    if (p->c) {
        uv_poll_stop(&p->poll); /* it stays readable while the rest is heard */
        conn_exited(p->c);
        return;
    }
    process_free(p);
    set->ops->departed(set->userdata, conn_id);
}

int
process_new(struct conns *set, struct conn *c, int pidfd_consume, struct process **ret)
{
    _cleanup_fd_ int pidfd = pidfd_consume;
    _cleanup_free_ struct process *p = calloc(1, sizeof(*p));
    int r;

    if (!p)
        return -ENOMEM;
    p->set = set;
    p->c = c;
    p->conn_id = c->id;
    p->poll.data = p;
    r = uv_poll_init(set->loop, &p->poll, pidfd);
    if (r < 0)
        return r;
    p->pidfd = TAKE_FD(pidfd);
    *ret = TAKE_PTR(p);
    r = uv_poll_start(&(*ret)->poll, UV_READABLE, on_exit_seen);
    if (r < 0)
        *ret = process_free(*ret);
    return r;
}

struct process *
process_free(struct process *p)
{
    if (!p)
        return NULL;
    if (!p->c)
        LIST_REMOVE(p, link);
    /* The fd leaves the poll set here, so that it can be closed at once. */
    uv_close((uv_handle_t *)&p->poll, on_closed);
    p->pidfd = fd_close(p->pidfd);
    return NULL;
}

bool
process_has_exited(const struct process *p)
{
    return poll(&(struct pollfd){.fd = p->pidfd, .events = POLLIN}, 1, 0) > 0;
}

void
process_depart(struct process *p)
{
    p->c = NULL;
    LIST_INSERT_HEAD(&p->set->departed, p, link);
}
