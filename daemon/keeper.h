/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What outlives the daemon: a table of fds, each under a number, and the one daemon that may change
 * it (keep_wire.h). It knows nothing of what they are, but that some are pages of timelines.
 *
 * The table is as large from the start as it may become, so that nothing can fail later for want of
 * memory; what is not used of it takes none. A number below its limit, which leaves fds for a
 * packet on its way in and for the process itself, always finds room.
 *
 * A daemon is connected until it hangs up, is killed, or says what it cannot mean: then it is hung
 * up. What was kept stays. The caller has the loop, and may have events of its own in it:
 *
 *     struct pollfd polls[KEEPER_POLLS + 1] = {[KEEPER_POLLS] = {...}};
 *     keeper_turn(&k, polls, KEEPER_POLLS + 1, -1);
 */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KEEPER_POLLS 2 /* its own */

struct keeper_slot {
    int fd;                     /* 0, which is always standard input: none */
    struct timeline_slot *page; /* NULL: it is not mapped */
};

struct keeper {
    struct keeper_slot *slots; /* by number */
    uint32_t limit;
    uint32_t n;    /* that are there */
    uint32_t end;  /* from here on none is */
    uint32_t next; /* to be given to the daemon, which has asked for all; or KEEPER_NOTHING */
    int sock;      /* the daemon's; -1 */
    int waiting;   /* that of the next one, which is not listened to yet; -1 */
    int listener;  /* borrowed; -1: daemons come by keeper_adopt() */
    bool pauses;   /* the kernel has refused something for want of resources */
};

#define KEEPER_NOTHING UINT32_MAX
#define KEEPER_CLOSED \
    ((struct keeper){.sock = -1, .waiting = -1, .listener = -1, .next = KEEPER_NOTHING})

/* listener: listens, and does not block. After fds_prepare(). Logged: -EMFILE where the limit of
 * open files leaves no room, -ENOMEM. */
int keeper_init(struct keeper *ret, int listener);
/* Lets go of all. */
void keeper_deinit(struct keeper *k);

/* A daemon that comes with its socket already, in place of the one before, which has ended. */
void keeper_adopt(struct keeper *k, int sock_consume);

/* Waits until something is to be done, as poll(2) does, and does it. The caller's polls are behind
 * the first KEEPER_POLLS. */
void keeper_turn(struct keeper *k, struct pollfd *polls, size_t n_polls, int timeout_ms);
