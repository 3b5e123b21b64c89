/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides of a request. */
#include "serve.h"

#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "base/clock.h"
#include "base/packet.h"
#include "soft.h"

#define MAX_PEERS   16   /* that have connected and not asked yet; one more ends the oldest */
#define PEER_MS     1000 /* for a peer to ask */
#define ASK_SECONDS 10

/* What a peer has sent is there, and a reply fits its buffer: nothing here waits. */
static void
serve_peer(const struct server *server, int socket)
{
    char request[SERVE_MAX_REQUEST + 1], reply[SERVE_MAX_REPLY];
    struct ucred peer;
    socklen_t size = sizeof(peer);
    int unwanted = -1;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return;
    ssize_t n = packet_recv_into(socket, request, SERVE_MAX_REQUEST, &unwanted, 1, NULL, 0);
    fd_close(unwanted);
    if (n <= 0)
        return;
    request[n] = '\0';
    _cleanup_fd_ int fd = -1;
    n = server->answer(&peer, request, (size_t)n, reply, &fd);
    if (n >= 0)
        packet_send(socket, reply, (size_t)n, &fd, fd >= 0, 0);
}

/* Peers that have not asked yet, the oldest first. One that says nothing keeps no other waiting. */
struct peers {
    struct pollfd polls[1 + MAX_PEERS]; /* the first: the listening socket */
    uint64_t until_ns[1 + MAX_PEERS];
    nfds_t n;
};

static void
peers_drop(struct peers *peers, nfds_t i)
{
    fd_close(peers->polls[i].fd);
    peers->n--;
    memmove(&peers->polls[i], &peers->polls[i + 1], (peers->n - i) * sizeof(*peers->polls));
    memmove(&peers->until_ns[i], &peers->until_ns[i + 1],
            (peers->n - i) * sizeof(*peers->until_ns));
}

static void
peers_accept(struct peers *peers)
{
    int socket = accept4(peers->polls[0].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            usleep(10000); /* the peer waits meanwhile */
        return;
    }
    if (peers->n == 1 + MAX_PEERS)
        peers_drop(peers, 1);
    peers->polls[peers->n] = (struct pollfd){.fd = socket, .events = POLLIN};
    peers->until_ns[peers->n++] = clock_now_ns() + PEER_MS * NSEC_PER_MSEC;
}

static void *
serve_thread(void *arg)
{
    const struct server *server = arg;
    struct peers peers = {.polls[0] = {.fd = server->fd, .events = POLLIN}, .n = 1};
    for (;;) {
        if (poll(peers.polls, peers.n, peers.n > 1 ? PEER_MS : -1) < 0)
            continue;
        uint64_t now = clock_now_ns();
        bool is_new = peers.polls[0].revents;
        for (nfds_t i = peers.n - 1; i > 0; i--) {
            if (peers.polls[i].revents)
                serve_peer(server, peers.polls[i].fd);
            if (peers.polls[i].revents || now >= peers.until_ns[i])
                peers_drop(&peers, i);
        }
        if (is_new)
            peers_accept(&peers);
    }
    return NULL;
}

int
serve_start(struct server *server, const struct sockaddr_un *address, socklen_t size,
            serve_answer answer)
{
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || fchmod(fd, 0600) < 0 ||
        bind(fd, (const struct sockaddr *)address, size) < 0 || listen(fd, 128) < 0)
        return -errno;
    server->answer = answer;
    server->fd = fd;
    int r = thread_start(serve_thread, server);
    if (r < 0)
        server->fd = 0;
    else
        TAKE_FD(fd);
    return r;
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
    _cleanup_fd_ int fd = -1;
    struct timeval limit = {.tv_sec = ASK_SECONDS};
    _cleanup_fd_ int asking = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (asking < 0)
        return -errno;
    setsockopt(asking, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(asking, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    while (connect(asking, (const struct sockaddr *)address, size) < 0)
        if (errno != EINTR)
            return -errno;
    int r = packet_send(asking, request, n, NULL, 0, 0);
    if (r < 0)
        return r;
    ssize_t got = packet_recv_into(asking, reply, room, &fd, 1, NULL, 0);
    if (got > 0 && ret_fd)
        *ret_fd = TAKE_FD(fd);
    return got == 0 ? -ECONNRESET : got;
}
