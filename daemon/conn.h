/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One accepted connection: the socket, who is at its other end, and what could not be sent yet.
 *
 * Lifetime: made by conn_new() after accept(2). It is lost when the socket hangs up, when the
 * peer's process exits (which a socket that was inherited by a child does not show), when it
 * breaks a rule, or when its output exceeds its bound; then the set's lost() is called, once,
 * and conn_close() or conn_depart() is to be called there. Both end it at once for its client; the
 * object is freed when the loop has come round, so that it stays readable up the stack that closed
 * it. After conn_depart() the process goes on being watched (process.h).
 *
 * Where the client has broken no rule, the connection ends first: what its client had sent lies in
 * the socket and is heard, as much as there is and a few packets a turn as ever, while nothing is
 * sent to it any more. What a process had told of its work counts, also when it has exited since.
 *
 * Back-pressure: while output is queued nothing is read, so that a client that does not read
 * holds up only itself. Nothing here ever blocks (I5).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "flight.h"
#include "outq.h"
#include "peer.h"
#include "pollset.h"
#include "process.h"
#include "turns.h"

struct conns;
struct conn_owner;

struct conn {
    uint64_t id;
    struct conns *set;
    int sock; /* -1: closed */
    struct process *process;
    uid_t uid;
    pid_t pid;                /* for the log */
    struct conn_owner *owner; /* the uid's share of what is queued; NULL: not in the set */
    struct poll_source source;
    struct turn turn; /* what is to be done for it waits for it */
    bool lost;
    const char *why; /* it ends, in its turn; static */
    bool broken;     /* and nothing of it is heard any more */
    bool
        ending; /* that turn has come: it is lost when what lies in the socket has been heard */
    size_t unheard; /* bytes of that */
    bool exited;    /* the process has */
    bool readable;  /* something may lie in the socket */
    bool held;      /* in set->held: what lies there is not admitted yet */
    bool queued;    /* in set->queued: there is output that could not be sent yet */
    bool waiting;   /* in set->waiting: the first packet waits for fds in flight to land */
    int refused;    /* -errno of core_connect(), which does not know it: refusals.h */
    TAILQ_ENTRY(conn) queue_link, wait_link;
    LIST_ENTRY(conn) of_held;
    LIST_ENTRY(conn) lingering; /* set->lingering */
    SLIST_ENTRY(conn) closed;   /* set->closed */
    TAILQ_ENTRY(conn) refusal;
    uint64_t refused_ms;
    struct outq outq;
    struct flight_share flight;
};

/* Takes sock and peer's pidfd, if it has one, over, also on failure; starts to read. id:
 * conns_next_id(sock). */
int conn_new(struct conns *set, uint64_t id, int sock_consume, struct peer *peer,
             struct conn **ret);
void conn_close(struct conn *c);
/* The same, but the set's departed() tells when the process exits. */
void conn_depart(struct conn *c);

/* Sends now, or queues; to one that ends, nothing. fds are borrowed. < 0: the connection is of no
 * use any more, and the caller is to call conn_fail(), or conn_lose(). */
int conn_send(struct conn *c, const void *data, size_t n, const int *fds, size_t n_fds);
/* Sends what is queued, as far as that goes. */
void conn_flush(struct conn *c);

/* Throws away what the client has sent and nobody has read: a socket that is closed with unread
 * packets gives its peer ECONNRESET first, before the answer that explains the end. */
void conn_discard_input(const struct conn *c);

/* A send has failed: r is what it said. It ends in its turn: who has many that are dead is not
 * dealt with all at once. */
void conn_fail(struct conn *c, int r);
/* Calls the set's lost(), unless that has happened. reason is for the log. */
void conn_lose(struct conn *c, const char *reason);

/* For process.c. */
void conn_exited(struct conn *c);
/* For conns.c: one that lingers. */
void conn_free(struct conn *c);
