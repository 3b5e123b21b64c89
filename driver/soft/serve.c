/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides of a request. */
#include "serve.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

#include "base/macros.h"

#define PEER_SECONDS 1 /* for a peer to send its request and take its reply */
#define ASK_SECONDS  10

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static int
send_packet(int socket, const void *data, size_t size, int fd)
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
    return sendmsg(socket, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Owned by the caller: what came with the packet, or -1. */
static ssize_t
receive_packet(int socket, void *data, size_t room, int *ret_fd)
{
    union control control;
    struct iovec iov = {.iov_base = data, .iov_len = room};
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    *ret_fd = -1;
    ssize_t n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
    if (n < 0)
        return -errno;
    struct cmsghdr *header = CMSG_FIRSTHDR(&msg);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
        memcpy(ret_fd, CMSG_DATA(header), sizeof(*ret_fd));
    if (n > 0 && !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return n;
    *ret_fd = fd_close(*ret_fd);
    return n == 0 ? -ECONNRESET : -EMSGSIZE;
}

static void
set_time(int socket, int seconds)
{
    struct timeval limit = {.tv_sec = seconds};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

static void
serve_peer(const struct server *server, int socket)
{
    char request[SERVE_MAX_REQUEST + 1], reply[SERVE_MAX_REPLY];
    struct ucred peer;
    socklen_t size = sizeof(peer);
    int unwanted;
    set_time(socket, PEER_SECONDS);
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return;
    ssize_t n = receive_packet(socket, request, SERVE_MAX_REQUEST, &unwanted);
    fd_close(unwanted);
    if (n < 0)
        return;
    request[n] = '\0';
    _cleanup_fd_ int fd = -1;
    n = server->answer(&peer, request, (size_t)n, reply, &fd);
    if (n >= 0)
        send_packet(socket, reply, (size_t)n, fd);
}

static void *
serve_thread(void *arg)
{
    const struct server *server = arg;
    for (;;) {
        _cleanup_fd_ int socket = accept4(server->fd, NULL, NULL, SOCK_CLOEXEC);
        if (socket >= 0)
            serve_peer(server, socket);
        else if (errno != EINTR && errno != ECONNABORTED)
            usleep(10000); /* out of descriptors, most likely: the peer waits */
    }
    return NULL;
}

int
serve_start(struct server *server, const struct sockaddr_un *address, socklen_t size,
            serve_answer answer)
{
    sigset_t all, before;
    pthread_t thread;
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)address, size) < 0 || listen(fd, 128) < 0)
        return -errno;
    server->answer = answer;
    server->fd = fd;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = -pthread_create(&thread, NULL, serve_thread, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r < 0) {
        server->fd = 0;
        return r;
    }
    pthread_detach(thread);
    TAKE_FD(fd);
    return 0;
}

void
serve_forget(struct server *server)
{
    if (server->fd > 0)
        fd_close(server->fd);
    server->fd = 0;
}

ssize_t
serve_ask(const struct sockaddr_un *address, socklen_t size, const void *request, size_t n,
          void *reply, size_t room, int *ret_fd)
{
    int fd;
    _cleanup_fd_ int asking = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (asking < 0)
        return -errno;
    set_time(asking, ASK_SECONDS);
    if (connect(asking, (const struct sockaddr *)address, size) < 0)
        return -errno;
    int r = send_packet(asking, request, n, -1);
    if (r < 0)
        return r;
    ssize_t got = receive_packet(asking, reply, room, &fd);
    if (ret_fd)
        *ret_fd = fd;
    else
        fd_close(fd);
    return got;
}
