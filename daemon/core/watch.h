/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watch: a request that is answered when a name's generation is another one than the client has
 * seen. From the request until it is answered or cancelled, or its connection hangs up. Nothing is
 * queued for a client that is slow: it asks again, with what it has seen by then.
 *
 * The watches of all names lie in one tree, those of a name together. A watch keeps its pool; those
 * of a pool that leaves end.
 */
#pragma once

#include "base/tree.h"
#include "user.h"

struct array;

struct watch {
    RB_ENTRY(watch) node;       /* core->watches, by pool, name, connection and request */
    TAILQ_ENTRY(watch) of_user; /* or its user's, when there is something to tell */
    bool is_due;
    bool is_over;            /* there is no such pool any more, which is to be told */
    uint64_t generation;     /* to be told */
    RB_ENTRY(watch) of_conn; /* conn->watches, by request */
    struct conn *conn;
    struct charge charge;
    struct pool *pool;
    uint32_t request;
    uint8_t n_name;
    char name[]; /* not terminated */
};

RB_HEAD(watches, watch);
RB_HEAD(watches_of_conn, watch);

RB_PROTOTYPE(watches, watch, node, )
RB_PROTOTYPE(watches_of_conn, watch, of_conn, )

/* Answers at once, or keeps a watch. -ENOMEM or REFUSED. */
int watch_new(struct core *core, struct conn *conn, uint32_t request, struct pool *pool,
              struct msg_str name, uint64_t seen, struct refusal *r);
struct watch *watch_find(struct conn *conn, uint32_t request);
void watch_free(struct core *core, struct watch *watch);
/* Answers one that there is something to tell. */
void watch_end(struct core *core, struct watch *watch);
/* The name is another array's from now on, of another generation; NULL: nobody had it, or has it
 * now. Who watches it, or one that begins with it where it is a set's, is told when it is his
 * user's turn. */
void watch_notify(struct core *core, struct pool *pool, struct msg_str name,
                  const struct array *old, const struct array *new);
/* There is no such pool from now on. */
void watches_end(struct core *core, struct pool *pool);
