/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ticket: 128 random bits of the sender. Whoever knows them takes the array over, once; or leases
 * it and leaves the ticket to others. The bits are shown to nobody.
 *
 * A ticket has a lease of its own, without a connection or a mapping, which is charged to the
 * sender's uid. It lasts until it is taken, withdrawn or runs out: `ticket_ttl` after its sender
 * has gone, and `ticket_age` after it was made, by CLOCK_BOOTTIME. A sender has gone when its
 * connection ends; a former one (former.h), when it may not resume any more. Tickets outlive the
 * core.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/tree.h"
#include "lease.h"
#include "refusal.h"

#define TICKET_WORDS 2
#define RAN_OUT_MAX  256 /* tickets that are remembered after they have run out */

struct array;
struct conn;
struct core;
struct user;

enum ticket_kind {
    TICKET_ONE,  /* taken once: a message's */
    TICKET_MANY, /* taken any number of times: a reference's */
    TICKET_OWN,  /* for the sender itself: it ends with the sender */
};

struct ticket {
    RB_ENTRY(ticket) node;      /* core->tickets */
    RB_ENTRY(ticket) of_user;   /* user->tickets, by id */
    RB_ENTRY(ticket) of_ends;   /* core->ticket_ends, unless ends_ns is 0 */
    LIST_ENTRY(ticket) of_conn; /* conn->tickets */
    uint64_t secret[TICKET_WORDS];
    uint64_t id;      /* its number, in the order of making */
    uint64_t made_ns; /* by CLOCK_BOOTTIME, as: */
    uint64_t ends_ns; /* when it runs out; 0: never */
    struct lease lease;
    struct conn *conn; /* the sender; NULL: it has gone */
    pid_t pid;         /* of the sender's process */
    enum ticket_kind kind;
};

/* What a ticket is charged. */
#define TICKET_HOST (sizeof(struct ticket) + RECORD_HOST(sizeof(struct record_ticket)))

RB_HEAD(tickets, ticket);
RB_HEAD(ticket_ends, ticket); /* the earliest first */

/* The ticket that has the lease, which has no connection. */
static inline const struct ticket *
ticket_of_lease(const struct lease *lease)
{
    return container_of((uintptr_t)lease, struct ticket, lease);
}

/* Checks that this is a ticket's secret. REFUSED. */
int ticket_check(struct msg_u64s words, struct refusal *r);
/* A ticket of conn for an array that it has leased. -ENOMEM; REFUSED: a limit, or the secret is
 * taken. */
int ticket_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
               const uint64_t *secret, enum ticket_kind kind, struct refusal *r);
/* A ticket of an earlier core; like->conn NULL: its sender has gone. If it has ended with that,
 * *ret is not set. -ENOMEM. */
int ticket_restore(struct core *core, struct user *user, struct array *array, bool readonly,
                   const struct ticket *like, struct ticket **ret);
struct ticket *ticket_find(struct core *core, const uint64_t *secret);
/* The first ticket after that secret; n 0: of all. */
struct ticket *ticket_find_next(struct core *core, struct msg_str secret);
/* The user's first ticket with a higher number. */
struct ticket *ticket_of_user(struct user *user, uint64_t after);
/* The sender has gone. */
void ticket_leave(struct core *core, struct ticket *ticket);
/* Ends the ticket and its lease. If that was the last one, the array may end. */
void ticket_free(struct core *core, struct ticket *ticket);
/* Ends some tickets whose time is over. */
void tickets_run_out(struct core *core);
/* When the next ticket runs out, by CLOCK_BOOTTIME; UINT64_MAX: none does. */
uint64_t tickets_end_ns(const struct core *core);
/* Whether that ticket has run out, not long ago. */
bool ticket_ran_out(const struct core *core, const uint64_t *secret);
/* Frees all when the core ends. */
void tickets_forget(struct core *core);
