/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bracket: the use of some arrays by one connection, from the request to begin it, waiting and
 * then open, until it is ended, refused or cancelled; one that is open when its connection hangs
 * up, until the process exits.
 */
#pragma once

#include "refusal.h"
#include "use.h"

/* One of a client's threads, as far as its brackets go: it ends those that are open only when
 * those that it waits for itself have come. While it has any. */
struct thread {
    RB_ENTRY(thread) node; /* conn->threads, by id */
    uint64_t id;
    uint32_t n_brackets;
    LIST_HEAD(, bracket) waiting;
    uint64_t visited; /* by a search */
};

struct bracket {
    RB_ENTRY(bracket) node; /* conn->brackets, by id */
    uint64_t id;
    struct conn *conn;
    struct charge charge; /* with the fences that its claims have left */
    struct thread *thread;
    uint64_t arrival; /* its place in the order of all */
    uint32_t request; /* to be answered */
    bool waiting;     /* else open */
    bool had_to_wait;
    bool closed; /* waiting, and one of its leases has ended: it is to be refused */
    uint32_t n_unready;
    uint64_t since_ns;             /* that it has waited */
    uint64_t deadline_ns;          /* UINT64_MAX: none */
    RB_ENTRY(bracket) deadline;    /* core->deadlines, while it waits and has one */
    RB_ENTRY(bracket) of_conn;     /* conn->asking, by request, while it waits */
    LIST_ENTRY(bracket) of_thread; /* thread->waiting, while it waits */
    TAILQ_ENTRY(bracket) ready;    /* its user's, when it waits for nothing any more */
    struct bracket *next_found;    /* of a search for what a bracket would wait for */
    uint64_t visited;
    uint32_t n_claims;
    struct claim claims[];
};

RB_HEAD(brackets, bracket);
RB_HEAD(deadlines, bracket);
RB_HEAD(asking, bracket);
RB_HEAD(threads, thread);

RB_PROTOTYPE(brackets, bracket, node, )
RB_PROTOTYPE(deadlines, bracket, deadline, )
RB_PROTOTYPE(asking, bracket, of_conn, )
RB_PROTOTYPE(threads, thread, node, )

/* What each is charged of host memory. Claims and fences also count as one of RES_BRACKETS. */
#define FENCE_HOST   (sizeof(struct fence) + sizeof(struct use))
#define CLAIM_HOST   (sizeof(struct claim) + FENCE_HOST)
#define BRACKET_HOST (sizeof(struct bracket) + sizeof(struct thread))

struct bracket_request {
    uint64_t id, thread, timeout_ns;
    bool nowait, again;
    struct msg_u64s read, write; /* leases */
};

/* Answered at once or later, by fences_reply() or a refusal. -ENOMEM or REFUSED. */
int bracket_new(struct core *core, struct conn *conn, uint32_t request,
                const struct bracket_request *req, struct refusal *r);
/* One that was open before the core's restart: it is so again, with what of it is still there.
 * -ENOMEM or REFUSED. */
int bracket_resume(struct core *core, struct conn *conn, uint32_t request,
                   const struct bracket_request *req, struct refusal *r);
/* Such a one, as if that had not been. */
void bracket_unresume(struct core *core, struct bracket *bracket);
struct bracket *bracket_find(struct conn *conn, uint64_t id);
/* The one that waits, by the request that begins it. */
struct bracket *bracket_find_request(struct conn *conn, uint32_t request);
/* An open one ends; page NULL: no fence. */
void bracket_end(struct core *core, struct bracket *bracket, struct page *page, uint32_t slot,
                 uint64_t value, bool undone, bool abandon);
/* An array that it reads, or is to read, and that a dead writer has left; NULL: none. */
const struct array *bracket_find_abandoned(const struct bracket *bracket);
/* A waiting one is refused, and gone. */
void bracket_refuse(struct core *core, struct bracket *bracket, const struct refusal *r);
/* The lease ends: so does what it has of brackets. An array that was being written is abandoned. */
void bracket_drop_lease(struct core *core, struct lease *lease);
/* The connection has hung up: what an open one is writing is abandoned. */
void bracket_depart(struct core *core, struct bracket *bracket);
/* The process has exited. */
void bracket_exit(struct core *core, struct bracket *bracket);
/* Nobody waits for one that waits any more. */
void bracket_free(struct core *core, struct bracket *bracket);
/* Answers one that waits for nothing any more, unless it has to wait on after all. */
void bracket_turn(struct core *core, struct bracket *bracket);
/* Refuses those that have waited for too long. */
void bracket_tick(struct core *core);
uint64_t bracket_deadline_ns(const struct core *core);
