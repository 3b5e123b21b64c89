/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of timelines (proto/timeline.h), what connections other than their owners have of them: an
 * fd that they were sent once and may keep mapped, as blocks (I3); and timelines, which are pages
 * under a name of a pool.
 *
 * A page lives from the request until its owner gives it up, every value has landed and nobody else
 * holds it, or the owner's process has exited. Whoever waits for a page is let go when no value can
 * reach it any more. That is so when its owner has given it up and every value that was submitted
 * has landed, or when the owner's process has exited. A hang-up alone does not do: the GPU may be
 * about to store a value that nobody has been told of (I7). Landed or not is the owner's word, who
 * may write there as long as he lives: so a page that he gave up stays while others hold it, and
 * they are let go once more when he has exited.
 *
 * The names of timelines are apart from those of arrays. One ends with its page, or at its
 * creator's hang-up: who has it open keeps the page, in which all who wait are let go when the
 * creator's process has exited.
 */
#pragma once

#include "actions.h"
#include "base/tree.h"
#include "block.h"
#include "refusal.h"
#include "timeline.h"

struct page {
    RB_ENTRY(page) node; /* core->pages */
    uint64_t id;
    struct conn *conn; /* its owner, who may have departed */
    struct charge charge;
    LIST_ENTRY(page) of_conn;
    uint32_t request; /* to be answered when it has been made */
    bool made, sealed;
    bool closing; /* given up; in core->closing_pages until it is killed */
    bool killed;  /* every value had landed: it goes with its last holder */
    TAILQ_ENTRY(page) of_closing;
    int write, read;
    uint32_t kept; /* core_page_result */
    uint64_t size;
    struct timeline_slot *slots;
    uint64_t last[TIMELINE_SLOTS]; /* the highest value that a fence was made of */
    uint64_t *before; /* of an earlier core's: what was submitted then, or made a fence by its
                       * owner's return; NULL: all of it has landed, or it is none */
    bool resumed;     /* its owner has told of it: former.h */
    struct timeline *timeline; /* that its first slot is, or NULL */
    struct hold_list holds;    /* of others */
    uint64_t n_holds;
    LIST_HEAD(, fence) fences;
    struct entry saved; /* CORE_PAGE_NEW, then _SEAL */
    struct entry kill;  /* CORE_PAGE_KILL */
    struct entry *gone; /* CORE_PAGE_FREE */
};

struct timeline {            /* a page that has a name */
    RB_ENTRY(timeline) node; /* core->timelines, by pool and name */
    struct pool *pool;
    struct page *page;
    LIST_ENTRY(timeline) of_conn;
    struct charge charge; /* to its owner */
    uint8_t n_name;
    char name[]; /* not terminated */
};

/* What they are charged. */
#define PAGE_HOST \
    (sizeof(struct page) + TIMELINE_PAGE_BYTES + RECORD_HOST(sizeof(struct record_page)))
#define TIMELINE_HOST(n_name) (sizeof(struct timeline) + (n_name) + TEXT_HOST(n_name))

RB_HEAD(pages, page);
RB_HEAD(timelines, timeline);
TAILQ_HEAD(page_list, page);

RB_PROTOTYPE(pages, page, node, )
RB_PROTOTYPE(timelines, timeline, node, )

struct core_page_result;

/* One of an earlier core's, as core_page_done() would have it. -ENOMEM. */
int page_restore(struct core *core, struct conn *conn, uint64_t id,
                 const struct core_page_result *from);
/* Asks for a page of conn's own: answers later. -ENOMEM or REFUSED. */
int page_new(struct core *core, struct conn *conn, uint32_t request, struct refusal *r);
struct page *page_find(struct core *core, uint64_t id);
/* One of conn's own that has been made, or NULL. */
struct page *page_find_own(struct core *core, struct conn *conn, uint64_t id);
/* Nobody else can map it for writing from now on. */
void page_seal(struct core *core, struct page *page);
struct msg_page page_record(const struct page *page, uint64_t fd);
/* conn has the page, or is about to be sent it. -ENOMEM or REFUSED. */
int page_hold(struct conn *conn, struct page *page, struct hold **ret, bool *ret_new,
              struct refusal *r);
void page_unhold(struct core *core, struct hold *hold);
/* Its owner gives it up: its name goes at once, it goes itself when every value has landed, and
 * nobody else holds it. */
void page_drop(struct core *core, struct page *page);
/* Looks at some that are given up: where every value has landed, whoever waits is let go.
 * Whether it has left some out. */
bool pages_look(struct core *core);
/* One of its fences, or of what others have of it, goes, as in page_free(). false: none is left. */
bool page_drop_one(struct core *core, struct page *page);
/* Its owner's process has exited: arrays that it was writing are abandoned, and everyone who
 * waits for it is let go. */
void page_free(struct core *core, struct page *page);

/* A page gets a name. -ENOMEM or REFUSED. */
int timeline_new(struct core *core, struct conn *conn, struct pool *pool, struct msg_str name,
                 struct page *page, struct refusal *r);
void timeline_free(struct core *core, struct timeline *timeline);
struct timeline *timeline_find(struct core *core, struct pool *pool, struct msg_str name);
/* The first one > after of the pool, or NULL. */
struct timeline *timeline_find_next(const struct core *core, struct pool *pool,
                                    struct msg_str after);
