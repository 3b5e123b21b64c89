/* SPDX-License-Identifier: Apache-2.0 */
#include "lane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "enqueue.h"
#include "memory/array.h"
#include "memory/block.h"
#include "session/client.h"
#include "session/feature.h"
#include "session/stream.h"

/* With fewer lanes than this, unneeded ones are not looked for. */
#define SWEEP_MIN 64
/* A client that closes waits so long for signals that are being made. */
#define CLOSE_NS       NSEC_PER_SEC
#define CLOSE_PAUSE_NS NSEC_PER_MSEC

static const char *const handoff_names[N_HANDOFFS] = {"memops", "host", "events"};

int
handoff_find(struct msg_str name)
{
    for (int i = 0; i < N_HANDOFFS; i++)
        if (msg_str_eq(name, handoff_names[i]))
            return i;
    return -1;
}

static int
lane_cmp(const struct lane *a, const struct lane *b)
{
    int c = CMP(a->id, b->id);
    return c ? c : CMP((uintptr_t)a->key, (uintptr_t)b->key);
}

RB_GENERATE_STATIC(lane_tree, lane, entry, lane_cmp)

void
lane_table_init(struct lane_table *table)
{
    RB_INIT(&table->tree);
    LIST_INIT(&table->pages);
    table->sweep_at = SWEEP_MIN;
    pthread_mutex_init(&table->lock, NULL);
}

void
lane_put(struct lane *lane)
{
    atomic_fetch_sub_explicit(&lane->refs, 1, memory_order_release);
}

/* ---- what is noted ---- */

/* If the page's contents are impossible, the stream may still wait. */
static bool
is_over(struct lane *lane, const struct fence *fence)
{
    enum fence_state state;

    if (fence_look(fence, true, &state, NULL) < 0 || state == FENCE_PENDING)
        return false;
    lane->lost |= state == FENCE_LOST && fence->data;
    return true;
}

/* Drops the fences that the stream does not wait for any more. Under lane->lock. */
static void
lane_settle(struct lane *lane)
{
    for (size_t i = 0; i < lane->n_waits;) {
        if (!is_over(lane, &lane->waits[i])) {
            i++;
            continue;
        }
        fence_drop(&lane->waits[i]);
        lane->waits[i] = lane->waits[--lane->n_waits];
    }
}

/* The wait for the fence's slot, if there is one: only the highest value of a slot is noted. */
static struct fence *
find_wait(struct lane *lane, const struct fence *fence)
{
    for (size_t i = 0; i < lane->n_waits; i++) {
        struct fence *wait = &lane->waits[i];
        if (wait->page == fence->page && wait->slot == fence->slot && wait->data == fence->data)
            return wait;
    }
    return NULL;
}

/* Makes room for the note before a wait is enqueued, so that every enqueued wait is noted. */
static int
reserve_wait(struct lane *lane, struct caid_error *error)
{
    size_t capacity = lane->waits_capacity * 2;

    if (lane->n_waits < lane->waits_capacity)
        return 0;
    struct fence *waits = malloc(capacity * sizeof(*waits));
    if (!waits)
        return fail_errno(error, ENOMEM, "no memory for what a stream waits for");
    memcpy(waits, lane->waits, lane->n_waits * sizeof(*waits));
    if (lane->waits != lane->few_waits)
        free(lane->waits);
    lane->waits = waits;
    lane->waits_capacity = capacity;
    return 0;
}

static void
note_wait(struct lane *lane, const struct fence *fence)
{
    struct fence *wait = find_wait(lane, fence);

    if (!wait)
        lane->waits[lane->n_waits++] = fence_ref(fence);
    else if (wait->value < fence->value)
        wait->value = fence->value;
}

/* ---- the table ---- */

/* The lane's slot may go to another lane when its last value has landed. Under lanes.lock. */
static void
give_slot_up(struct lane *lane)
{
    if (lane->page)
        lane->page->of_slot[lane->slot].lane = NULL;
    lane->page = NULL;
}

static void
lane_free(struct lane *lane)
{
    while (lane->n_waits > 0)
        fence_drop(&lane->waits[--lane->n_waits]);
    if (lane->waits != lane->few_waits)
        free(lane->waits);
    pthread_mutex_destroy(&lane->lock);
    free(lane);
}

/* Whether the lane can be freed without losing anything. Under lanes.lock. A locked lane is in
 * use. */
static bool
knows_nothing(struct lane *lane)
{
    if (atomic_load_explicit(&lane->refs, memory_order_acquire) > 0)
        return false;
    lane_settle(lane); /* nobody can find it, to lock it, without lanes.lock */
    return lane->n_waits == 0 && (!lane->lost || lane->destroyed);
}

static void
sweep(struct lane_table *table)
{
    struct lane *lane, *next;

    RB_FOREACH_SAFE(lane, lane_tree, &table->tree, next) {
        if (!knows_nothing(lane))
            continue;
        RB_REMOVE(lane_tree, &table->tree, lane);
        table->n--;
        give_slot_up(lane);
        lane_free(lane);
    }
    table->sweep_at = table->n * 2 > SWEEP_MIN ? table->n * 2 : SWEEP_MIN;
}

/* A lane that is in use may be about to wait. Under lanes.lock. */
static bool
is_waiting(struct lane *lane)
{
    if (pthread_mutex_trylock(&lane->lock) != 0)
        return true;
    lane_settle(lane);
    bool waits = lane->n_waits > 0;
    pthread_mutex_unlock(&lane->lock);
    return waits;
}

bool
lanes_are_waiting(struct caid_client *client, uint64_t *ret_stream)
{
    struct lane_table *table = client->lanes;
    struct lane *lane;
    bool waiting = false;

    pthread_mutex_lock(&table->lock);
    RB_FOREACH(lane, lane_tree, &table->tree)
        if (is_waiting(lane)) {
            waiting = true;
            *ret_stream = (uintptr_t)lane->handle;
        }
    pthread_mutex_unlock(&table->lock);
    return waiting;
}

static void
free_all(struct lane_table *table)
{
    struct lane *lane;

    while ((lane = RB_MIN(lane_tree, &table->tree))) {
        RB_REMOVE(lane_tree, &table->tree, lane);
        lane_free(lane);
    }
}

static void
lanes_deinit(struct caid_client *client)
{
    uint64_t unused;

    client->keeps |= lanes_are_waiting(client, &unused);
    free_all(client->lanes);
}

static void
lanes_abandon(struct caid_client *client)
{
    struct lane_table *table = client->lanes;

    if (pthread_mutex_trylock(&table->lock) != 0)
        return; /* a thread of the parent had the lock */
    free_all(table);
    pthread_mutex_unlock(&table->lock);
}

/* Runs before the pages are tidied, so that pages that no lane waits for any more can go. */
static void
lanes_tidy(struct caid_client *client, bool all UNUSED)
{
    uint64_t unused;

    if (page_due(client) > clock_now_ns())
        return;
    pthread_mutex_unlock(&client->lock);
    lanes_are_waiting(client, &unused);
    pthread_mutex_lock(&client->lock);
}

const struct feature lane_feature = {.tidy = lanes_tidy,
                                     .deinit = lanes_deinit,
                                     .abandon = lanes_abandon};

/* A lane that waits for a page from the daemon does not signal any more when it gets it. */
static void
wait_until_unlocked(struct lane *lane, uint64_t deadline_ns)
{
    const struct timespec pause = {.tv_nsec = CLOSE_PAUSE_NS};

    while (pthread_mutex_trylock(&lane->lock) != 0) {
        if (clock_now_ns() >= deadline_ns)
            return;
        nanosleep(&pause, NULL);
    }
    pthread_mutex_unlock(&lane->lock);
}

void
lanes_close(struct caid_client *client)
{
    uint64_t deadline_ns = clock_now_ns() + CLOSE_NS;
    struct lane_table *table = client->lanes;
    struct lane *lane;

    atomic_store(&table->closed, true);
    pthread_mutex_lock(&table->lock);
    RB_FOREACH(lane, lane_tree, &table->tree) {
        atomic_fetch_add_explicit(&lane->refs, 1, memory_order_relaxed);
        pthread_mutex_unlock(&table->lock);
        wait_until_unlocked(lane, deadline_ns);
        pthread_mutex_lock(&table->lock);
        lane_put(lane);
    }
    pthread_mutex_unlock(&table->lock);
}

/* ---- finding ---- */

/* By the host, which always works, if the daemon does not have the device, or names a kind of
 * hand-off that is not known here. */
static enum handoff
handoff_of(const struct caid_client *client, uint32_t place, bool has_id)
{
    int32_t index = client->gpu.devices[place].index;
    int handoff = has_id && index >= 0 ? handoff_find(MSG_STR(client->devices[index]->handoff))
                                       : -1;
    return handoff < 0 ? HANDOFF_HOST : (enum handoff)handoff;
}

/* Under lanes.lock. */
static struct lane *
find_lane(struct lane_table *table, uint64_t id, CUcontext key)
{
    struct lane wanted = {.id = id, .key = key};
    struct lane *lane = RB_FIND(lane_tree, &table->tree, &wanted);

    if (lane)
        atomic_fetch_add_explicit(&lane->refs, 1, memory_order_relaxed);
    return lane;
}

struct identity {
    uint64_t id;
    CUcontext key;
};

/* For a default stream, its context is current. */
static int
identify(const struct drv *drv, CUstream stream, CUcontext context, struct identity *ret,
         struct caid_error *error)
{
    unsigned long long id;

    CUresult result = drv->cu.cuStreamGetId(stream, &id);
    if (result == CUDA_SUCCESS)
        *ret = (struct identity){.id = id};
    else if (result == CUDA_ERROR_NOT_FOUND) /* no such function */
        *ret = (struct identity){.id = (uintptr_t)stream, .key = context};
    else
        return gpu_result(drv, "cuStreamGetId", result, "cannot use a stream", error);
    return 0;
}

/* Adds the lane, unless another thread has added one for the stream: then returns that. */
static struct lane *
lane_add(struct lane_table *table, struct lane *lane)
{
    pthread_mutex_lock(&table->lock);
    struct lane *here = find_lane(table, lane->id, lane->key);
    if (!here) {
        if (table->n >= table->sweep_at)
            sweep(table);
        RB_INSERT(lane_tree, &table->tree, lane);
        table->n++;
    }
    pthread_mutex_unlock(&table->lock);
    if (here)
        lane_free(lane);
    return here ? here : lane;
}

static int
lane_new(struct caid_client *client, const struct stream *stream, struct identity identity,
         struct lane **ret, struct caid_error *error)
{
    uint32_t place;

    int r = stream_place(client, stream, &place, error);
    if (r < 0)
        return r;
    struct lane *lane = calloc(1, sizeof(*lane));
    if (!lane)
        return fail_errno(error, ENOMEM, "no memory for a stream");
    lane->id = identity.id;
    lane->key = identity.key;
    lane->handle = stream->handle;
    lane->context = stream->context;
    lane->place = place;
    lane->handoff = handoff_of(client, place, !identity.key);
    lane->waits = lane->few_waits;
    lane->waits_capacity = LANE_WAITS;
    atomic_init(&lane->refs, 1);
    pthread_mutex_init(&lane->lock, NULL);
    *ret = lane_add(client->lanes, lane);
    return 0;
}

/* *ret NULL: there is none, and `make` is false. */
static int
get_in_context(struct caid_client *client, const struct stream *stream, bool make,
               struct lane **ret, struct caid_error *error)
{
    struct lane_table *table = client->lanes;
    struct identity identity = {0};

    int r = identify(stream->drv, stream->handle, stream->context, &identity, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&table->lock);
    *ret = find_lane(table, identity.id, identity.key);
    pthread_mutex_unlock(&table->lock);
    return *ret || !make ? 0 : lane_new(client, stream, identity, ret, error);
}

static int
get_lane(struct caid_client *client, uint64_t handle, int32_t device, bool make,
         struct lane **ret, struct caid_error *error)
{
    struct stream stream;

    int r = stream_enter(client, handle, device, &stream, error);
    if (r < 0)
        return r;
    r = get_in_context(client, &stream, make, ret, error);
    stream_leave(&stream);
    return r;
}

int
lane_get(struct caid_client *client, uint64_t handle, int32_t device, struct lane **ret,
         struct caid_error *error)
{
    return get_lane(client, handle, device, true, ret, error);
}

int
lane_find(struct caid_client *client, uint64_t handle, int32_t device, struct lane **ret,
          struct caid_error *error)
{
    return get_lane(client, handle, device, false, ret, error);
}

/* Enters the lane's stream. CAID_ERR_INVALID: 1 or 2 is another stream in this context or thread,
 * or the stream captures a graph by now. Under lane->lock. */
static int
lane_enter(struct caid_client *client, const struct lane *lane, struct stream *ret,
           struct caid_error *error)
{
    struct identity now = {.id = lane->id};

    int r = client_check_awake(client, error);
    if (r == 0)
        r = stream_enter_context(client, lane->handle, lane->context, ret, error);
    if (r < 0)
        return r;
    r = stream_check_not_capturing(client, ret, error);
    if (r == 0 && stream_is_special((uintptr_t)lane->handle))
        r = identify(ret->drv, lane->handle, lane->context, &now, error);
    if (r == 0 && now.id != lane->id)
        r = fail(
            error, CAID_ERR_INVALID,
            "stream %d is another one in this thread: end what you began where you began it",
            (int)(uintptr_t)lane->handle);
    if (r < 0)
        stream_leave(ret);
    return r;
}

/* ---- slots ---- */

/* Whether the slot is full, or killed. */
static bool
slot_is_over(const struct page *page, uint32_t slot)
{
    const struct timeline_slot *s = &page->slots[slot];

    return timeline_is_dead(s) || timeline_submitted(s) >= TIMELINE_VALUE_MAX;
}

/* A slot with an event is good for lanes of that context only. */
static bool
slot_suits(const struct page *page, uint32_t slot, const struct lane *lane)
{
    const struct page_slot *of_slot = &page->of_slot[slot];

    return !slot_is_over(page, slot) && page_slot_has_landed(page, slot) &&
           (!of_slot->event_context || of_slot->event_context == lane->context);
}

/* Takes the slot from its holder, unless that is using it now. Under lanes.lock. */
static bool
take_slot_from(struct lane *holder, const struct page *page, uint32_t slot,
               const struct lane *lane)
{
    if (pthread_mutex_trylock(&holder->lock) != 0)
        return false;
    bool taken = slot_suits(page, slot, lane);
    if (taken)
        give_slot_up(holder);
    pthread_mutex_unlock(&holder->lock);
    return taken;
}

static bool
try_slot(struct page *page, uint32_t slot, struct lane *lane, bool of_others)
{
    struct lane *holder = page->of_slot[slot].lane;

    if (!slot_suits(page, slot, lane) || (holder && !of_others))
        return false;
    if (holder && !take_slot_from(holder, page, slot, lane))
        return false;
    page->of_slot[slot].lane = lane;
    lane->page = page;
    lane->slot = slot;
    return true;
}

/* Under lanes.lock. */
static bool
find_slot(struct lane_table *table, struct lane *lane, bool of_others)
{
    struct page *page;

    LIST_FOREACH(page, &table->pages, of_lanes)
        for (uint32_t slot = 0; slot < TIMELINE_SLOTS; slot++)
            if (try_slot(page, slot, lane, of_others))
                return true;
    return false;
}

/* Whether the lane can go on with its slot. Not if the slot is dead or full; nor if its last value
 * has not landed and the stream is known only by its handle: it may be another stream by now. */
static bool
has_slot(const struct lane *lane)
{
    return lane->page && !slot_is_over(lane->page, lane->slot) &&
           (!lane->key || page_slot_has_landed(lane->page, lane->slot));
}

static bool
change_slot(struct lane_table *table, struct lane *lane)
{
    pthread_mutex_lock(&table->lock);
    give_slot_up(lane);
    bool found = find_slot(table, lane, false) || find_slot(table, lane, true);
    pthread_mutex_unlock(&table->lock);
    return found;
}

static int
need_slot(struct caid_client *client, struct lane *lane, struct caid_error *error)
{
    struct lane_table *table = client->lanes;
    struct page *page;

    while (!has_slot(lane) && !change_slot(table, lane)) {
        int r = page_new(client, 0, &page, error);
        if (r < 0)
            return r;
        pthread_mutex_lock(&table->lock);
        LIST_INSERT_HEAD(&table->pages, page, of_lanes);
        pthread_mutex_unlock(&table->lock);
        page_unref(page); /* the page stays until the client closes */
    }
    return 0;
}

/* ---- signals ---- */

static int
check_open(const struct caid_client *client, struct caid_error *error)
{
    return atomic_load(&client->lanes->closed)
               ? fail(error, CAID_ERR_CLOSED, "%s: the client is closed", client->socket)
               : 0;
}

static int
signal_lane(struct caid_client *client, struct lane *lane, const struct stream *stream,
            struct fence *ret, struct caid_error *error)
{
    int r = need_slot(client, lane, error);
    if (r == 0)
        r = check_open(client, error);
    if (r < 0)
        return r;
    uint64_t value = timeline_submitted(&lane->page->slots[lane->slot]) + 1;
    r = enqueue_signal(client, lane, stream, lane->page, lane->slot, value, error);
    if (r == 0)
        *ret = (struct fence){.page = page_ref(lane->page),
                              .slot = lane->slot,
                              .value = value,
                              .data = true};
    return r;
}

int
lane_signal(struct caid_client *client, struct lane *lane, struct fence *ret,
            struct caid_error *error)
{
    struct stream stream;

    int r = lane_enter(client, lane, &stream, error);
    if (r < 0)
        return r;
    r = signal_lane(client, lane, &stream, ret, error);
    stream_leave(&stream);
    return r;
}

int
lane_signal_slot(struct caid_client *client, struct lane *lane, struct page *page,
                 uint32_t slot, uint64_t value, struct caid_error *error)
{
    struct stream stream;

    pthread_mutex_lock(&lane->lock);
    int r = check_open(client, error);
    if (r == 0)
        r = lane_enter(client, lane, &stream, error);
    if (r == 0) {
        r = enqueue_signal(client, lane, &stream, page, slot, value, error);
        stream_leave(&stream);
    }
    pthread_mutex_unlock(&lane->lock);
    return r;
}

int
lane_check_signal(struct caid_client *client, struct lane *lane, struct caid_error *error)
{
    struct stream stream;

    pthread_mutex_lock(&lane->lock);
    int r = lane_enter(client, lane, &stream, error);
    if (r == 0)
        stream_leave(&stream);
    pthread_mutex_unlock(&lane->lock);
    return r;
}

/* ---- waiting ---- */

/* Whether the fence is the stream's own signal: its next work comes after that anyway. A stream
 * that is known only by its handle may be another one. */
static bool
is_own(const struct lane *lane, const struct fence *fence)
{
    return fence->page == lane->page && fence->slot == lane->slot && !lane->key;
}

/* Enqueues the wait. A fence that the stream cannot wait for stays, for the host to wait. */
static int
enqueue_pending(struct caid_client *client, struct lane *lane, const struct stream *stream,
                struct fence *fence, struct caid_error *error)
{
    int r = reserve_wait(lane, error);
    if (r == 0)
        r = enqueue_wait(client, lane, stream, fence, error);
    if (r == 0)
        note_wait(lane, fence);
    fence->enqueued = r == 0;
    return r < 0 ? r : 0;
}

static int
enqueue_fence(struct caid_client *client, struct lane *lane, const struct stream *stream,
              struct fence *fence, struct caid_error *error)
{
    enum fence_state state;

    if (fence->enqueued)
        return 0;
    int r = fence_look(fence, true, &state, error);
    if (r < 0 || state != FENCE_PENDING)
        return r;
    fence->enqueued = is_own(lane, fence);
    return fence->enqueued ? 0 : enqueue_pending(client, lane, stream, fence, error);
}

static int
enqueue_fences(struct caid_client *client, struct lane *lane, struct fence *fences, size_t n,
               struct caid_error *error)
{
    struct stream stream;

    pthread_mutex_lock(&lane->lock);
    int r = lane_enter(client, lane, &stream, error);
    if (r == 0) {
        lane_settle(lane);
        for (size_t i = 0; r == 0 && i < n; i++)
            r = enqueue_fence(client, lane, &stream, &fences[i], error);
        stream_leave(&stream);
    }
    pthread_mutex_unlock(&lane->lock);
    return r;
}

int
lane_wait(struct caid_client *client, struct lane *lane, struct fence *fences, size_t n,
          uint64_t deadline_ns, struct caid_error *error)
{
    bool lost = false;

    int r = lane && n > 0 ? enqueue_fences(client, lane, fences, n, error) : 0;
    for (size_t i = 0; r >= 0 && i < n; i++) {
        if (fences[i].enqueued)
            continue;
        r = fence_wait(client, &fences[i], true, deadline_ns, error);
        lost |= r > 0 && fences[i].data;
    }
    return r < 0 ? r : lost;
}

int
lane_wait_ahead(struct caid_client *client, struct lane *lane, struct fence *fence,
                struct caid_error *error)
{
    struct stream stream;
    enum fence_state state;

    int r = fence_look(fence, false, &state, error);
    if (r < 0 || state != FENCE_PENDING)
        return r < 0 ? r : state == FENCE_LOST;
    pthread_mutex_lock(&lane->lock);
    r = lane_enter(client, lane, &stream, error);
    if (r == 0) {
        r = enqueue_pending(client, lane, &stream, fence, error);
        stream_leave(&stream);
    }
    pthread_mutex_unlock(&lane->lock);
    return r;
}

int
lane_check(struct lane *lane, struct caid_error *error)
{
    pthread_mutex_lock(&lane->lock);
    lane_settle(lane);
    bool lost = lane->lost;
    lane->lost = false;
    pthread_mutex_unlock(&lane->lock);
    return lost
               ? fail(
                     error, CAID_ERR_ABANDONED,
                     "a process died before the work was done that the stream waited for: what "
                     "it has read since is not whole")
               : 0;
}

/* ---- others' needs ---- */

bool
lane_drain(struct caid_client *client, const struct lane *lane, const struct caid_error *why)
{
    struct stream stream;

    if (why->code == CAID_ERR_INVALID || gpu_is_gone((CUresult)why->cuda_result) ||
        stream_enter_context(client, lane->handle, lane->context, &stream, NULL) < 0)
        return false;
    CUresult result = stream.drv->cu.cuStreamSynchronize(stream.handle);
    stream_leave(&stream);
    return result == CUDA_SUCCESS;
}

int
lane_check_device(const struct lane *lane, const struct caid_array *array,
                  struct caid_error *error)
{
    const char *name = caid_array_get_info(array)->name;

    if (!array->block || array->block->kind == BLOCK_PINNED || array->place == lane->place)
        return 0;
    return fail(error, CAID_ERR_DEVICE,
                "the stream is of another device than the one that array \"%s\" is mapped for",
                name && name[0] ? name : "(unnamed)");
}
