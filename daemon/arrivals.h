/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New connections, until the server takes them up. All uids share the listening socket's backlog,
 * first come first served, so it is emptied at once, whosever time it is; what a connection costs
 * comes after that, in its uid's turn (turns.h). One whose client has gone meanwhile, and has said
 * nothing, costs no more. So it does not delay others how fast a uid connects (I6).
 *
 * Each is an fd and a few words, from arrivals_accept() until its turn, or arrivals_stop(). While
 * fds are short, or too many connections wait for their turn, the others wait in the backlog.
 */
#pragma once

#include <uv.h>

#include "conns.h"
#include "listen.h"

TAILQ_HEAD(arrival_list, arrival);

struct arrivals_ops {
    void (*take_up)(void *userdata, int sock_consume);
    void (*failed)(void *userdata); /* it cannot listen any more */
};

struct arrivals {
    struct listener *listener; /* the server's */
    struct conns *conns;
    const struct arrivals_ops *ops;
    void *userdata;
    struct poll_source source; /* of the listening socket */
    uv_timer_t timer;          /* when to listen (again) */
    bool is_ready;             /* somebody has connected, seen in this turn of the loop */
    uint64_t max_of_uid;       /* with its connections; more are closed without a word */
    struct arrival_list waiting;
    uint32_t n;
};

/* max_of_uid is the caller's to set, at any time. */
void arrivals_init(struct arrivals *set, uv_loop_t *loop, struct listener *listener,
                   struct conns *conns, const struct arrivals_ops *ops, void *userdata);
/* Connections are accepted from now on, or after that time. -errno. */
int arrivals_listen(struct arrivals *set);
void arrivals_listen_after(struct arrivals *set, uint64_t ms);
/* In each turn of the loop: accepts those that wait, as many as there is time and room for. */
void arrivals_accept(struct arrivals *set);
/* Accepts no more, and closes those that have not been taken up. */
void arrivals_stop(struct arrivals *set);
