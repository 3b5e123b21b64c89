/* SPDX-License-Identifier: Apache-2.0 */
#include "stress_soft_wire.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/macros.h"

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
};

void
wire_die(const char *what)
{
    fprintf(stderr, "process %d: %s: %m\n", (int)getpid(), what);
    abort();
}

static bool
has_hung_up(void)
{
    return errno == EPIPE || errno == ECONNRESET;
}

bool
wire_send(int socket, const void *data, size_t size, int fd)
{
    union control control = {0};
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
    if (sendmsg(socket, &msg, MSG_NOSIGNAL) == (ssize_t)size)
        return true;
    if (!has_hung_up())
        wire_die("sendmsg");
    return false;
}

bool
wire_receive(int socket, void *data, size_t size, int *ret_fd)
{
    union control control;
    struct iovec iov = {.iov_base = data, .iov_len = size};
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    *ret_fd = -1;
    ssize_t n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
    if (n == 0 || (n < 0 && has_hung_up()))
        return false;
    if (n != (ssize_t)size || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        wire_die("recvmsg");
    struct cmsghdr *header = CMSG_FIRSTHDR(&msg);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
        memcpy(ret_fd, CMSG_DATA(header), sizeof(*ret_fd));
    return true;
}

bool
wire_await_hang_up(int socket)
{
    struct pollfd poll_fd = {.fd = socket};
    if (poll(&poll_fd, 1, 20000) < 0)
        wire_die("poll");
    return poll_fd.revents & POLLHUP;
}
