/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The use of an array: open brackets, brackets that wait, and fences that the next bracket has to
 * wait for. A use lives while its array has brackets or fences. A fence lives from the end of a
 * bracket until it has passed or its page is gone.
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
    struct charge charge; /* FENCE_HOST bytes, once the bracket has ended */
    uint32_t slot;
    uint64_t value;
};

RB_HEAD(fences, fence);
RB_PROTOTYPE(fences, fence, of_use, )
TAILQ_HEAD(claims, claim);

struct use {
    struct array *array;
    struct claims waiting;   /* in the order of arrival */
    LIST_HEAD(, claim) open; /* with their turn: many readers or one writer */
    uint32_t n_readers, n_writers, n_waiting;
    struct claim *first_writer;    /* in `waiting`; NULL: no writer waits */
    struct fence *write;           /* of the last write; NULL: it has passed */
    struct fences reads;           /* of the reads since, by page and slot */
    uint32_t n_reads, n_swept;     /* and how many were left by the last sweep */
    uint64_t visited[2];           /* the last search for what keeps a reader, and a writer */
    TAILQ_ENTRY(use) of_lingering; /* core->lingering, or ->landed */

    /* What clients of an earlier core do with the array is not known: former.h. */
    enum doubt doubt; /* in that list of its block or pool */
    bool kept;        /* it has no name, and is kept for former connections */
    /* a client that has resumed was writing it: its signals may be on the way */
    bool was_written;
    uint64_t writer; /* the former connection that was writing it; 0: none */
    LIST_ENTRY(use) of_doubts;
};

/* A bracket's claim on one array. */
struct claim {
    struct bracket *bracket;
    struct use *use; /* NULL: the lease has ended, and the claim with it */
    struct lease *lease;
    struct fence *fence; /* for the bracket's end; NULL: used */
    LIST_ENTRY(claim) of_lease;
    TAILQ_ENTRY(claim) of_waiting;
    LIST_ENTRY(claim) of_held;
    bool write;
    bool ready; /* it waits for other arrays of the bracket only */
};

TAILQ_HEAD(use_list, use);

/* What is not known of the array at present: this doubt, and all lesser ones. */
enum doubt doubt_of(struct array *array);
/* Puts the use into the list of that doubt. */
void use_doubt(struct use *use, enum doubt doubt);

/* The array's use, or a new one. -ENOMEM. */
int use_get(struct array *array, struct use **ret);
/* Frees the use if nothing is left in it. */
void use_settle(struct use *use);
enum fence_state fence_state(const struct fence *fence);
/* Sets the fence of a write by an earlier core's client, of an array that is not in use; page NULL:
 * none. -ENOMEM. */
int use_restore_write(struct array *array, struct page *page, uint32_t slot, uint64_t value);
/* Opens the claim of a bracket that was open before the restart, unless others have the array. */
bool use_resume(struct claim *claim);
/* Drops the fence of the last write if it has passed. */
void use_sweep(struct use *use);
/* The array is dead: how its writes have ended does not matter, since nobody will read it. */
void use_sweep_dead(struct use *use);
bool use_has_fences(const struct use *use);
/* Whether the contents are not whole. Notices that a writer has died. */
bool use_is_abandoned(struct array *array);
/* The contents are not whole from now on. Readers that wait for a writer which has hung up are
 * told. */
void use_abandon(struct use *use);
/* The claim waits for its turn. If it has that now, its bracket may be ready. */
void use_queue(struct claim *claim);
/* The claim waits on if it has lost its turn meanwhile: see wait_on() in bracket.c. */
void use_unready(struct claim *claim);
/* The claim is open from now on. */
void use_hold(struct claim *claim);
/* Takes the claim out; claim->use is NULL afterwards. */
void use_leave(struct claim *claim);
/* Lets those in whose turn it is now. */
void use_scan(struct use *use);
/* Whether the waiting bracket waits for its own thread. */
bool use_is_deadlock(struct core *core, struct bracket *bracket);
/* A bracket has ended. After a write, its fence replaces all others (page NULL: none is left). */
void use_end(struct claim *claim, struct page *page, uint32_t slot, uint64_t value);
void fence_free(struct fence *fence);
/* Drops passed fences in conn's own pages, up to `max`. Returns whether there may be more. */
bool fences_sweep(struct conn *conn, uint32_t max);
/* Whether open brackets keep a reader, or a writer, waiting. */
bool use_is_kept(const struct use *use, bool write);
