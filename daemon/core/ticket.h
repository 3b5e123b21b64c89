/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ticket: 128 random bits of the sender's, by which whoever knows them takes an array over, once,
 * or leases it and leaves the ticket to others. The bits are shown to nobody.
 *
 * It keeps the array by a lease of its own, which is no connection's and maps nothing, and is
 * charged to the sender's uid. It is there until it is taken or withdrawn, or runs out:
 * `ticket_ttl` after its sender has gone, and `ticket_age` after it was made, by CLOCK_BOOTTIME as
 * names. A sender has gone when its connection ends; a former one (former.h) when it is waited for
 * no more. Tickets outlive the core.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/tree.h"
#include "lease.h"
#include "refusal.h"

#define TICKET_WORDS 2
#define RAN_OUT_MAX  256 /* tickets of which it is remembered that they have run out */

struct array;
struct conn;
struct core;
struct user;

enum ticket_kind {
    TICKET_ONE,  /* a message's */
    TICKET_MANY, /* any number may take it, whenever: a reference's */
    TICKET_OWN,  /* its sender takes it itself: it ends with the sender */
};

struct ticket {
    RB_ENTRY(ticket) node;      /* core->tickets */
    RB_ENTRY(ticket) of_user;   /* user->tickets, by id */
    RB_ENTRY(ticket) of_ends;   /* core->ticket_ends, where ends_ns is not 0 */
    LIST_ENTRY(ticket) of_conn; /* conn->tickets */
    uint64_t secret[TICKET_WORDS];
    uint64_t id;      /* its number, in the order in which they were made */
    uint64_t made_ns; /* by CLOCK_BOOTTIME, as: */
    uint64_t ends_ns; /* when it runs out; 0: not by itself */
    struct lease lease;
    struct conn *conn; /* the sender's, or NULL: it has gone */
    pid_t pid;         /* of the sender's process */
    enum ticket_kind kind;
};

/* What one is charged. */
#define TICKET_HOST (sizeof(struct ticket) + RECORD_HOST(sizeof(struct record_ticket)))

RB_HEAD(tickets, ticket);
RB_HEAD(ticket_ends, ticket); /* the first one first */

/* That has no connection. */
static inline const struct ticket *
ticket_of_lease(const struct lease *lease)
{
    return container_of((uintptr_t)lease, struct ticket, lease);
}

/* Whether a request has one in it: refuses. */
int ticket_check(struct msg_u64s words, struct refusal *r);
/* Of conn's, for an array that it has. -ENOMEM; REFUSED: a limit, or there is one like it. */
int ticket_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
               const uint64_t *secret, enum ticket_kind kind, struct refusal *r);
/* One of an earlier core's, whose sender has gone if like->conn is NULL; *ret stays where it ended
 * with that. -ENOMEM. */
int ticket_restore(struct core *core, struct user *user, struct array *array, bool readonly,
                   const struct ticket *like, struct ticket **ret);
struct ticket *ticket_find(struct core *core, const uint64_t *secret);
/* The first one after that secret; n 0: of all. */
struct ticket *ticket_find_next(struct core *core, struct msg_str secret);
/* The first one of the user's with a higher number. */
struct ticket *ticket_of_user(struct user *user, uint64_t after);
/* Its sender has gone. */
void ticket_leave(struct core *core, struct ticket *ticket);
/* With its lease, the last of which may end the array. */
void ticket_free(struct core *core, struct ticket *ticket);
/* Ends some of those whose time is over. */
void tickets_run_out(struct core *core);
/* When the next one is, by CLOCK_BOOTTIME; UINT64_MAX: none is. */
uint64_t tickets_end_ns(const struct core *core);
/* Whether that one has run out, not long ago. */
bool ticket_ran_out(const struct core *core, const uint64_t *secret);
/* The core ends. */
void tickets_forget(struct core *core);
