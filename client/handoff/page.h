/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of timelines (timeline.h) as this process has them: its own, mapped for writing, and those
 * of other clients, for reading. A page is mapped when it arrives, and its fd closed then; it is
 * registered with the driver when a stream is to use it for the first time, once, for every context
 * (PORTABLE), other clients' as READ_ONLY. Mappings are not there in a child after fork().
 *
 * The hold. The daemon sends a page with the first reply that refers to it, and then counts on this
 * client having it, until the client says `drop_pages`. What is sent afterwards brings it again;
 * what was on its way may still refer to it. So a page that is dropped stays in the table until a
 * request that was made after the drop has been answered, or none is in flight whose reply could
 * refer to pages.
 *
 * Life. An own page is either one of the streams' slots (lane.h), which it is until the client
 * closes, or a named timeline's, until that is closed and all its signals have come. Other clients'
 * pages go when nobody here needs them and they are dead, or were a timeline's that is closed. They
 * go on the client's thread (reaper.h).
 *
 * What is registered stays so, and mapped, until the process exits: cuMemHostUnregister() waits for
 * every stream of the process that waits for something, of other libraries, too, which may be for
 * ever. That is 4 KiB of page-locked memory for each page that a stream here has signalled in or
 * waited on. What was never registered is unmapped.
 *
 * The table is under the client's lock, which nobody needs who has a reference to the page: `refs`,
 * the table's and those of every fence (fence.h), of timelines and of what a stream is to call back
 * for. Only taking a reply makes the first one that is not the table's; the last one unmaps. The
 * registration is under page->lock, the last in the order of locks, held over driver calls.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "base/clock.h"
#include "base/tree.h"
#include "drv.h"
#include "msg.h"
#include "session/call.h"
#include "session/spin.h"
#include "timeline.h"

struct caid_client;
struct lane;

enum page_drop {
    PAGE_KEPT,
    PAGE_TO_DROP, /* the daemon is to be told */
    PAGE_DROPPED, /* it has been, after the request number drop_seq */
};

/* What a client knows of a slot, of its own pages or of others'. */
struct page_slot {
    struct spin spin; /* for what is to be submitted */
    /* The highest `done` that was seen, and whether it was seen dead: what has passed has
     * passed. */
    _Atomic uint64_t seen;
    atomic_bool dead;

    /* Hand-off by events: the slot's, made here or opened from event_handle; NULL with no_event: it
     * cannot be. Under page->lock. */
    CUevent event;
    _Atomic(CUcontext) event_context; /* that it is of; read without the lock, too */
    uint8_t event_handle[TIMELINE_EVENT_SIZE];
    bool no_event;

    /* In own pages: who has the slot, under lanes.lock; the context of the last signal. */
    struct lane *lane;
    _Atomic(CUcontext) context;
};

struct page {
    RB_ENTRY(page) entry;
    LIST_ENTRY(page) of_table;

    /* Fixed. */
    uint64_t id;
    bool own;
    struct timeline_slot *slots; /* TIMELINE_PAGE_BYTES that are mapped */

    atomic_uint refs;

    /* Under the client's lock. */
    enum page_drop drop;
    uint64_t drop_seq;
    uint32_t n_timelines; /* open ones that it is of */
    bool unwanted;        /* the last of those is closed: it goes though it lives */

    /* Under lock. */
    pthread_mutex_t lock;
    bool registered;
    uint32_t place;          /* in whose primary context */
    _Atomic CUdeviceptr ptr; /* of the slots; 0: not known yet. Set once */

    LIST_ENTRY(page) of_lanes; /* own: lanes.pages, for the streams' slots; under lanes.lock */

    struct page_slot of_slot[TIMELINE_SLOTS];
};

RB_HEAD(page_tree, page);

struct page_table { /* under the client's lock */
    struct page_tree tree;
    LIST_HEAD(, page) all;
    size_t n_to_drop; /* PAGE_TO_DROP */
    uint64_t due;     /* when tidying has something to do */
    bool tidying;
    atomic_bool ticking; /* it is looked at again and again: page_watch() */
};

extern const struct feature page_feature;

void page_table_init(struct page_table *table);

/* ---- taking replies: under the client's lock, in call->take ---- */

/* The pages that came with a reply: each one is checked (a memfd of its size, sealed against
 * shrinking; an fd of its own) and mapped. -EPROTO, also for fds that are no page's. -ENOMEM:
 * the connection has been ended, since the daemon counts on them. */
int pages_take(struct caid_client *client, const struct msg_page *pages, uint32_t n,
               struct call_fds *fds, bool own);
struct page *page_find(struct caid_client *client, uint64_t id);

/* For the take of page_ask(): this is the page. Where the call was left, it is closed at once; one
 * of another client's has been opened before. */
void page_give(struct caid_client *client, struct call *call, struct page *page);

/* ---- any time ---- */

struct page *page_ref(struct page *page);
/* No driver calls, and no locks: also for threads of the driver's. */
void page_unref(struct page *page);

/* Makes a call that gets a page, with a reference. */
int page_ask(struct caid_client *client, struct page **ret, enum msg_method method,
             const void *params,
             int (*take)(struct caid_client *client, struct call *call, const void *result,
                         struct call_fds *fds),
             struct caid_error *error);
/* Asks the daemon for a page of the client's own, and maps it. With one reference. */
int page_new(struct caid_client *client, struct page **ret, struct caid_error *error);

/* The address of a slot for the streams of a place: registered now, where it was not yet. */
int page_address(struct caid_client *client, struct page *page, uint32_t slot, uint32_t place,
                 CUdeviceptr *ret, struct caid_error *error);

/* A timeline that is the page's is opened, with a reference to it, or closed: then the page may
 * go, and the reference is taken, and the daemon told if it is one's own. Under the client's
 * lock. */
void page_open(struct caid_client *client, struct page *page);
void page_close(struct caid_client *client, struct page *page);

/* Whether all values of an own slot that were submitted have come, or none will any more. */
static inline bool
page_slot_has_landed(const struct page *page, uint32_t slot)
{
    const struct timeline_slot *s = &page->slots[slot];
    return timeline_is_dead(s) ||
           atomic_load_explicit(&s->done, memory_order_acquire) >= timeline_submitted(s);
}

/* Stores a value of an own slot, `done` or `submitted`, unless the slot has been killed
 * meanwhile. */
static inline void
slot_raise(_Atomic uint64_t *word, uint64_t value)
{
    uint64_t was = atomic_load_explicit(word, memory_order_relaxed);

    while (was < value &&
           !atomic_compare_exchange_weak_explicit(word, &was, value, memory_order_release,
                                                  memory_order_relaxed))
        ;
}

/* Own slots: everyone who waits for values that have not come is let go. */
void slot_kill(struct timeline_slot *slot);
/* A value has been submitted: the client's thread looks whether what is to signal it lives. Not
 * under the client's lock. */
void page_watch(struct caid_client *client);
/* When the client's thread has something to do for pages: a time, 0 for now, UINT64_MAX for
 * never. Under lock. */
uint64_t page_due(const struct caid_client *client);
/* How often others' pages are looked at for whether they are dead, and one's own for whether
 * what is to signal them is: nobody tells. */
#define PAGE_TICK_NS (500 * NSEC_PER_MSEC)

/* The client's thread has something to do at a time, at the latest. Under lock. */
static inline void
page_look_by(struct page_table *table, uint64_t time)
{
    if (time < table->due)
        table->due = time;
}

/* The client closes: its own pages are given up, so that whoever waits for them is let go when
 * what is on its way has come. Under lock; sends. */
void pages_close(struct caid_client *client);
