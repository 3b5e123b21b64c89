/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named timelines: a page each, of which the first slot is used. The creator asks the daemon for
 * the page, and then for the name. Whoever opens the timeline gets the page from the daemon. After
 * that nothing needs the daemon.
 *
 * A timeline belongs to the caller until caid_timeline_close(). It has references to its client and
 * its page.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lane.h"
#include "session/client.h"

struct caid_timeline {
    struct caid_client *client;
    struct page *page;
    bool creator;
    pthread_mutex_t lock; /* keeps signals in order */
    char name[];
};

#define SLOT 0

static struct timeline_slot *
slot_of(const struct caid_timeline *timeline)
{
    return &timeline->page->slots[SLOT];
}

static struct fence
fence_of(const struct caid_timeline *timeline, uint64_t value)
{
    return (struct fence){.page = timeline->page, .slot = SLOT, .value = value, .data = true};
}

static struct caid_timeline *
timeline_new(struct caid_client *client, const char *name)
{
    size_t n = strlen(name) + 1;
    struct caid_timeline *timeline = calloc(1, sizeof(*timeline) + n);

    if (!timeline)
        return NULL;
    timeline->client = client_ref(client);
    memcpy(timeline->name, name, n);
    pthread_mutex_init(&timeline->lock, NULL);
    return timeline;
}

static void
timeline_free(struct caid_timeline *timeline)
{
    pthread_mutex_destroy(&timeline->lock);
    client_unref(timeline->client);
    free(timeline);
}

void
caid_timeline_close(struct caid_timeline *timeline)
{
    if (!timeline)
        return;
    struct caid_client *client = timeline->client;
    if (timeline->page && !fork_guard_crossed(&client->guard)) {
        client_enter_anyway(client);
        timeline->page->timeline = NULL;
        page_close(client, timeline->page);
        client_leave(client);
    }
    timeline_free(timeline);
}

DEFINE_CLEANUP(struct caid_timeline *, caid_timeline_close)

/* ---- creating and opening ---- */

static int
check_new(struct caid_client *client, struct caid_timeline **ret, const char *name,
          const char *pool, struct caid_timeline **ret_timeline, struct caid_error *error)
{
    int r = client_check_given(client, ret, "ret", error);
    if (r == 0)
        r = client_check_name(client, name, pool, error);
    if (r < 0)
        return r;
    *ret_timeline = timeline_new(client, name);
    return *ret_timeline ? 0 : fail_errno(error, ENOMEM, "no memory for a timeline");
}

/* Opens the page before the timeline has a name, so that a close gives the page back. */
static int
get_page(struct caid_timeline *timeline, struct caid_error *error)
{
    struct caid_client *client = timeline->client;

    int r = page_new(client, 0, &timeline->page, error);
    if (r < 0)
        return r;
    timeline->creator = true;
    client_enter_anyway(client);
    page_open(client, timeline->page);
    r = client_check_awake(client, error);
    if (r == 0)
        timeline->page->timeline = timeline->name;
    client_leave(client);
    return r;
}

int
caid_timeline_create(struct caid_client *client, struct caid_timeline **ret, const char *name,
                     const char *pool, struct caid_error *error)
{
    _cleanup_(caid_timeline_closep) struct caid_timeline *timeline = NULL;

    int r = check_new(client, ret, name, pool, &timeline, error);
    if (r == 0)
        r = get_page(timeline, error);
    if (r < 0)
        return r;
    struct msg_timeline_params params = {
        .name = MSG_STR(name),
        .pool = msg_str_opt(pool),
        .page = timeline->page->id,
    };
    r = call_ask(client, MSG_TIMELINE, &params, error);
    if (r == 0)
        *ret = TAKE_PTR(timeline);
    return r;
}

static int
take_open(struct caid_client *client, struct call *call, const void *reply,
          struct call_fds *fds)
{
    const struct msg_open_timeline_result *result = reply;

    int r = pages_take(client, result->pages, result->n_pages, fds, false);
    if (r < 0)
        return r;
    struct page *page = page_find(client, result->page);
    if (!page)
        return -EPROTO;
    page_open(client, page);
    page_give(client, call, page);
    return 0;
}

int
caid_timeline_open(struct caid_client *client, struct caid_timeline **ret, const char *name,
                   const char *pool, struct caid_error *error)
{
    _cleanup_(caid_timeline_closep) struct caid_timeline *timeline = NULL;

    int r = check_new(client, ret, name, pool, &timeline, error);
    if (r < 0)
        return r;
    struct msg_name_params params = {.name = MSG_STR(name), .pool = msg_str_opt(pool)};
    r = page_ask(client, &timeline->page, MSG_OPEN_TIMELINE, &params, take_open, error);
    if (r == 0)
        *ret = TAKE_PTR(timeline);
    return r;
}

/* ---- signals ---- */

static int
check_value(const struct caid_timeline *timeline, uint64_t value, struct caid_error *error)
{
    if (value > 0 && value <= CAID_TIMELINE_MAX)
        return 0;
    return fail(error, CAID_ERR_INVALID,
                "timeline \"%s\": %" PRIu64 " is not among its values, 1 to 2^62 - 1",
                timeline->name, value);
}

static int
fail_dead(const struct caid_timeline *timeline, struct caid_error *error)
{
    return fail(error, CAID_ERR_ABANDONED,
                "timeline \"%s\": it has ended, its creator has closed it or died",
                timeline->name);
}

/* Under timeline->lock. */
static int
check_order(const struct caid_timeline *timeline, uint64_t value, struct caid_error *error)
{
    uint64_t submitted = timeline_submitted(slot_of(timeline));

    if (atomic_load(&timeline->client->lanes->closed))
        return fail(error, CAID_ERR_CLOSED, "%s: the client is closed",
                    timeline->client->socket);
    if (timeline_is_dead(slot_of(timeline)))
        return fail(
            error, CAID_ERR_ABANDONED,
            "timeline \"%s\": it ended when the CUDA context failed that had to signal it",
            timeline->name);
    if (value <= submitted)
        return fail(error, CAID_ERR_INVALID,
                    "timeline \"%s\": %" PRIu64 " is not more than the last value, %" PRIu64,
                    timeline->name, value, submitted);
    return 0;
}

/* Stores the value before `submitted`. */
static int
signal_on_host(const struct caid_timeline *timeline, uint64_t value, struct caid_error *error)
{
    struct timeline_slot *slot = slot_of(timeline);

    if (!page_slot_has_landed(timeline->page, SLOT))
        return fail(error, CAID_ERR_INVALID,
                    "timeline \"%s\": a stream is to signal %" PRIu64
                    " yet, which the host cannot overtake",
                    timeline->name, timeline_submitted(slot));
    slot_raise(&slot->done, value);
    slot_raise(&slot->submitted, value);
    timeline_wake(slot);
    return 0;
}

/* lane NULL: the host signals. */
static int
signal_in_order(struct caid_timeline *timeline, struct lane *lane, uint64_t value,
                struct caid_error *error)
{
    pthread_mutex_lock(&timeline->lock);
    int r = check_order(timeline, value, error);
    if (r == 0 && !lane)
        r = signal_on_host(timeline, value, error);
    else if (r == 0)
        r = lane_signal_slot(timeline->client, lane, timeline->page, SLOT, value, error);
    pthread_mutex_unlock(&timeline->lock);
    return r;
}

int
caid_timeline_signal(struct caid_timeline *timeline, uint64_t stream, uint64_t value,
                     struct caid_error *error)
{
    struct lane *lane = NULL;

    int r = CHECK_CLIENT_OF(timeline, error);
    if (r == 0 && !timeline->creator)
        r = fail(error, CAID_ERR_PERMISSION,
                 "timeline \"%s\" was opened to wait for: its creator signals", timeline->name);
    if (r == 0)
        r = check_value(timeline, value, error);
    if (r == 0 && stream != 0)
        r = lane_get(timeline->client, stream, 0, &lane, error);
    if (r < 0)
        return r;
    r = signal_in_order(timeline, lane, value, error);
    if (lane)
        lane_put(lane);
    return r;
}

/* ---- waits ---- */

/* Replaces errors that name the page by errors that name the timeline. */
static int
wait_result(const struct caid_timeline *timeline, int r, uint64_t value,
            struct caid_error *error)
{
    if (r > 0)
        return fail_dead(timeline, error);
    if (r == -ETIMEDOUT)
        return fail(error, CAID_ERR_TIMEOUT,
                    "timeline \"%s\": %" PRIu64 " was not reached in time", timeline->name,
                    value);
    return r;
}

/* lane NULL: on the host. */
static int
wait_on(struct caid_client *client, struct lane *lane, struct fence *fence, bool ahead,
        uint64_t deadline_ns, struct caid_error *error)
{
    if (ahead && lane && lane->handoff == HANDOFF_MEMOPS)
        return lane_wait_ahead(client, lane, fence, error);
    int r = fence_wait_submitted(client, fence, deadline_ns, error);
    return r < 0 ? r : lane_wait(client, lane, fence, 1, deadline_ns, error);
}

int
caid_timeline_wait(struct caid_timeline *timeline, uint64_t stream, uint64_t value,
                   uint64_t timeout_ns, uint32_t flags, struct caid_error *error)
{
    struct lane *lane = NULL;

    int r = CHECK_CLIENT_OF(timeline, error);
    if (r == 0)
        r = check_value(timeline, value, error);
    if (r == 0 && (flags & ~(uint32_t)CAID_TIMELINE_AHEAD))
        r = fail(error, CAID_ERR_INVALID, "flags 0x%x are not known", flags);
    uint64_t deadline_ns = deadline_of(timeout_ns);
    if (r == 0 && stream != 0)
        r = lane_get(timeline->client, stream, 0, &lane, error);
    if (r < 0)
        return r;
    struct fence fence = fence_of(timeline, value);
    r = wait_on(timeline->client, lane, &fence, flags & CAID_TIMELINE_AHEAD, deadline_ns,
                error);
    if (lane)
        lane_put(lane);
    return wait_result(timeline, r, value, error);
}

int
caid_timeline_value(struct caid_timeline *timeline, uint64_t *ret, struct caid_error *error)
{
    enum fence_state state;

    int r = CHECK_GIVEN_OF(timeline, ret, error);
    if (r < 0)
        return r;
    /* A value that is never reached: the fence is pending, or lost. */
    const struct fence fence = fence_of(timeline, CAID_TIMELINE_MAX);
    r = fence_look(&fence, false, &state, error);
    if (r < 0)
        return r;
    *ret = fence_reached(&fence);
    return state == FENCE_LOST ? fail_dead(timeline, error) : 0;
}
