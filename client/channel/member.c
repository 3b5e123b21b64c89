/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon says and is told of who takes part: JOIN, MEMBERS, ADMIT, LEAVE. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory/array.h"
#include "port.h"
#include "session/client.h"
#include "session/feature.h"

/* A member that leaves is looked at again after this time. */
#define RETRY_NS (50 * NSEC_PER_MSEC)
/* A client that closes waits so long for what was signalled in pages that end: nobody kills them
 * afterwards, while the process lives. */
#define CLOSE_NS       NSEC_PER_SEC
#define CLOSE_PAUSE_NS NSEC_PER_MSEC

/* ---- pages ---- */

static size_t
tail_of(const struct caid_channel *channel, bool producers)
{
    return producers ? CHANNEL_TABLE_BYTES(channel->n_slots) : sizeof(struct channel_reader);
}

static bool
has_tail(const struct caid_channel *channel, const struct page *page, bool producers)
{
    return page->size >= TIMELINE_PAGE_BYTES + tail_of(channel, producers);
}

/* All that was signalled in it has landed. */
static void
reset_tail(struct page *page)
{
    struct channel_reader *tail = channel_reader_of(page->slots);

    channel_store(&tail->got, 0);
    channel_store(&tail->missed, 0);
    for (int i = 0; i < CHANNEL_DEPTH_MAX; i++)
        channel_store(&tail->announcements[i].word, 0);
}

/* Of an earlier reader of the same array; NULL: none. Under the client's lock. */
static struct member *
find_gone(const struct caid_channel *channel)
{
    struct member *member;

    LIST_FOREACH(member, &channel->client->channels->members, entry)
        if (!channel->produces && !member->produces && member->state == MEMBER_GONE &&
            member->array == channel->array->id &&
            !timeline_is_dead(&member->page->slots[PAGE_SLOT]))
            return member;
    return NULL;
}

static int
make_member(struct caid_channel *channel, struct member **ret, struct caid_error *error)
{
    struct caid_client *client = channel->client;
    struct member *member = calloc(1, sizeof(*member));

    if (!member)
        return fail_errno(error, ENOMEM, "no memory for a channel");
    int r = page_new(client, tail_of(channel, channel->produces), &member->page, error);
    if (r < 0) {
        free(member);
        return r;
    }
    member->array = channel->array->id;
    member->produces = channel->produces;
    pthread_mutex_lock(&client->lock);
    page_open(client, member->page);
    LIST_INSERT_HEAD(&client->channels->members, member, entry);
    pthread_mutex_unlock(&client->lock);
    *ret = member;
    return 0;
}

/* ---- JOIN ---- */

static int
take_kept(struct caid_channel *channel, const struct msg_kept_frame *kept)
{
    if (kept->slot >= channel->n_slots || kept->info.n != CHANNEL_INFO / 8 ||
        kept->sequence == 0 || kept->sequence > CHANNEL_SEQUENCE_MAX)
        return -EPROTO;
    core_keep(&channel->core, (uint32_t)kept->slot, kept->sequence, kept->info.v);
    return 0;
}

static int
take_place_of_producer(struct caid_channel *channel, const struct msg_join_result *result)
{
    int r = result->sequence > CHANNEL_SEQUENCE_MAX ? -EPROTO : 0;

    channel->counted = result->sequence;
    for (uint32_t i = 0; r == 0 && i < result->n_kept; i++)
        r = take_kept(channel, &result->kept[i]);
    return r;
}

static int
take_join(struct caid_client *client, struct call *call, const void *reply,
          struct call_fds *fds)
{
    struct caid_channel *channel = container_of(call, struct caid_channel, join);
    const struct msg_join_result *result = reply;

    int r = pages_take(client, result->pages, result->n_pages, fds, false);
    if (r < 0)
        return r;
    channel->member->id = result->member;
    if (channel->produces)
        return take_place_of_producer(channel, result);
    struct page *page = result->producer ? page_find(client, result->producer) : NULL;
    if (result->producer && (!page || !has_tail(channel, page, true)))
        return -EPROTO;
    channel->joined = page ? page_ref(page) : NULL;
    channel->former = result->former;
    channel->counted = result->sequence;
    return 0;
}

static void
member_set_leaving(struct caid_client *client, struct member *member)
{
    member->state = MEMBER_LEAVING;
    client->channels->due = 0;
}

/* A channel that was closed meanwhile leaves now. */
static void
join_over(struct caid_client *client, struct call *call)
{
    struct caid_channel *channel = container_of(call, struct caid_channel, join);

    channel->is_answered = call->r == 0;
    ready_kick(channel);
    if (channel->closed)
        member_set_leaving(client, channel->member);
    channel_unref(channel);
}

static int
start(struct caid_channel *channel, struct call *call, struct caid_error *error)
{
    if (call->state != CALL_IDLE)
        return 0;
    int r = call_start(channel->client, call, error);
    if (r == 0)
        channel->refs++;
    return r;
}

/* Waits for the end of the call. */
static int
wait_for(struct caid_client *client, struct call *call, uint64_t deadline_ns,
         struct caid_error *error)
{
    struct caid_error unwanted;

    int r = call_wait_until(client, call, clock_now_ns() + SPIN_MIN_NS, deadline_ns,
                            error ? error : &unwanted);
    if (r > 0)
        return fail(error, CAID_ERR_TIMEOUT, "%s: no answer to a %s request in time",
                    client->socket, msg_method_name(call->method));
    return r < 0 ? r : call->r < 0 ? fail_again(error, &call->error) : 0;
}

int
member_join(struct caid_channel *channel, bool wait, uint64_t deadline_ns,
            struct caid_error *error)
{
    struct caid_client *client = channel->client;

    int r = client_enter(client, error);
    if (r < 0)
        return r;
    if (!channel->is_answered) {
        if (channel->join.state == CALL_IDLE)
            channel->join_params.wait = wait;
        r = start(channel, &channel->join, error);
        if (r == 0)
            r = wait_for(client, &channel->join, deadline_ns, error);
        if (channel->join.state != CALL_IDLE)
            call_look_for(client, &channel->join); /* this thread may not come back */
    }
    client_leave(client);
    return r;
}

/* ---- MEMBERS ---- */

void
others_drop(struct others *others)
{
    while (others->n > 0)
        page_unref(others->pages[--others->n]);
}

static int
take_member(struct caid_channel *channel, const struct msg_member_entry *entry)
{
    struct others *news = &channel->news;
    struct page *page = page_find(channel->client, entry->page);

    if (!page || !has_tail(channel, page, false) || entry->depth > CHANNEL_DEPTH_MAX ||
        news->n == CHANNEL_READERS_MAX)
        return -EPROTO;
    if (entry->admitted)
        channel->let_in |= UINT64_C(1) << news->n;
    news->ids[news->n] = entry->member;
    news->views[news->n] = (struct core_reader){
        .slot = &page->slots[PAGE_SLOT],
        .tail = channel_reader_of(page->slots),
        .depth = (uint32_t)entry->depth,
        .admitted = entry->sequence,
    };
    news->pages[news->n++] = page_ref(page);
    return 0;
}

static int
take_members(struct caid_client *client, struct call *call, const void *reply,
             struct call_fds *fds)
{
    struct caid_channel *channel = container_of(call, struct caid_channel, members);
    const struct msg_members_result *result = reply;

    int r = pages_take(client, result->pages, result->n_pages, fds, false);
    if (r == 0 && channel->members_params.seen == result->version)
        r = -EPROTO; /* such an answer would be asked for again for ever */
    channel->let_in = 0;
    for (uint32_t i = 0; r == 0 && i < result->n_members; i++)
        r = take_member(channel, &result->members[i]);
    if (r < 0)
        others_drop(&channel->news);
    channel->members_params.seen = result->version;
    return r;
}

/* The client's thread takes it up. */
static void
members_over(struct caid_client *client, struct call *call)
{
    struct caid_channel *channel = container_of(call, struct caid_channel, members);

    channel->has_news = call->r == 0 && channel->member;
    if (channel->has_news)
        reaper_kick(client);
    channel_unref(channel);
}

static const uint64_t *
find_admitted(const struct others *others, uint64_t id)
{
    for (size_t i = 0; i < others->n; i++)
        if (others->ids[i] == id)
            return &others->views[i].admitted;
    return NULL;
}

/* From when a reader of the news counts. One that an earlier producer has let in counts as with
 * that: its frames that it has not let go of are kept. */
static uint64_t
admit(const struct caid_channel *channel, const struct others *news, size_t i)
{
    const uint64_t *known = find_admitted(&channel->readers, news->ids[i]);
    uint64_t sequence = news->views[i].admitted;

    return known ? *known : sequence ? sequence - 1 : channel->core.last;
}

/* Takes the place of the readers before. Under channel->lock. */
static void
take_news(struct caid_channel *channel, struct others *news)
{
    for (size_t i = 0; i < news->n; i++)
        news->views[i].admitted = admit(channel, news, i);
    others_drop(&channel->readers);
    channel->readers = *news;
}

/* Lets in whom the answer names, and asks for the next one. Under the client's lock, which it drops
 * meanwhile. */
static void
apply(struct caid_channel *channel)
{
    struct caid_client *client = channel->client;
    struct others news = channel->news;
    uint64_t let_in = channel->let_in;

    channel->has_news = false;
    channel->news.n = 0;
    channel->refs++;
    pthread_mutex_unlock(&client->lock);
    pthread_mutex_lock(&channel->lock);
    take_news(channel, &news);
    pthread_mutex_unlock(&channel->lock);
    pthread_mutex_lock(&client->lock);
    channel->n_admits = 0;
    for (size_t i = 0; channel->member && i < news.n; i++)
        if (!(let_in >> i & 1))
            channel->admits[channel->n_admits++] = (struct msg_admit_params){
                .lease = channel->array->lease,
                .member = news.ids[i],
                .sequence = news.views[i].admitted + 1,
            };
    if (channel->member && call_queue_late(client, &channel->members))
        channel->refs++;
    call_flush(client);
    channel_unref(channel);
}

int
member_begin(struct caid_channel *channel, uint64_t deadline_ns, struct caid_error *error)
{
    struct caid_client *client = channel->client;

    core_begin_at(&channel->core, channel->counted);
    signal_raise(channel, PAGE_SLOT, channel->counted);
    int r = client_enter(client, error);
    if (r < 0)
        return r;
    r = start(channel, &channel->members, error);
    if (r == 0)
        r = wait_for(client, &channel->members, deadline_ns, error);
    if (r == 0) {
        apply(channel);
        r = channel_list(channel, error);
        call_flush(client);
    }
    client_leave(client);
    return r;
}

int
member_take(struct caid_channel *channel, struct caid_error *error)
{
    struct caid_client *client = channel->client;

    pthread_mutex_lock(&client->lock);
    struct member *member = find_gone(channel);
    if (member)
        member->state = MEMBER_TAKEN;
    pthread_mutex_unlock(&client->lock);
    int r = member ? 0 : make_member(channel, &member, error);
    if (r < 0)
        return r;
    channel->member = member;
    channel->page = page_ref(member->page);
    channel->core.slot = channel_slot_of(channel);
    channel->core.table = channel_table_of(member->page->slots);
    channel->core.n_slots = channel->n_slots;
    if (!channel->produces)
        reset_tail(member->page);
    channel->join_params = (struct msg_join_params){
        .lease = channel->array->lease,
        .page = member->page->id,
        .produce = channel->produces,
        .latest = channel->latest,
        .depth = channel->produces ? 0 : channel->depth,
    };
    channel->join = (struct call){.method = MSG_JOIN,
                                  .params = &channel->join_params,
                                  .take = take_join,
                                  .over = join_over,
                                  .has_pages = true};
    channel->members_params.lease = channel->array->lease;
    channel->members = (struct call){.method = MSG_MEMBERS,
                                     .params = &channel->members_params,
                                     .take = take_members,
                                     .over = members_over,
                                     .has_pages = true};
    return 0;
}

/* ---- LEAVE ---- */

/* A reader's page stays for the next one, unless it is dead. Under the client's lock. */
static void
member_end(struct caid_client *client, struct member *member)
{
    LIST_REMOVE(member, entry);
    page_close(client, member->page);
    free(member);
}

static bool
is_over(const struct member *member)
{
    return member->state == MEMBER_GONE &&
           (member->produces || timeline_is_dead(&member->page->slots[PAGE_SLOT]));
}

/* Whether its page is to be killed. */
static bool
is_broken(const struct member *member)
{
    return atomic_load(&member->page->ends) &&
           !timeline_is_dead(&member->page->slots[PAGE_SLOT]);
}

/* All that was signalled has landed. Who is told that it leaves finds a dead page. */
static void
settle(struct member *member)
{
    if (is_broken(member))
        timeline_kill_page(member->page->slots);
    if (member->state == MEMBER_LEAVING)
        member->state = member->id ? MEMBER_TO_TELL : MEMBER_GONE;
}

/* When there is something to do for members that leave, or whose pages end. */
static void
tidy_members(struct caid_client *client)
{
    struct channels *channels = client->channels;
    struct member *member, *next;

    channels->due = UINT64_MAX;
    LIST_FOREACH(member, &channels->members, entry) {
        if (member->state != MEMBER_LEAVING && !is_broken(member))
            continue;
        if (page_has_landed(member->page))
            settle(member);
        else
            channels->due = clock_now_ns() + RETRY_NS;
    }
    call_flush(client);
    for (member = LIST_FIRST(&channels->members); member; member = next) {
        next = LIST_NEXT(member, entry);
        if (is_over(member))
            member_end(client, member);
    }
}

void
member_leave(struct caid_channel *channel)
{
    struct caid_client *client = channel->client;

    others_drop(&channel->news);
    if (channel->joined)
        page_unref(channel->joined);
    channel->joined = NULL;
    channel->has_news = false;
    channel->n_admits = 0;
    call_cancel(client, &channel->members);
    if (!channel->member)
        return;
    if (channel->join.state == CALL_IDLE) {
        member_set_leaving(client, channel->member);
        channel->member = NULL;
        tidy_members(client);
    } else {
        call_cancel(client, &channel->join); /* it leaves when that is over */
    }
}

void
member_break(struct caid_channel *channel)
{
    atomic_store(&channel->page->ends, true);
    client_enter_anyway(channel->client);
    channel->client->channels->due = 0;
    client_leave(channel->client);
}

/* A producer whose page was killed here puts no more: its place is free for another one. */
static bool
is_lost(const struct caid_channel *channel)
{
    return channel->produces && channel->member && timeline_is_dead(channel_slot_of(channel));
}

/* One for which there is something to do, or NULL. */
static struct caid_channel *
find_due(const struct channels *channels)
{
    struct caid_channel *channel;

    LIST_FOREACH(channel, &channels->all, entry)
        if (channel->has_news || is_lost(channel))
            return channel;
    return NULL;
}

static void
tidy(struct caid_client *client, bool all UNUSED)
{
    struct channels *channels = client->channels;
    struct caid_channel *channel;

    while ((channel = find_due(channels))) {
        if (is_lost(channel))
            member_leave(channel);
        else
            apply(channel);
    }
    if (channels->due <= clock_now_ns())
        tidy_members(client);
}

static void
tidy_here(struct caid_client *client)
{
    tidy(client, true);
}

static uint64_t
due(const struct caid_client *client)
{
    return find_due(client->channels) ? 0 : client->channels->due;
}

/* ---- what the daemon is told ---- */

static bool
has_unsent(const struct caid_client *client)
{
    const struct caid_channel *channel;
    const struct member *member;

    LIST_FOREACH(channel, &client->channels->all, entry)
        if (channel->n_admits > 0)
            return true;
    LIST_FOREACH(member, &client->channels->members, entry)
        if (member->state == MEMBER_TO_TELL)
            return true;
    return false;
}

static int
send_admits(struct caid_client *client, struct caid_channel *channel)
{
    int r = 0;

    while (r == 0 && channel->n_admits > 0) {
        r = call_notify(client, MSG_ADMIT, &channel->admits[channel->n_admits - 1]);
        channel->n_admits -= r == 0;
    }
    return r;
}

static int
send_leave(struct caid_client *client, struct member *member)
{
    const struct msg_leave_params params = {.member = member->id};

    int r = call_notify(client, MSG_LEAVE, &params);
    if (r < 0)
        return r;
    member->state = MEMBER_GONE;
    if (is_over(member))
        client->channels->due = 0;
    return 0;
}

static int
flush(struct caid_client *client)
{
    struct caid_channel *channel;
    struct member *member;
    int r = 0;

    if (client->lost.code != 0)
        return 0;
    LIST_FOREACH(channel, &client->channels->all, entry) {
        r = send_admits(client, channel);
        if (r < 0)
            return r;
    }
    LIST_FOREACH(member, &client->channels->members, entry) {
        if (member->state == MEMBER_TO_TELL)
            r = send_leave(client, member);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The daemon before may have died with what it was told last. Whom it had not let in, MEMBERS tells
 * of again. */
static void
take_inventory(struct caid_client *client, struct inventory *inventory UNUSED)
{
    struct caid_channel *channel;
    struct member *member;

    LIST_FOREACH(channel, &client->channels->all, entry)
        channel->n_admits = 0;
    LIST_FOREACH(member, &client->channels->members, entry)
        if (member->state == MEMBER_GONE)
            member->state = MEMBER_TO_TELL;
}

static void
lost(struct caid_client *client)
{
    struct caid_channel *channel;

    LIST_FOREACH(channel, &client->channels->all, entry) {
        atomic_store(&channel->lost, true);
        ready_kick(channel);
    }
}

/* ---- the end ---- */

void
channels_init(struct channels *channels)
{
    LIST_INIT(&channels->all);
    LIST_INIT(&channels->members);
    channels->due = UINT64_MAX;
}

static bool
some_are_broken(const struct channels *channels)
{
    const struct member *member;

    LIST_FOREACH(member, &channels->members, entry)
        if (is_broken(member))
            return true;
    return false;
}

void
channels_close(struct caid_client *client)
{
    uint64_t deadline_ns = clock_now_ns() + CLOSE_NS;
    struct channels *channels = client->channels;
    struct caid_channel *channel;

    LIST_FOREACH(channel, &channels->all, entry)
        if (channel->produces)
            put_mark_closed(channel);
    for (;;) {
        tidy_members(client);
        if (!some_are_broken(channels) || clock_now_ns() >= deadline_ns)
            return;
        pthread_mutex_unlock(&client->lock);
        clock_pause_ns(CLOSE_PAUSE_NS);
        pthread_mutex_lock(&client->lock);
    }
}

static void
free_members(struct caid_client *client, bool has_pages)
{
    struct member *member;

    while ((member = LIST_FIRST(&client->channels->members))) {
        LIST_REMOVE(member, entry);
        if (has_pages)
            page_unref(member->page);
        free(member);
    }
}

static void
deinit(struct caid_client *client)
{
    free_members(client, true);
}

/* A child after fork() does not have the pages. */
static void
abandon(struct caid_client *client)
{
    free_members(client, false);
}

const struct feature channel_feature = {
    .has_unsent = has_unsent,
    .flush = flush,
    .due = due,
    .tidy = tidy,
    .tidy_here = tidy_here,
    .take_inventory = take_inventory,
    .lost = lost,
    .deinit = deinit,
    .abandon = abandon,
};
