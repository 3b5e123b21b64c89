/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets of one connection that could not be sent at once, in order. The fds of a packet are
 * duplicated when it is queued, since their block may be released meanwhile, and closed when it has
 * been sent. The queue is bounded: a client that does not read costs no more than that (I6).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define OUTQ_MAX_BYTES   (256 * 1024)
#define OUTQ_MAX_PACKETS 1024
#define OUTQ_MAX_FDS     512

struct outq_packet {
    STAILQ_ENTRY(outq_packet) next;
    size_t n;
    size_t n_fds;
    int fds[]; /* n_fds, then n bytes */
};

struct outq {
    STAILQ_HEAD(, outq_packet) packets;
    uint32_t n_packets, n_bytes, n_fds;
};

void outq_init(struct outq *q);
/* Drops what is queued. */
void outq_deinit(struct outq *q);

/* Copies the packet and duplicates its fds. -ENOBUFS over the bounds, -EMFILE, -ENOMEM. */
int outq_push(struct outq *q, const void *data, size_t n, const int *fds, size_t n_fds);
/* The packet that is to be sent next; NULL: the queue is empty. */
struct outq_packet *outq_first(const struct outq *q);
const void *outq_packet_data(const struct outq_packet *p);
/* Removes the first packet. */
void outq_pop(struct outq *q);
