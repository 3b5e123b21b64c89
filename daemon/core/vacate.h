/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vacating: a connection waits until it may write the memory of a set of parts again, which it has
 * published before; or of one of several, whichever is vacant first. A set is vacant when nobody
 * but the connection can reach it, the array whose parts its members are (the whole), or any part
 * of that: none has a name or is in another set, no other lease is there, a ticket's or that of a
 * departed connection included, no client of an earlier core may come back with one, and no fence
 * has not passed. Holds do not count: who has the memory mapped, and no lease on it, does not use
 * it.
 *
 * The whole counts what is on its parts (struct whole), so that a decision costs the same for any
 * number of members. It is made at the end of an event that has ended a lease, a name or a
 * membership; where only fences and former connections are left, now and then, as of lingering
 * arrays.
 *
 * A struct vacate lives from the request to its answer. It goes with its connection.
 */
#pragma once

#include "base/tree.h"
#include "user.h"

struct array;
struct conn;
struct core;
struct refusal;
struct whole;

struct vacancy {                  /* one of the sets that a vacate waits for */
    LIST_ENTRY(vacancy) of_whole; /* whole->vacancies */
    struct vacate *vacate;
    struct whole *whole; /* NULL: it has ended, and the set before it */
    uint64_t lease;      /* on the set */
    uint64_t n_own;      /* leases that do not count: that one, and of vacate->own */
    uint32_t n_seen;     /* uses of parts, in this round, without fences */
};

struct own_lease {
    uint64_t id;
    uint32_t of; /* which of the sets it lies in */
};

struct vacate {
    RB_ENTRY(vacate) node;      /* core->vacates.by_end */
    LIST_ENTRY(vacate) of_conn; /* conn->vacates */
    TAILQ_ENTRY(vacate) entry;  /* in that list: */
    struct vacate_list *in;     /* core->vacates.due or .looking; NULL: it waits for an event */
    struct conn *conn;
    struct charge charge;
    uint32_t request;
    uint64_t end_ns;       /* UINT64_MAX: it waits for ever */
    struct own_lease *own; /* other leases of conn that do not count, sorted; behind the sets */
    uint32_t n_own, n_sets;
    struct vacancy sets[];
};

TAILQ_HEAD(vacate_list, vacate);
RB_HEAD(vacates_by_end, vacate);

struct vacates {
    struct vacates_by_end by_end;
    struct vacate_list due, looking;
};

#define VACATES_MAX 64 /* sets that a connection waits for */

struct vacate_request {
    struct msg_u64s leases, own;
    uint64_t timeout_ns; /* 0: none */
    bool nowait;
};

static inline void
vacate_put(struct vacate *vacate, struct vacate_list *list)
{
    if (vacate->in)
        TAILQ_REMOVE(vacate->in, vacate, entry);
    vacate->in = list;
    if (list)
        TAILQ_INSERT_TAIL(list, vacate, entry);
}

static inline void
vacancy_leave_whole(struct vacancy *set)
{
    if (set->whole)
        LIST_REMOVE(set, of_whole);
    set->whole = NULL;
}

void vacates_init(struct vacates *vacates);
/* Answers at the end of an event. -ENOMEM or REFUSED. */
int vacate_new(struct core *core, struct conn *conn, uint32_t request,
               const struct vacate_request *req, struct refusal *r);
/* Answers it with CANCELLED, if it is this request. */
void vacate_cancel(struct core *core, struct conn *conn, uint32_t request);
void vacate_free(struct core *core, struct vacate *vacate);
/* Decides on those that are due. Returns whether more are. */
bool vacates_run(struct core *core);
/* Those that wait for fences or former connections are due. */
void vacates_look(struct core *core);
/* Refuses those whose time is over. */
void vacates_tick(struct core *core);
uint64_t vacates_end_ns(const struct core *core);
