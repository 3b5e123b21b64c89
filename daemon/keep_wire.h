/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon and its keeper (keeper.h) say to each other, on a SEQPACKET Unix socket: fds,
 * each under a number that the daemon has picked. Nothing else is known of them; but pages of
 * timelines are mapped, since nobody can map one for writing once it is sealed (shared_page.h).
 *
 *     PUT   numbers, and as many fds   what is under a number already is replaced
 *     MAP   numbers, and as many fds   by which the keeper maps what is under the number, a page of
 *                                      timelines (timeline.h), for writing; it does not keep them
 *     DROP  numbers                    those that have no fd are none
 *     KILL  numbers                    timeline_kill_page() of those that it has mapped
 *     TAKE                             by the daemon: answered with PUTs of all there is, then END
 *     END   limit                      the keeper takes numbers below that
 *
 * One daemon at a time: the next one's TAKE is answered when that before has hung up.
 *
 * Nothing is acknowledged. A packet that sendmsg(2) has put into the keeper's socket is the
 * keeper's, also where the daemon dies at its next instruction: it stays in the receiver's queue,
 * and the kernel keeps the fds in it open (unix(7)). A keeper that dies loses all that it had; the
 * daemon sees it, and gives the next one everything anew.
 *
 * A keeper outlives the daemons of many versions. TAKE and its answer stay as they are; the answer
 * tells the keeper's version, and the daemon says nothing that this one did not know. Numbers are
 * in the machine's own byte order.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/packet.h"

#define KEEP_VERSION     1
#define KEEP_NUMBERS_MAX PACKET_FDS_MAX

enum keep_type {
    KEEP_PUT = 1,
    KEEP_DROP,
    KEEP_TAKE,
    KEEP_END,
    KEEP_MAP,
    KEEP_KILL,
};

static inline bool
keep_has_fds(uint16_t type)
{
    return type == KEEP_PUT || type == KEEP_MAP;
}

struct keep_packet { /* as it is sent, but that it ends with the last number */
    uint16_t version;
    uint16_t type;
    uint32_t n; /* numbers; one in END */
    uint32_t numbers[KEEP_NUMBERS_MAX];
};

/* Never waits: packet_send()'s errors. fds: as many as numbers, borrowed; or NULL. */
int keep_send(int sock, const struct keep_packet *p, const int *fds);

/* What is no such packet is -EBADMSG, and its fds are closed. 0 at the end of file, 1 with a
 * packet: as many fds as numbers come with a PUT or a MAP, and none with another. -EAGAIN,
 * packet_recv()'s errors. flags: MSG_DONTWAIT or 0. */
int keep_recv(int sock, struct keep_packet *ret, int ret_fds[KEEP_NUMBERS_MAX], int flags);

/* Whether what could not be sent now can be later: the socket is full, or too much is in flight. */
bool keep_is_passing(int error);

void keep_close(const int *fds, uint32_t n);
