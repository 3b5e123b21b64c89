/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New connections, until the server takes them up. All uids share the listening socket's backlog,
 * first come first served. So the loop empties it at once, and the work that a connection needs is
 * done in its uid's turn (turns.h). A connection whose client has gone meanwhile, and has sent
 * nothing, needs no work. So a uid that connects often does not delay others (I6).
 *
 * Each connection is an fd and a few words, from arrivals_accept() until its turn, or
 * arrivals_stop(). While fds are short, or too many connections wait for their turn, further ones
 * wait in the backlog.
 */
#pragma once

#include <uv.h>

#include "conns.h"
#include "listen.h"

TAILQ_HEAD(arrival_list, arrival);

struct arrivals_ops {
    void (*take_up)(void *userdata, int sock_consume);
    void (*failed)(void *userdata); /* the socket cannot listen any more */
};

struct arrivals {
    struct listener *listener; /* the server's */
    struct conns *conns;
    const struct arrivals_ops *ops;
    void *userdata;
    struct poll_source source; /* of the listening socket */
    uv_timer_t timer;          /* when to listen (again) */
    bool is_ready;             /* a connection waits in the backlog, seen in this turn */
    uint64_t max_of_uid;       /* arrivals and connections; more are closed at once */
    struct arrival_list waiting;
    uint32_t n;
};

/* The caller sets max_of_uid, at any time. */
void arrivals_init(struct arrivals *set, uv_loop_t *loop, struct listener *listener,
                   struct conns *conns, const struct arrivals_ops *ops, void *userdata);
/* Connections are accepted from now on, or after that time. -errno. */
int arrivals_listen(struct arrivals *set);
void arrivals_listen_after(struct arrivals *set, uint64_t ms);
/* In each turn of the loop: accepts waiting connections, as many as there is time and room for. */
void arrivals_accept(struct arrivals *set);
/* Accepts no more, and closes the connections that have not been taken up. */
void arrivals_stop(struct arrivals *set);
