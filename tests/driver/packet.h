/* SPDX-License-Identifier: Apache-2.0 */
/* One packet with perhaps an fd, on a SOCK_SEQPACKET pair, as all test processes send them. */
#pragma once

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/macros.h"
#include "base/packet.h"

/* fd may be -1. -errno: EPIPE and ECONNRESET where the other end has hung up. */
static inline int
send_with_fd(int socket, const void *data, size_t size, int fd)
{
    return packet_send(socket, data, size, &fd, fd >= 0, 0);
}

/* *ret_fd is -1 where none came. -EPIPE: a hang-up; -EIO: another size. */
static inline int
receive_with_fd(int socket, void *data, size_t size, int *ret_fd)
{
    *ret_fd = -1;
    ssize_t n = packet_recv_into(socket, data, size, ret_fd, 1, NULL, 0);
    if (n <= 0)
        return n < 0 ? (int)n : -EPIPE;
    return n == (ssize_t)size ? 0 : -EIO;
}
