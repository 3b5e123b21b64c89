/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SEQPACKET sockets: one message is one packet (unix(7)). Fds travel with their packet.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PACKET_MAX     65536 /* bytes in one packet */
#define PACKET_FDS_MAX 253   /* fds in one packet: SCM_MAX_FD, unix(7) */
#define PACKET_BATCH   2     /* packets that are received at once */

/* Sends one packet with n_fds fds, borrowed. flags: MSG_DONTWAIT or 0; SIGPIPE is never raised.
 * 0, or -EAGAIN, -ETOOMANYREFS (too many fds in flight, unix(7)), -EPIPE, ... */
int packet_send(int sock, const void *data, size_t n, const int *fds, size_t n_fds, int flags);

/*
 * Receives one packet into data, which has `room` bytes. Fds arrive CLOEXEC and belong to the
 * caller. With max_fds 0 there is no control buffer: the kernel drops fds (unix(7)), and says so.
 * Returns the packet's length, 0 at end of file, or -EAGAIN, -ECONNRESET, ...; -EMSGSIZE when
 * packet or fds were cut (MSG_TRUNC, MSG_CTRUNC: nothing is kept); the connection must end then. An
 * empty packet reads as end of file.
 */
ssize_t packet_recv_into(int sock, void *data, size_t room, int *ret_fds, size_t max_fds,
                         size_t *ret_n_fds, int flags);

/* The same, with room for every packet. */
static inline ssize_t
packet_recv(int sock, void *data, int *ret_fds, size_t max_fds, size_t *ret_n_fds, int flags)
{
    return packet_recv_into(sock, data, PACKET_MAX, ret_fds, max_fds, ret_n_fds, flags);
}

/* Receives, without waiting, up to PACKET_BATCH packets without fds, each into PACKET_MAX bytes of
 * its own. Returns their number, or -EAGAIN, -ECONNRESET, ...; ret_n[i] is a packet's length, 0 at
 * end of file, or -EMSGSIZE as above. Fewer than PACKET_BATCH: the socket is empty, and epoll(7)
 * reports the next packet. */
int packet_recv_batch(int sock, uint8_t data[PACKET_BATCH][PACKET_MAX],
                      ssize_t ret_n[PACKET_BATCH]);

/* Connects to a socket path. -ENOTSOCK: the path is not a socket. If the other side listens and
 * does not accept, waits for at most timeout_ns (0: without end): then -EAGAIN, or -EINTR after a
 * signal. */
int packet_connect_within(const char *path, uint64_t timeout_ns, int *ret_fd);

static inline int
packet_connect(const char *path, int *ret_fd)
{
    return packet_connect_within(path, 0, ret_fd);
}
