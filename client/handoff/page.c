/* SPDX-License-Identifier: Apache-2.0 */
#include "page.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "session/client.h"
#include "session/feature.h"

/* A page that has to wait is looked at again after this time. */
#define RETRY_NS (50 * NSEC_PER_MSEC)

static int
page_cmp(const struct page *a, const struct page *b)
{
    return CMP(a->id, b->id);
}

RB_GENERATE_STATIC(page_tree, page, entry, page_cmp)

void
page_table_init(struct page_table *table)
{
    RB_INIT(&table->tree);
    LIST_INIT(&table->all);
    table->due = UINT64_MAX;
}

struct page *
page_find(struct caid_client *client, uint64_t id)
{
    struct page key = {.id = id};
    return RB_FIND(page_tree, &client->pages->tree, &key);
}

struct page *
page_ref(struct page *page)
{
    atomic_fetch_add_explicit(&page->refs, 1, memory_order_relaxed);
    return page;
}

/* What the driver knows of a page. */
struct registration {
    struct registration *next; /* of those that are left */
    void *slots;
    size_t size;
    uint32_t place; /* in whose primary context */
};

/* Of pages that are freed, of all clients of the process. */
static _Atomic(struct registration *) left;

static void
leave_registered(struct registration *registration)
{
    registration->next = atomic_load(&left);
    while (!atomic_compare_exchange_weak(&left, &registration->next, registration))
        ;
}

static void
page_forget(struct page *page)
{
    pthread_mutex_destroy(&page->lock);
    free(page);
}

void
page_unref(struct page *page)
{
    if (atomic_fetch_sub_explicit(&page->refs, 1, memory_order_acq_rel) > 1)
        return;
    if (page->registration)
        leave_registered(page->registration);
    else
        munmap(page->slots, page->size);
    page_forget(page);
}

/* ---- slots ---- */

void
slot_kill(struct timeline_slot *slot)
{
    timeline_kill(slot);
    timeline_wake(slot);
}

static bool
is_dead(const struct page *page)
{
    for (uint32_t i = 0; i < TIMELINE_SLOTS; i++)
        if (!timeline_is_dead(&page->slots[i]))
            return false;
    return true;
}

/* ---- taking ---- */

/* Whether the memory is large enough, and sealed against shrinking. */
static bool
check_file(int fd, uint64_t size)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS); /* < 0: it is not a memfd */

    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &st) == 0 && st.st_size >= 0 &&
           (uint64_t)st.st_size >= size;
}

/* -EPROTO: the fd cannot be mapped so. */
static int
map_slots(int fd, size_t size, bool own, struct timeline_slot **ret)
{
    void *slots = mmap(NULL, size, own ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);

    if (slots == MAP_FAILED)
        return errno == ENOMEM ? -ENOMEM : -EPROTO;
    if (madvise(slots, size, MADV_DONTFORK) < 0) {
        munmap(slots, size);
        return -ENOMEM;
    }
    *ret = slots;
    return 0;
}

static int
page_add(struct caid_client *client, const struct msg_page *m, int fd, bool own)
{
    struct page_table *table = client->pages;
    struct page *page = calloc(1, sizeof(*page));

    if (!page)
        return -ENOMEM;
    int r = map_slots(fd, m->size, own, &page->slots);
    if (r < 0) {
        free(page);
        return r;
    }
    page->id = m->page;
    page->size = m->size;
    page->own = own;
    atomic_init(&page->refs, 1);
    pthread_mutex_init(&page->lock, NULL);
    RB_INSERT(page_tree, &table->tree, page);
    LIST_INSERT_HEAD(&table->all, page, of_table);
    if (!own)
        page_look_by(table, clock_now_ns() + PAGE_TICK_NS);
    return 0;
}

/* The daemon has sent a page again that was dropped and is still mapped: it is kept again. */
static int
page_revive(struct caid_client *client, struct page *page, bool own)
{
    if (own || page->own)
        return -EPROTO;
    if (page->drop == PAGE_TO_DROP)
        client->pages->n_to_drop--;
    page->drop = PAGE_KEPT;
    return 0;
}

static int
page_take(struct caid_client *client, const struct msg_page *m, struct call_fds *fds, bool own)
{
    if (m->page == 0 || m->size < TIMELINE_PAGE_BYTES || m->fd >= fds->n || fds->fd[m->fd] < 0)
        return -EPROTO;
    _cleanup_fd_ int fd = TAKE_FD(fds->fd[m->fd]);
    if (!check_file(fd, m->size))
        return -EPROTO;
    struct page *here = page_find(client, m->page);
    return here ? page_revive(client, here, own) : page_add(client, m, fd, own);
}

int
pages_take(struct caid_client *client, const struct msg_page *pages, uint32_t n,
           struct call_fds *fds, bool own)
{
    if (n != fds->n)
        return -EPROTO;
    for (uint32_t i = 0; i < n; i++) {
        int r = page_take(client, &pages[i], fds, own);
        if (r == -ENOMEM)
            client_lose(client, CAID_ERR_DISCONNECTED,
                        "%s: no memory for a page of timelines: hung up", client->socket);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- asking for a page ---- */

struct page_call {
    struct call call;
    struct page **ret;
};

void
page_give(struct caid_client *client, struct call *call, struct page *page)
{
    page_ref(page);
    if (!call->left) {
        *container_of(call, struct page_call, call)->ret = page;
        return;
    }
    if (page->own)
        page_open(client, page);
    page_close(client, page);
}

int
page_ask(struct caid_client *client, struct page **ret, enum msg_method method,
         const void *params,
         int (*take)(struct caid_client *client, struct call *call, const void *result,
                     struct call_fds *fds),
         struct caid_error *error)
{
    struct page_call *page_call = call_new(sizeof(*page_call), method, params);
    struct call *call = page_call ? &page_call->call : NULL;

    if (page_call) {
        page_call->ret = ret;
        call->take = take;
        call->has_pages = true;
    }
    return call_make(client, call, error);
}

static int
take_page(struct caid_client *client, struct call *call, const void *reply,
          struct call_fds *fds)
{
    const struct msg_page_result *result = reply;

    int r = result->n_pages == 1 ? pages_take(client, result->pages, 1, fds, true) : -EPROTO;
    if (r == 0)
        page_give(client, call, page_find(client, result->pages[0].page));
    return r;
}

int
page_new(struct caid_client *client, size_t tail, struct page **ret, struct caid_error *error)
{
    const struct msg_page_params params = {.tail = tail};

    return page_ask(client, ret, MSG_PAGE, &params, take_page, error);
}

/* ---- the GPU's side ---- */

/* The capture mode is relaxed: else this would end captures of graphs by other threads. */
static CUresult
register_slots(const struct drv *drv, struct page *page, struct registration *registration,
               const char **ret_call)
{
    unsigned int flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                         (page->own ? 0 : CU_MEMHOSTREGISTER_READ_ONLY);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr ptr;

    drv->cu.cuThreadExchangeStreamCaptureMode(&mode);
    if (!page->registration) {
        *ret_call = "cuMemHostRegister";
        result = drv->cu.cuMemHostRegister(page->slots, TIMELINE_PAGE_BYTES, flags);
        if (result == CUDA_SUCCESS)
            page->registration = registration;
    }
    if (result == CUDA_SUCCESS) {
        *ret_call = "cuMemHostGetDevicePointer";
        result = drv->cu.cuMemHostGetDevicePointer(&ptr, page->slots, 0);
    }
    drv->cu.cuThreadExchangeStreamCaptureMode(&mode);
    if (result == CUDA_SUCCESS)
        atomic_store_explicit(&page->ptr, ptr, memory_order_release);
    return result;
}

/* Under page->lock. */
static int
page_register(struct caid_client *client, struct page *page, uint32_t place,
              struct caid_error *error)
{
    const struct drv *drv;
    const char *call;

    if (page->ptr)
        return 0;
    if (page->registration)
        place = page->registration->place;
    struct registration *made = malloc(sizeof(*made));
    if (!made)
        return fail_errno(error, ENOMEM, "no memory for a page of timelines");
    *made = (struct registration){.slots = page->slots, .size = page->size, .place = place};
    int r = gpu_push_place(client, place, &drv, error);
    if (r == 0) {
        CUresult result = register_slots(drv, page, made, &call);
        gpu_pop(drv);
        r = gpu_result(drv, call, result, "cannot register a page of timelines", error);
    }
    if (page->registration != made)
        free(made);
    return r;
}

static int
unregister(struct caid_client *client, const struct registration *registration,
           struct caid_error *error)
{
    const struct drv *drv;

    int r = gpu_push_place(client, registration->place, &drv, error);
    if (r < 0)
        return r;
    int mode = gpu_relax(drv);
    CUresult result = drv->cu.cuMemHostUnregister(registration->slots);
    gpu_unrelax(drv, mode);
    gpu_pop(drv);
    return gpu_result(drv, "cuMemHostUnregister", result,
                      "cannot unregister a page of timelines", error);
}

int
page_address(struct caid_client *client, struct page *page, uint32_t slot, uint32_t place,
             CUdeviceptr *ret, struct caid_error *error)
{
    CUdeviceptr ptr = atomic_load_explicit(&page->ptr, memory_order_acquire);

    if (!ptr) {
        pthread_mutex_lock(&page->lock);
        int r = page_register(client, page, place, error);
        ptr = page->ptr;
        pthread_mutex_unlock(&page->lock);
        if (r < 0)
            return r;
    }
    *ret = ptr + slot * sizeof(struct timeline_slot) + offsetof(struct timeline_slot, done);
    return 0;
}

static void
destroy_events(struct caid_client *client, struct page *page)
{
    for (uint32_t i = 0; i < TIMELINE_SLOTS; i++) {
        struct page_slot *of_slot = &page->of_slot[i];
        if (of_slot->event)
            client->gpu.drv->cu.cuEventDestroy(of_slot->event);
        of_slot->event = NULL;
        of_slot->event_context = NULL;
        memset(of_slot->event_handle, 0, sizeof(of_slot->event_handle));
    }
}

/* An own slot says that it has an event when it is recorded again. */
static int
page_suspend(struct caid_client *client, struct page *page, struct caid_error *error)
{
    int r = 0;

    pthread_mutex_lock(&page->lock);
    for (uint32_t i = 0; page->own && i < TIMELINE_SLOTS; i++)
        atomic_store_explicit(&page->slots[i].has_event, false, memory_order_release);
    destroy_events(client, page);
    if (page->registration)
        r = unregister(client, page->registration, error);
    if (r == 0) {
        page->ptr = 0;
        free(TAKE_PTR(page->registration));
    }
    pthread_mutex_unlock(&page->lock);
    return r;
}

/* What another driver of the process has registered stays. */
static void
unregister_left(struct caid_client *client)
{
    struct registration *registration = atomic_exchange(&left, NULL), *next;

    for (; registration; registration = next) {
        next = registration->next;
        if (registration->place >= client->gpu.n_devices ||
            unregister(client, registration, NULL) < 0) {
            leave_registered(registration);
            continue;
        }
        munmap(registration->slots, registration->size);
        free(registration);
    }
}

int
pages_suspend(struct caid_client *client, struct caid_error *error)
{
    struct page_table *table = client->pages;
    struct page key = {.id = 0}, *page;
    int r = 0;

    pthread_mutex_lock(&client->lock);
    while (r == 0 && (page = RB_NFIND(page_tree, &table->tree, &key))) {
        key.id = page->id + 1;
        page_ref(page);
        pthread_mutex_unlock(&client->lock);
        r = page_suspend(client, page, error);
        page_unref(page);
        pthread_mutex_lock(&client->lock);
    }
    pthread_mutex_unlock(&client->lock);
    if (r == 0)
        unregister_left(client);
    return r;
}

/* If all values of an own page have landed, ends the waits in it: no further value will come. Drops
 * the reference. */
static void
let_go(struct caid_client *client, struct page *page)
{
    if (!page->own || page_has_landed(page)) {
        for (uint32_t i = 0; page->own && i < TIMELINE_SLOTS; i++)
            slot_kill(&page->slots[i]);
        destroy_events(client, page);
    }
    page_unref(page);
}

/* ---- dropping ---- */

static bool
can_go(const struct page *page)
{
    return atomic_load_explicit(&page->refs, memory_order_acquire) == 1 && /* the table's */
           (page->own ? page->unwanted && page_has_landed(page)
                      : page->unwanted || is_dead(page));
}

static void
drop(struct caid_client *client, struct page *page)
{
    if (page->drop != PAGE_KEPT)
        return;
    page->drop = PAGE_TO_DROP;
    client->pages->n_to_drop++;
}

static void
take_out(struct caid_client *client, struct page *page)
{
    struct page_table *table = client->pages;

    RB_REMOVE(page_tree, &table->tree, page);
    LIST_REMOVE(page, of_table);
    table->n_to_drop -= page->drop == PAGE_TO_DROP;
}

void
page_open(struct caid_client *client, struct page *page)
{
    page->n_timelines++;
    page->unwanted = false;
    if (page->drop == PAGE_TO_DROP && !page->own)
        page_revive(client, page, false);
}

void
page_close(struct caid_client *client, struct page *page)
{
    page_unref(page);
    if (--page->n_timelines > 0)
        return;
    page->unwanted = true;
    if (page->own) {
        drop(client, page);
        call_flush(client);
    }
    page_look_by(client->pages, 0);
}

/* ---- telling the daemon ---- */

static bool
has_unsent(const struct caid_client *client)
{
    return client->pages->n_to_drop > 0;
}

static int
flush(struct caid_client *client)
{
    struct page *page, *pages[PROTO_DROP_MAX];
    uint64_t ids[PROTO_DROP_MAX];

    while (client->lost.code == 0 && client->pages->n_to_drop > 0) {
        uint32_t n = 0;
        LIST_FOREACH(page, &client->pages->all, of_table)
            if (page->drop == PAGE_TO_DROP && n < PROTO_DROP_MAX) {
                ids[n] = page->id;
                pages[n++] = page;
            }
        struct msg_pages_params params = {.pages = {ids, n}};
        int r = call_notify(client, MSG_DROP_PAGES, &params);
        if (r < 0)
            return r;
        for (uint32_t i = 0; i < n; i++) {
            pages[i]->drop = PAGE_DROPPED;
            pages[i]->drop_seq = client->seq;
        }
        client->pages->n_to_drop -= n;
    }
    return 0;
}

/* ---- freeing ---- */

/* Whether no reply that is still to come can refer to the page. */
static bool
is_settled(const struct caid_client *client, const struct page *page)
{
    return client->lost.code != 0 || client->n_page_calls == 0 ||
           client->answered > page->drop_seq;
}

/* Drops other clients' pages that can go. Returns how many pages are to be freed, now or later. */
static size_t
drop_pages(struct caid_client *client)
{
    struct page *page;
    size_t n = 0;

    LIST_FOREACH(page, &client->pages->all, of_table) {
        if (!page->own && can_go(page))
            drop(client, page);
        n += page->drop != PAGE_KEPT || page->unwanted;
    }
    call_flush(client);
    return n;
}

static bool
can_be_freed(const struct caid_client *client, const struct page *page)
{
    bool is_dropped = page->drop == PAGE_DROPPED ||
                      (page->drop == PAGE_TO_DROP && client->lost.code);

    return is_dropped && can_go(page) && is_settled(client, page);
}

/* NULL: there is none. */
static struct page *
find_freeable(struct caid_client *client)
{
    struct page *page;

    LIST_FOREACH(page, &client->pages->all, of_table)
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
        take_out(client, page);
        pthread_mutex_unlock(&client->lock);
        let_go(client, page);
        pthread_mutex_lock(&client->lock);
        n++;
    }
    return n;
}

/* ---- contexts ---- */

/* A slot in which a stream of the context is yet to store a value, or NULL. Under the client's
 * lock. */
static struct timeline_slot *
find_expected(struct caid_client *client, CUcontext context)
{
    struct page *page;

    LIST_FOREACH(page, &client->pages->all, of_table)
        for (uint32_t i = 0; page->own && i < TIMELINE_SLOTS; i++)
            if (page->of_slot[i].context == context && !page_slot_has_landed(page, i))
                return &page->slots[i];
    return NULL;
}

static void
context_died(struct caid_client *client, CUcontext context)
{
    struct timeline_slot *slot;

    pthread_mutex_lock(&client->lock);
    while ((slot = find_expected(client, context)))
        slot_kill(slot); /* a killed slot counts as landed */
    pthread_mutex_unlock(&client->lock);
}

/* Any driver call shows whether the context is dead. This one involves no stream, since streams may
 * capture graphs. */
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

/* Looks for dead contexts: other processes may wait for values that a dead context never stores.
 * Only primary contexts that the client has retained: others may not exist any more. */
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
        bool asks = context && find_expected(client, context);
        pthread_mutex_unlock(&client->lock);
        if (asks && context_is_gone(drv, context))
            context_died(client, context);
    }
}

/* ---- the whole ---- */

void
page_watch(struct caid_client *client)
{
    if (atomic_exchange(&client->pages->ticking, true))
        return;
    client_enter_anyway(client);
    page_look_by(client->pages, clock_now_ns() + PAGE_TICK_NS);
    client_leave(client);
}

/* Whether pages may change without notice, so that they have to be polled. A value that is
 * submitted later calls page_watch(). */
static bool
may_change(struct caid_client *client)
{
    struct page *page;

    atomic_exchange(&client->pages->ticking, false);
    LIST_FOREACH(page, &client->pages->all, of_table)
        if (!page->own || !page_has_landed(page))
            return true;
    return false;
}

uint64_t
page_due(const struct caid_client *client)
{
    return client->pages->tidying ? UINT64_MAX : client->pages->due;
}

static void
pages_tidy(struct caid_client *client, bool all UNUSED)
{
    struct page_table *table = client->pages;

    if (page_due(client) > clock_now_ns())
        return;
    table->tidying = true;
    table->due = UINT64_MAX;
    pthread_mutex_unlock(&client->lock);
    look_at_contexts(client);
    pthread_mutex_lock(&client->lock);
    size_t n = drop_pages(client);
    n -= free_pages(client);
    if (n > 0 || may_change(client))
        page_look_by(table, clock_now_ns() + (n > 0 ? RETRY_NS : PAGE_TICK_NS));
    table->tidying = false;
}

/* ---- the end ---- */

void
pages_close(struct caid_client *client)
{
    struct page *page;

    LIST_FOREACH(page, &client->pages->all, of_table)
        if (page->own)
            drop(client, page);
    call_flush(client);
}

bool
pages_are_busy(const struct caid_client *client)
{
    const struct page *page;

    LIST_FOREACH(page, &client->pages->all, of_table)
        if (page->own && !page_has_landed(page))
            return true;
    return false;
}

static void
pages_deinit(struct caid_client *client)
{
    struct page *page;

    client->keeps |= pages_are_busy(client);
    while ((page = LIST_FIRST(&client->pages->all))) {
        take_out(client, page);
        let_go(client, page);
    }
}

/* A child after fork() does not have the mappings: frees host memory only. */
static void
pages_abandon(struct caid_client *client)
{
    struct page *page;

    while ((page = LIST_FIRST(&client->pages->all))) {
        take_out(client, page);
        free(page->registration);
        page_forget(page);
    }
}

static void
pages_inventory(struct caid_client *client, struct inventory *inventory)
{
    const struct page *page;

    LIST_FOREACH(page, &client->pages->all, of_table)
        if (page->own && page->drop == PAGE_KEPT)
            inventory_add(inventory, INVENTORY_PAGE, page->id);
}

const struct feature page_feature = {
    .take_inventory = pages_inventory,
    .has_unsent = has_unsent,
    .flush = flush,
    .due = page_due,
    .tidy = pages_tidy,
    .context_died = context_died,
    .deinit = pages_deinit,
    .abandon = pages_abandon,
};
