/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of timelines (timeline.h) in this process: its own, mapped for writing, and those of other
 * clients, mapped for reading. A page is mapped when it arrives, and its fd is closed then. It is
 * registered with the driver when a stream uses it for the first time, once for all contexts
 * (PORTABLE), other clients' pages as READ_ONLY. A child after fork() does not have the mappings.
 *
 * The hold. The daemon sends a page with the first reply that refers to it, and then relies on this
 * client having it, until the client says `drop_pages`. A later reply brings the page again; a
 * reply that was on its way may still refer to it. So a dropped page stays in the table until a
 * request that was made after the drop has been answered, or no request is in flight whose reply
 * could refer to pages.
 *
 * Life. An own page has slots of streams (lane.h), and stays until the client closes; or it belongs
 * to a named timeline, and stays until that is closed and all its signals have landed. Another
 * client's page is freed when nobody here needs it, and it is dead, or its timeline is closed here.
 * The client's thread frees pages (reaper.h).
 *
 * A registered page stays registered and mapped until the process exits, or a client is suspended:
 * cuMemHostUnregister() waits for all waiting streams of the process, those of other libraries,
 * too, and so perhaps for ever. That is 4 KiB of page-locked memory for each page that a stream
 * here has signalled in or waited for. A page that was never registered is unmapped. One that was
 * unregistered is registered anew when a stream uses it.
 *
 * The table is under the client's lock. Whoever has a reference to a page does not need the lock.
 * `refs` counts the table's reference, and those of fences (fence.h), timelines and callbacks of
 * streams. Only taking a reply makes the first reference beside the table's; the last one unmaps.
 * The registration is under page->lock, which is the last in the order of locks, and is held over
 * driver calls.
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
struct registration;

enum page_drop {
    PAGE_KEPT,
    PAGE_TO_DROP, /* the daemon is still to be told */
    PAGE_DROPPED, /* the daemon has been told, after request drop_seq */
};

/* A client's state of a slot, of its own pages or of others'. */
struct page_slot {
    struct spin spin; /* for waits until a value is submitted */
    /* The highest `done` that was seen, and whether the slot was seen dead: neither goes back. */
    _Atomic uint64_t seen;
    atomic_bool dead;

    /* Hand-off by events: the slot's event, made here or opened from event_handle; NULL with
     * no_event: there cannot be one. Under page->lock. */
    CUevent event;
    _Atomic(CUcontext) event_context; /* the event's context; read without the lock, too */
    uint8_t event_handle[TIMELINE_EVENT_SIZE];
    bool no_event;

    /* In own pages: the lane that has the slot, under lanes.lock; the context of the last signal.
     * */
    struct lane *lane;
    _Atomic(CUcontext) context;
};

struct page {
    RB_ENTRY(page) entry;
    LIST_ENTRY(page) of_table;

    /* Fixed. */
    uint64_t id;
    bool own;
    struct timeline_slot *slots; /* TIMELINE_PAGE_BYTES, and what is behind them */
    size_t size;                 /* bytes that are mapped */

    atomic_uint refs;

    /* Under the client's lock. */
    enum page_drop drop;
    uint64_t drop_seq;
    uint32_t n_timelines; /* open timelines of the page */
    bool unwanted;        /* the last of these is closed: the page can go, dead or not */
    const char *timeline; /* the name of an own one, or NULL */

    /* Under lock. */
    pthread_mutex_t lock;
    struct registration *registration; /* NULL: the driver does not know the page */
    _Atomic CUdeviceptr ptr;           /* of the slots; 0: not known */

    atomic_bool ends; /* own: a channel's, in which no more is signalled (channel/member.c) */

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

/* Takes the pages of a reply: checks each one (a memfd of its size, sealed against shrinking; an fd
 * of its own), and maps it. -EPROTO, also for an fd that no page refers to. -ENOMEM: the connection
 * has been ended, since the daemon relies on us having the pages. */
int pages_take(struct caid_client *client, const struct msg_page *pages, uint32_t n,
               struct call_fds *fds, bool own);
struct page *page_find(struct caid_client *client, uint64_t id);

/* For `take` of page_ask(): this is the page. If the call was left, the page is closed at once;
 * another client's page has been opened before. */
void page_give(struct caid_client *client, struct call *call, struct page *page);

/* ---- any time ---- */

struct page *page_ref(struct page *page);
/* Makes no driver call and takes no lock: threads of the driver may call it. */
void page_unref(struct page *page);

/* Makes a call whose reply has a page. *ret is a reference to it. */
int page_ask(struct caid_client *client, struct page **ret, enum msg_method method,
             const void *params,
             int (*take)(struct caid_client *client, struct call *call, const void *result,
                         struct call_fds *fds),
             struct caid_error *error);
/* Asks the daemon for an own page with so many bytes behind the slots, and maps it. *ret is a
 * reference to it. */
int page_new(struct caid_client *client, size_t tail, struct page **ret,
             struct caid_error *error);

/* The address of a slot for the streams of a place. Registers the page if that has not been done.
 * */
int page_address(struct caid_client *client, struct page *page, uint32_t slot, uint32_t place,
                 CUdeviceptr *ret, struct caid_error *error);

/* A timeline of the page is opened, with a reference to the page; or closed: the reference is
 * dropped, the page may go, and, if it is an own one, the daemon is told. Under the client's
 * lock. */
void page_open(struct caid_client *client, struct page *page);
void page_close(struct caid_client *client, struct page *page);

/* Whether all submitted values of an own slot have landed, or none will land any more. */
static inline bool
page_slot_has_landed(const struct page *page, uint32_t slot)
{
    const struct timeline_slot *s = &page->slots[slot];
    return timeline_is_dead(s) ||
           atomic_load_explicit(&s->done, memory_order_acquire) >= timeline_submitted(s);
}

/* The same of all its slots. */
static inline bool
page_has_landed(const struct page *page)
{
    for (uint32_t i = 0; i < TIMELINE_SLOTS; i++)
        if (!page_slot_has_landed(page, i))
            return false;
    return true;
}

/* Stores a value of an own slot, `done` or `submitted`, unless the slot has been killed
 * meanwhile. What the thread loads in the sequentially consistent order comes after it. */
static inline void
slot_raise(_Atomic uint64_t *word, uint64_t value)
{
    uint64_t was = atomic_load_explicit(word, memory_order_relaxed);

    while (was < value &&
           !atomic_compare_exchange_weak_explicit(word, &was, value, memory_order_seq_cst,
                                                  memory_order_relaxed))
        ;
}

/* For an own slot: ends all waits for values that have not landed. */
void slot_kill(struct timeline_slot *slot);
/* A value has been submitted: from now on the client's thread checks that the context which is to
 * signal it lives. Not under the client's lock. */
void page_watch(struct caid_client *client);
/* When the client's thread has something to do for pages: a time, 0 for now, UINT64_MAX for
 * never. Under lock. */
uint64_t page_due(const struct caid_client *client);
/* So often pages are polled, since there is no notice: others' pages, whether they are dead, and
 * own ones, whether the contexts are that have to signal in them. */
#define PAGE_TICK_NS (500 * NSEC_PER_MSEC)

/* The client's thread has something to do at a time, at the latest. Under lock. */
static inline void
page_look_by(struct page_table *table, uint64_t time)
{
    if (time < table->due)
        table->due = time;
}

/* Whether a stream may still store to an own page. Under lock. */
bool pages_are_busy(const struct caid_client *client);
/* Takes all pages from the driver, those of closed clients, too, when no stream here waits for one,
 * or signals. Not under lock. */
int pages_suspend(struct caid_client *client, struct caid_error *error);

/* The client closes: gives up its own pages, which ends waits for them when the signals on their
 * way have landed. Under lock; sends. */
void pages_close(struct caid_client *client);
