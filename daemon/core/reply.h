/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers, and how much fits into one packet.
 */
#pragma once

#include "refusal.h"

struct conn;
struct core;

void send_result(struct core *core, struct conn *conn, uint32_t request, enum msg_method method,
                 const void *result, const int *fds, size_t n_fds);
void send_refusal(struct core *core, struct conn *conn, uint32_t request,
                  enum msg_method method, const struct refusal *r);
/* Closes a connection; cannot fail. reason is static. */
void conn_end(struct core *core, struct conn *conn, const char *reason);
/* The same; a client that can be told is told the refusal, which answers no request. */
void conn_dismiss(struct core *core, struct conn *conn, const struct refusal *r,
                  const char *reason);

/*
 * The room that a reply has left. A reply that is a list takes records until the next one might not
 * fit. A record takes msg_*_size(), which also counts for PROTO_ITEMS_MAX.
 */
struct room {
    size_t bytes, fds;
    size_t taken,
        share; /* bytes; when it has its share (core_set_reply_max()), nothing more is taken */
};

/* The room of an empty reply. */
struct room room_init(const struct core *core);
bool room_take(struct room *room, size_t bytes, size_t fds);

/* A portion of a list: as many records as fit. The client asks again for the others. */
#define PORTION_MAX 512 /* records, of most lists */

struct portion {
    struct room room;
    void *records; /* the caller's array, of elements of `size` bytes */
    size_t size;
    uint32_t n, max;
    bool more; /* there are more records than there is room for */
};

#define PORTION(core, v, n_max)                                                       \
    {                                                                                 \
        .room = room_init(core), .records = (v), .size = sizeof(*(v)), .max = (n_max) \
    }

/* Adds a record that takes so many bytes of a reply. false: the portion is full. */
bool portion_add(struct portion *portion, const void *record, size_t bytes);
/* Sends the portion as the result of the method. */
#define SEND_PORTION(core, conn, id, NAME, result, list, portion) \
    send_result(core, conn, id, MSG_##NAME,                       \
                &(struct msg_##result){.list = (portion).records, \
                                       .n_##list = (portion).n,   \
                                       .more = (portion).more},   \
                NULL, 0)
