/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the service manager is told, by the protocol of sd_notify(3): datagrams to the socket
 * that $NOTIFY_SOCKET names. Nothing here ever blocks: the manager's queue is short, and what
 * does not fit in it is kept and sent by the next notify_flush().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct notify {
    int fd;               /* -1: nobody to tell */
    char pending[512];    /* texts that are still to be sent, each terminated, */
    size_t n_pending;     /* with so many bytes in all */
    uint64_t watchdog_ns; /* how often WATCHDOG=1 is wanted, at least; 0: not */
};

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and removes them from the environment.
 * A socket that cannot be reached is logged and then does not exist. */
void notify_init(struct notify *n);
void notify_deinit(struct notify *n);

/* state: one or more "NAME=value", each on a line of its own. It is a datagram: what is said later
 * must not be read together with it (RELOADING=1 and then READY=1). */
void notify_send(struct notify *n, const char *state);

static inline bool
notify_is_pending(const struct notify *n)
{
    return n->n_pending > 0;
}

void notify_flush(struct notify *n);
