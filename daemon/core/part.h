/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts: arrays that lie in the memory of another array, their whole, under names of their own.
 *
 * A part has no range: its block and its offset are the whole's. The whole keeps its range, and is
 * charged for it, as long as it has parts, whoever closes or unlinks it. A part is charged as an
 * array of no bytes.
 *
 * The publisher of a part goes on using the rest of the whole. It may use the part's place again
 * once nobody can reach the part any more (I2): no name, no lease, no departed holder, no fence.
 * Then the part's array is buried, and the publisher's `parts` request is answered with its number,
 * once. Until then, or until the publisher hangs up, a part that is gone is kept and charged for.
 */
#pragma once

#include "base/tree.h"
#include "user.h"

struct array_request;

struct whole {            /* an array that has parts, from the first to the last one */
    RB_ENTRY(whole) node; /* core->wholes, by the array's id */
    struct array *array;
    LIST_HEAD(, part) parts;
    uint32_t n;
    /* on its parts, for those who wait until nobody can reach them: vacate.h */
    uint32_t n_named, n_uses;
    uint64_t n_leases, n_members; /* of departed connections and tickets, too; of all sets */
    TAILQ_HEAD(, use) uses;
    LIST_HEAD(, vacancy) vacancies;
    struct set *droppable; /* a set of all of its parts that may be dropped, or NULL */
    bool dropped;          /* that set was: its memory is on its way */
};

RB_HEAD(wholes, whole);

struct part {
    uint64_t id;         /* the array's */
    struct array *array; /* NULL: gone, its publisher is to be answered */
    struct whole *whole; /* NULL: gone */
    LIST_ENTRY(part) of_whole;
    uint64_t offset; /* in the whole, bytes */
    struct charge charge;
    struct conn *conn;         /* its publisher; NULL: that has hung up, or is not to be told */
    TAILQ_ENTRY(part) of_conn; /* in one of conn->published's lists */
};

/* What a part is charged of the daemon's memory beside its array. Each part pays for a whole. */
#define PART_HOST (sizeof(struct part) + sizeof(struct whole))

TAILQ_HEAD(part_list, part);

struct published { /* the parts of a connection */
    struct part_list there;
    struct part_list gone;
    bool asked; /* a `parts` request waits: it is answered as soon as one is gone */
    uint32_t request;
};

RB_PROTOTYPE(wholes, whole, node, )

/* A new part of an array that conn has leased, from `offset` on, without a name: array_publish(),
 * array_promise() or array_abandon() follows. The request names no pool, device or kind. told: conn
 * is to be told when it is gone. -ENOMEM or REFUSED. */
int part_new(struct core *core, struct conn *conn, struct array *whole, uint64_t offset,
             bool told, struct array_request *req, struct array **ret, struct refusal *r);
/* A part of an earlier core, whose publisher has not resumed. -ENOMEM. */
int part_restore(struct core *core, struct user *user, struct array *whole, uint64_t offset,
                 struct array_request *req, struct array **ret);
/* Its array is buried: its publisher is answered. Returns the whole, which the caller settles. */
struct array *part_end(struct core *core, struct part *part);
/* Frees a part whose array was never published. */
void part_undo(struct core *core, struct part *part);
/* The whole that an array is a part of, or has its parts in; or that the first member of a set is a
 * part of. NULL: none. */
struct whole *whole_of(const struct core *core, const struct array *array);
/* Something that kept the array, its whole or its set may be gone: who waits for that is due. */
void whole_touch(struct core *core, const struct array *array);
/* How many parts an array has. */
uint32_t part_count(const struct core *core, const struct array *array);

/* conn has published the part, now or before the restart. */
void published_add(struct conn *conn, struct part *part);
/* conn, which resumes, has published a part that is gone. -ENOMEM or REFUSED. */
int published_add_gone(struct conn *conn, uint64_t id, struct refusal *r);
void published_init(struct published *published);
/* Answers a `parts` request now or later. REFUSED: another one waits. */
int published_ask(struct core *core, struct conn *conn, uint32_t request, struct refusal *r);
/* Answers the waiting request, if a part is gone. */
void published_tell(struct core *core, struct conn *conn);
/* Cancels the waiting request, if it is this one. */
bool published_cancel(struct conn *conn, uint32_t request);
/* The connection has hung up: drops one of its parts from its list. false: none is left. */
bool published_orphan(struct published *published);

/* Frees all when the core ends. The pools free the arrays' structs. */
void parts_forget(struct core *core);
