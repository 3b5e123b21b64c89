/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the client's thread does for pages (page.h): it drops those that nobody needs, and looks whether
 * the contexts are alive that are to signal.
 */
#include "client.h"

/* Until a page that has to wait is looked at again. */
#define RETRY_NS (50 * NSEC_PER_MSEC)
/* Pages in one notification. */
#define DROP_MAX 256

/* ---- telling the daemon ---- */

static void
note_dropped(struct caid_client *client, struct page *page)
{
    page->drop = PAGE_DROPPED;
    page->drop_seq = client->seq;
    client->pages.n_to_drop--;
}

bool
page_has_unsent(const struct caid_client *client)
{
    return client->pages.n_to_drop > 0;
}

int
page_flush(struct caid_client *client)
{
    struct page *page, *pages[DROP_MAX];
    uint64_t ids[DROP_MAX];

    while (client->lost.code == 0 && client->pages.n_to_drop > 0) {
        uint32_t n = 0;
        LIST_FOREACH(page, &client->pages.all, of_table)
        if (page->drop == PAGE_TO_DROP && n < DROP_MAX) {
            ids[n] = page->id;
            pages[n++] = page;
        }
        struct msg_pages_params params = {.pages = {ids, n}};
        int r = call_notify(client, MSG_DROP_PAGES, &params);
        if (r < 0)
            return r;
        for (uint32_t i = 0; i < n; i++)
            note_dropped(client, pages[i]);
    }
    return 0;
}

/* ---- freeing ---- */

/* Whether no reply that is still to come can take it for known here. */
static bool
is_settled(const struct caid_client *client, const struct page *page)
{
    return client->lost.code != 0 || client->n_page_calls == 0 ||
           client->answered > page->drop_seq;
}

/* Drops those of others that can go. Returns how many of all pages there are to free, now or
 * later. */
static size_t
drop_pages(struct caid_client *client)
{
    struct page *page;
    size_t n = 0;

    LIST_FOREACH(page, &client->pages.all, of_table)
    {
        if (!page->own && page_can_go(page))
            page_drop(client, page);
        n += page->drop != PAGE_KEPT || page->unwanted;
    }
    call_flush(client);
    return n;
}

static bool
can_be_freed(const struct caid_client *client, const struct page *page)
{
    bool told = page->drop == PAGE_DROPPED || (page->drop == PAGE_TO_DROP && client->lost.code);

    return told && page_can_go(page) && is_settled(client, page);
}

/* NULL: there is none. */
static struct page *
find_freeable(struct caid_client *client)
{
    struct page *page;

    LIST_FOREACH(page, &client->pages.all, of_table)
    if (can_be_freed(client, page))
        return page;
    return NULL;
}

/* Under the client's lock, which it drops meanwhile. */
static size_t
free_pages(struct caid_client *client)
{
    struct page *page;
    size_t n = 0;

    while ((page = find_freeable(client))) {
        page_take_out(client, page);
        pthread_mutex_unlock(&client->lock);
        page_let_go(client, page);
        pthread_mutex_lock(&client->lock);
        n++;
    }
    return n;
}

/* ---- contexts ---- */

/* Whether a value is yet to come that a stream of the context stores. */
static bool
is_to_signal(struct caid_client *client, CUcontext context)
{
    struct page *page;

    LIST_FOREACH(page, &client->pages.all, of_table)
    for (uint32_t i = 0; page->own && i < TIMELINE_SLOTS; i++)
        if (page->of_slot[i].context == context && !page_slot_has_landed(page, i))
            return true;
    return false;
}

/* Any call tells; this one has to do with no stream, one of which may capture a graph. */
static CUresult
ask_for_event(const struct drv *drv)
{
    CUevent event;

    CUresult result = drv->cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS)
        return result;
    result = drv->cu.cuEventQuery(event);
    drv->cu.cuEventDestroy(event);
    return result;
}

static bool
context_is_gone(const struct drv *drv, CUcontext context)
{
    CUresult result = drv->cu.cuCtxPushCurrent(context);

    if (result != CUDA_SUCCESS)
        return gpu_is_gone(result);
    result = ask_for_event(drv);
    gpu_pop(drv);
    return gpu_is_dead(result);
}

/* Other processes wait for what a context will never store when it is dead, and this one may not notice
 * for long. Primary contexts that the client has retained: others may be gone. */
static void
look_at_contexts(struct caid_client *client)
{
    struct gpu *gpu = &client->gpu;

    pthread_mutex_lock(&gpu->lock);
    const struct drv *drv = gpu->drv;
    pthread_mutex_unlock(&gpu->lock);
    if (!drv)
        return; /* no stream was used yet */
    for (uint32_t i = 0; i < gpu->n_devices; i++) {
        CUcontext context = gpu->devices[i].context;
        pthread_mutex_lock(&client->lock);
        bool asks = context && is_to_signal(client, context);
        pthread_mutex_unlock(&client->lock);
        if (asks && context_is_gone(drv, context))
            pages_kill_context(client, context);
    }
}

/* ---- the whole ---- */

void
page_watch(struct caid_client *client)
{
    if (atomic_exchange(&client->pages.ticking, true))
        return;
    client_enter_anyway(client);
    page_look_by(&client->pages, clock_now_ns() + PAGE_TICK_NS);
    client_leave(client);
}

/* Whether something may happen to pages that nobody tells of. Who submits a value from now on says
 * so. */
static bool
may_change(struct caid_client *client)
{
    struct page *page;

    atomic_exchange(&client->pages.ticking, false);
    LIST_FOREACH(page, &client->pages.all, of_table)
    if (!page->own || !page_has_landed(page))
        return true;
    return false;
}

uint64_t
page_due(const struct caid_client *client)
{
    return client->pages.tidying ? UINT64_MAX : client->pages.due;
}

void
page_tidy(struct caid_client *client)
{
    struct page_table *table = &client->pages;

    if (table->tidying)
        return;
    table->tidying = true;
    table->due = UINT64_MAX;
    pthread_mutex_unlock(&client->lock);
    lanes_are_waiting(client); /* lets go of pages that nobody waits for any more */
    look_at_contexts(client);
    pthread_mutex_lock(&client->lock);
    size_t n = drop_pages(client);
    n -= free_pages(client);
    if (n > 0 || may_change(client))
        page_look_by(table, clock_now_ns() + (n > 0 ? RETRY_NS : PAGE_TICK_NS));
    table->tidying = false;
}
