/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that were accepted and are not taken up yet. All uids share the listening socket's
 * backlog, first come first served, so it is emptied at once, whosever time it is; what a
 * connection costs comes after that, in its uid's turn (turns.h). One whose client has gone
 * meanwhile, and has said nothing, costs no more. So it does not delay others how fast a uid
 * connects (I6).
 *
 * Each is an fd and a few words, from arrivals_add() until its turn, or arrivals_deinit().
 */
#pragma once

#include "conns.h"

TAILQ_HEAD(arrival_list, arrival);

struct arrivals {
    struct conns *conns;
    void (*take_up)(void *userdata, int sock_consume);
    void *userdata;
    uint64_t max_of_uid; /* with its connections; more are closed without a word */
    struct arrival_list waiting;
    uint32_t n;
};

/* max_of_uid is the caller's to set, at any time. */
void arrivals_init(struct arrivals *set, struct conns *conns,
                   void (*take_up)(void *userdata, int sock_consume), void *userdata);
/* Closes all that wait. */
void arrivals_deinit(struct arrivals *set);
/* Has it taken up in its turn. */
void arrivals_add(struct arrivals *set, int sock_consume);
