/* SPDX-License-Identifier: Apache-2.0 */
/* One packet with perhaps an fd, on a SOCK_SEQPACKET pair, as all test processes send them. */
#pragma once

#include <string.h>
#include <sys/socket.h>

#include "base/macros.h"

union packet_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
};

/* fd may be -1. -errno: EPIPE and ECONNRESET where the other end has hung up. */
static inline int
packet_send(int socket, const void *data, size_t size, int fd)
{
    union packet_control control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&msg);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(fd));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    ssize_t n = sendmsg(socket, &msg, MSG_NOSIGNAL);
    return n == (ssize_t)size ? 0 : n < 0 ? -errno : -EIO;
}

/* *ret_fd is -1 where none came. -EPIPE: a hang-up; -EIO: another size. */
static inline int
packet_receive(int socket, void *data, size_t size, int *ret_fd)
{
    union packet_control control;
    struct iovec iov = {.iov_base = data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    ssize_t n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
    *ret_fd = -1;
    if (n <= 0)
        return n < 0 ? -errno : -EPIPE;
    struct cmsghdr *header = CMSG_FIRSTHDR(&msg);
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(ret_fd, CMSG_DATA(header), sizeof(*ret_fd));
    return n == (ssize_t)size && !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ? 0 : -EIO;
}
