/* SPDX-License-Identifier: Apache-2.0 */
#include "soft_peer.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../packet.h"
#include "soft_test.h"

#define MAX_PEERS 64

static bool is_peer;
static struct peer peers[MAX_PEERS]; /* whose sockets other peers must not keep; pid 0: ended */
static int n_peers;

static void
give_up(const char *what)
{
    if (is_peer)
        _exit(0);
    fprintf(stderr, "%s: %m\n", what);
    abort();
}

void
peer_assert(bool right, const char *what, int line)
{
    if (right)
        return;
    fprintf(stderr, "line %d: not so: %s\n", line, what);
    abort();
}

void
peer_say(int socket, const void *data, size_t size)
{
    if (send(socket, data, size, MSG_NOSIGNAL) != (ssize_t)size)
        give_up("peer_say");
}

bool
peer_hear_if_any(int socket, void *data, size_t size)
{
    return recv(socket, data, size, 0) == (ssize_t)size;
}

void
peer_hear(int socket, void *data, size_t size)
{
    if (!peer_hear_if_any(socket, data, size))
        give_up("peer_hear");
}

void
peer_say_fd(int socket, int fd)
{
    char byte = 0;
    if (send_with_fd(socket, &byte, 1, fd) < 0)
        give_up("peer_say_fd");
}

int
peer_hear_fd(int socket)
{
    char byte;
    int fd;
    if (receive_with_fd(socket, &byte, 1, &fd) < 0 || fd < 0)
        give_up("peer_hear_fd");
    return fd;
}

static void
end_all(void)
{
    for (int i = 0; i < n_peers; i++)
        if (peers[i].pid)
            peer_end(&peers[i]);
}

struct peer
peer_start(void (*body)(int socket))
{
    int pair[2];
    char uuid[64];
    snprintf(uuid, sizeof(uuid), "GPU-%08x-0000-4000-8000-000000000000", (unsigned)getpid());
    setenv("CAID_SOFTCUDA_UUID", uuid, 0);
    soft_end_peers = end_all;
    if (n_peers == MAX_PEERS || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        give_up("peer_start");
    pid_t pid = fork();
    if (pid < 0)
        give_up("fork");
    if (pid == 0) {
        is_peer = true;
        close(pair[0]);
        for (int i = 0; i < n_peers; i++)
            if (peers[i].pid)
                close(peers[i].socket);
        body(pair[1]);
        _exit(0);
    }
    close(pair[1]);
    return peers[n_peers++] = (struct peer){pid, pair[0]};
}

static void
peer_reap(struct peer *peer, int signal)
{
    int status;
    if (waitpid(peer->pid, &status, 0) != peer->pid)
        give_up("waitpid");
    for (int i = 0; i < n_peers; i++)
        if (peers[i].pid == peer->pid)
            peers[i].pid = 0;
    bool right = signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal
                        : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (right)
        return;
    fprintf(stderr, "process %d ended with status %#x\n", (int)peer->pid, (unsigned)status);
    abort();
}

void
peer_end(struct peer *peer)
{
    close(peer->socket);
    peer_reap(peer, 0);
}

void
peer_wait(struct peer *peer)
{
    peer_reap(peer, 0);
    close(peer->socket);
}

void
peer_kill(struct peer *peer)
{
    kill(peer->pid, SIGKILL);
    peer_reap(peer, SIGKILL);
    close(peer->socket);
}
