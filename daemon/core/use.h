/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who uses an array: brackets that are open on it, those that wait for their turn, and the fences
 * that the next one has to wait for. A use lives while its array has brackets or fences; a fence
 * from the end of a bracket until it has passed, or its page is gone.
 */
#pragma once

#include "base/tree.h"
#include "doubt.h"
#include "timeline.h"
#include "user.h"

struct conn;

struct fence {
    RB_ENTRY(fence) of_use; /* use->reads, unless it is use->write */
    LIST_ENTRY(fence) of_page;
    struct use *use;
    struct page *page;
    struct charge charge; /* of FENCE_HOST bytes, once it is used */
    uint32_t slot;
    uint64_t value;
};

RB_HEAD(fences, fence);
RB_PROTOTYPE(fences, fence, of_use, )
TAILQ_HEAD(claims, claim);

struct use {
    struct array *array;
    struct claims waiting;   /* in the order of arrival */
    LIST_HEAD(, claim) open; /* many readers or one writer */
    uint32_t n_readers, n_writers, n_waiting;
    struct claim *first_writer; /* of those that wait; NULL: none is a writer */
    struct fence *write;        /* of the last bracket that wrote; NULL: it has passed */
    struct fences reads;        /* of those that have read since, by page and slot */
    uint32_t n_reads,
        n_swept;         /* and how many were left when passed ones were last looked for */
    uint64_t visited[2]; /* by searches: for what keeps a reader, and a writer */
    TAILQ_ENTRY(use) of_lingering; /* core->lingering, or ->landed */

    /* What an earlier core's connections do with it is not known: former.h. */
    enum doubt doubt; /* in that list of its block, or of its pool */
    bool kept;        /* it has no name, and is kept for them */
    bool was_written; /* by one who has come back: what was written before may be on its way */
    uint64_t writer;  /* number of one that had a bracket in which it was written; 0: none */
    LIST_ENTRY(use) of_doubts;
};

/* One array of a bracket. */
struct claim {
    struct bracket *bracket;
    struct use *use; /* NULL: given up, since the lease has ended */
    struct lease *lease;
    struct fence *fence; /* for its end; NULL once used */
    LIST_ENTRY(claim) of_lease;
    TAILQ_ENTRY(claim) of_waiting;
    LIST_ENTRY(claim) of_held;
    bool write;
    bool ready; /* waiting, but not on this array's account */
};

TAILQ_HEAD(use_list, use);

/* What is not known of it now: this, and what is less. */
enum doubt doubt_of(struct array *array);
/* It is in that list from now on. */
void use_doubt(struct use *use, enum doubt doubt);

/* -ENOMEM. */
int use_get(struct array *array, struct use **ret);
/* Frees it when nothing is known of the array any more. */
void use_settle(struct use *use);
enum fence_state fence_state(const struct fence *fence);
/* Of one that is not in use: that fence of a write by an earlier core's client; page NULL: none.
 * -ENOMEM. */
int use_restore_write(struct array *array, struct page *page, uint32_t slot, uint64_t value);
/* The claim of a bracket that was open before: it is held, unless others have it. */
bool use_resume(struct claim *claim);
/* Drops the write fence if it has passed. */
void use_sweep(struct use *use);
/* Of a dead array, where it is of no concern how a write has ended: nobody will read it. */
void use_sweep_dead(struct use *use);
bool use_has_fences(const struct use *use);
/* Whether its contents are not whole; notices a writer that is dead. */
bool use_is_abandoned(struct array *array);
/* They are not, from now on: readers that wait for a writer that has hung up are told. */
void use_abandon(struct use *use);
/* The claim waits for its turn, or it is that: then its bracket may be ready. */
void use_queue(struct claim *claim);
/* It is the claim's turn no more: its array was discarded while a writer that has hung up has
 * it. */
bool use_unready(struct claim *claim);
/* From waiting to held. */
void use_hold(struct claim *claim);
/* Takes the claim out; claim->use is NULL afterwards. */
void use_leave(struct claim *claim);
/* Who waits may be ready now. */
void use_scan(struct use *use);
/* Whether it waits for itself: for what its thread's brackets keep. */
bool use_is_deadlock(struct core *core, struct bracket *bracket);
/* An end: of a write, whose fence stands for all that were there (page NULL: none is left), or
 * of a read. */
void use_end(struct claim *claim, struct page *page, uint32_t slot, uint64_t value);
void fence_free(struct fence *fence);
/* Drops fences of conn's own pages that have passed, so many at most. Whether there may be more. */
bool fences_sweep(struct conn *conn, uint32_t max);
/* Whether brackets that are open keep one that reads, or writes, waiting. */
bool use_is_kept(const struct use *use, bool write);
