/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include <poll.h>
#include <sys/epoll.h>

#include "base/macros.h"
#include "conns.h"

static void
on_exit_seen(struct poll_source *source, uint32_t events UNUSED)
{
    struct process *p = container_of(source, struct process, source);

    if (p->c) {
        pollset_remove(&p->source); /* it stays readable while the rest is heard */
        conn_exited(p->c);
    } else {
        conns_drop_departed(p->set, p);
    }
}

int
process_new(struct conn *c, int pidfd_consume, struct process **ret)
{
    _cleanup_fd_ int pidfd = pidfd_consume;
    _cleanup_free_ struct process *p = calloc(1, sizeof(*p));
    int r;

    if (!p)
        return -ENOMEM;
    p->set = c->set;
    p->c = c;
    p->conn_id = c->id;
    p->source = (struct poll_source){.ready = on_exit_seen, .events = EPOLLIN};
    r = pollset_add(c->owner->pollset, &p->source, pidfd);
    if (r < 0)
        return r;
    p->pidfd = TAKE_FD(pidfd);
    *ret = TAKE_PTR(p);
    return 0;
}

struct process *
process_free(struct process *p)
{
    if (!p)
        return NULL;
    p->pidfd = fd_close(p->pidfd);
    if (!p->c) {
        LIST_REMOVE(p, link);
        conns_leave(p->set, p->owner);
    }
    free(p);
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
    p->owner = p->c->owner;
    p->owner->n_conns++;
    p->c = NULL;
    LIST_INSERT_HEAD(&p->set->departed, p, link);
}
