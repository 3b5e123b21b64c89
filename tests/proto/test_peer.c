/* SPDX-License-Identifier: Apache-2.0 */
#include "caid_test.h"

#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/macros.h"
#include "base/packet.h"
#include "peer.h"

#define N_GROUPS 100

/* A listener in a folder of its own, and a child that connects to it. */
struct server {
    char folder[64];
    char path[96];
    int listener;
};

static void
server_init(struct server *s)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    strcpy(s->folder, "/tmp/caid-test-peer-XXXXXX");
    cr_assert_not_null(mkdtemp(s->folder));
    snprintf(s->path, sizeof(s->path), "%s/sock", s->folder);
    strcpy(address.sun_path, s->path);
    s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(s->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    cr_assert_eq(listen(s->listener, 1), 0);
}

static void
server_deinit(struct server *s)
{
    fd_close(s->listener);
    unlink(s->path);
    rmdir(s->folder);
}

/* As many groups as the system lets us have, so that the list has to grow. */
static void
take_groups(void)
{
    gid_t groups[N_GROUPS];

    for (gid_t i = 0; i < N_GROUPS; i++)
        groups[i] = 40000 + i;
    setgroups(N_GROUPS, groups); /* only root may */
}

static pid_t
spawn_client(const struct server *s)
{
    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        int fd = -1;
        take_groups();
        if (packet_connect(s->path, &fd) < 0)
            _exit(1);
        pause();
        _exit(0);
    }
    return pid;
}

/* A new server's first client. */
static pid_t
connected(struct server *s, int *ret_conn)
{
    server_init(s);
    pid_t pid = spawn_client(s);
    *ret_conn = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_geq(*ret_conn, 0);
    return pid;
}

static bool
has_exited(const struct peer *p, int timeout_ms)
{
    struct pollfd poll_fd = {.fd = p->pidfd, .events = POLLIN};
    return poll(&poll_fd, 1, timeout_ms) == 1;
}

static bool
in_group(const struct peer *p, gid_t gid)
{
    if (p->gid == gid)
        return true;
    for (size_t i = 0; i < p->n_groups; i++)
        if (p->groups[i] == gid)
            return true;
    return false;
}

CAID_TEST(peer, this_process_over_a_socketpair)
{
    _cleanup_(peer_deinit) struct peer p = {.pidfd = -1};
    gid_t groups[1024];
    int fds[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    cr_assert_eq(peer_init(&p, fds[0]), 0);
    cr_assert_eq(p.pid, getpid());
    cr_assert_eq(p.uid, geteuid());
    cr_assert_eq(p.gid, getegid());
    cr_assert_geq(p.pidfd, 0);
    cr_assert_not(has_exited(&p, 0));

    int n = getgroups(ARRAY_SIZE(groups), groups);
    cr_assert_eq(p.n_groups, (size_t)n);
    for (int i = 0; i < n; i++)
        cr_assert(in_group(&p, groups[i]));
    cr_assert(in_group(&p, getegid()));
    cr_assert_not(in_group(&p, 4242424));
    fd_close(fds[0]);
    fd_close(fds[1]);
}

CAID_TEST(peer, another_process_until_it_is_killed)
{
    _cleanup_(server_deinit) struct server s;
    _cleanup_(peer_deinit) struct peer p = {.pidfd = -1};
    _cleanup_fd_ int conn = -1;

    pid_t pid = connected(&s, &conn);
    cr_assert_eq(peer_init(&p, conn), 0);
    cr_assert_eq(p.pid, pid);
    cr_assert_geq(p.pidfd, 0);
    cr_assert_not(has_exited(&p, 0));
    if (geteuid() == 0) {
        cr_assert_eq(p.n_groups, N_GROUPS);
        cr_assert(in_group(&p, 40000));
        cr_assert(in_group(&p, 40000 + N_GROUPS - 1));
        cr_assert_not(in_group(&p, 40000 + N_GROUPS));
    }
    kill(pid, SIGKILL);
    cr_assert(has_exited(&p, -1));
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
}

/* Gone before it was looked at: no pidfd, or one that says so at once. */
CAID_TEST(peer, a_process_that_has_gone)
{
    _cleanup_(server_deinit) struct server s;
    _cleanup_(peer_deinit) struct peer p = {.pidfd = -1};
    _cleanup_fd_ int conn = -1;

    pid_t pid = connected(&s, &conn);
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    cr_assert_eq(peer_init(&p, conn), 0);
    cr_assert_eq(p.pid, pid);
    cr_assert(p.pidfd < 0 || has_exited(&p, 0));
}

CAID_TEST(peer, what_is_no_unix_socket)
{
    struct peer p = {.pid = 77, .pidfd = -1};
    int fds[2];

    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(peer_init(&p, fds[0]), -ENOTSOCK);
    cr_assert_eq(peer_init(&p, -1), -EBADF);
    cr_assert_eq(p.pid, 77, "left alone");
    fd_close(fds[0]);
    fd_close(fds[1]);
}
