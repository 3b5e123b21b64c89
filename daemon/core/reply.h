/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers, and how much of one fits into a packet.
 */
#pragma once

#include "refusal.h"

struct conn;
struct core;

void send_result(struct core *core, struct conn *conn, uint32_t request, enum msg_method method,
                 const void *result, const int *fds, size_t n_fds);
void send_refusal(struct core *core, struct conn *conn, uint32_t request,
                  const struct refusal *r);
/* Ends a connection: cannot fail. reason is static. */
void conn_end(struct core *core, struct conn *conn, const char *reason);

#define PAGE_MAX 512 /* records in one page */

/*
 * How much room a reply has left. Replies that are lists take records until the next one might
 * not fit. What a record takes is its msg_*_size(), which sees to PROTO_ITEMS_MAX as well.
 */
struct room {
    size_t bytes, fds;
};

#define ROOM_INIT                                             \
    {                                                         \
        .bytes = PROTO_PACKET_MAX - 256, .fds = PROTO_FDS_MAX \
    }

bool room_take(struct room *room, size_t bytes, size_t fds);
