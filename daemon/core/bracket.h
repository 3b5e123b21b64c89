/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bracket: the use of some arrays by one connection. It lives from the request to begin it, first
 * waiting and then open, until it is ended, refused or cancelled. If its connection hangs up while
 * it is open, it lives until the process exits.
 */
#pragma once

#include "refusal.h"
#include "use.h"

/* A thread of a client, while it has brackets. It is needed to find deadlocks: a thread that waits
 * for one bracket does not end its others. */
struct thread {
    RB_ENTRY(thread) node; /* conn->threads, by id */
    uint64_t id;
    uint32_t n_brackets;
    LIST_HEAD(, bracket) waiting;
    uint64_t visited; /* the number of the last search that came here */
};

struct bracket {
    RB_ENTRY(bracket) node; /* conn->brackets, by id */
    uint64_t id;
    struct conn *conn;
    struct charge charge; /* with that of fences which its claims have not used */
    struct thread *thread;
    uint64_t arrival; /* its place in the order of arrival */
    uint32_t request; /* the request to answer */
    bool waiting;     /* else open */
    bool had_to_wait;
    bool closed;    /* it waits, and one of its leases has ended: it is to be refused */
    bool cancelled; /* it was open when its client gave the begin up: nothing is done in it */
    uint32_t n_unready;
    uint64_t since_ns;             /* when it began to wait */
    uint64_t deadline_ns;          /* UINT64_MAX: none */
    RB_ENTRY(bracket) deadline;    /* core->deadlines, while it waits and has one */
    RB_ENTRY(bracket) of_conn;     /* conn->asking while it waits, then conn->open */
    LIST_ENTRY(bracket) of_thread; /* thread->waiting, while it waits */
    TAILQ_ENTRY(bracket) ready;    /* user->ready, once it waits for nothing any more */
    struct bracket *next_found;    /* links what a deadlock search has found */
    uint64_t visited;
    uint32_t n_claims;
    struct claim claims[];
};

RB_HEAD(brackets, bracket);
RB_HEAD(deadlines, bracket);
RB_HEAD(by_request, bracket);
RB_HEAD(threads, thread);

RB_PROTOTYPE(brackets, bracket, node, )
RB_PROTOTYPE(deadlines, bracket, deadline, )
RB_PROTOTYPE(by_request, bracket, of_conn, )
RB_PROTOTYPE(threads, thread, node, )

/* Host memory that each is charged. A claim with its fence also counts as one of RES_BRACKETS, and
 * so does the fence when it is used. */
#define FENCE_HOST   (sizeof(struct fence) + sizeof(struct section) + sizeof(struct use))
#define CLAIM_HOST   (sizeof(struct claim) + FENCE_HOST)
#define BRACKET_HOST (sizeof(struct bracket) + sizeof(struct thread))

struct bracket_request {
    uint64_t id, thread, timeout_ns;
    bool nowait, again;
    struct msg_u64s read, write; /* leases */
    /* for each the range, as two numbers; all of them absent, or both 0: the whole array */
    struct msg_u64s read_ranges, write_ranges;
};

/* fences_reply() or a refusal answers it, now or later. -ENOMEM or REFUSED. */
int bracket_new(struct core *core, struct conn *conn, uint32_t request,
                const struct bracket_request *req, struct refusal *r);
/* Opens a bracket again that was open before the restart, with those arrays that are still there.
 * -ENOMEM or REFUSED. */
int bracket_resume(struct core *core, struct conn *conn, uint32_t request,
                   const struct bracket_request *req, struct refusal *r);
/* Undoes bracket_resume(). */
void bracket_unresume(struct core *core, struct bracket *bracket);
struct bracket *bracket_find(struct conn *conn, uint64_t id);
/* The client has given up the begin of this request. If it has been granted, the client, which may
 * not have heard of that yet, is going to end it as undone: so its arrays are not abandoned. */
void bracket_cancel(struct core *core, struct conn *conn, uint32_t request);
/* Ends an open bracket; page NULL: no fence. */
void bracket_end(struct core *core, struct bracket *bracket, struct page *page, uint32_t slot,
                 uint64_t value, bool undone, bool abandon);
/* An array that the bracket reads, or waits to read, and that is abandoned; NULL: none. */
const struct array *bracket_find_abandoned(const struct bracket *bracket);
/* Refuses a waiting bracket, and frees it. */
void bracket_refuse(struct core *core, struct bracket *bracket, const struct refusal *r);
/* The lease ends, and all claims on it. An array that was being written is abandoned. */
void bracket_drop_lease(struct core *core, struct lease *lease);
/* The connection has hung up: arrays that the bracket is writing are abandoned. */
void bracket_depart(struct core *core, struct bracket *bracket);
/* The process has exited: ends the bracket. */
void bracket_exit(struct core *core, struct bracket *bracket);
/* Frees a bracket, waiting or open, without an answer or a fence. */
void bracket_free(struct core *core, struct bracket *bracket);
/* Answers a bracket that waits for nothing any more, unless it has to wait after all. */
void bracket_turn(struct core *core, struct bracket *bracket);
/* Refuses brackets that have waited too long. */
void bracket_tick(struct core *core);
uint64_t bracket_deadline_ns(const struct core *core);
