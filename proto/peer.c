/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "base/macros.h"

#ifndef SO_PEERPIDFD /* Linux 6.5; older headers lack it */
#    define SO_PEERPIDFD 77
#endif

static int
read_credentials(struct peer *p, int sock)
{
    struct ucred credentials;
    socklen_t n = sizeof(credentials);

    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &credentials, &n) < 0)
        return -errno;
    p->uid = credentials.uid;
    p->gid = credentials.gid;
    p->pid = credentials.pid;
    return 0;
}

/* The kernel returns ERANGE, and how many bytes it needs, until the groups fit. It takes 70 ns for
 * each, and a process may have 65,536 of them. */
static int
read_groups(struct peer *p, int sock)
{
    _cleanup_free_ gid_t *groups = NULL;
    socklen_t n = 0;

    while (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &n) < 0) {
        if (errno != ERANGE)
            return -errno;
        if (n > PEER_GROUPS_MAX * sizeof(*groups))
            return -E2BIG;
        free(groups);
        groups = malloc(n);
        if (!groups)
            return -ENOMEM;
    }
    p->n_groups = n / sizeof(*groups);
    p->groups = TAKE_PTR(groups);
    return 0;
}

/*
 * For kernels without SO_PEERPIDFD. The pid may have been given to another process since
 * connect(2): then its exit is waited for too, which keeps memory longer but never frees early.
 */
static int
open_pidfd(pid_t pid)
{
    long fd = pid ? syscall(SYS_pidfd_open, pid, 0) : -ENOTSUP;
    return fd == -1 ? -errno : (int)fd;
}

static int
read_pidfd(struct peer *p, int sock)
{
    int fd = -1;
    socklen_t n = sizeof(fd);
    int r = getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &n) < 0 ? -errno : fd;

    if (r == -ENOPROTOOPT)
        r = open_pidfd(p->pid);
    if (r == -EINVAL || r == -ENODATA) /* it has exited and been reaped: the same as ESRCH */
        r = -ESRCH;
    else if (r < 0 && r != -ESRCH && r != -ENOTSUP)
        return r;
    p->pidfd = r;
    return 0;
}

int
peer_init(struct peer *ret, int sock)
{
    _cleanup_(peer_deinit) struct peer p = {.pidfd = -1};

    int r = read_credentials(&p, sock);
    if (r < 0)
        return r;
    r = read_groups(&p, sock);
    if (r < 0)
        return r;
    r = read_pidfd(&p, sock);
    if (r < 0)
        return r;
    *ret = p;
    p = (struct peer){.pidfd = -1}; /* moved */
    return 0;
}

void
peer_deinit(struct peer *p)
{
    free(p->groups);
    p->groups = NULL;
    p->n_groups = 0;
    p->pidfd = fd_close(p->pidfd);
}
