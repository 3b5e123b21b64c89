/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budget of fds in flight: sent, and not yet received. The kernel counts them all against
 * the sender's RLIMIT_NOFILE (unix(7), ETOOMANYREFS), so that a client that lets them lie would
 * keep the daemon from sending fds to anyone (I6). Each connection has a share; a uid may have
 * as much as it leaves to those who come after it, half of what the others have not; or one
 * packet, where that is more and the others have little. The kernel does not tell when an fd was
 * received; but when nothing is unread in a socket, nothing is in flight there either, and that it
 * tells (SIOCOUTQ). It is asked only when a bound would stop a packet: of that connection, and of
 * a few others of each uid once in a millisecond.
 *
 * Also what lies unread on a connection that has ended counts there, as long as its client has it:
 * such a socket is kept (flight_keep()), or a client could have the daemon end one after the other.
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
    struct flight_share *next;                      /* to be looked at; NULL: the first */
    uint32_t n;
    uint32_t n_kept;     /* on connections that have ended */
    uint64_t settled_ms; /* when some were last looked at */
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
    TAILQ_HEAD(, flight_user) users; /* with n > 0, in turn */
    uint32_t n, max;
    uint32_t n_kept;
};

/* max: for all connections together. */
void flight_init(struct flight *f, uint32_t max);
void flight_user_init(struct flight_user *user);

void flight_share_init(struct flight_share *s, struct flight_user *user, int sock);
/* Before the socket is closed. */
void flight_share_deinit(struct flight *f, struct flight_share *s);
/* The connection has ended; whether something is in flight there, still: then the socket is to be
 * kept, since nothing else tells when it lands. With that the uid may have as much as all, as
 * long as the kernel's limit is not near; others, who have left nothing, none the less. */
bool flight_keep(struct flight *f, struct flight_share *s);

/* How many the user may have, all in all. */
uint32_t flight_room(const struct flight *f, const struct flight_user *user);
/* The share of the user's that has stood longest, where it has for age_ms; else NULL. */
struct flight_share *flight_culprit(struct flight *f, const struct flight_user *user,
                                    uint64_t age_ms, uint64_t now_ms);
/* Whether n more fds may be sent. */
bool flight_admits(struct flight *f, struct flight_share *s, size_t n, uint64_t now_ms);
void flight_sent(struct flight *f, struct flight_share *s, size_t n, uint64_t now_ms);
