/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who uses an array when: page, drop_pages, begin, fences, end, discard.
 */
#include <assert.h>

#include "request.h"

/* ---- pages ---- */

int
on_page(struct core *core, struct conn *conn, uint32_t id, const void *params,
        struct refusal *r)
{
    (void)params;
    return page_new(core, conn, id, r);
}

static struct msg_page
page_record(const struct page *page, uint64_t fd)
{
    return (struct msg_page){.page = page->id, .size = page->size, .fd = fd};
}

void
reply_page(struct core *core, struct conn *conn, uint32_t request, const struct page *page)
{
    struct msg_page record = page_record(page, 0);

    send_result(core, conn, request, MSG_PAGE,
                &(struct msg_page_result){.pages = &record, .n_pages = 1}, &page->write, 1);
}

/* A page that is neither its own nor held is none of the client's any more: it has gone meanwhile. */
int
on_drop_pages(struct core *core, struct conn *conn, uint32_t id, const void *params,
              struct refusal *r)
{
    const struct msg_pages_params *p = params;

    (void)id;
    (void)r;
    for (uint32_t i = 0; i < p->pages.n; i++) {
        struct page *own = page_find_own(core, conn, p->pages.v[i]);
        struct page_hold *hold = page_hold_find(conn, p->pages.v[i]);
        if (own)
            page_drop(core, own);
        if (hold)
            page_hold_free(core, hold);
    }
    return 0;
}

/* ---- what a bracket has to wait for ---- */

struct due {
    struct page *page;
    uint64_t slot, value;
    bool data; /* the bracket reads what comes before it */
};

struct dues {
    struct due *v;
    size_t n;
};

static void
dues_add(struct dues *dues, const struct fence *fence, bool data, const struct due *after)
{
    bool is_after = fence->page->id > after->page->id ||
                    (fence->page->id == after->page->id && fence->slot > after->slot);

    if (is_after)
        dues->v[dues->n++] = (struct due){.page = fence->page,
                                          .slot = fence->slot,
                                          .value = fence->value,
                                          .data = data};
}

/* By page and slot, the highest value first. */
static int
due_compare(const void *a, const void *b)
{
    const struct due *x = a, *y = b;

    if (x->page->id != y->page->id)
        return CMP(x->page->id, y->page->id);
    if (x->slot != y->slot)
        return CMP(x->slot, y->slot);
    return CMP(y->value, x->value);
}

/* A slot only grows, so that its highest value stands for the others. */
static void
dues_unite(struct dues *dues)
{
    size_t n = 0;

    if (dues->n)
        qsort(dues->v, dues->n, sizeof(*dues->v), due_compare);
    for (size_t i = 0; i < dues->n; i++) {
        const struct due *due = &dues->v[i];
        if (n && dues->v[n - 1].page == due->page && dues->v[n - 1].slot == due->slot)
            dues->v[n - 1].data |= due->data;
        else
            dues->v[n++] = *due;
    }
    dues->n = n;
}

/* What a claim waits for: the writer before it, and, when it writes, those who have read since. */
static void
dues_add_claim(struct dues *dues, const struct claim *claim, const struct due *after)
{
    const struct access *access = claim->access;
    const struct fence *fence;

    if (!access)
        return;
    if (access->write)
        dues_add(dues, access->write, !claim->write, after);
    if (!claim->write)
        return;
    LIST_FOREACH(fence, &access->reads, of_access)
    dues_add(dues, fence, false, after);
}

/* How many fences there are at most, once those that have passed are gone. */
static size_t
count_fences(struct bracket *bracket)
{
    size_t n = 0;

    for (uint32_t i = 0; i < bracket->n_claims; i++) {
        const struct claim *claim = &bracket->claims[i];
        if (!claim->access)
            continue;
        access_sweep(claim->access, claim->write);
        n += (claim->access->write ? 1 : 0) + (claim->write ? claim->access->n_reads : 0);
    }
    return n;
}

/* Those after a place, in order; to be freed. -ENOMEM. */
static int
dues_gather(struct bracket *bracket, const struct due *after, struct dues *ret)
{
    struct dues dues = {.v = calloc(count_fences(bracket) + 1, sizeof(*dues.v))};

    if (!dues.v)
        return -ENOMEM;
    for (uint32_t i = 0; i < bracket->n_claims; i++)
        dues_add_claim(&dues, &bracket->claims[i], after);
    dues_unite(&dues);
    *ret = dues;
    return 0;
}

/* ---- a reply of fences ---- */

struct fences_reply {
    struct room room;
    struct msg_fence *fences; /* as many as there may be */
    uint32_t n_fences;
    struct msg_page pages[PROTO_FDS_MAX]; /* those whose hold is new */
    struct page_hold *holds[PROTO_FDS_MAX];
    int fds[PROTO_FDS_MAX];
    uint32_t n_pages;
    bool full;
};

/* Takes back what the client has not been told of. */
static void
fences_undo(struct core *core, struct fences_reply *reply)
{
    while (reply->n_pages)
        page_hold_free(core, reply->holds[--reply->n_pages]);
}

/* Its owner has it, and so has who holds it: an fd is sent once (I3). */
static bool
page_is_new(struct conn *conn, const struct page *page)
{
    return page->conn != conn && !page_hold_find(conn, page->id);
}

static void
reply_add_page(struct fences_reply *reply, const struct msg_page *record,
               struct page_hold *hold)
{
    assert(hold->page->sealed); /* who made a fence of it had it mapped */
    reply->fds[reply->n_pages] = hold->page->read;
    reply->pages[reply->n_pages] = *record;
    reply->holds[reply->n_pages++] = hold;
}

/* Adds one fence, and its page where the client has not got that, or finds that the reply is full. */
static int
reply_add_due(struct core *core, struct conn *conn, struct fences_reply *reply,
              const struct due *due, struct refusal *r)
{
    struct msg_fence fence = {.page = due->page->id,
                              .slot = due->slot,
                              .value = due->value,
                              .data = due->data};
    struct msg_page page = page_record(due->page, reply->n_pages);
    bool is_new = page_is_new(conn, due->page);
    struct page_hold *hold;
    int rc;

    reply->full = !room_take(&reply->room,
                             msg_fence_size(&fence) + (is_new ? msg_page_size(&page) : 0),
                             is_new);
    if (reply->full)
        return 0;
    if (is_new) {
        rc = page_hold_get(core, conn, due->page, &hold, &is_new, r);
        if (rc)
            return rc;
        reply_add_page(reply, &page, hold);
    }
    reply->fences[reply->n_fences++] = fence;
    return 0;
}

static int
reply_add_dues(struct core *core, struct conn *conn, struct fences_reply *reply,
               const struct dues *dues, struct refusal *r)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && !reply->full && i < dues->n; i++)
        rc = reply_add_due(core, conn, reply, &dues->v[i], r);
    if (rc)
        fences_undo(core, reply);
    return rc;
}

int
reply_fences(struct core *core, struct bracket *bracket, uint32_t request,
             enum msg_method method, uint64_t after_page, uint64_t after_slot,
             struct refusal *r)
{
    struct page place = {.id = after_page};
    struct due after = {.page = &place, .slot = after_slot};
    struct fences_reply reply = {.room = ROOM_INIT};
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

/* ---- begin, fences, end ---- */

int
on_begin(struct core *core, struct conn *conn, uint32_t id, const void *params,
         struct refusal *r)
{
    const struct msg_begin_params *p = params;
    struct bracket_request req = {
        .id = p->bracket,
        .thread = p->thread,
        .timeout_ns = p->timeout_ns,
        .nowait = p->nowait,
        .read = p->read,
        .write = p->write,
    };

    return bracket_new(core, conn, id, &req, r);
}

/* A bracket that the client may end, and has not. */
static int
bracket_find_open(struct conn *conn, uint64_t id, struct bracket **ret, struct refusal *r)
{
    struct bracket *bracket = bracket_find(conn, id);

    if (!bracket || bracket->waiting)
        return refuse(r, PROTO_ERR_INVALID, "bracket %llu is not open", (unsigned long long)id);
    *ret = bracket;
    return 0;
}

int
on_fences(struct core *core, struct conn *conn, uint32_t id, const void *params,
          struct refusal *r)
{
    const struct msg_fences_params *p = params;
    const struct array *array;
    struct bracket *bracket;

    if (bracket_find_open(conn, p->bracket, &bracket, r))
        return REFUSED;
    /* One that was whole when the bracket began, and whose writer has died since: his fence went with his
     * page, so that the client would not come upon it. */
    array = bracket_find_abandoned(core, bracket);
    if (array)
        return refuse(r, PROTO_ERR_ABANDONED, "array \"%s\": its writer died",
                      array_label(array));
    return reply_fences(core, bracket, id, MSG_FENCES, p->page, p->slot, r);
}

/* The fence of an end: of what the client has submitted already, and no slot runs backwards. */
static int
end_page(struct core *core, struct conn *conn, const struct msg_end_params *p,
         struct page **ret, struct refusal *r)
{
    struct page *page = page_find_own(core, conn, p->page);

    if (!page || p->slot >= TIMELINE_SLOTS)
        return refuse(r, PROTO_ERR_INVALID,
                      "page %llu is none of the client's own, or has no "
                      "slot %llu",
                      (unsigned long long)p->page, (unsigned long long)p->slot);
    if (p->value > TIMELINE_VALUE_MAX || p->value < page->last[p->slot] ||
        p->value > timeline_submitted(&page->slots[p->slot]))
        return refuse(r, PROTO_ERR_INVALID, "value %llu was not submitted, or runs backwards",
                      (unsigned long long)p->value);
    *ret = page;
    return 0;
}

int
on_end(struct core *core, struct conn *conn, uint32_t id, const void *params, struct refusal *r)
{
    const struct msg_end_params *p = params;
    struct bracket *bracket;
    struct page *page = NULL;

    (void)id;
    if (bracket_find_open(conn, p->bracket, &bracket, r))
        return REFUSED;
    if (p->value && end_page(core, conn, p, &page, r))
        return REFUSED;
    if (page) {
        page_seal(core, page); /* who has submitted in it has mapped it */
        page->last[p->slot] = p->value;
    }
    bracket_end(core, bracket, page, (uint32_t)p->slot, p->value, p->undone, p->abandon);
    return 0;
}

/* ---- discard ---- */

int
on_discard(struct core *core, struct conn *conn, uint32_t id, const void *params,
           struct refusal *r)
{
    const struct msg_discard_params *p = params;
    struct lease *lease = lease_find(conn, p->lease);
    struct array *array;

    if (!lease)
        return refuse(r, PROTO_ERR_INVALID, "no lease %llu", (unsigned long long)p->lease);
    array = lease->array;
    if (lease->readonly)
        return refuse(r, PROTO_ERR_PERMISSION, "array \"%.*s\" was opened for reading",
                      array->n_name, array->name);
    if (access_is_abandoned(core, array))
        array->abandoned = false;
    send_result(core, conn, id, MSG_DISCARD, &(struct msg_none){}, NULL, 0);
    return 0;
}
