/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of timelines (proto/timeline.h); holds on them, that is what other connections have of a
 * page, an fd that they were sent once and may keep mapped, as of blocks (I3); and timelines, which
 * are pages under a name of a pool.
 *
 * A page lives from the request until its owner has given it up, every value has landed and nobody
 * else has a hold; or until the owner's process has exited. Whoever waits for a value is let go
 * when no value can come any more: when the owner has given the page up and all that it submitted
 * has landed, or when the owner's process has exited. A hang-up is not enough, since the GPU may be
 * about to store a value that nobody has been told of (I7). Whether all has landed is the owner's
 * word, who can write there as long as he lives. So a page that was given up stays while others
 * hold it, and they are let go once more when the owner has exited.
 *
 * Timelines and arrays do not share their names. A timeline ends with its page, or when its creator
 * hangs up. Clients that have it open keep the page, and are let go when the creator's process has
 * exited.
 */
#pragma once

#include "actions.h"
#include "base/tree.h"
#include "block.h"
#include "channel.h"
#include "refusal.h"
#include "timeline.h"

struct participant;

struct page {
    RB_ENTRY(page) node; /* core->pages */
    uint64_t id;
    struct conn *conn; /* its owner, which may have departed */
    struct charge charge;
    LIST_ENTRY(page) of_conn; /* conn->pages, or conn->making while it is not made */
    uint32_t request;         /* the request to answer when the page has been made */
    bool made, sealed;
    bool closing; /* its owner has given it up; in core->closing_pages until it is killed */
    bool killed;  /* every value had landed: it is freed with the last hold */
    TAILQ_ENTRY(page) of_closing;
    int write, read;
    uint32_t kept; /* as in core_page_result */
    uint64_t size; /* bytes, with those behind the slots */
    struct timeline_slot *slots;
    uint64_t last[TIMELINE_SLOTS]; /* the highest value in a fence, by slot */
    /* of an earlier core: values submitted before the restart, or made a fence while its owner
     * resumed; NULL: all have landed */
    uint64_t *before;
    bool restored;             /* of an earlier core: the keeper kills it, a little later */
    bool resumed;              /* its owner has said, when resuming, that it has this */
    struct timeline *timeline; /* the timeline of its first slot, or NULL */
    struct participant *participant; /* that takes part in a channel by it, or NULL */
    struct hold_list holds;          /* of other connections */
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
    struct charge charge; /* of its owner */
    uint8_t n_name;
    char name[]; /* not terminated */
};

/* What a page and a timeline are charged. */
#define PAGE_HOST(tail)                                   \
    (sizeof(struct page) + TIMELINE_PAGE_BYTES + (tail) + \
     RECORD_HOST(sizeof(struct record_page)))
#define TIMELINE_HOST(n_name) (sizeof(struct timeline) + (n_name) + TEXT_HOST(n_name))

RB_HEAD(pages, page);
RB_HEAD(timelines, timeline);
TAILQ_HEAD(page_list, page);

RB_PROTOTYPE(pages, page, node, )
RB_PROTOTYPE(timelines, timeline, node, )

struct core_page_result;

/* Where something is lost that its streams were to store before a restart, so is what its owner was
 * writing with others (former_bit()). goes: what they have not stored is lost, too. */
void page_note_loss(const struct page *page, bool goes);
/* A page of an earlier core, as core_page_done() would leave it. -ENOMEM. */
int page_restore(struct core *core, struct conn *conn, uint64_t id,
                 const struct core_page_result *from);
/* Makes a page for conn, with so many bytes behind the slots, which is answered later. -ENOMEM or
 * REFUSED. */
int page_new(struct core *core, struct conn *conn, uint32_t request, uint64_t tail,
             struct refusal *r);
struct page *page_find(struct core *core, uint64_t id);
/* conn's own page with that number, made and not given up; or NULL. */
struct page *page_find_own(struct core *core, struct conn *conn, uint64_t id);
/* The same, or a refusal. */
int page_get_own(struct core *core, struct conn *conn, uint64_t id, struct page **ret,
                 struct refusal *r);
/* Nobody but its owner can map it for writing from now on. */
void page_seal(struct core *core, struct page *page);
struct msg_page page_record(const struct page *page, uint64_t fd);
/* conn's hold on the page; a new one if it is about to be sent it. -ENOMEM or REFUSED. */
int page_hold(struct conn *conn, struct page *page, struct hold **ret, bool *ret_new,
              struct refusal *r);
void page_unhold(struct core *core, struct hold *hold);

struct sent_pages { /* those that a reply brings */
    struct msg_page records[CHANNEL_READERS_MAX];
    int fds[CHANNEL_READERS_MAX];
    uint32_t n;
};

/* The reply to conn brings the page, too, unless conn has it. -ENOMEM or REFUSED. */
int page_send(struct conn *conn, struct page *page, struct sent_pages *to, struct refusal *r);
/* The reply is not sent. */
void pages_unsend(struct core *core, struct conn *conn, const struct sent_pages *pages);
/* Its owner gives the page up. Its name goes at once, the page when every value has landed and
 * nobody has a hold. */
void page_drop(struct core *core, struct page *page);
/* Looks at some pages that were given up, and lets all go who wait where every value has landed.
 * Returns whether some are left. */
bool pages_look(struct core *core);
/* Drops one of its fences, or of the holds on it, as page_free() would. false: none is left. */
bool page_drop_one(struct core *core, struct page *page);
/* The owner's process has exited: arrays that it was writing are abandoned, and all are let go who
 * wait for the page. */
void page_free(struct core *core, struct page *page);

/* Gives the page a name. -ENOMEM or REFUSED. */
int timeline_new(struct core *core, struct conn *conn, struct pool *pool, struct msg_str name,
                 struct page *page, struct refusal *r);
void timeline_free(struct core *core, struct timeline *timeline);
struct timeline *timeline_find(struct core *core, struct pool *pool, struct msg_str name);
/* The pool's first timeline > after, or NULL. */
struct timeline *timeline_find_next(const struct core *core, struct pool *pool,
                                    struct msg_str after);
