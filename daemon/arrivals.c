/* SPDX-License-Identifier: Apache-2.0 */
#include "arrivals.h"

#include <sys/socket.h>

#include "base/macros.h"

struct arrival {
    TAILQ_ENTRY(arrival) link;
    struct turn turn;
    struct arrivals *set;
    struct conn_owner *owner;
    int sock;
};

void
arrivals_init(struct arrivals *set, struct conns *conns,
              void (*take_up)(void *userdata, int sock_consume), void *userdata)
{
    *set = (struct arrivals){.conns = conns, .take_up = take_up, .userdata = userdata};
    TAILQ_INIT(&set->waiting);
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

void
arrivals_deinit(struct arrivals *set)
{
    struct arrival *a;

    while ((a = TAILQ_FIRST(&set->waiting)))
        arrival_free(a);
}

/* Its client has hung up, and what it has said, if anything, was nothing. */
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
        set->take_up(set->userdata, TAKE_FD(a->sock));
    arrival_free(a);
}

static int
queue(struct arrivals *set, int sock, uid_t uid)
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

void
arrivals_add(struct arrivals *set, int sock_consume)
{
    _cleanup_fd_ int sock = sock_consume;
    struct ucred peer;

    if (!has_gone(sock) &&
        getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &(socklen_t){sizeof(peer)}) == 0 &&
        queue(set, sock, peer.uid) == 0)
        sock = -1; /* the arrival's */
}
