/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of the daemon and its keeper (keeper.h), on a SEQPACKET Unix socket. It is about
 * fds, each under a number that the daemon has picked. The keeper does not know what they are. But
 * it maps pages of timelines, since nobody can map one for writing once it is sealed
 * (shared_page.h).
 *
 *     PUT   numbers, and as many fds   keep the fds; one that was under a number is replaced, and
 *                                      with it its mapping, if that is of another file
 *     MAP   a number, and an fd        map the page of timelines (timeline.h) under the number by
 *                                      this fd, for writing; the fd is not kept
 *     MAPPED  number, errno            from the keeper: each MAP's answer, in their order; 0: it is
 *                                      mapped
 *     DROP  numbers                    close the fds; a number without an fd is ignored
 *     KILL  numbers                    timeline_kill_page() of the pages that are mapped
 *     TAKE                             from the daemon; the answer is PUTs of all fds, then END
 *     END   limit                      the keeper takes numbers below the limit
 *
 * One daemon at a time: the keeper answers the next one's TAKE when the daemon before has hung up.
 *
 * Only MAP is answered. The keeper has what sendmsg(2) has put into its socket, even if the daemon
 * dies at its next instruction: the packet stays in the receiver's queue, and the kernel keeps its
 * fds open (unix(7)). But a mapping is there only when it has been made, and a page must not be
 * sealed before that. A keeper that dies loses all that it had. The daemon sees that, and gives the
 * next keeper everything again.
 *
 * A keeper outlives daemons of many versions. So TAKE and its answer never change. The answer tells
 * the keeper's version, and the daemon sends it nothing newer. Version 1 did not answer a MAP, and
 * a MAP of version 1 is not answered. Numbers are in the machine's own byte order.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/packet.h"

#define KEEP_VERSION     2
#define KEEP_ANSWERS     2 /* the first version that answers a MAP */
#define KEEP_NUMBERS_MAX PACKET_FDS_MAX

enum keep_type {
    KEEP_PUT = 1,
    KEEP_DROP,
    KEEP_TAKE,
    KEEP_END,
    KEEP_MAP,
    KEEP_KILL,
    KEEP_MAPPED,
};

static inline bool
keep_has_fds(uint16_t type)
{
    return type == KEEP_PUT || type == KEEP_MAP;
}

struct keep_packet { /* as it is sent; a sent packet ends with its last number */
    uint16_t version;
    uint16_t type;
    uint32_t n; /* numbers; one in END */
    uint32_t numbers[KEEP_NUMBERS_MAX];
};

/* Never blocks; the errors are packet_send()'s. fds: as many as numbers, borrowed; or NULL. */
int keep_send(int sock, const struct keep_packet *p, const int *fds);

/* Returns 1 with a packet, 0 at the end of file. A PUT or a MAP has as many fds as numbers, another
 * packet none. -EBADMSG: it is not such a packet; its fds are closed. -EAGAIN, and the errors of
 * packet_recv(). flags: MSG_DONTWAIT or 0. */
int keep_recv(int sock, struct keep_packet *ret, int ret_fds[KEEP_NUMBERS_MAX], int flags);

/* Whether sending may succeed later: the socket is full, or too many fds are in flight. */
bool keep_is_passing(int error);

void keep_close(const int *fds, uint32_t n);
