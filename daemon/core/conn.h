/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection, until it hangs up; with leases, pages or what else the GPU may use for it,
 * departed, until its process has exited.
 */
#pragma once

#include "actions.h"
#include "bracket.h"
#include "core.h"
#include "hold.h"
#include "lease.h"
#include "page.h"
#include "part.h"
#include "user.h"
#include "watch.h"

struct conn {
    RB_ENTRY(conn) node;
    uint64_t id;
    struct user *user;
    struct charge charge;
    gid_t gid;
    pid_t pid;
    gid_t *groups;
    size_t n_groups;
    char client[PROTO_CLIENT_MAX + 1];
    bool greeted;       /* HELLO has passed */
    bool closing;       /* a CORE_CLOSE is on its way: nothing more is taken or sent */
    bool departed;      /* has hung up; in core->departed until its process has exited */
    bool touched;       /* departed, and a page of it is gone */
    uint32_t deferring; /* depth */
    uint64_t deadline_ns;
    TAILQ_ENTRY(conn) waiting; /* core->waiting, until greeted; ->touched_conns, if touched */
    struct leases leases;
    struct holds holds;
    struct holds page_holds;
    struct brackets brackets;
    struct asking asking;
    struct threads threads;
    uint64_t swept_ns; /* when passed fences in its pages were last looked for */
    LIST_HEAD(, page) pages;
    uint64_t next_lease;
    LIST_HEAD(, job) jobs; /* MEMORY */
    LIST_HEAD(, waiter) waiters;
    LIST_HEAD(, flush) flushes;
    LIST_HEAD(, watch) watches;
    struct published published;
    struct entry close;
};

RB_HEAD(conns, conn);
TAILQ_HEAD(conn_list, conn);
RB_PROTOTYPE(conns, conn, node, )

struct conn *conn_find(struct conns *conns, uint64_t id);
/* -ENOMEM, or -EDQUOT: the user has as many as it may. */
int conn_open(struct core *core, uint64_t id, const struct core_peer *peer, struct user *user,
              struct conn **ret);
/* Hangs up. Whether the exit of its process matters: it has departed, else it is gone. */
bool conn_hangup(struct core *core, struct conn *conn);
/* The process of one that has departed has exited. */
void conn_exit(struct core *core, struct conn *conn);
/* Those that have departed, and have nothing left for which the exit of their process matters,
 * go. */
void conns_run(struct core *core);
/* Departed ones, when the core ends. */
void conns_forget_departed(struct core *core);
