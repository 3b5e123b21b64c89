/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include <poll.h>

#include "base/macros.h"
#include "conns.h"

static void
on_exit_seen(struct poll_source *source, uint32_t events UNUSED)
{
    struct process *p = container_of(source, struct process, source);

    if (p->c)
        conn_exited(p->c);
    else
        turns_add(&p->set->turns, &p->turn);
}

static void
on_turn(struct turn *turn)
{
    struct process *p = container_of(turn, struct process, turn);

    conns_drop_departed(p->set, p);
}

static int
process_make(struct conns *set, struct conn_owner *owner, uint64_t conn_id, int pidfd_consume,
             struct process **ret)
{
    _cleanup_fd_ int pidfd = pidfd_consume;
    _cleanup_free_ struct process *p = calloc(1, sizeof(*p));
    int r;

    if (!p)
        return -ENOMEM;
    p->set = set;
    p->conn_id = conn_id;
    p->turn = (struct turn){.user = &owner->turns, .serve = on_turn};
    p->source = (struct poll_source){.ready = on_exit_seen, .events = EPOLLIN | EPOLLET};
    r = pollset_add(&set->pollset, &p->source, pidfd);
    if (r < 0)
        return r;
    p->pidfd = TAKE_FD(pidfd);
    *ret = TAKE_PTR(p);
    return 0;
}

int
process_new(struct conn *c, int pidfd_consume, struct process **ret)
{
    int r = process_make(c->set, c->owner, c->id, pidfd_consume, ret);

    if (r == 0)
        (*ret)->c = c;
    return r;
}

int
process_adopt(struct conns *set, uint64_t conn_id, uid_t uid, int pidfd_consume, bool is_kept)
{
    _cleanup_fd_ int pidfd = pidfd_consume;
    struct conn_owner *owner = conns_join(set, uid);
    struct process *p;
    int r = owner ? process_make(set, owner, conn_id, TAKE_FD(pidfd), &p) : -ENOMEM;

    if (r < 0) {
        if (owner)
            conns_leave(set, owner);
        return r;
    }
    p->is_kept = is_kept;
    p->owner = owner;
    LIST_INSERT_HEAD(&set->departed, p, link);
    return 0;
}

struct process *
process_free(struct process *p)
{
    if (!p)
        return NULL;
    pollset_remove(&p->set->pollset, &p->source);
    if (!p->is_kept)
        fd_close(p->pidfd);
    if (!p->c) {
        turns_remove(&p->set->turns, &p->turn);
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
