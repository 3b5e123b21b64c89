/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection, until it hangs up; with leases, pages or what else the GPU may use for it,
 * departed, until its process has exited.
 */
#pragma once

#include "actions.h"
#include "block.h"
#include "bracket.h"
#include "core.h"
#include "done.h"
#include "lease.h"
#include "page.h"
#include "part.h"
#include "ticket.h"
#include "user.h"
#include "watch.h"

#define CONN_FDS 2

struct conn {
    RB_ENTRY(conn) node;
    uint64_t id;
    struct user *user;
    struct charge charge, fds; /* a connection and its groups; its socket and its pidfd */
    gid_t gid;
    pid_t pid;
    uint32_t kept; /* the number of its pidfd at the keeper; 0: none */
    uint64_t token[2];
    uint64_t old_token[2];       /* by which it has been taken up, and may be again */
    uint64_t number;             /* in the journal; 0: none */
    TAILQ_ENTRY(conn) of_former; /* user->formers, or core->landing */
    uint64_t late_ns;            /* it is waited for until then */
    gid_t *groups;
    size_t n_groups;
    char client[PROTO_CLIENT_MAX + 1];
    bool greeted;       /* HELLO has passed */
    bool lacks_place;   /* more than its user may have: it may be one that is awaited */
    bool resumes;       /* its client will, after a restart */
    bool former;        /* of an earlier core, and has not told what it has: former.h */
    bool landing;       /* it has, and its streams are still to store something */
    bool resumed;       /* its client has, by another connection, whose number it has */
    bool resuming;      /* it tells what its client has */
    bool leaves;        /* and has told that it uses nothing of it */
    bool closing;       /* a CORE_CLOSE is on its way: nothing more is taken or sent */
    bool departed;      /* has hung up; in core->departed until nothing is left of it */
    bool reported;      /* to whoever drives the core: the exit of its process matters */
    bool exited;        /* its process has */
    bool is_held_back;  /* departed, and gives nothing up before all is back: restore.h */
    bool ending;        /* departed, and in its user's list: something may be left to be done */
    uint32_t stage;     /* of its end */
    uint64_t looked_at; /* at that stage: the last one that may have stayed */
    uint32_t deferring; /* depth */
    uint64_t deadline_ns;
    TAILQ_ENTRY(conn) waiting; /* core->waiting, until greeted; user->leaving */
    struct leases leases;
    struct holds holds;
    struct holds page_holds;
    struct brackets brackets;
    struct asking asking;
    struct threads threads;
    struct done done[DONE_MAX]; /* by request */
    uint64_t swept_ns;          /* when passed fences in its pages were last looked for */
    LIST_HEAD(, page) pages;
    LIST_HEAD(, timeline) timelines; /* those of its pages that have names */
    uint64_t next_lease;
    LIST_HEAD(, job) jobs; /* MEMORY */
    LIST_HEAD(, waiter) waiters;
    LIST_HEAD(, flush) flushes;
    LIST_HEAD(, ticket) tickets;
    struct watches_of_conn watches;
    struct monitor *monitor; /* or NULL */
    struct published published;
    struct entry close;
    struct entry keep;    /* CORE_KEEP */
    struct entry *let_go; /* CORE_LET_GO, for its end, which does not fail */
};

/* What one is charged beside its groups: all that it may have had done, too. */
#define CONN_HOST                                                    \
    (sizeof(struct conn) + RECORD_HOST(sizeof(struct record_conn)) + \
     DONE_MAX * RECORD_HOST(sizeof(struct record_done)))

RB_HEAD(conns, conn);
RB_PROTOTYPE(conns, conn, node, )

struct conn *conn_find(struct conns *conns, uint64_t id);
/* -ENOMEM, -EDQUOT: the user has as many as it may, -EMFILE: its share of the fds. */
int conn_open(struct core *core, uint64_t id, const struct core_peer *peer, struct user *user,
              struct refusal *r, struct conn **ret);
/* A departed one that is awaited goes on as conn, which is gone. */
void conn_take_over(struct core *core, struct conn *former, struct conn *conn);
/* Hangs up: it is in core->departed, and goes in pieces. */
void conn_hangup(struct core *core, struct conn *conn);

/* One that has departed may have something to give back, or to wait for no more. */
static inline void
conn_wake(struct conn *conn)
{
    if (conn->ending || conn->is_held_back)
        return;
    conn->ending = true;
    TAILQ_INSERT_HEAD(&conn->user->ending, conn, waiting); /* one is done before the next */
    user_wake(conn->user);
}

/* Gives some of that back. It may be gone then. */
void conn_end_some(struct core *core, struct conn *conn);
/* Departed ones, when the core ends. */
void conns_forget_departed(struct core *core);
