/* SPDX-License-Identifier: Apache-2.0 */
#include "base/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/clock.h"
#include "base/macros.h"

/* Room for the control message of as many fds as a packet may have. */
union control {
    char data[CMSG_SPACE(sizeof(int) * PACKET_FDS_MAX)];
    struct cmsghdr header; /* for its alignment */
};

static void
attach_fds(struct msghdr *header, union control *control, const int *fds, size_t n_fds)
{
    size_t n_bytes = n_fds * sizeof(int);

    header->msg_control = control->data;
    header->msg_controllen = CMSG_SPACE(n_bytes);
    memset(control->data, 0, header->msg_controllen);
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(header);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(n_bytes);
    memcpy(CMSG_DATA(cmsg), fds, n_bytes);
}

int
packet_send(int sock, const void *data, size_t n, const int *fds, size_t n_fds, int flags)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = n};
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    union control control;
    ssize_t r;

    if (n > PACKET_MAX)
        return -EMSGSIZE;
    if (n_fds > PACKET_FDS_MAX)
        return -EINVAL;
    if (n_fds > 0)
        attach_fds(&header, &control, fds, n_fds);
    do {
        r = sendmsg(sock, &header, flags | MSG_NOSIGNAL);
    } while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : 0;
}

/* Moves the fds of a received control message out; the buffer had room for max_fds. */
static size_t
detach_fds(struct msghdr *header, int *ret_fds)
{
    size_t n_fds = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n_bytes = c->cmsg_len - CMSG_LEN(0);
        memcpy(ret_fds + n_fds, CMSG_DATA(c), n_bytes);
        n_fds += n_bytes / sizeof(int);
    }
    return n_fds;
}

static void
close_all(const int *fds, size_t n_fds)
{
    for (size_t i = 0; i < n_fds; i++)
        fd_close(fds[i]);
}

ssize_t
packet_recv_into(int sock, void *data, size_t room, int *ret_fds, size_t max_fds,
                 size_t *ret_n_fds, int flags)
{
    struct iovec iov = {.iov_base = data, .iov_len = room};
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    union control control;
    int fds[PACKET_FDS_MAX];
    ssize_t r;

    if (max_fds > PACKET_FDS_MAX)
        max_fds = PACKET_FDS_MAX;
    if (max_fds > 0) {
        header.msg_control = control.data; /* CMSG_SPACE() could round up to a further fd */
        header.msg_controllen = CMSG_LEN(max_fds * sizeof(int));
    }
    do {
        r = recvmsg(sock, &header, flags | MSG_CMSG_CLOEXEC);
    } while (r < 0 && errno == EINTR);
    if (r < 0)
        return -errno;

    size_t n_fds = detach_fds(&header, fds);
    if (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        close_all(fds, n_fds);
        return -EMSGSIZE;
    }
    if (max_fds > 0)
        memcpy(ret_fds, fds, n_fds * sizeof(int));
    if (ret_n_fds)
        *ret_n_fds = n_fds;
    return r;
}

int
packet_recv_batch(int sock, uint8_t data[PACKET_BATCH][PACKET_MAX], ssize_t ret_n[PACKET_BATCH])
{
    struct mmsghdr headers[PACKET_BATCH];
    struct iovec iov[PACKET_BATCH];
    int n;

    for (size_t i = 0; i < PACKET_BATCH; i++) {
        iov[i] = (struct iovec){.iov_base = data[i], .iov_len = PACKET_MAX};
        headers[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &iov[i], .msg_iovlen = 1}};
    }
    do {
        n = recvmmsg(sock, headers, PACKET_BATCH, MSG_DONTWAIT, NULL);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    for (int i = 0; i < n; i++) {
        bool is_cut = headers[i].msg_hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
        ret_n[i] = is_cut ? -EMSGSIZE : (ssize_t)headers[i].msg_len;
    }
    return n;
}

/* A socket's timeout for sends is also that of connect(2) (unix_stream_connect()). It is taken away
 * afterwards: sends of packets do not block, or have no timeout. */
static int
connect_within(int fd, const struct sockaddr_un *address, uint64_t timeout_ns)
{
    const uint64_t us = timeout_ns / NSEC_PER_USEC + 1; /* 0 would be no limit */
    const struct timeval none = {0}, limit = {
                                         .tv_sec = (time_t)(us / 1000000),
                                         .tv_usec = (suseconds_t)(us % 1000000),
                                     };
    int r;

    if (timeout_ns > 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0)
        return -errno;
    do {
        r = connect(fd, (const struct sockaddr *)address, sizeof(*address));
    } while (r < 0 && errno == EINTR && timeout_ns == 0);
    if (r < 0)
        return -errno;
    if (timeout_ns > 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none)) < 0)
        return -errno;
    return 0;
}

/* Whether the path is not a socket: connect(2) returns ECONNREFUSED or EACCES then. */
static bool
is_no_socket(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISSOCK(st.st_mode);
}

int
packet_connect_within(const char *path, uint64_t timeout_ns, int *ret_fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t n = strlen(path);

    if (n == 0) /* an empty path would be a name in the abstract namespace */
        return -ENOENT;
    if (n >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, n);

    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int r = connect_within(fd, &address, timeout_ns);
    if (r < 0)
        return is_no_socket(path) ? -ENOTSOCK : r;
    *ret_fd = TAKE_FD(fd);
    return 0;
}
