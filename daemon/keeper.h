/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of fds that outlives the daemon, each fd under a number, and the connection of the one
 * daemon that may change it (keep_wire.h). It knows of the fds only that some are pages of
 * timelines.
 *
 * The table has its largest size from the start, so that nothing can fail later for want of memory;
 * unused parts of it take none. A number below the limit always finds room: the limit leaves fds
 * for an incoming packet and for the process itself.
 *
 * A daemon is connected until it hangs up, is killed, or sends a bad packet: then its connection is
 * closed. The fds stay. The caller has the loop, and may have events of its own in it:
 *
 *     struct pollfd polls[KEEPER_POLLS + 1] = {[KEEPER_POLLS] = {...}};
 *     keeper_turn(&k, polls, KEEPER_POLLS + 1, -1);
 */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keep_wire.h"

#define KEEPER_POLLS 2 /* the keeper's own entries */

struct keeper_slot {
    int fd;                     /* 0: none, since that is always standard input */
    struct timeline_slot *page; /* NULL: not mapped */
};

struct keeper {
    struct keeper_slot *slots; /* by number */
    uint32_t limit;
    uint32_t n;   /* fds in the table */
    uint32_t end; /* no slot from here on was ever used */
    uint32_t
        next; /* the first slot that the answer to TAKE has still to send; KEEPER_NOTHING */
    struct keep_packet answer; /* to a MAP, to be sent before the next packet is read; n: 0 */
    int sock;                  /* the daemon's; or -1 */
    int waiting;               /* the next daemon's, from which nothing is read yet; or -1 */
    int listener;              /* borrowed; -1: daemons come by keeper_adopt() */
    bool pauses;               /* the kernel has refused something for want of resources */
};

#define KEEPER_NOTHING UINT32_MAX
#define KEEPER_CLOSED \
    ((struct keeper){.sock = -1, .waiting = -1, .listener = -1, .next = KEEPER_NOTHING})

/* listener: listens, and does not block. Call it after fds_prepare(). -EMFILE: the limit of open
 * files leaves no room; -ENOMEM. Errors are logged. */
int keeper_init(struct keeper *ret, int listener);
/* Closes all that is kept. */
void keeper_deinit(struct keeper *k);

/* Takes over the socket of a new daemon, in place of the daemon before, which has ended. */
void keeper_adopt(struct keeper *k, int sock_consume);

/* Waits for events as poll(2) does, and serves the keeper's. The caller's entries are behind the
 * first KEEPER_POLLS. */
void keeper_turn(struct keeper *k, struct pollfd *polls, size_t n_polls, int timeout_ms);
