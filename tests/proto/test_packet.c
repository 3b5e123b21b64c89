/* SPDX-License-Identifier: Apache-2.0 */
#include "caid_test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include "base/macros.h"
#include "base/packet.h"
#include "proto_limits.h"

struct pair {
    int a, b;
};

static struct pair
pair_new(void)
{
    int fds[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    return (struct pair){fds[0], fds[1]};
}

static void
pair_deinit(struct pair *p)
{
    fd_close(p->a);
    fd_close(p->b);
}

#define _cleanup_pair_ _cleanup_(pair_deinit)

static uint8_t data[PROTO_PACKET_MAX];

static void
open_many(int *ret_fds, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ret_fds[i] = open("/dev/null", O_RDONLY); /* without CLOEXEC */
        cr_assert_geq(ret_fds[i], 0);
    }
}

static void
close_many(const int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(close(fds[i]), 0);
}

static void
send_fds(int sock, size_t n)
{
    int fds[PROTO_FDS_MAX];

    open_many(fds, n);
    cr_assert_eq(packet_send(sock, "x", 1, fds, n, MSG_DONTWAIT), 0);
    close_many(fds, n);
}

CAID_TEST(packet, packets_stay_apart)
{
    _cleanup_pair_ struct pair p = pair_new();
    size_t n_fds = 99;

    cr_assert_eq(packet_send(p.a, "one", 3, NULL, 0, 0), 0);
    cr_assert_eq(packet_send(p.a, "three", 5, NULL, 0, 0), 0);
    cr_assert_eq(packet_recv(p.b, data, NULL, 0, NULL, 0), 3);
    cr_assert_eq(memcmp(data, "one", 3), 0);
    cr_assert_eq(packet_recv(p.b, data, (int[1]){-1}, 1, &n_fds, 0), 5);
    cr_assert_eq(memcmp(data, "three", 5), 0);
    cr_assert_eq(n_fds, 0);
    cr_assert_eq(packet_recv(p.b, data, NULL, 0, NULL, MSG_DONTWAIT), -EAGAIN);
}

CAID_TEST(packet, what_is_there_comes_at_once)
{
    _cleanup_pair_ struct pair p = pair_new();
    static uint8_t batch[PACKET_BATCH][PACKET_MAX];
    ssize_t n[PACKET_BATCH];

    cr_assert_eq(packet_recv_batch(p.b, batch, n), -EAGAIN);
    for (char i = 0; i <= PACKET_BATCH; i++)
        cr_assert_eq(packet_send(p.a, "012" + i, 1, NULL, 0, 0), 0);
    cr_assert_eq(packet_recv_batch(p.b, batch, n), PACKET_BATCH);
    for (char i = 0; i < PACKET_BATCH; i++) {
        cr_assert_eq(n[(int)i], 1);
        cr_assert_eq(batch[(int)i][0], '0' + i);
    }
    cr_assert_eq(packet_recv_batch(p.b, batch, n), 1);
    cr_assert_eq(packet_recv_batch(p.b, batch, n), -EAGAIN);
    send_fds(p.a, 1);
    p.a = fd_close(p.a);
    cr_assert_eq(packet_recv_batch(p.b, batch, n), PACKET_BATCH);
    cr_assert_eq(n[0], -EMSGSIZE, "fds are not for such packets");
    cr_assert_eq(n[1], 0);
}

CAID_TEST(packet, the_largest_packet)
{
    _cleanup_pair_ struct pair p = pair_new();
    static uint8_t sent[PROTO_PACKET_MAX + 1];

    memset(sent, 'x', sizeof(sent));
    cr_assert_eq(packet_send(p.a, sent, PROTO_PACKET_MAX, NULL, 0, 0), 0);
    cr_assert_eq(packet_recv(p.b, data, NULL, 0, NULL, 0), PROTO_PACKET_MAX);
    cr_assert_eq(memcmp(data, sent, PROTO_PACKET_MAX), 0);
    cr_assert_eq(packet_send(p.a, sent, PROTO_PACKET_MAX + 1, NULL, 0, 0), -EMSGSIZE);
}

CAID_TEST(packet, the_end)
{
    _cleanup_pair_ struct pair p = pair_new();

    signal(SIGPIPE, SIG_DFL);
    p.a = fd_close(p.a);
    cr_assert_eq(packet_recv(p.b, data, NULL, 0, NULL, 0), 0);
    cr_assert_eq(packet_send(p.b, "x", 1, NULL, 0, 0), -EPIPE, "and no SIGPIPE");
}

static void
check_fds(size_t n)
{
    _cleanup_pair_ struct pair p = pair_new();
    int fds[PROTO_FDS_MAX];
    struct stat st, null_st;
    size_t n_fds = 0;

    send_fds(p.a, n);
    cr_assert_eq(packet_recv(p.b, data, fds, PROTO_FDS_MAX, &n_fds, 0), 1);
    cr_assert_eq(n_fds, n);
    cr_assert_eq(stat("/dev/null", &null_st), 0);
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
        cr_assert_eq(fstat(fds[i], &st), 0);
        cr_assert_eq(st.st_rdev, null_st.st_rdev);
    }
    close_many(fds, n);
}

CAID_TEST(packet, fds_travel_with_their_packet)
{
    check_fds(1);
    check_fds(2);
    check_fds(3);
    check_fds(PROTO_FDS_MAX);
}

CAID_TEST(packet, fds_keep_their_order)
{
    _cleanup_pair_ struct pair p = pair_new();
    int ends[2], fds[2];
    size_t n_fds = 0;
    char byte;

    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    cr_assert_eq(packet_send(p.a, "x", 1, ends, 2, 0), 0);
    cr_assert_eq(packet_send(p.a, "y", 1, NULL, 0, 0), 0);
    cr_assert_eq(packet_recv(p.b, data, fds, 2, &n_fds, 0), 1);
    cr_assert_eq(data[0], 'x');
    cr_assert_eq(n_fds, 2);
    cr_assert_eq(write(fds[1], "z", 1), 1);
    cr_assert_eq(read(fds[0], &byte, 1), 1);
    cr_assert_eq(packet_recv(p.b, data, fds + 1, 1, &n_fds, 0), 1);
    cr_assert_eq(n_fds, 0, "fds of an earlier packet");
    close_many(ends, 2);
    close_many(fds, 2);
}

CAID_TEST(packet, too_many_fds_are_not_sent)
{
    _cleanup_pair_ struct pair p = pair_new();
    int fds[PROTO_FDS_MAX + 1] = {0};

    cr_assert_eq(packet_send(p.a, "x", 1, fds, PROTO_FDS_MAX + 1, 0), -EINVAL);
    cr_assert_eq(packet_recv(p.b, data, NULL, 0, NULL, MSG_DONTWAIT), -EAGAIN);
}

/* Odd and even counts: a control buffer's padding has room for one fd. */
CAID_TEST(packet, more_fds_than_wanted_are_closed)
{
    for (size_t max = 1; max <= 4; max++) {
        _cleanup_pair_ struct pair p = pair_new();
        int fds[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
        size_t n_fds = 99;

        send_fds(p.a, max + 1);
        cr_assert_eq(packet_recv(p.b, data, fds, max, &n_fds, 0), -EMSGSIZE);
        cr_assert_eq(n_fds, 99, "outputs are left alone");
        cr_assert_eq(fds[0], -1);
        send_fds(p.a, max);
        cr_assert_eq(packet_recv(p.b, data, fds, max, &n_fds, 0), 1);
        cr_assert_eq(n_fds, max);
        close_many(fds, max);
    }
}

/* The kernel drops them; that somebody sent them is told. */
CAID_TEST(packet, unwanted_fds_end_the_packet)
{
    _cleanup_pair_ struct pair p = pair_new();
    size_t n_fds = 99;

    send_fds(p.a, 5);
    cr_assert_eq(packet_recv(p.b, data, NULL, 0, &n_fds, 0), -EMSGSIZE);
    cr_assert_eq(n_fds, 99);
}

/* The kernel gives as many as there is room for and says MSG_CTRUNC. */
CAID_TEST(packet, fds_over_the_process_limit_end_the_packet)
{
    _cleanup_pair_ struct pair p = pair_new();
    struct rlimit old, low;
    int fds[3], probe;

    send_fds(p.a, 3);
    probe = dup(p.a);
    cr_assert_geq(probe, 0);
    close(probe);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = (struct rlimit){(rlim_t)probe + 1, old.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
    cr_assert_eq(packet_recv(p.b, data, fds, 3, &(size_t){0}, 0), -EMSGSIZE);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
}

CAID_TEST(packet, a_cut_packet_is_refused_with_its_fds)
{
    _cleanup_pair_ struct pair p = pair_new();
    static uint8_t sent[PROTO_PACKET_MAX + 1];

    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec iov = {sent, sizeof(sent)};
    struct msghdr header = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.space,
                            .msg_controllen = sizeof(control.space)};
    int fd;

    memcpy(CMSG_DATA(&control.header), &p.a, sizeof(int));
    cr_assert_eq(sendmsg(p.a, &header, 0), PROTO_PACKET_MAX + 1);
    cr_assert_eq(packet_recv(p.b, data, &fd, 1, &(size_t){0}, 0), -EMSGSIZE);
    cr_assert_eq(sendmsg(p.a, &header, 0), PROTO_PACKET_MAX + 1);
    cr_assert_eq(packet_recv(p.b, data, NULL, 0, NULL, 0), -EMSGSIZE);
}

static int signal_sock;

static void
on_alarm(int signal)
{
    (void)signal;
    if (write(signal_sock, "late", 4) != 4)
        abort();
}

CAID_TEST(packet, a_signal_does_not_end_the_wait)
{
    _cleanup_pair_ struct pair p = pair_new();
    struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART */
    struct itimerval soon = {.it_value.tv_usec = 20000};

    signal_sock = p.a;
    cr_assert_eq(sigaction(SIGALRM, &action, NULL), 0);
    cr_assert_eq(setitimer(ITIMER_REAL, &soon, NULL), 0);
    cr_assert_eq(packet_recv(p.b, data, NULL, 0, NULL, 0), 4);
}

/* ---- connecting ---- */

struct place {
    char folder[64];
    char path[96];
};

static struct place
place_new(void)
{
    struct place p = {.folder = "/tmp/caid-test-packet-XXXXXX"};
    cr_assert_not_null(mkdtemp(p.folder));
    snprintf(p.path, sizeof(p.path), "%s/sock", p.folder);
    return p;
}

static void
place_deinit(struct place *p)
{
    unlink(p->path);
    rmdir(p->folder);
}

static int
bind_at(const char *path, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    strcpy(address.sun_path, path);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

CAID_TEST(packet, connects_to_a_listener)
{
    _cleanup_(place_deinit) struct place place = place_new();
    _cleanup_fd_ int listener = -1, client = -1, server = -1;

    listener = bind_at(place.path, SOCK_SEQPACKET);
    cr_assert_eq(packet_connect(place.path, &client), -ECONNREFUSED, "not listening yet");
    cr_assert_eq(client, -1);
    cr_assert_eq(listen(listener, 1), 0);
    cr_assert_eq(packet_connect(place.path, &client), 0);
    cr_assert_eq(fcntl(client, F_GETFD), FD_CLOEXEC);
    server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_eq(packet_send(client, "x", 1, NULL, 0, 0), 0);
    cr_assert_eq(packet_recv(server, data, NULL, 0, NULL, 0), 1);
}

CAID_TEST(packet, a_dead_socket_refuses)
{
    _cleanup_(place_deinit) struct place place = place_new();
    int fd = -1;

    fd_close(bind_at(place.path, SOCK_SEQPACKET));
    cr_assert_eq(packet_connect(place.path, &fd), -ECONNREFUSED);
}

CAID_TEST(packet, a_stream_socket_is_of_the_wrong_type)
{
    _cleanup_(place_deinit) struct place place = place_new();
    _cleanup_fd_ int listener = bind_at(place.path, SOCK_STREAM);
    int fd = -1;

    cr_assert_eq(listen(listener, 1), 0);
    cr_assert_eq(packet_connect(place.path, &fd), -EPROTOTYPE);
}

CAID_TEST(packet, what_is_no_socket)
{
    _cleanup_(place_deinit) struct place place = place_new();
    int fd = -1;

    cr_assert_eq(packet_connect(place.path, &fd), -ENOENT);
    cr_assert_eq(packet_connect("", &fd), -ENOENT);
    cr_assert_eq(packet_connect(place.folder, &fd), -ENOTSOCK);
    cr_assert_eq(packet_connect("/dev/null", &fd), -ENOTSOCK);
    fd_close(open(place.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    cr_assert_eq(packet_connect(place.path, &fd), -ENOTSOCK);
    cr_assert_eq(fd, -1);
}

CAID_TEST(packet, paths_have_a_largest_length)
{
    char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
    int fd = -1;

    memset(path, 'x', sizeof(path));
    path[0] = '/';
    path[sizeof(path) - 1] = '\0';
    cr_assert_eq(packet_connect(path, &fd), -ENAMETOOLONG);
    path[sizeof(path) - 2] = '\0';
    cr_assert_eq(packet_connect(path, &fd), -ENOENT);
}
