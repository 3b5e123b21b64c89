/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budget of fds in flight: sent, and not yet received. The kernel counts them against the
 * sender's RLIMIT_NOFILE (unix(7), ETOOMANYREFS), so that a client that does not receive them would
 * keep the daemon from sending fds to anyone (I6). Each connection has a share. A uid may have half
 * of what the other uids leave, or one packet where that is more and the others have little.
 *
 * The kernel does not say when an fd has been received. But a socket without unread bytes has no
 * fds in flight, and SIOCOUTQ tells the unread bytes. It is called only when a bound would stop a
 * packet: for that connection, and for a few others of each uid, once in a millisecond.
 *
 * The kernel also counts unread fds of a connection that has ended, as long as the client keeps its
 * socket. So the daemon keeps its own end and counts them, too (flight_keep()): else a client could
 * exceed the budget by ending one connection after the other.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define FLIGHT_SHARE_MAX 512

struct flight_user { /* a uid */
    TAILQ_ENTRY(flight_user) link;
    TAILQ_HEAD(flight_shares, flight_share) shares; /* with n > 0, longest first */
    struct flight_share *next;                      /* to be settled next; NULL: the first */
    uint32_t n;
    uint32_t n_kept;     /* on connections that have ended */
    uint64_t settled_ms; /* when some shares were last settled */
};

struct flight_share { /* embedded in a connection */
    TAILQ_ENTRY(flight_share) link;
    struct flight_user *user;
    int sock;
    uint32_t n; /* fds sent since the socket was last seen empty */
    bool kept;
    uint64_t since_ms;
};

struct flight {
    TAILQ_HEAD(, flight_user) users; /* with n > 0, the next to be settled first */
    uint32_t n, max;
    uint32_t n_kept;
};

/* max: of all connections together. */
void flight_init(struct flight *f, uint32_t max);
void flight_user_init(struct flight_user *user);

void flight_share_init(struct flight_share *s, struct flight_user *user, int sock);
/* Before the socket is closed. */
void flight_share_deinit(struct flight *f, struct flight_share *s);
/* The connection has ended. true: it still has fds in flight, and the caller keeps the socket,
 * since nothing else shows when they are received. They do not count in n, but in n_kept: the uid
 * may have max of both together while the kernel's limit is not near. Uids that have left none are
 * not restricted by that. */
bool flight_keep(struct flight *f, struct flight_share *s);

/* How many fds the user may have in flight. */
uint32_t flight_room(const struct flight *f, const struct flight_user *user);
/* The user's oldest share, if it is at least age_ms old and still has fds in flight; else NULL. */
struct flight_share *flight_culprit(struct flight *f, const struct flight_user *user,
                                    uint64_t age_ms, uint64_t now_ms);
/* Whether n more fds may be sent. */
bool flight_admits(struct flight *f, struct flight_share *s, size_t n, uint64_t now_ms);
void flight_sent(struct flight *f, struct flight_share *s, size_t n, uint64_t now_ms);
