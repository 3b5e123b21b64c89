/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timelines that have a name: timeline, open_timeline, timelines.
 */
#include "request.h"

HANDLER(on_timeline)
{
    const struct msg_timeline_params *p = params;
    struct pool *pool;
    struct page *page;
    int rc;

    if (name_check(p->name, r) || pool_find_writable(core, conn, p->pool, &pool, r) ||
        page_get_own(core, conn, p->page, &page, r))
        return REFUSED;
    rc = timeline_new(core, conn, pool, p->name, page, r);
    if (rc)
        return rc;
    page_seal(core, page);
    send_result(core, conn, id, MSG_TIMELINE, &(struct msg_none){}, NULL, 0);
    return 0;
}

/* ---- open ---- */

HANDLER(on_open_timeline)
{
    const struct msg_name_params *p = params;
    struct pool *pool = pool_find(core, conn, p->pool);
    struct timeline *timeline;
    struct sent_pages pages = {.n = 0};
    int rc;

    if (name_check(p->name, r))
        return REFUSED;
    timeline = pool && pool_may(pool, conn, MAY_READ) ? timeline_find(core, pool, p->name)
                                                      : NULL;
    if (!timeline)
        return refuse_name(r, "timeline", p->pool, p->name);
    rc = page_send(conn, timeline->page, &pages, r);
    if (rc)
        return rc;
    send_result(core, conn, id, MSG_OPEN_TIMELINE,
                &(struct msg_open_timeline_result){.page = timeline->page->id,
                                                   .pages = pages.records,
                                                   .n_pages = pages.n},
                pages.fds, pages.n);
    return 0;
}

/* ---- list ---- */

/* What the slot says is its owner's word. */
static struct msg_timeline_entry
timeline_record(const struct timeline *timeline)
{
    const struct page *page = timeline->page;
    const struct timeline_slot *slot = &page->slots[0];
    bool dead = timeline_is_dead(slot);
    uint64_t value = dead ? atomic_load_explicit(&slot->landed, memory_order_acquire)
                          : atomic_load_explicit(&slot->done, memory_order_acquire);

    return (struct msg_timeline_entry){
        .pool = MSG_STR(timeline->pool->name),
        .name = {timeline->name, timeline->n_name},
        .pid = (uint64_t)page->conn->pid,
        .uid = page->conn->user->uid,
        .client = msg_str_opt(*page->conn->client ? page->conn->client : NULL),
        .value = value,
        .submitted = dead ? value : timeline_submitted(slot),
        .holders = page->n_holds,
    };
}

static void
timelines_pool(const struct core *core, struct portion *portion, struct pool *pool,
               const void *params, bool resumed)
{
    const struct msg_timelines_params *p = params;
    struct msg_str after = resumed ? p->after : (struct msg_str){0};
    const struct timeline *timeline;

    while (pool->n_timelines && (timeline = timeline_find_next(core, pool, after))) {
        struct msg_timeline_entry record = timeline_record(timeline);
        if (!portion_add(portion, &record, msg_timeline_entry_size(&record)))
            return;
        after = record.name;
    }
}

HANDLER(on_timelines)
{
    const struct msg_timelines_params *p = params;
    _cleanup_free_ struct msg_timeline_entry *records = calloc(PORTION_MAX, sizeof(*records));
    struct portion portion = PORTION(core, records, PORTION_MAX);

    if (!records)
        return -ENOMEM;
    if (pools_list(core, conn, &portion, p->all, p->pool, timelines_pool, p, r))
        return REFUSED;
    SEND_PORTION(core, conn, id, TIMELINES, timelines_result, timelines, portion);
    return 0;
}
