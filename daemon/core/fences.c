/* SPDX-License-Identifier: Apache-2.0 */
#include "fences.h"

#include <assert.h>

#include "bracket.h"
#include "conn.h"
#include "page.h"
#include "reply.h"

#define DUES_MAX 1024 /* fences in a reply; for more, the client asks again */

/* ---- what a bracket has to wait for ---- */

struct due {
    struct page *page;
    uint64_t id; /* a copy of the page's: thousands are compared, and pages lie apart */
    uint64_t slot, value;
    bool data; /* the bracket reads what this fence's writer wrote */
};

struct dues {
    struct due *v;
    size_t n;
};

static void
dues_add(struct dues *dues, const struct fence *fence, bool data, const struct due *after)
{
    uint64_t id = fence->page->id;
    bool is_after = id > after->id || (id == after->id && fence->slot > after->slot);

    if (is_after)
        dues->v[dues->n++] = (struct due){.page = fence->page,
                                          .id = id,
                                          .slot = fence->slot,
                                          .value = fence->value,
                                          .data = data};
}

/* By page and slot, the highest value first. */
static int
due_compare(const void *a, const void *b)
{
    const struct due *x = a, *y = b;

    if (x->id != y->id)
        return CMP(x->id, y->id);
    if (x->slot != y->slot)
        return CMP(x->slot, y->slot);
    return CMP(y->value, x->value);
}

/* A slot's values only grow, so its highest value stands for the others. */
static void
dues_unite(struct dues *dues)
{
    size_t n = 0;

    if (dues->n)
        qsort(dues->v, dues->n, sizeof(*dues->v), due_compare);
    for (size_t i = 0; i < dues->n; i++) {
        const struct due *due = &dues->v[i];
        if (n && dues->v[n - 1].id == due->id && dues->v[n - 1].slot == due->slot)
            dues->v[n - 1].data |= due->data;
        else
            dues->v[n++] = *due;
    }
    dues->n = n;
}

/* Adds fences of reads since the last write: as many as one reply can have, and one more. */
static void
dues_add_reads(struct dues *dues, struct section *section, const struct due *after)
{
    struct page page = {.id = after->id};
    struct fence key = {.page = &page,
                        .slot =
                            (uint32_t)(after->slot < UINT32_MAX ? after->slot : UINT32_MAX)};
    struct fence *fence = RB_NFIND(fences, &section->reads, &key);
    size_t first = dues->n;

    for (; fence && dues->n - first <= DUES_MAX;
         fence = RB_NEXT(fences, &section->reads, fence))
        if (fence_state(fence) == FENCE_PENDING)
            dues_add(dues, fence, false, after);
}

/* What a claim waits for: the last write and, if the claim writes, the reads since, of all sections
 * that it overlaps with. */
static void
dues_add_claim(struct dues *dues, const struct claim *claim, const struct due *after)
{
    struct section *section;

    FOREACH_OVERLAPPING(section, claim->section) {
        if (section->write)
            dues_add(dues, section->write, !claim->write, after);
        if (claim->write)
            dues_add_reads(dues, section, after);
    }
}

static size_t
count_of(const struct claim *claim)
{
    struct section *section;
    size_t n = 0;

    FOREACH_OVERLAPPING(section, claim->section) {
        n += section->write != NULL;
        if (claim->write)
            n += section->n_reads < DUES_MAX ? section->n_reads : DUES_MAX + 1;
    }
    return n;
}

/* The highest number of fences that it can be. */
static size_t
count_fences(struct bracket *bracket)
{
    size_t n = 0;

    for (uint32_t i = 0; i < bracket->n_claims; i++) {
        const struct claim *claim = &bracket->claims[i];
        if (!claim->use)
            continue;
        use_sweep(claim);
        n += count_of(claim);
    }
    return n;
}

/* The fences after that place, in order. The caller frees them. -ENOMEM. */
static int
dues_gather(struct bracket *bracket, const struct due *after, struct dues *ret)
{
    struct dues dues = {.v = calloc(count_fences(bracket) + 1, sizeof(*dues.v))};

    if (!dues.v)
        return -ENOMEM;
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        if (bracket->claims[i].use)
            dues_add_claim(&dues, &bracket->claims[i], after);
    dues_unite(&dues);
    *ret = dues;
    return 0;
}

/* ---- the reply ---- */

struct reply {
    struct room room;
    struct msg_fence *fences; /* room for all dues */
    uint32_t n_fences;
    struct msg_page pages[PROTO_FDS_MAX]; /* pages that the client is sent with this reply */
    struct hold *holds[PROTO_FDS_MAX];
    int fds[PROTO_FDS_MAX];
    uint32_t n_pages;
    bool full;
};

/* Undoes what was prepared for a reply that is not sent. */
static void
fences_undo(struct core *core, struct reply *reply)
{
    while (reply->n_pages)
        page_unhold(core, reply->holds[--reply->n_pages]);
}

/* The page's owner has it, and so has a client with a hold: a page's fd is sent once (I3). */
static bool
page_is_new(struct conn *conn, const struct page *page)
{
    return page->conn != conn && !hold_find(&conn->page_holds, page->id);
}

static void
reply_add_page(struct reply *reply, const struct msg_page *record, struct hold *hold)
{
    assert(hold->page->sealed); /* whoever submitted the fence has mapped the page */
    reply->fds[reply->n_pages] = hold->page->read;
    reply->pages[reply->n_pages] = *record;
    reply->holds[reply->n_pages++] = hold;
}

/* Adds a fence, and its page if the client does not have that; or finds that the reply is full. */
static int
reply_add_due(struct conn *conn, struct reply *reply, const struct due *due, struct refusal *r)
{
    struct msg_fence fence = {.page = due->page->id,
                              .slot = due->slot,
                              .value = due->value,
                              .data = due->data};
    struct msg_page page = page_record(due->page, reply->n_pages);
    bool is_new = page_is_new(conn, due->page);
    struct hold *hold;
    int rc;

    reply->full = !room_take(&reply->room,
                             msg_fence_size(&fence) + (is_new ? msg_page_size(&page) : 0),
                             is_new);
    if (reply->full)
        return 0;
    if (is_new) {
        rc = page_hold(conn, due->page, &hold, &is_new, r);
        if (rc)
            return rc;
        reply_add_page(reply, &page, hold);
    }
    reply->fences[reply->n_fences++] = fence;
    return 0;
}

static int
reply_add_dues(struct core *core, struct conn *conn, struct reply *reply,
               const struct dues *dues, struct refusal *r)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && !reply->full && i < dues->n; i++) {
        reply->full = i == DUES_MAX;
        if (!reply->full)
            rc = reply_add_due(conn, reply, &dues->v[i], r);
    }
    if (rc)
        fences_undo(core, reply);
    return rc;
}

int
fences_reply(struct core *core, struct bracket *bracket, uint32_t request,
             enum msg_method method, uint64_t after_page, uint64_t after_slot,
             struct refusal *r)
{
    struct due after = {.id = after_page, .slot = after_slot};
    struct reply reply = {.room = room_init(core)};
    _cleanup_free_ struct due *v = NULL;
    _cleanup_free_ struct msg_fence *fences = NULL;
    struct dues dues;
    int rc = dues_gather(bracket, &after, &dues);

    if (rc)
        return rc;
    v = dues.v;
    fences = reply.fences = calloc(dues.n + 1, sizeof(*fences));
    if (!fences)
        return -ENOMEM;
    rc = reply_add_dues(core, bracket->conn, &reply, &dues, r);
    if (rc)
        return rc;
    send_result(core, bracket->conn, request, method,
                &(struct msg_fences_result){.fences = fences,
                                            .n_fences = reply.n_fences,
                                            .pages = reply.pages,
                                            .n_pages = reply.n_pages,
                                            .more = reply.full},
                reply.fds, reply.n_pages);
    return 0;
}
