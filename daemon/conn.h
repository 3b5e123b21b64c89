/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One accepted connection: the socket, the process at its other end, and the packets that could not
 * be sent yet.
 *
 * Lifetime: conn_new() makes it after accept(2). It is lost when the socket hangs up, when the
 * peer's process exits (a child that inherited the socket keeps it open), when the client breaks a
 * rule, or when its output exceeds its bound. Then the set's lost() is called, once, and has to
 * call conn_close() or conn_depart(). Both end the connection at once for its client. The object is
 * freed in the next turn of the loop, since functions up the stack may still read it. After
 * conn_depart() the process goes on being watched (process.h).
 *
 * A connection whose client has broken no rule is `ending` before it is lost: nothing is sent to
 * the client any more, and the packets that it had sent are still received, a few in each turn. So
 * what a process has said of its work counts, also when the process has exited since.
 *
 * Back-pressure: while output is queued nothing is read, so that a client that does not read
 * delays only itself. Nothing here ever blocks (I5).
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
    struct turn turn; /* in which it is served */
    bool lost;
    const char *why; /* why it ends in its next turn; NULL: it does not; static */
    bool broken;     /* a send has failed: nothing more is received then */
    bool ending;     /* it is lost when `unheard` bytes have been received */
    size_t unheard;
    bool exited;   /* the process has exited */
    bool readable; /* the socket may have a packet */
    bool stalled;  /* in set->stalled: the next packet is not admitted yet */
    bool queued;   /* in set->queued: it has output that could not be sent yet */
    bool waiting;  /* in set->waiting: the first packet waits for fds in flight to land */
    int refused;   /* -errno of core_connect(): the core does not know it (refusals.h) */
    TAILQ_ENTRY(conn) queue_link, wait_link;
    LIST_ENTRY(conn) of_stalled;
    LIST_ENTRY(conn) lingering; /* set->lingering */
    SLIST_ENTRY(conn) closed;   /* set->closed */
    TAILQ_ENTRY(conn) refusal;
    uint64_t refused_ms;
    struct outq outq;
    struct flight_share flight;
};

/* Takes over sock and, if there is one, peer's pidfd, also on failure. Starts to read. id: of
 * conns_next_id(). */
int conn_new(struct conns *set, uint64_t id, int sock_consume, struct peer *peer,
             struct conn **ret);
void conn_close(struct conn *c);
/* The same, but the set's departed() is called when the process exits. */
void conn_depart(struct conn *c);

/* Sends the packet now, or queues it; drops it where the connection is about to end. fds are
 * borrowed. < 0: the connection has failed, and the caller has to call conn_fail() or
 * conn_lose(). */
int conn_send(struct conn *c, const void *data, size_t n, const int *fds, size_t n_fds);
/* Sends what is queued, as far as the socket and the budget of fds allow. */
void conn_flush(struct conn *c);

/* Throws away what the client has sent and nobody has read: a socket that is closed with unread
 * packets gives its peer ECONNRESET first, before the answer that explains the end. */
void conn_discard_input(const struct conn *c);

/* A send has failed with r. The connection ends in its uid's turn: a uid may have many that end
 * together. */
void conn_fail(struct conn *c, int r);
/* Calls the set's lost(), if it has not been called. reason is for the log. */
void conn_lose(struct conn *c, const char *reason);

/* For process.c. */
void conn_exited(struct conn *c);
/* For conns.c: ends a connection that lingers. */
void conn_free(struct conn *c);
