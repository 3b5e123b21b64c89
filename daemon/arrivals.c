/* SPDX-License-Identifier: Apache-2.0 */
#include "arrivals.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/macros.h"
#include "fds.h"

#define FDS_PART 4   /* this part of all fds is for connections that are not taken up yet */
#define RETRY_MS 100 /* until the next try, after the process had no fd to spare */

struct arrival {
    TAILQ_ENTRY(arrival) link;
    struct turn turn;
    struct arrivals *set;
    struct conn_owner *owner;
    int sock;
};

void
arrivals_init(struct arrivals *set, uv_loop_t *loop, struct listener *listener,
              struct conns *conns, const struct arrivals_ops *ops, void *userdata)
{
    *set = (struct arrivals){.listener = listener,
                             .conns = conns,
                             .ops = ops,
                             .userdata = userdata};
    set->source.fd = -1;
    TAILQ_INIT(&set->waiting);
    uv_timer_init(loop, &set->timer);
    set->timer.data = set;
}

static void
arrival_free(struct arrival *a)
{
    struct arrivals *set = a->set;

    turns_remove(&set->conns->turns, &a->turn);
    TAILQ_REMOVE(&set->waiting, a, link);
    set->n--;
    conns_leave(set->conns, a->owner);
    fd_close(a->sock);
    free(a);
}

/* Whether the client has hung up without having sent anything. */
static bool
has_gone(int sock)
{
    char byte;

    return recv(sock, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) == 0;
}

static void
on_turn(struct turn *turn)
{
    struct arrival *a = container_of(turn, struct arrival, turn);
    struct arrivals *set = a->set;

    if (!has_gone(a->sock))
        set->ops->take_up(set->userdata, TAKE_FD(a->sock));
    arrival_free(a);
}

static int
arrival_queue(struct arrivals *set, int sock, uid_t uid)
{
    struct arrival *a = calloc(1, sizeof(*a));
    struct conn_owner *owner = a ? conns_join(set->conns, uid) : NULL;

    if (!owner) {
        free(a);
        return -ENOMEM;
    }
    a->turn = (struct turn){.user = &owner->turns, .serve = on_turn};
    a->set = set;
    a->owner = owner;
    a->sock = sock;
    TAILQ_INSERT_TAIL(&set->waiting, a, link);
    set->n++;
    if (owner->n_conns > set->max_of_uid)
        arrival_free(a);
    else
        turns_add(&set->conns->turns, &a->turn);
    return 0;
}

/* The connection is taken up in its uid's turn. */
static void
arrivals_add(struct arrivals *set, int sock_consume)
{
    _cleanup_fd_ int sock = sock_consume;
    struct ucred peer;

    if (!has_gone(sock) &&
        getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &(socklen_t){sizeof(peer)}) == 0 &&
        arrival_queue(set, sock, peer.uid) == 0)
        sock = -1; /* the arrival owns it */
}

/* ---- accept ---- */

static void
on_ready(struct poll_source *source, uint32_t events UNUSED)
{
    container_of(source, struct arrivals, source)->is_ready = true;
}

int
arrivals_listen(struct arrivals *set)
{
    int r = listener_start(set->listener);

    uv_timer_stop(&set->timer);
    if (r < 0)
        return r;
    if (set->source.ready) {
        pollset_change(&set->conns->pollset, &set->source, EPOLLIN);
        return 0;
    }
    set->source = (struct poll_source){.ready = on_ready, .events = EPOLLIN};
    return pollset_add(&set->conns->pollset, &set->source, set->listener->fd);
}

static void
on_timer(uv_timer_t *timer)
{
    struct arrivals *set = timer->data;

    if (arrivals_listen(set) < 0)
        set->ops->failed(set->userdata);
}

void
arrivals_listen_after(struct arrivals *set, uint64_t ms)
{
    uv_timer_start(&set->timer, on_timer, ms, 0);
}

/* Clients wait in the backlog meanwhile. */
static void
arrivals_pause(struct arrivals *set)
{
    pollset_change(&set->conns->pollset, &set->source, 0);
    arrivals_listen_after(set, RETRY_MS);
}

/* false: nobody waits, or nobody can be taken up now. */
static bool
accept_one(struct arrivals *set)
{
    int sock = accept4(set->listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (sock < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            arrivals_pause(set);
        return errno == ECONNABORTED || errno == EINTR;
    }
    arrivals_add(set, sock);
    return true;
}

/* Accepts for no longer than one uid may use the loop: no uid is charged for this time. */
void
arrivals_accept(struct arrivals *set)
{
    uint64_t until_ns;
    int n = 0;

    if (!set->is_ready)
        return;
    set->is_ready = false;
    if (set->n >= fds_max() / FDS_PART)
        return; /* the loop is awake as long as somebody waits */
    if (fds_are_short(set->listener->fd)) {
        arrivals_pause(set);
        return;
    }
    until_ns = conns_charge(set->conns, NULL) + TURNS_SLICE_NS;
    while (accept_one(set) && ++n < FDS_ACCEPT_MAX && clock_now_ns() < until_ns)
        ;
}

void
arrivals_stop(struct arrivals *set)
{
    struct arrival *a;

    pollset_remove(&set->conns->pollset, &set->source);
    uv_timer_stop(&set->timer);
    while ((a = TAILQ_FIRST(&set->waiting)))
        arrival_free(a);
}
