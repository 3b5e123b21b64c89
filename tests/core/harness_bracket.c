/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of timelines, which the harness makes of plain memory and whose GPU it plays, and brackets:
 * the books on them, and what tests send.
 */
#include <stdlib.h>

#include "books.h"
#include "caid_test.h"

/* ---- pages ---- */

struct h_page *
h_page(struct harness *h, uint64_t id)
{
    for (size_t i = 0; i < h->n_pages; i++)
        if (h->pages[i].id == id)
            return &h->pages[i];
    return NULL;
}

struct timeline_slot *
h_slot(struct harness *h, uint64_t id, uint64_t slot)
{
    struct h_page *page = h_page(h, id);

    cr_assert(page, "page %llu is gone", (unsigned long long)id);
    return &page->slots[slot];
}

uint64_t
h_submit(struct harness *h, uint64_t page, uint64_t slot)
{
    struct timeline_slot *s = h_slot(h, page, slot);

    atomic_store(&s->submitted, timeline_submitted(s) + 1);
    return timeline_submitted(s);
}

void
h_land(struct harness *h, uint64_t page, uint64_t slot, uint64_t value)
{
    atomic_store(&h_slot(h, page, slot)->done, value);
}

static void
make_page(struct harness *h, uint64_t id, uint64_t tail)
{
    struct core_page_result result = {.error = h->page_error,
                                      .text = "an error",
                                      .write = -1,
                                      .read = -1};
    struct h_page *page = &h->pages[h->n_pages];

    cr_assert_lt(h->n_pages, H_PAGES);
    cr_assert_not(h_page(h, id), "a page is made twice");
    h->page_error = 0;
    if (!result.error) {
        *page = (struct h_page){.id = id, .size = TIMELINE_PAGE_BYTES + tail};
        page->slots = h_slots_new();
        result.write = page->write = (int)++h->next_handle; /* numbers, passed on */
        result.read = page->read = (int)++h->next_handle;
        result.kept = (uint32_t)result.write;
        result.size = page->size;
        result.slots = page->slots;
        h->n_pages++;
    }
    books_arm(true);
    core_page_done(h->core, id, &result);
    books_arm(false);
}

void
h_make_page(struct harness *h)
{
    const struct core_action *a = &h->making[--h->n_making];

    make_page(h, a->page, a->size);
    h_tick(h, 0);
}

void
books_page_new(struct harness *h, const struct core_action *a)
{
    if (!h->makes_pages_later) {
        make_page(h, a->page, a->size);
        return;
    }
    cr_assert_lt(h->n_making, ARRAY_SIZE(h->making));
    h->making[h->n_making++] = *a;
}

void
books_page_seal(struct harness *h, uint64_t id)
{
    struct h_page *page = h_page(h, id);

    cr_assert(page, "a page that is gone is sealed");
    cr_assert(page->conn, "a page is sealed before its owner could map it");
    cr_assert_not(page->sealed, "a page is sealed twice");
    page->sealed = true;
}

static void
drop_page_holds(struct harness *h, uint64_t conn, uint64_t page)
{
    for (size_t i = h->n_page_holds; i-- > 0;)
        if ((!conn || h->page_holds[i].conn == conn) &&
            (!page || h->page_holds[i].block == page))
            h->page_holds[i] = h->page_holds[--h->n_page_holds];
}

/* Nothing waits for it any more. */
static void
kill_page(struct harness *h, struct h_page *page)
{
    if (h->on_page_gone)
        h->on_page_gone(h, page->id);
    for (size_t i = 0; i < TIMELINE_SLOTS; i++)
        timeline_kill(&page->slots[i]);
}

void
books_page_kill(struct harness *h, uint64_t id)
{
    struct h_page *page = h_page(h, id);

    cr_assert(page, "a page that is gone is killed");
    cr_assert_not(page->killed, "a page is killed twice while its owner lives");
    page->killed = true;
    kill_page(h, page);
}

void
books_page_free(struct harness *h, uint64_t id)
{
    struct h_page *page = h_page(h, id);

    for (size_t i = 0; i < h->n_making; i++)
        if (h->making[i].page == id) {
            h->making[i] = h->making[--h->n_making];
            return;
        }
    cr_assert(page, "a page goes twice");
    kill_page(h, page);
    free(page->slots);
    *page = h->pages[--h->n_pages];
    drop_page_holds(h, 0, id);
    for (size_t i = h->n_uses; i-- > 0;)
        if (h->uses[i].fence.page == id)
            h->uses[i] = h->uses[--h->n_uses];
}

static bool
has_page(const struct harness *h, uint64_t conn, uint64_t page)
{
    for (size_t i = 0; i < h->n_page_holds; i++)
        if (h->page_holds[i].conn == conn && h->page_holds[i].block == page)
            return true;
    return false;
}

void
books_page(struct harness *h, const struct core_action *a, const struct msg_page_result *result,
           struct h_reply *reply)
{
    cr_assert_eq(result->n_pages, 1);
    cr_assert_eq(result->pages[0].fd, 0);
    struct h_page *page = h_page(h, result->pages[0].page);
    cr_assert(page && result->pages[0].size == page->size && !page->conn && !page->sealed &&
              a->n_fds == 1);
    cr_assert_eq(a->fds[0], page->write, "another page's fd");
    page->conn = a->conn;
    reply->page = page->id;
    reply->n_pages = 1;
}

/* Somebody else's, that is sent. */
static void
add_page(struct harness *h, const struct core_action *a, const struct msg_page *record)
{
    const struct h_page *page = h_page(h, record->page);

    cr_assert(page, "page %llu is sent, and gone", (unsigned long long)record->page);
    cr_assert_neq(page->conn, a->conn, "its owner has it already (I3)");
    cr_assert_not(has_page(h, a->conn, page->id), "a page is sent a second time (I3)");
    cr_assert(page->sealed, "a page is sent before it is sealed");
    cr_assert_lt(record->fd, a->n_fds);
    cr_assert_eq(a->fds[record->fd], page->read, "not the fd for reading");
    cr_assert_eq(record->size, page->size);
    cr_assert_lt(h->n_page_holds, H_BOOKS);
    h->page_holds[h->n_page_holds++] = (struct h_hold){.conn = a->conn, .block = record->page};
}

static void
check_known(struct harness *h, uint64_t conn, uint64_t id)
{
    const struct h_page *page = h_page(h, id);

    cr_assert(page, "page %llu is gone (I7)", (unsigned long long)id);
    cr_assert(page->conn == conn || has_page(h, conn, id),
              "the fd of page %llu was not sent (I3)", (unsigned long long)id);
}

void
books_fences(struct harness *h, const struct core_action *a,
             const struct msg_fences_result *result, struct h_reply *reply)
{
    const struct msg_fence *last = NULL;

    cr_assert_eq(result->n_pages, a->n_fds);
    for (uint32_t i = 0; i < result->n_pages; i++)
        add_page(h, a, &result->pages[i]);
    for (uint32_t i = 0; i < result->n_fences; i++) {
        const struct msg_fence *f = &result->fences[i];
        cr_assert(!last || f->page > last->page ||
                      (f->page == last->page && f->slot > last->slot),
                  "fences are not in order");
        check_known(h, a->conn, f->page);
        cr_assert(f->value && f->value <= timeline_submitted(h_slot(h, f->page, f->slot)),
                  "a wait for what was not submitted (I7)");
        if (i < H_FENCES)
            reply->fences[i] = (struct h_fence){f->page, f->slot, f->value, f->data};
        last = f;
    }
    cr_assert(!result->more || last, "more after nothing");
    reply->n_fences = result->n_fences;
    reply->n_pages = result->n_pages;
    reply->more = result->more;
}

void
books_timeline(struct harness *h, const struct core_action *a,
               const struct msg_open_timeline_result *result, struct h_reply *reply)
{
    cr_assert_leq(result->n_pages, 1);
    cr_assert_eq(result->n_pages, a->n_fds);
    if (result->n_pages)
        add_page(h, a, &result->pages[0]);
    check_known(h, a->conn, result->page);
    reply->page = result->page;
    reply->n_pages = result->n_pages;
}

void
books_join(struct harness *h, const struct core_action *a, const struct msg_join_result *result,
           struct h_reply *reply)
{
    for (uint32_t i = 0; i < result->n_pages; i++)
        add_page(h, a, &result->pages[i]);
    if (result->producer)
        check_known(h, a->conn, result->producer);
    for (uint32_t i = 0; i < result->n_kept; i++) {
        const struct msg_kept_frame *kept = &result->kept[i];
        cr_assert_eq(kept->info.n, CHANNEL_INFO / 8);
        if (i < ARRAY_SIZE(reply->kept))
            reply->kept[i] = (struct h_kept){kept->slot, kept->sequence, kept->info.v[0]};
    }
    reply->member = result->member;
    reply->producer = result->producer;
    reply->former = result->former;
    reply->sequence = result->sequence;
    reply->n_entries = result->n_kept;
    reply->n_pages = result->n_pages;
}

void
books_members(struct harness *h, const struct core_action *a,
              const struct msg_members_result *result, struct h_reply *reply)
{
    for (uint32_t i = 0; i < result->n_pages; i++)
        add_page(h, a, &result->pages[i]);
    for (uint32_t i = 0; i < result->n_members; i++) {
        check_known(h, a->conn, result->members[i].page);
        if (i < ARRAY_SIZE(reply->in_channel))
            reply->in_channel[i] = result->members[i];
    }
    reply->producer = result->version;
    reply->n_entries = result->n_members;
    reply->n_pages = result->n_pages;
}

uint64_t
h_page_new(struct harness *h, uint64_t conn)
{
    return h_page_new_with(h, conn, 0);
}

uint64_t
h_page_new_with(struct harness *h, uint64_t conn, uint64_t tail)
{
    const struct h_reply *reply =
        h_request(h, conn, MSG_PAGE, &(struct msg_page_params){.tail = tail});

    cr_assert(reply->seen || h->closed[conn]);
    return reply->seen && !reply->error ? reply->page : 0;
}

void
h_drop_page(struct harness *h, uint64_t conn, uint64_t page)
{
    struct msg_pages_params params = {.pages = {.v = &page, .n = 1}};

    drop_page_holds(h, conn, page);
    h_notify(h, conn, MSG_DROP_PAGES, &params);
}

/* ---- what is in use ---- */

static enum fence_state
use_state(const struct harness *h, const struct h_use *use)
{
    struct h_page *page = h_page((struct harness *)(uintptr_t)h, use->fence.page);

    return page ? timeline_state(&page->slots[use->fence.slot], use->fence.value) : FENCE_LOST;
}

static bool
overlaps(const struct h_range *range, uint64_t block, uint64_t offset, uint64_t bytes)
{
    return range->block == block && range->offset < offset + bytes &&
           offset < range->offset + range->bytes;
}

void
books_unused(const struct harness *h, uint64_t block, uint64_t offset, uint64_t bytes)
{
    for (size_t i = 0; !h->buried && i < h->n_uses; i++) {
        const struct h_use *use = &h->uses[i];
        if (use->fence.page && !h->exited[use->conn] &&
            overlaps(&use->range, block, offset, bytes))
            cr_assert_neq(use_state(h, use), FENCE_PENDING,
                          "what connection %llu's stream uses is given away (I2)",
                          (unsigned long long)use->conn);
    }
}

static const struct h_range *
range_find(const struct harness *h, uint64_t conn, uint64_t lease)
{
    for (size_t i = 0; i < h->n_ranges; i++)
        if (h->ranges[i].conn == conn && h->ranges[i].lease == lease)
            return &h->ranges[i];
    return NULL;
}

static void
add_use(struct harness *h, const struct h_use *use)
{
    const struct h_range *range = range_find(h, use->conn, use->lease);

    for (size_t i = h->n_uses; h->n_uses > H_USES / 2 && i-- > 0;)
        if (h->uses[i].fence.page && use_state(h, &h->uses[i]) != FENCE_PENDING)
            h->uses[i] = h->uses[--h->n_uses];
    if (!range) /* no bytes */
        return;
    cr_assert_lt(h->n_uses, H_USES);
    h->uses[h->n_uses] = *use;
    h->uses[h->n_uses].array = h->uses[h->n_uses].range = *range;
    if (use->end) {
        h->uses[h->n_uses].range.offset += use->from;
        h->uses[h->n_uses].range.bytes = use->end - use->from;
    }
    h->n_uses++;
}

/* Those that have not ended: of a bracket, a request, a lease (0: any). */
static void
drop_uses(struct harness *h, uint64_t conn, uint64_t bracket, uint32_t request, uint64_t lease)
{
    for (size_t i = h->n_uses; i-- > 0;) {
        const struct h_use *use = &h->uses[i];
        if (use->conn == conn && !use->fence.page && (!bracket || use->bracket == bracket) &&
            (!request || use->request == request) && (!lease || use->lease == lease))
            h->uses[i] = h->uses[--h->n_uses];
    }
}

void
books_refused(struct harness *h, uint64_t conn, uint32_t request)
{
    drop_uses(h, conn, 0, request, 0);
}

void
books_given_up(struct harness *h, uint64_t conn, uint64_t lease)
{
    drop_uses(h, conn, 0, 0, lease);
}

void
books_hung_up(struct harness *h, uint64_t conn)
{
    drop_uses(h, conn, 0, 0, 0);
    drop_page_holds(h, conn, 0);
}

/* A write stands for all that came before it in its range of the same array; what overlaps with it
 * besides is a part, or its whole. */
static void
replace_fences(struct harness *h, const struct h_use *by)
{
    for (size_t i = h->n_uses; i-- > 0;) {
        const struct h_range *r = &h->uses[i].range, *array = &h->uses[i].array;
        if (h->uses[i].fence.page && array->block == by->array.block &&
            array->offset == by->array.offset && array->bytes == by->array.bytes &&
            r->offset >= by->range.offset &&
            r->offset + r->bytes <= by->range.offset + by->range.bytes)
            h->uses[i] = h->uses[--h->n_uses];
    }
}

void
books_ended(struct harness *h, uint64_t conn, const struct msg_end_params *p)
{
    struct h_use ended[64];
    size_t n = 0;

    for (size_t i = h->n_uses; i-- > 0;) {
        const struct h_use *use = &h->uses[i];
        if (use->conn != conn || use->bracket != p->bracket || use->fence.page)
            continue;
        cr_assert_lt(n, ARRAY_SIZE(ended));
        ended[n++] = *use;
        h->uses[i] = h->uses[--h->n_uses];
    }
    while (n-- > 0 && !p->undone) {
        struct h_use *use = &ended[n];
        if (use->write)
            replace_fences(h, use);
        use->fence = (struct h_fence){.page = p->page, .slot = p->slot, .value = p->value};
        if (p->value)
            h->uses[h->n_uses++] = *use;
    }
}

/* ---- brackets ---- */

static void
add_uses(struct harness *h, uint64_t conn, const struct msg_begin_params *p)
{
    struct h_use use = {.conn = conn, .bracket = p->bracket, .request = h->next_id + 1};

    for (uint32_t i = 0; i < p->read.n + p->write.n; i++) {
        use.write = i >= p->read.n;
        uint32_t at = use.write ? i - p->read.n : i;
        const struct msg_u64s *ranges = use.write ? &p->write_ranges : &p->read_ranges;
        use.lease = use.write ? p->write.v[at] : p->read.v[at];
        use.from = ranges->n ? ranges->v[2 * at] : 0;
        use.end = ranges->n ? ranges->v[2 * at + 1] : 0;
        add_use(h, &use);
    }
}

struct h_reply *
h_begin_as(struct harness *h, uint64_t conn, struct msg_begin_params params)
{
    if (!params.bracket)
        params.bracket = h->next_id + 1;
    add_uses(h, conn, &params);
    return h_request(h, conn, MSG_BEGIN, &params);
}

uint64_t
h_begin(struct harness *h, uint64_t conn, uint64_t lease, bool write)
{
    struct msg_u64s leases = {.v = &lease, .n = 1};
    struct msg_begin_params params = {.bracket = h->next_id + 1};

    *(write ? &params.write : &params.read) = leases;
    h_begin_as(h, conn, params);
    return params.bracket;
}

bool
h_is_open(const struct harness *h, uint64_t conn)
{
    const struct h_reply *reply = &h->replies[conn];

    return reply->seen && !reply->error && h->asked[reply->id % H_ASKED] == MSG_BEGIN;
}

uint64_t
h_begun(struct harness *h, uint64_t conn, uint64_t lease, bool write)
{
    uint64_t bracket = h_begin(h, conn, lease, write);

    cr_assert(h_is_open(h, conn), "%s", h->replies[conn].text);
    return bracket;
}

void
h_end_as(struct harness *h, uint64_t conn, struct msg_end_params params)
{
    books_ended(h, conn, &params);
    h_notify(h, conn, MSG_END, &params);
}

void
h_end(struct harness *h, uint64_t conn, uint64_t bracket)
{
    h_end_as(h, conn, (struct msg_end_params){.bracket = bracket});
}

uint64_t
h_end_at(struct harness *h, uint64_t conn, uint64_t bracket, uint64_t page, uint64_t slot)
{
    uint64_t value = h_submit(h, page, slot);

    h_end_as(h, conn,
             (struct msg_end_params){.bracket = bracket,
                                     .page = page,
                                     .slot = slot,
                                     .value = value});
    return value;
}

struct h_reply *
h_fences(struct harness *h, uint64_t conn, uint64_t bracket, uint64_t page, uint64_t slot)
{
    struct msg_fences_params params = {.bracket = bracket, .page = page, .slot = slot};

    return h_request(h, conn, MSG_FENCES, &params);
}

struct h_reply *
h_discard(struct harness *h, uint64_t conn, uint64_t lease)
{
    return h_request(h, conn, MSG_DISCARD, &(struct msg_discard_params){.lease = lease});
}

void
h_cancel(struct harness *h, uint64_t conn, uint32_t request)
{
    h_notify(h, conn, MSG_CANCEL, &(struct msg_cancel_params){.request = request});
}

/* ---- named timelines ---- */

struct h_reply *
h_timeline(struct harness *h, uint64_t conn, const char *name, const char *pool, uint64_t page)
{
    struct msg_timeline_params params = {.name = MSG_STR(name),
                                         .pool = msg_str_opt(pool),
                                         .page = page};

    return h_request(h, conn, MSG_TIMELINE, &params);
}

struct h_reply *
h_open_timeline(struct harness *h, uint64_t conn, const char *name, const char *pool)
{
    struct msg_name_params params = {.name = MSG_STR(name), .pool = msg_str_opt(pool)};

    return h_request(h, conn, MSG_OPEN_TIMELINE, &params);
}
