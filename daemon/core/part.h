/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: arrays that lie in the memory of another one, their whole, under names of their own.
 *
 * A part has no range: its block and offset are the whole's. The whole keeps its range, which it is
 * charged for, as long as it has parts, whoever closes or unlinks it; a part is charged as an array
 * of no bytes.
 *
 * Whoever published a part goes on using the rest of the whole, and may use the part's place again
 * once nobody can reach it any more (I2): no name, no lease, no departed holder, no fence. That is
 * when the array is buried, and what `parts` tells, once for each part. Until it has been told, or
 * the connection hangs up, a part that is gone is kept and charged for.
 */
#pragma once

#include "base/tree.h"
#include "user.h"

struct array_request;

struct whole {            /* an array that has parts; from its first to its last */
    RB_ENTRY(whole) node; /* core->wholes, by the array's id */
    struct array *array;
    LIST_HEAD(, part) parts;
    uint32_t n;
};

RB_HEAD(wholes, whole);

struct part {
    uint64_t id;         /* the array's */
    struct array *array; /* NULL: gone, to be told of */
    struct whole *whole; /* NULL then */
    LIST_ENTRY(part) of_whole;
    uint64_t offset; /* in the whole, bytes */
    struct charge charge;
    struct conn *conn;         /* that published it; NULL: has hung up */
    TAILQ_ENTRY(part) of_conn; /* in one of conn->published's lists */
};

/* What one takes of the daemon's memory beside its array; a whole is paid for by each of its
 * parts. */
#define PART_HOST (sizeof(struct part) + sizeof(struct whole))

TAILQ_HEAD(part_list, part);

struct published { /* by a connection */
    struct part_list there;
    struct part_list gone;
    bool asked; /* a request stands: it is answered as soon as one is gone */
    uint32_t request;
};

RB_PROTOTYPE(wholes, whole, node, )

/* Makes a part of what conn has leased, `offset` bytes into it, not yet named: array_publish() or
 * array_abandon() is next. The request names no pool, device or kind. -ENOMEM or REFUSED. */
int part_new(struct core *core, struct conn *conn, struct array *whole, uint64_t offset,
             struct array_request *req, struct array **ret, struct refusal *r);
/* One of an earlier core's, whose publisher is not connected to this one. -ENOMEM. */
int part_restore(struct core *core, struct user *user, struct array *whole, uint64_t offset,
                 struct array_request *req, struct array **ret);
/* Its array is buried: tells who published it. Returns the whole, which is to be settled. */
struct array *part_end(struct core *core, struct part *part);
/* Its array was never published. */
void part_undo(struct core *core, struct part *part);
/* How many parts an array has. */
uint32_t part_count(const struct core *core, const struct array *array);

/* conn has published it: of a part that is there, and whose publisher is not known. */
void published_add(struct conn *conn, struct part *part);
/* The same of one that has gone with the core before. -ENOMEM or REFUSED. */
int published_add_gone(struct conn *conn, uint64_t id, struct refusal *r);
void published_init(struct published *published);
/* Answers a `parts` request now or later. REFUSED: one stands already. */
int published_ask(struct core *core, struct conn *conn, uint32_t request, struct refusal *r);
/* Answers the request that stands, if there is something to tell. */
void published_tell(struct core *core, struct conn *conn);
/* Whether that request was this one; it is not answered any more. */
bool published_cancel(struct conn *conn, uint32_t request);
/* The connection has hung up: one of the parts is of no concern to it any more. false: none is
 * left. */
bool published_orphan(struct published *published);

/* All of them, when the core ends: the arrays' structs are freed by their pools. */
void parts_forget(struct core *core);
