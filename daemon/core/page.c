/* SPDX-License-Identifier: Apache-2.0 */
#include "page.h"

#include <assert.h>

#include "array.h"
#include "linger.h"
#include "participant.h"
#include "state.h"

#define MAX_PAGES \
    64 /* looked at in one turn: a tenth of a millisecond, since each has its slots */

static int
timeline_compare(const struct timeline *a, const struct timeline *b)
{
    uint8_t n = a->n_name < b->n_name ? a->n_name : b->n_name;
    int c = a->pool == b->pool ? memcmp(a->name, b->name, n)
                               : strcmp(a->pool->name, b->pool->name);

    return c ? c : CMP(a->n_name, b->n_name);
}

RB_GENERATE_BY(pages, page, node, id)
RB_GENERATE(timelines, timeline, node, timeline_compare)

/* ---- life ---- */

static struct page *
page_alloc(uint64_t id)
{
    struct page *page = calloc(1, sizeof(*page));

    if (!page)
        return NULL;
    page->gone = entry_new(CORE_PAGE_FREE, 0);
    if (!page->gone) {
        free(page);
        return NULL;
    }
    page->gone->action.page = page->id = id;
    page->write = page->read = -1;
    page->saved.action = (struct core_action){.type = CORE_PAGE_NEW, .page = id, .fd = -1};
    page->kill.action = (struct core_action){.type = CORE_PAGE_KILL, .page = id, .fd = -1};
    return page;
}

int
page_new(struct core *core, struct conn *conn, uint32_t request, uint64_t tail,
         struct refusal *r)
{
    struct page *page;
    struct charge charge;

    if (tail > PROTO_TAIL_MAX)
        return refuse(r, PROTO_ERR_INVALID, "at most %d bytes are behind a page's slots",
                      PROTO_TAIL_MAX);
    if (charge_init(&charge, conn->user, RES_PAGES, 1, PAGE_HOST(tail), r))
        return REFUSED;
    page = page_alloc(core->next_page + 1);
    if (!page) {
        charge_deinit(&charge);
        return -ENOMEM;
    }
    persist_id(core, ++core->next_page);
    page->conn = conn;
    page->charge = charge;
    page->request = request;
    page->saved.action.size = tail;
    page->size = TIMELINE_PAGE_BYTES + tail;
    RB_INSERT(pages, &core->pages, page);
    LIST_INSERT_HEAD(&conn->making, page, of_conn);
    core->n_pages++;
    entry_push(core, &page->saved);
    return 0;
}

int
page_restore(struct core *core, struct conn *conn, uint64_t id,
             const struct core_page_result *from)
{
    struct page *page = page_alloc(id);

    if (!page)
        return -ENOMEM;
    page->before = calloc(TIMELINE_SLOTS, sizeof(page->before[0]));
    if (!page->before) {
        entry_free(page->gone);
        free(page);
        return -ENOMEM;
    }
    charge_init(&page->charge, conn->user, RES_PAGES, 1,
                PAGE_HOST(min_u64(from->size - TIMELINE_PAGE_BYTES, PROTO_TAIL_MAX)), NULL);
    page->conn = conn;
    page->made = page->restored = true;
    page->sealed = from->write < 0;
    page->write = from->write;
    page->read = from->read;
    page->size = from->size;
    page->slots = from->slots;
    page->kept = from->kept;
    for (size_t i = 0; i < TIMELINE_SLOTS; i++)
        page->before[i] = timeline_submitted(&page->slots[i]);
    RB_INSERT(pages, &core->pages, page);
    LIST_INSERT_HEAD(&conn->pages, page, of_conn);
    core->n_pages++;
    return 0;
}

void
page_note_loss(const struct page *page, bool goes)
{
    for (size_t i = 0; page->before && i < TIMELINE_SLOTS; i++) {
        enum fence_state state = timeline_state(&page->slots[i], page->before[i]);
        if (page->before[i] && (state == FENCE_LOST || (goes && state == FENCE_PENDING)))
            block_lose_writes(page->conn);
    }
}

/* Takes the page out of everything that knows it, but for the shell. */
static void
page_remove(struct core *core, struct page *page)
{
    assert(LIST_EMPTY(&page->fences) && LIST_EMPTY(&page->holds) && !page->timeline &&
           !page->participant);
    if (page->closing && !page->killed)
        TAILQ_REMOVE(&core->closing_pages, page, of_closing);
    if (page->made)
        persist_page_gone(core, page);
    page_note_loss(page, true);
    RB_REMOVE(pages, &core->pages, page);
    LIST_REMOVE(page, of_conn);
    entry_remove(core, &page->saved);
    entry_remove(core, &page->kill);
    charge_deinit(&page->charge);
    core->n_pages--;
    entry_free(page->gone);
    free(page->before);
    free(page);
}

struct msg_page
page_record(const struct page *page, uint64_t fd)
{
    return (struct msg_page){.page = page->id, .size = page->size, .fd = fd};
}

void
core_page_done(struct core *core, uint64_t id, const struct core_page_result *result)
{
    struct page *page = page_find(core, id);
    struct msg_page record;
    struct refusal r;

    if (result->error) {
        refusal_fill(&r, PROTO_ERR_LIMIT, "no page of timelines could be made: %s",
                     result->text);
        send_refusal(core, page->conn, page->request, MSG_PAGE, &r);
        page_remove(core, page);
        return;
    }
    page->made = true;
    LIST_REMOVE(page, of_conn);
    LIST_INSERT_HEAD(&page->conn->pages, page, of_conn);
    page->write = result->write;
    page->read = result->read;
    page->size = result->size;
    page->slots = result->slots;
    page->kept = result->kept;
    persist_page(core, page);
    record = page_record(page, 0);
    send_result(core, page->conn, page->request, MSG_PAGE,
                &(struct msg_page_result){.pages = &record, .n_pages = 1}, &page->write, 1);
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

int
page_get_own(struct core *core, struct conn *conn, uint64_t id, struct page **ret,
             struct refusal *r)
{
    *ret = page_find_own(core, conn, id);
    return *ret ? 0
                : refuse(r, PROTO_ERR_INVALID, "page %" PRIu64 " is none of the client's own",
                         id);
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

/* ---- timelines ---- */

/* A key for the tree only. */
union timeline_key {
    struct timeline timeline;
    char room[sizeof(struct timeline) + PROTO_NAME_MAX];
};

static struct timeline *
key_init(union timeline_key *key, struct pool *pool, struct msg_str name)
{
    assert(name.n <= PROTO_NAME_MAX);
    key->timeline.pool = pool;
    key->timeline.n_name = (uint8_t)name.n;
    if (name.n)
        memcpy(key->room + offsetof(struct timeline, name), name.p, name.n);
    return &key->timeline;
}

struct timeline *
timeline_find(struct core *core, struct pool *pool, struct msg_str name)
{
    union timeline_key key;

    return RB_FIND(timelines, &core->timelines, key_init(&key, pool, name));
}

/* In the tree's order, a name comes before all longer names that begin with it. */
struct timeline *
timeline_find_next(const struct core *core, struct pool *pool, struct msg_str after)
{
    union timeline_key key;
    struct timelines *tree =
        &((struct core *)(uintptr_t)core)->timelines; /* the macros take no const */
    struct timeline *found;

    if (after.n >
        PROTO_NAME_MAX) /* of any name: what comes after it comes after its beginning */
        after.n = PROTO_NAME_MAX;
    found = RB_NFIND(timelines, tree, key_init(&key, pool, after));
    if (found && timeline_compare(found, &key.timeline) == 0)
        found = RB_NEXT(timelines, tree, found);
    return found && found->pool == pool ? found : NULL;
}

int
timeline_new(struct core *core, struct conn *conn, struct pool *pool, struct msg_str name,
             struct page *page, struct refusal *r)
{
    struct timeline *timeline;
    struct charge charge;

    if (timeline_find(core, pool, name))
        return refuse(r, PROTO_ERR_EXISTS, "a timeline \"%.*s\" exists in pool \"%s\"",
                      STR_FMT(name), pool->name);
    if (page->timeline)
        return refuse(r, PROTO_ERR_INVALID, "page %llu is a timeline already",
                      (unsigned long long)page->id);
    if (charge_init(&charge, conn->user, RES_HOST, 0, TIMELINE_HOST(name.n), r))
        return REFUSED;
    timeline = calloc(1, sizeof(*timeline) + name.n);
    if (!timeline) {
        charge_deinit(&charge);
        return -ENOMEM;
    }
    timeline->pool = pool;
    timeline->page = page;
    timeline->charge = charge;
    timeline->n_name = (uint8_t)name.n;
    memcpy(timeline->name, name.p, name.n);
    page->timeline = timeline;
    pool->n_timelines++;
    core->n_timelines++;
    RB_INSERT(timelines, &core->timelines, timeline);
    LIST_INSERT_HEAD(&conn->timelines, timeline, of_conn);
    persist_page(core, page);
    return 0;
}

void
timeline_free(struct core *core, struct timeline *timeline)
{
    RB_REMOVE(timelines, &core->timelines, timeline);
    LIST_REMOVE(timeline, of_conn);
    timeline->page->timeline = NULL;
    persist_page(core, timeline->page);
    charge_deinit(&timeline->charge);
    timeline->pool->n_timelines--;
    pool_touch(timeline->pool); /* its user may go; the owner's has the connection */
    core->n_timelines--;
    free(timeline);
}

/* ---- holds ---- */

int
page_hold(struct conn *conn, struct page *page, struct hold **ret, bool *ret_new,
          struct refusal *r)
{
    int rc = hold_get(conn, &conn->page_holds, page->id, &page->holds, ret, ret_new, r);

    if (rc == 0 && *ret_new) {
        page_seal(conn->user->core, page); /* where an earlier core has not come to it */
        (*ret)->page = page;
        page->n_holds++;
    }
    return rc;
}

/* While the owner lives. If it has departed, this may have been all that it had left. */
static void
page_go(struct core *core, struct page *page)
{
    struct conn *conn = page->conn;

    page_free(core, page);
    if (conn->departed)
        conn_wake(conn);
}

void
page_unhold(struct core *core, struct hold *hold)
{
    struct page *page = hold->page;

    hold_free(hold);
    page->n_holds--;
    if (page->killed && LIST_EMPTY(&page->holds))
        page_go(core, page);
}

int
page_send(struct conn *conn, struct page *page, struct sent_pages *to, struct refusal *r)
{
    struct hold *hold;
    bool is_new = false;
    int rc = page->conn == conn ? 0 : page_hold(conn, page, &hold, &is_new, r);

    if (rc || !is_new)
        return rc;
    to->records[to->n] = page_record(page, to->n);
    to->fds[to->n++] = page->read;
    return 0;
}

void
pages_unsend(struct core *core, struct conn *conn, const struct sent_pages *pages)
{
    for (uint32_t i = 0; i < pages->n; i++)
        page_unhold(core, hold_find(&conn->page_holds, pages->records[i].page));
}

/* ---- the end ---- */

static bool
page_has_landed(const struct page *page)
{
    for (size_t i = 0; i < TIMELINE_SLOTS; i++) {
        uint64_t value = timeline_submitted(&page->slots[i]);
        if (value < page->last[i]) /* others wait for this value, whatever the slot says now */
            value = page->last[i];
        if (page->before && value < page->before[i])
            value = page->before[i];
        if (timeline_state(&page->slots[i], value) == FENCE_PENDING)
            return false;
    }
    return true;
}

/* A write that was not complete is lost with its writer. */
static bool
page_drop_fence(struct core *core, struct page *page)
{
    struct fence *fence = LIST_FIRST(&page->fences);
    struct section *section = fence ? fence->section : NULL;
    struct use *use = fence ? section->use : NULL;

    if (!fence)
        return false;
    if (fence == section->write &&
        timeline_state(&page->slots[fence->slot], fence->value) != FENCE_PASSED)
        use_abandon(section);
    fence_free(fence);
    if (use->array->lingering && !use_has_fences(use))
        linger_end(core, use);
    use_settle(use);
    return true;
}

static void
page_drop_fences(struct core *core, struct page *page)
{
    while (page_drop_fence(core, page))
        ;
}

bool
page_drop_one(struct core *core, struct page *page)
{
    struct hold *hold = LIST_FIRST(&page->holds);

    if (page_drop_fence(core, page))
        return true;
    if (!hold)
        return false;
    hold_free(hold);
    page->n_holds--;
    return true;
}

void
page_free(struct core *core, struct page *page)
{
    if (page->timeline)
        timeline_free(core, page->timeline);
    while (page_drop_one(core, page))
        ;
    if (page->made || !page->saved.queued) /* else nobody has begun to make it */
        entry_push(core, TAKE_PTR(page->gone));
    if (page->participant) /* who is told of it then finds the page killed */
        participant_end(core, page->participant);
    page_remove(core, page);
}

static void
page_kill(struct core *core, struct page *page)
{
    page_drop_fences(core, page);
    TAILQ_REMOVE(&core->closing_pages, page, of_closing);
    page->killed = true;
    entry_push(core, &page->kill);
    if (page->participant)
        participant_end(core, page->participant);
}

/* A page that was given up: once every value has landed, all are let go who wait for it. */
static bool
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
        linger_later(core, LINGER_TURN_NS);
}

bool
pages_look(struct core *core)
{
    const struct page *last = TAILQ_LAST(&core->closing_pages, page_list);
    bool is_last = !last;

    for (size_t i = 0; !is_last && i < MAX_PAGES; i++) {
        struct page *page = TAILQ_FIRST(&core->closing_pages);
        is_last = page == last;
        TAILQ_REMOVE(&core->closing_pages, page, of_closing);
        TAILQ_INSERT_TAIL(&core->closing_pages, page, of_closing);
        page_end(core, page);
    }
    return !is_last;
}
