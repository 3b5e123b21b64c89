/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fence: a value of a slot of a page, which is reached or not (timeline.h). It has a reference to
 * the page; fence_take() moves it, fence_drop() ends it. Another process writes the page, so its
 * contents are checked at each look.
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
    bool data;     /* the data before it is read: its loss is reported */
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

/* Takes the fences of a reply, after pages_take() has taken its pages: fills ret[n], which the
 * caller has to drop. -EPROTO: a page that is not here, or an impossible slot or value; ret is
 * empty then. Under the client's lock. */
int fences_take(struct caid_client *client, const struct msg_fence *fences, uint32_t n,
                struct fence *ret);

/*
 * The fence's state. CAID_ERR_PROTOCOL, naming the page: its owner has written an impossible value:
 * a `done` above that of the dead, or below one that was seen before; or, if the signal must have
 * been submitted (as for all fences from the daemon), a `submitted` below the fence's value.
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

/* Waits until the fence's signal has been submitted, or the slot is dead: after that the wait of a
 * stream ends. It uses futex(2), since the owner's CPU stores `submitted`. CAID_ERR_TIMEOUT,
 * CAID_ERR_INTERRUPTED. */
int fence_wait_submitted(const struct caid_client *client, const struct fence *fence,
                         uint64_t deadline_ns, struct caid_error *error);
