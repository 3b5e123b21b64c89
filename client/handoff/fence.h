/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fence: a value of a slot of a page, that is reached or not (timeline.h). It has a reference to
 * the page; fence_take() moves it, fence_drop() ends it. What a page says is another process's word
 * for it, and is checked each time it is looked at.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "caid/caid.h"

#include "msg.h"
#include "page.h"

struct caid_client;

struct fence {
    struct page *page; /* NULL: none */
    uint32_t slot;
    bool data;     /* what came before it is read: its loss is told of */
    bool enqueued; /* by lane_wait(): the stream waits for it */
    uint64_t value;
};

/* Another reference to the same. */
static inline struct fence
fence_ref(const struct fence *fence)
{
    page_ref(fence->page);
    return *fence;
}

/* NULL page is allowed; the fence is empty afterwards. */
static inline void
fence_drop(struct fence *fence)
{
    if (fence->page)
        page_unref(fence->page);
    *fence = (struct fence){0};
}

/* What a reply says of fences, after pages_take() has taken the pages that came with it: fills
 * ret[n], which are to be dropped. -EPROTO: a page that is not here, a slot or a value that
 * cannot be; ret is empty then. Under the client's lock. */
int fences_take(struct caid_client *client, const struct msg_fence *fences, uint32_t n,
                struct fence *ret);

/*
 * The fence's state. CAID_ERR_PROTOCOL, naming the page: its owner has written what cannot be,
 * `done` beyond the dead, or less than was seen before; or, of a fence whose signal must have been
 * submitted (the daemon only tells of such), `submitted` that is less.
 */
int fence_look(const struct fence *fence, bool submitted, enum fence_state *ret,
               struct caid_error *error);

/* The highest value of the fence's slot that fence_look() has seen reached. */
uint64_t fence_reached(const struct fence *fence);

/* Waits on the host until the fence is no longer pending: 0 it has passed, 1 it is lost.
 * CAID_ERR_TIMEOUT at deadline_ns (clock_now_ns(); UINT64_MAX: none; 0: looks once),
 * CAID_ERR_INTERRUPTED. */
int fence_wait(const struct caid_client *client, const struct fence *fence, bool submitted,
               uint64_t deadline_ns, struct caid_error *error);

/* Waits until the fence's signal has been submitted, or the slot is dead: what a stream waits for
 * then will come. By futex(2), since the owner's CPU stores it. CAID_ERR_TIMEOUT,
 * CAID_ERR_INTERRUPTED. */
int fence_wait_submitted(const struct caid_client *client, const struct fence *fence,
                         uint64_t deadline_ns, struct caid_error *error);
