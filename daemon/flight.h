/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The budget of fds in flight: sent, and not yet received. The kernel counts them all against
 * the sender's RLIMIT_NOFILE (unix(7), ETOOMANYREFS), so that a client that lets them lie would
 * keep the daemon from sending fds to anyone (I6). Each connection has a share; both the share
 * and the sum are bounded. The kernel does not tell when an fd was received; but when nothing is
 * unread in a socket, nothing is in flight there either, and that it tells (SIOCOUTQ). It is
 * asked only when a bound would stop a packet.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define FLIGHT_SHARE_MAX 512

struct flight_share { /* embedded in a connection */
    TAILQ_ENTRY(flight_share) link;
    int sock;
    uint32_t n; /* fds sent since the socket was last seen empty */
    uint64_t since_ms;
};

struct flight {
    TAILQ_HEAD(flight_shares, flight_share) shares; /* with n > 0, longest first */
    uint32_t n, max;
};

/* max: for all connections together. */
void flight_init(struct flight *f, uint32_t max);

void flight_share_init(struct flight_share *s, int sock);
/* Before the socket is closed: what was in flight there goes with it. */
void flight_share_deinit(struct flight *f, struct flight_share *s);

/* Whether n more fds may be sent. */
bool flight_admits(struct flight *f, struct flight_share *s, size_t n);
void flight_sent(struct flight *f, struct flight_share *s, size_t n, uint64_t now_ms);

/* The share that has stood longest, where the sum is so high that a full packet could be held up
 * and it has stood for age_ms; else NULL. */
struct flight_share *flight_culprit(struct flight *f, uint64_t age_ms, uint64_t now_ms);
