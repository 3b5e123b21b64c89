/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core's objects that say who uses an array when: pages of timelines, fences, brackets. The part
 * of state.h that is about these, included from there alone; their lifetimes are there.
 */
#pragma once

#include "base/tree.h"
#include "msg.h"
#include "timeline.h"

struct array;
struct conn;
struct core;
struct lease;
struct lingering;
struct pool;
struct refusal;
struct waiter;

/* ---- pages of timelines (page.c, timeline.c) ---- */

struct page {
    RB_ENTRY(page) node; /* core->pages */
    uint64_t id;
    struct conn *conn; /* its owner, who may have departed; charged for it */
    LIST_ENTRY(page) of_conn;
    uint32_t request; /* to be answered when it has been made */
    bool made, sealed;
    bool closing; /* given up; in core->closing_pages until it is killed */
    bool killed;  /* every value had landed: it goes with its last holder */
    TAILQ_ENTRY(page) of_closing;
    int write, read;
    uint64_t size;
    struct timeline_slot *slots;
    uint64_t last[TIMELINE_SLOTS]; /* the highest value that a fence was made of */
    struct timeline *timeline;     /* that its first slot is, or NULL */
    LIST_HEAD(, page_hold) holds;
    uint64_t n_holds;
    LIST_HEAD(, fence) fences;
    struct entry saved; /* CORE_PAGE_NEW, then _SEAL */
    struct entry kill;  /* CORE_PAGE_KILL */
    struct entry *gone; /* CORE_PAGE_FREE */
};

/* What another connection has of a page. */
struct page_hold {
    RB_ENTRY(page_hold) node; /* conn->page_holds, by page id */
    LIST_ENTRY(page_hold) of_page;
    struct conn *conn; /* charged for it */
    struct page *page;
};

struct timeline {            /* a page that has a name */
    RB_ENTRY(timeline) node; /* core->timelines, by pool and name */
    struct pool *pool;
    struct page *page;
    uint8_t n_name;
    char name[]; /* not terminated */
};

/* ---- who uses an array (access.c, bracket.c) ---- */

struct fence {
    LIST_ENTRY(fence) of_access; /* access->reads, unless it is access->write */
    LIST_ENTRY(fence) of_page;
    struct access *access;
    struct page *page; /* whose owner is charged for it: FENCE_HOST bytes */
    uint32_t slot;
    uint64_t value;
};

TAILQ_HEAD(claims, claim);

struct access {
    struct array *array;
    struct claims waiting;   /* in the order of arrival */
    LIST_HEAD(, claim) held; /* many readers or one writer */
    uint32_t n_readers, n_writers, n_waiting;
    struct claim *first_writer; /* of those that wait; NULL: none is a writer */
    struct fence *write;        /* of the last bracket that wrote; NULL: it has passed */
    LIST_HEAD(, fence) reads;   /* of those that have read since */
    uint32_t n_reads,
        n_swept;         /* and how many were left when passed ones were last looked for */
    uint64_t visited[2]; /* by searches: for what keeps a reader, and a writer */
    TAILQ_ENTRY(access) of_lingering; /* core->lingering, or ->landed */
};

/* One array of a bracket. */
struct claim {
    struct bracket *bracket;
    struct access *access; /* NULL: given up, since the lease has ended */
    struct lease *lease;
    struct fence *fence; /* for its end; NULL once used */
    LIST_ENTRY(claim) of_lease;
    TAILQ_ENTRY(claim) of_waiting;
    LIST_ENTRY(claim) of_held;
    bool write;
    bool ready; /* waiting, but not on this array's account */
};

/* One of a client's threads, as far as its brackets go: it ends those that are open only when those that it
 * waits for itself have come. While it has any. */
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
    struct thread *thread;
    uint64_t arrival; /* its place in the order of all */
    uint32_t request; /* to be answered */
    bool waiting;     /* else open */
    bool had_to_wait;
    uint32_t n_unready;
    uint64_t since_ns;             /* that it has waited */
    uint64_t deadline_ns;          /* UINT64_MAX: none */
    RB_ENTRY(bracket) deadline;    /* core->deadlines, while it waits and has one */
    RB_ENTRY(bracket) of_conn;     /* conn->asking, by request, while it waits */
    LIST_ENTRY(bracket) of_thread; /* thread->waiting, while it waits */
    TAILQ_ENTRY(bracket) ready;    /* core->ready, when it waits for nothing any more */
    struct bracket *next_found;    /* of a search for what a bracket would wait for */
    uint64_t visited;
    uint32_t n_claims;
    struct claim claims[];
};

RB_HEAD(page_holds, page_hold);
RB_HEAD(brackets, bracket);
RB_HEAD(pages, page);
RB_HEAD(timelines, timeline);
RB_HEAD(deadlines, bracket);
RB_HEAD(asking, bracket);
RB_HEAD(threads, thread);
TAILQ_HEAD(bracket_list, bracket);
TAILQ_HEAD(access_list, access);
TAILQ_HEAD(page_list, page);

RB_PROTOTYPE(pages, page, node, )
RB_PROTOTYPE(page_holds, page_hold, node, )
RB_PROTOTYPE(timelines, timeline, node, )
RB_PROTOTYPE(brackets, bracket, node, )
RB_PROTOTYPE(deadlines, bracket, deadline, )
RB_PROTOTYPE(asking, bracket, of_conn, )
RB_PROTOTYPE(threads, thread, node, )

/* page.c */
/* Asks for a page of conn's own: answers later. -ENOMEM or REFUSED. */
int page_new(struct core *core, struct conn *conn, uint32_t request, struct refusal *r);
struct page *page_find(struct core *core, uint64_t id);
/* One of conn's own that has been made, or NULL. */
struct page *page_find_own(struct core *core, struct conn *conn, uint64_t id);
/* Nobody else can map it for writing from now on. */
void page_seal(struct core *core, struct page *page);
/* conn has the page, or is about to be sent it. -ENOMEM or REFUSED. */
int page_hold_get(struct core *core, struct conn *conn, struct page *page,
                  struct page_hold **ret, bool *ret_new, struct refusal *r);
struct page_hold *page_hold_find(struct conn *conn, uint64_t page);
void page_hold_free(struct core *core, struct page_hold *hold);
/* Its owner gives it up: its name goes at once, it goes itself when every value has landed, and nobody
 * else holds it. */
void page_drop(struct core *core, struct page *page);
/* One that is given up: if every value has landed, whoever waits for it is let go. */
bool page_end(struct core *core, struct page *page);
/* Its owner's process has exited: arrays that it was writing are abandoned, and everyone who waits for
 * it is let go. */
void page_free(struct core *core, struct page *page);

/* linger.c */
/* Something waits for values to land: it is looked at after a while, and again. */
void linger_later(struct core *core);
/* A dead array: whether fences keep it. Then it lingers, and is settled when they have passed. */
bool linger_array(struct core *core, struct array *array);
/* The last fence of one that lingers is gone. */
void linger_end(struct core *core, struct access *access);
/* They are not settled: the core ends. */
void linger_forget(struct core *core);
/* A create that would be refused for want of memory, or of its pool's quota: true when arrays that have
 * such linger, and it has not waited for too long. It tries again when some do no more. */
bool linger_wait(struct core *core, struct waiter *waiter, const struct lingering *lingering);
/* At the end of each event: looks, if it is time. */
void linger_run(struct core *core);

/* timeline.c */
/* -ENOMEM or REFUSED. */
int timeline_new(struct core *core, struct conn *conn, struct pool *pool, struct msg_str name,
                 struct page *page, struct refusal *r);
void timeline_free(struct core *core, struct timeline *timeline);
struct timeline *timeline_find(struct core *core, struct pool *pool, struct msg_str name);
/* The first one > after of the pool, or NULL. */
struct timeline *timeline_find_next(struct core *core, struct pool *pool, struct msg_str after);

/* access.c */
/* -ENOMEM. */
int access_get(struct array *array, struct access **ret);
/* Frees it when nothing is known of the array any more. */
void access_settle(struct access *access);
/* Drops the write fence if it has passed, and those of the reads that have, or whose owner is dead. */
void access_sweep(struct access *access, bool reads);
/* Of a dead array, where it is of no concern how a write has ended: nobody will read it. */
void access_sweep_dead(struct access *access);
bool access_has_fences(const struct access *access);
/* Whether its contents are not whole; notices a writer that is dead. */
bool access_is_abandoned(struct core *core, struct array *array);
/* They are not, from now on: readers that wait for a writer that has hung up are told. */
void access_abandon(struct core *core, struct access *access);
/* The claim waits for its turn, or it is that. */
void access_queue(struct core *core, struct claim *claim);
/* It is the claim's turn no more: its array was discarded while a writer that has hung up has it. */
bool access_unready(struct claim *claim);
/* From waiting to held. */
void access_hold(struct core *core, struct claim *claim);
/* Takes the claim out; claim->access is NULL afterwards. */
void access_leave(struct core *core, struct claim *claim);
/* Who waits may be ready now. */
void access_scan(struct core *core, struct access *access);
/* Whether it waits for itself: for what its thread's brackets keep. */
bool access_is_deadlock(struct core *core, struct bracket *bracket);
/* An end: of a write, whose fence stands for all that were there (page NULL: none is left), or of a read. */
void access_end(struct claim *claim, struct page *page, uint32_t slot, uint64_t value);
void fence_free(struct fence *fence);
/* Drops fences of conn's own pages that have passed. */
void fences_sweep(struct core *core, struct conn *conn);
/* For core_check(). */
bool access_is_right(const struct access *access);

/* bracket.c */
/* What each is charged of host memory. Claims and fences also count as one of RES_BRACKETS. */
#define FENCE_HOST   (sizeof(struct fence) + sizeof(struct access))
#define CLAIM_HOST   (sizeof(struct claim) + FENCE_HOST)
#define BRACKET_HOST (sizeof(struct bracket) + sizeof(struct thread))

struct bracket_request {
    uint64_t id, thread, timeout_ns;
    bool nowait;
    struct msg_u64s read, write; /* leases */
};

/* Answered at once or later, by reply_begun() or a refusal. -ENOMEM or REFUSED. */
int bracket_new(struct core *core, struct conn *conn, uint32_t request,
                const struct bracket_request *req, struct refusal *r);
struct bracket *bracket_find(struct conn *conn, uint64_t id);
/* The one that waits, by the request that begins it. */
struct bracket *bracket_find_request(struct conn *conn, uint32_t request);
/* An open one ends; page NULL: no fence. */
void bracket_end(struct core *core, struct bracket *bracket, struct page *page, uint32_t slot,
                 uint64_t value, bool undone, bool abandon);
/* It waits for nothing any more. */
void bracket_ready(struct core *core, struct bracket *bracket);
/* An array that it reads, or is to read, and that a dead writer has left; NULL: none. */
const struct array *bracket_find_abandoned(struct core *core, const struct bracket *bracket);
/* What messages call an array. */
const char *array_label(const struct array *array);
/* A waiting one is refused, and gone. */
void bracket_refuse(struct core *core, struct bracket *bracket, const struct refusal *r);
/* The lease ends: so does what it has of brackets. An array that was being written is abandoned. */
void bracket_drop_lease(struct core *core, struct lease *lease);
/* Nobody waits for those that wait any more. */
void brackets_orphan(struct core *core, struct conn *conn);
/* The connection has hung up: what is being written is abandoned. */
void brackets_depart(struct core *core, struct conn *conn);
/* The process has exited. */
void brackets_free(struct core *core, struct conn *conn);
/* At the end of each event: answers brackets that wait for nothing any more. */
void bracket_run(struct core *core);
/* Refuses those that have waited for too long. */
void bracket_tick(struct core *core);
uint64_t bracket_deadline_ns(const struct core *core);
