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
 * up. What was kept stays. Nothing here waits. The caller has the loop, of poll(2):
 *
 *     int timeout_ms = keeper_polls(&k, polls);
 *     poll(...);
 *     keeper_serve(&k, polls);
 */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#define KEEPER_POLLS 2

struct keeper {
    int *fds; /* by number; 0, which is always standard input, says that there is none */
    struct timeline_slot **pages; /* the same of those that are mapped; NULL: it is not */
    uint32_t limit;
    uint32_t n;    /* that are there */
    uint32_t end;  /* from here on none is */
    uint32_t next; /* to be given to the daemon, which has asked for all; or KEEPER_NOTHING */
    int sock;      /* the daemon's; -1 */
    int listener;  /* borrowed; -1: daemons come by keeper_adopt() */
    bool pauses;   /* the kernel has refused something for want of resources */
};

#define KEEPER_NOTHING UINT32_MAX

/* listener: listens, and does not block. After fds_prepare(). Logged: -EMFILE where the limit of
 * open files leaves no room, -ENOMEM. */
int keeper_init(struct keeper *ret, int listener);
/* Lets go of all. */
void keeper_deinit(struct keeper *k);

/* A daemon that comes with its socket already, in place of the one before, which has ended. */
void keeper_adopt(struct keeper *k, int sock_consume);

/* Fills polls; an fd of -1 is none. The timeout is that of poll(2). */
int keeper_polls(const struct keeper *k, struct pollfd polls[KEEPER_POLLS]);
void keeper_serve(struct keeper *k, const struct pollfd polls[KEEPER_POLLS]);
