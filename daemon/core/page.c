/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of timelines (proto/timeline.h), and what connections other than their owners have of them:
 * an fd that they were sent once and may keep mapped, as blocks (I3).
 *
 * Whoever waits for a page is let go when no value can reach it any more. That is so when its owner has
 * given it up and every value that was submitted has landed, or when the owner's process has exited. A
 * hang-up alone does not do: the GPU may be about to store a value that nobody has been told of (I7).
 * Landed or not is the owner's word, who may write there as long as he lives: so a page that he gave up
 * stays while others hold it, and they are let go once more when he has exited.
 */
#include <assert.h>

#include "state.h"

static int
page_compare(const struct page *a, const struct page *b)
{
    return CMP(a->id, b->id);
}

static int
page_hold_compare(const struct page_hold *a, const struct page_hold *b)
{
    return CMP(a->page->id, b->page->id);
}

RB_GENERATE(pages, page, node, page_compare)
RB_GENERATE(page_holds, page_hold, node, page_hold_compare)

/* ---- life ---- */

static uint64_t
page_host(void)
{
    return sizeof(struct page) + TIMELINE_PAGE_BYTES;
}

static struct page *
page_alloc(uint64_t id)
{
    struct page *page = calloc(1, sizeof(*page));

    if (!page)
        return NULL;
    page->gone = entry_new_page(CORE_PAGE_FREE, id);
    if (!page->gone) {
        free(page);
        return NULL;
    }
    page->id = id;
    page->write = page->read = -1;
    page->saved.action = (struct core_action){.type = CORE_PAGE_NEW, .page = id, .fd = -1};
    page->kill.action = (struct core_action){.type = CORE_PAGE_KILL, .page = id, .fd = -1};
    return page;
}

int
page_new(struct core *core, struct conn *conn, uint32_t request, struct refusal *r)
{
    struct page *page;

    if (user_charge(core, conn->user, RES_PAGES, 1, r))
        return REFUSED;
    if (user_charge(core, conn->user, RES_HOST, page_host(), r)) {
        user_uncharge(conn->user, RES_PAGES, 1);
        return REFUSED;
    }
    page = page_alloc(core->next_page + 1);
    if (!page) {
        user_uncharge(conn->user, RES_PAGES, 1);
        user_uncharge(conn->user, RES_HOST, page_host());
        return -ENOMEM;
    }
    core->next_page++;
    page->conn = conn;
    page->request = request;
    RB_INSERT(pages, &core->pages, page);
    LIST_INSERT_HEAD(&conn->pages, page, of_conn);
    core->n_pages++;
    entry_push(core, &page->saved);
    return 0;
}

/* Out of everything that knows it, but for the shell. */
static void
page_remove(struct core *core, struct page *page)
{
    assert(LIST_EMPTY(&page->fences) && LIST_EMPTY(&page->holds) && !page->timeline);
    if (page->closing && !page->killed)
        TAILQ_REMOVE(&core->closing_pages, page, of_closing);
    RB_REMOVE(pages, &core->pages, page);
    LIST_REMOVE(page, of_conn);
    entry_remove(core, &page->saved);
    entry_remove(core, &page->kill);
    user_uncharge(page->conn->user, RES_PAGES, 1);
    user_uncharge(page->conn->user, RES_HOST, page_host());
    core->n_pages--;
    entry_free(page->gone);
    free(page);
}

void
core_page_done(struct core *core, uint64_t id, const struct core_page_result *result)
{
    struct page *page = page_find(core, id);
    struct refusal r;

    if (result->error) {
        refusal_fill(&r, PROTO_ERR_LIMIT, "no page of timelines could be made: %s",
                     strerror(-result->error));
        send_refusal(core, page->conn, page->request, &r);
        page_remove(core, page);
        return;
    }
    page->made = true;
    page->write = result->write;
    page->read = result->read;
    page->size = result->size;
    page->slots = result->slots;
    reply_page(core, page->conn, page->request, page);
}

struct page *
page_find(struct core *core, uint64_t id)
{
    struct page key = {.id = id};

    return RB_FIND(pages, &core->pages, &key);
}

struct page *
page_find_own(struct core *core, struct conn *conn, uint64_t id)
{
    struct page *page = page_find(core, id);

    return page && page->made && !page->closing && page->conn == conn ? page : NULL;
}

void
page_seal(struct core *core, struct page *page)
{
    if (page->sealed)
        return;
    page->sealed = true;
    page->saved.action =
        (struct core_action){.type = CORE_PAGE_SEAL, .page = page->id, .fd = -1};
    entry_push(core, &page->saved);
}

/* ---- holds ---- */

struct page_hold *
page_hold_find(struct conn *conn, uint64_t id)
{
    struct page page = {.id = id};
    struct page_hold key = {.page = &page};

    return RB_FIND(page_holds, &conn->page_holds, &key);
}

int
page_hold_get(struct core *core, struct conn *conn, struct page *page, struct page_hold **ret,
              bool *ret_new, struct refusal *r)
{
    struct page_hold *hold = page_hold_find(conn, page->id);

    *ret = hold;
    *ret_new = !hold;
    if (hold)
        return 0;
    hold = calloc(1, sizeof(*hold));
    if (!hold)
        return -ENOMEM;
    if (user_charge(core, conn->user, RES_HOST, sizeof(*hold), r)) {
        free(hold);
        return REFUSED;
    }
    hold->conn = conn;
    hold->page = page;
    RB_INSERT(page_holds, &conn->page_holds, hold);
    LIST_INSERT_HEAD(&page->holds, hold, of_page);
    page->n_holds++;
    *ret = hold;
    return 0;
}

static void
hold_remove(struct page_hold *hold)
{
    RB_REMOVE(page_holds, &hold->conn->page_holds, hold);
    LIST_REMOVE(hold, of_page);
    hold->page->n_holds--;
    user_uncharge(hold->conn->user, RES_HOST, sizeof(*hold));
    free(hold);
}

/* While its owner lives, of whom it may be the last. */
static void
page_go(struct core *core, struct page *page)
{
    struct conn *conn = page->conn;

    page_free(core, page);
    conn_settle(core, conn);
}

void
page_hold_free(struct core *core, struct page_hold *hold)
{
    struct page *page = hold->page;

    hold_remove(hold);
    if (page->killed && LIST_EMPTY(&page->holds))
        page_go(core, page);
}

/* ---- the end ---- */

static bool
page_has_landed(const struct page *page)
{
    for (size_t i = 0; i < TIMELINE_SLOTS; i++) {
        uint64_t value = timeline_submitted(&page->slots[i]);
        if (value < page->last[i]) /* what others wait for, whatever he says now */
            value = page->last[i];
        if (timeline_state(&page->slots[i], value) == FENCE_PENDING)
            return false;
    }
    return true;
}

/* The fences of a page that goes. A write that had not come to its end is lost with its writer. */
static void
page_drop_fences(struct core *core, struct page *page)
{
    struct fence *fence;

    while ((fence = LIST_FIRST(&page->fences))) {
        struct access *access = fence->access;
        if (fence == access->write &&
            timeline_state(&page->slots[fence->slot], fence->value) != FENCE_PASSED)
            access_abandon(core, access);
        fence_free(fence);
        if (access->array->lingering && !access_has_fences(access))
            linger_end(core, access);
        access_settle(access);
    }
}

void
page_free(struct core *core, struct page *page)
{
    struct page_hold *hold;

    if (page->timeline)
        timeline_free(core, page->timeline);
    page_drop_fences(core, page);
    while ((hold = LIST_FIRST(&page->holds)))
        hold_remove(hold);
    if (page->made)
        entry_push(core, TAKE_PTR(page->gone));
    page_remove(core, page);
}

static void
page_kill(struct core *core, struct page *page)
{
    page_drop_fences(core, page);
    TAILQ_REMOVE(&core->closing_pages, page, of_closing);
    page->killed = true;
    entry_push(core, &page->kill);
}

bool
page_end(struct core *core, struct page *page)
{
    if (!page_has_landed(page))
        return false;
    if (LIST_EMPTY(&page->holds))
        page_go(core, page);
    else
        page_kill(core, page);
    return true;
}

void
page_drop(struct core *core, struct page *page)
{
    if (page->timeline)
        timeline_free(core, page->timeline);
    page->closing = true;
    TAILQ_INSERT_TAIL(&core->closing_pages, page, of_closing);
    if (!page_end(core, page))
        linger_later(core);
}
