/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who uses an array when: page, drop_pages, begin, fences, end, discard.
 */
#include "array.h"
#include "fences.h"
#include "request.h"

/* ---- pages ---- */

HANDLER(on_page)
{
    const struct msg_page_params *p = params;

    return page_new(core, conn, id, p->tail, r);
}

/* A page that the client neither owns nor holds has gone meanwhile. */
HANDLER(on_drop_pages)
{
    const struct msg_pages_params *p = params;

    if (p->pages.n > PROTO_DROP_MAX)
        return refuse(r, PROTO_ERR_INVALID, "drop_pages takes at most %d pages",
                      PROTO_DROP_MAX);
    for (uint32_t i = 0; i < p->pages.n; i++) {
        struct page *own = page_find_own(core, conn, p->pages.v[i]);
        struct hold *hold = hold_find(&conn->page_holds, p->pages.v[i]);
        if (own)
            page_drop(core, own);
        if (hold)
            page_unhold(core, hold);
    }
    return 0;
}

/* ---- begin, fences, end ---- */

HANDLER(on_begin)
{
    const struct msg_begin_params *p = params;
    struct bracket_request req = {
        .id = p->bracket,
        .thread = p->thread,
        .timeout_ns = p->timeout_ns,
        .nowait = p->nowait,
        .again = p->again && conn->resuming,
        .read = p->read,
        .write = p->write,
        .read_ranges = p->read_ranges,
        .write_ranges = p->write_ranges,
    };

    return req.again ? bracket_resume(core, conn, id, &req, r)
                     : bracket_new(core, conn, id, &req, r);
}

/* An open bracket that the client has not ended. */
static int
bracket_find_open(struct conn *conn, uint64_t id, struct bracket **ret, struct refusal *r)
{
    struct bracket *bracket = bracket_find(conn, id);

    if (!bracket || bracket->waiting)
        return refuse(r, PROTO_ERR_INVALID, "bracket %llu is not open", (unsigned long long)id);
    *ret = bracket;
    return 0;
}

HANDLER(on_fences)
{
    const struct msg_fences_params *p = params;
    const struct array *array;
    struct bracket *bracket;

    if (bracket_find_open(conn, p->bracket, &bracket, r))
        return REFUSED;
    /* An array of the bracket was whole when the bracket began, and its writer has died since. The
     * writer's fence went with his page, so that the client cannot see it. */
    array = bracket_find_abandoned(bracket);
    if (array)
        return refuse(r, PROTO_ERR_ABANDONED, "array \"%s\": its writer died",
                      array_label(array));
    return fences_reply(core, bracket, id, MSG_FENCES, p->page, p->slot, r);
}

/* Checks the fence of an END: submitted already, and no slot goes backwards. */
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

HANDLER(on_end)
{
    const struct msg_end_params *p = params;
    struct bracket *bracket;
    struct page *page = NULL;

    if (bracket_find_open(conn, p->bracket, &bracket, r))
        return REFUSED;
    if (p->value && end_page(core, conn, p, &page, r))
        return REFUSED;
    if (page) {
        page_seal(core, page); /* whoever submitted in the page has mapped it */
        page->last[p->slot] = p->value;
    }
    bracket_end(core, bracket, page, (uint32_t)p->slot, p->value, p->undone, p->abandon);
    return 0;
}

/* ---- discard ---- */

HANDLER(on_discard)
{
    const struct msg_discard_params *p = params;
    struct lease *lease;
    struct array *array;

    if (lease_get(conn, p->lease, &lease, r))
        return REFUSED;
    array = lease->array;
    if (lease->readonly)
        return refuse(r, PROTO_ERR_PERMISSION, "array \"%.*s\" was opened for reading",
                      array->n_name, array->name);
    if (use_is_abandoned(array) && array->use) {
        use_heal(&array->use->whole);
        use_settle(array->use);
    } else if (array->abandoned) {
        array->abandoned = false;
        persist_mark(array);
    }
    send_result(core, conn, id, MSG_DISCARD, &(struct msg_none){}, NULL, 0);
    return 0;
}
