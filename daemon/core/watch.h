/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watch: a request that is answered when a name's generation differs from the one that the client
 * has seen (MSG_WATCH), or when any name with a prefix has changed (MSG_CHANGES). It lives until it
 * is answered or cancelled, or its connection hangs up. Nothing is queued for a slow client: it
 * asks again, with the generation that it has seen by then.
 *
 * All watches lie in one tree, those of a name together. A watch keeps its pool. When a pool is
 * leaving, its watches end.
 */
#pragma once

#include "base/tree.h"
#include "user.h"

struct array;

struct watch {
    RB_ENTRY(watch) node;       /* core->watches, by pool, method, name, connection, request */
    TAILQ_ENTRY(watch) of_user; /* user->due, in place of that, once it is to be answered */
    bool is_due;
    enum msg_method method;  /* MSG_CHANGES: of all names that begin with the name */
    bool is_over;            /* the pool has gone: the answer is a refusal */
    uint64_t generation;     /* the answer's */
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

/* Answers at once, or makes a watch. -ENOMEM or REFUSED. */
int watch_new(struct core *core, struct conn *conn, uint32_t request, struct pool *pool,
              struct msg_str name, uint64_t seen, struct refusal *r);
/* Answers at once where the client does not ask again, or makes a watch of all names with the
 * prefix. -ENOMEM or REFUSED. */
int watch_new_prefix(struct core *core, struct conn *conn, uint32_t request, struct pool *pool,
                     const struct msg_changes_params *params, struct refusal *r);
struct watch *watch_find(struct conn *conn, uint32_t request);
void watch_free(struct core *core, struct watch *watch);
/* Answers a watch that its client wants no more with CANCELLED, and frees it. */
void watch_cancel(struct core *core, struct watch *watch);
/* Answers a watch in user->due, and frees it. */
void watch_end(struct core *core, struct watch *watch);
/* The name has another generation: it is another array's (NULL: nobody's) from now on, or no longer
 * the old one's. Watches of the name and of its prefixes are answered in their users' turns; if it
 * is a set's, so are watches of names of the set, and of all prefixes that begin with the name. */
void watch_notify(struct core *core, struct pool *pool, struct msg_str name,
                  const struct array *old, const struct array *new);
/* The pool is leaving: its watches are answered with a refusal. */
void watches_end(struct core *core, struct pool *pool);
