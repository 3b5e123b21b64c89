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
                  enum msg_method method, const struct refusal *r);
/* Ends a connection: cannot fail. reason is static. */
void conn_end(struct core *core, struct conn *conn, const char *reason);

/*
 * How much room a reply has left. Replies that are lists take records until the next one might
 * not fit. What a record takes is its msg_*_size(), which sees to PROTO_ITEMS_MAX as well.
 */
struct room {
    size_t bytes, fds;
    size_t taken,
        share; /* bytes; nothing more is taken once it is its share (core_set_reply_max()) */
};

/* Of an empty reply. */
struct room room_init(const struct core *core);
bool room_take(struct room *room, size_t bytes, size_t fds);

/* A page of a list: as many records as there is room for; who wants the others asks again. */
#define PAGE_MAX 512 /* records in one, mostly */

struct pager {
    struct room room;
    void *records; /* of `size` bytes each: the caller's */
    size_t size;
    uint32_t n, max;
    bool more; /* than there is room for */
};

#define PAGER(core, v, n_max)                                                         \
    {                                                                                 \
        .room = room_init(core), .records = (v), .size = sizeof(*(v)), .max = (n_max) \
    }

/* Adds a record that takes so many bytes of a reply; false: the page is full. */
bool pager_add(struct pager *pager, const void *record, size_t bytes);
/* Sends it as the list that the method's result is. */
#define SEND_PAGE(core, conn, id, NAME, result, list, pager)    \
    send_result(core, conn, id, MSG_##NAME,                     \
                &(struct msg_##result){.list = (pager).records, \
                                       .n_##list = (pager).n,   \
                                       .more = (pager).more},   \
                NULL, 0)
