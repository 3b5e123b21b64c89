/* SPDX-License-Identifier: Apache-2.0 */
#include "stress_soft_wire.h"

#include <poll.h>
#include <stdio.h>

#include "../packet.h"

void
wire_die(const char *what)
{
    fprintf(stderr, "process %d: %s: %m\n", (int)getpid(), what);
    abort();
}

/* What either way gave: whether the other end is there. */
static bool
wire_is_up(int r, const char *what)
{
    if (r < 0 && r != -EPIPE && r != -ECONNRESET) {
        errno = -r;
        wire_die(what);
    }
    return r == 0;
}

bool
wire_send(int socket, const void *data, size_t size, int fd)
{
    return wire_is_up(send_with_fd(socket, data, size, fd), "sendmsg");
}

bool
wire_receive(int socket, void *data, size_t size, int *ret_fd)
{
    return wire_is_up(receive_with_fd(socket, data, size, ret_fd), "recvmsg");
}

bool
wire_await_hang_up(int socket)
{
    struct pollfd poll_fd = {.fd = socket};
    if (poll(&poll_fd, 1, 20000) < 0)
        wire_die("poll");
    return poll_fd.revents & POLLHUP;
}
