/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection. After it has hung up it is departed: it stays, as long as it has leases, pages or
 * anything else that the GPU may use, until its process has exited.
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

/* A connection that was kicked while its client was away. */
struct kicked {
    uint64_t token[2], old_token[2];
    uid_t by;
};

#define KICKED_MAX 64

struct conn {
    RB_ENTRY(conn) node;
    uint64_t id;
    struct user *user;
    struct charge charge, fds; /* one connection and its groups; two fds (socket, pidfd) */
    gid_t gid;
    pid_t pid;
    uint32_t kept; /* the number of its pidfd at the keeper; 0: none */
    uint64_t token[2];
    uint64_t old_token[2]; /* the token before, which its client may still come back with */
    uint64_t number;       /* its number in the journal; 0: not recorded */
    TAILQ_ENTRY(conn) of_former; /* user->formers, or core->landing */
    uint64_t late_ns;            /* of a former one: until when its client may be silent */
    gid_t *groups;
    size_t n_groups;
    char client[PROTO_CLIENT_MAX + 1];
    bool greeted; /* HELLO was answered */
    /* its user has no place for it, unless it takes that of a former connection */
    bool lacks_place;
    bool resumes;  /* its client will resume after a restart */
    bool is_told;  /* its client takes an error that answers no request */
    bool former;   /* of an earlier core, and its client has not said what it has: former.h */
    bool landing;  /* it has resumed, and its streams have signals on the way */
    bool resumed;  /* its client has connected again: `id` is the new connection's */
    bool resuming; /* its client is saying what it has */
    bool leaves;   /* its client has said that it uses none of it */
    bool loses;    /* what it was writing with others before a restart: block_lose_writes() */
    bool closing;  /* a CORE_CLOSE is on its way: nothing is received or sent any more */
    bool departed; /* has hung up; in core->departed until nothing is left of it */
    bool reported; /* the shell was told that the exit of its process matters */
    bool exited;   /* its process has exited */
    bool is_held_back;  /* departed, and is not to end before all is restored: restore.h */
    bool ending;        /* departed, in user->ending: there may be something to take back */
    uint32_t stage;     /* the step that its end has come to */
    uint64_t looked_at; /* in that step, the last lease, bracket or hold that may have stayed */
    uint32_t deferring; /* how deep its defers are nested */
    uint64_t deadline_ns;
    TAILQ_ENTRY(conn) waiting; /* core->waiting until HELLO; later user->ending */
    struct leases leases;
    struct holds holds;
    struct holds page_holds;
    struct brackets brackets;
    struct by_request asking, open; /* brackets */
    struct threads threads;
    struct done done[DONE_MAX]; /* by request */
    uint64_t swept_ns;          /* when its pages were last swept for passed fences */
    LIST_HEAD(, page) pages;
    LIST_HEAD(, page) making;        /* pages that are not made yet: nobody has them */
    LIST_HEAD(, timeline) timelines; /* those of its pages that have names */
    uint64_t next_lease;
    LIST_HEAD(, job) jobs; /* MEMORY */
    LIST_HEAD(, waiter) waiters;
    LIST_HEAD(, flush) flushes;
    LIST_HEAD(, ticket) tickets;
    struct watches_of_conn watches;
    LIST_HEAD(, vacate) vacates;
    LIST_HEAD(, participant) standing; /* JOIN and MEMBERS */
    struct monitor *monitor;           /* or NULL */
    struct published published;
    struct entry close;
    struct entry keep;    /* CORE_KEEP */
    struct entry *let_go; /* CORE_LET_GO, allocated early so that the end cannot fail */
};

/* What a connection is charged beside its groups, with a record for each of `done`. */
#define CONN_HOST                                                    \
    (sizeof(struct conn) + RECORD_HOST(sizeof(struct record_conn)) + \
     DONE_MAX * RECORD_HOST(sizeof(struct record_done)))

RB_HEAD(conns, conn);
RB_PROTOTYPE(conns, conn, node, )

struct conn *conn_find(struct conns *conns, uint64_t id);
/* -ENOMEM; -EDQUOT: the user has no connection left; -EMFILE: the user has no fds left. */
int conn_open(struct core *core, uint64_t id, const struct core_peer *peer, struct user *user,
              struct refusal *r, struct conn **ret);
/* The former connection goes on with the socket and the number of conn, which is freed. */
void conn_take_over(struct core *core, struct conn *former, struct conn *conn);
/* The socket has hung up: the connection is in core->departed, and ends piece by piece. */
void conn_hangup(struct core *core, struct conn *conn);

/* A departed connection may have something to take back, or nothing to wait for any more. */
static inline void
conn_wake(struct conn *conn)
{
    if (conn->ending || conn->is_held_back)
        return;
    conn->ending = true;
    /* first in, so that one is ended before the next */
    TAILQ_INSERT_HEAD(&conn->user->ending, conn, waiting);
    user_wake(conn->user);
}

/* Ends some of a departed connection. It may be freed. */
void conn_end_some(struct core *core, struct conn *conn);
/* Frees all departed connections, when the core ends. */
void conns_forget_departed(struct core *core);
