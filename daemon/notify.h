/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to the service manager, by the protocol of sd_notify(3): datagrams to the socket that
 * $NOTIFY_SOCKET names. Nothing here ever blocks. The manager's queue is short: a message that does
 * not fit in it is kept, and sent by the next notify_flush().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct notify {
    int fd;               /* -1: there is no manager */
    char pending[1024];   /* texts that are still to be sent, each terminated */
    size_t n_pending;     /* bytes of all of them */
    uint64_t watchdog_ns; /* the longest time between two WATCHDOG=1; 0: not wanted */
};

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and removes them from the environment.
 * A socket that cannot be reached is logged, and not used. */
void notify_init(struct notify *n);
void notify_deinit(struct notify *n);

/* state: one or more "NAME=value", each on a line of its own. Each call is a datagram of its own,
 * since the manager must not read two states as one (RELOADING=1, then READY=1). */
void notify_send(struct notify *n, const char *state);

static inline bool
notify_is_pending(const struct notify *n)
{
    return n->n_pending > 0;
}

void notify_flush(struct notify *n);
