/* SPDX-License-Identifier: Apache-2.0 */
#include "participant.h"

#include <assert.h>

#include "array.h"
#include "linger.h"
#include "page.h"
#include "reply.h"
#include "state.h"

#define KILL_NS UINT64_C(1000000000) /* a keeper that can kill pages has by then */

RB_GENERATE_BY(channels, channel, node, array->id)
RB_GENERATE_BY(participants, participant, node, id)

/* ---- channels ---- */

struct channel *
channel_find(struct core *core, const struct array *array)
{
    struct channel key = {.array = (struct array *)(uintptr_t)array};

    return array->is_channel ? RB_FIND(channels, &core->channels, &key) : NULL;
}

/* Two answers to MEMBERS of one channel do not have the same version, also after a restart. */
static void
channel_change(struct core *core, struct channel *channel)
{
    channel->version = channel->version < core->now_ns ? core->now_ns : channel->version + 1;
    channel->changed = true;
}

/* r NULL: no limit is checked. */
static int
channel_new(struct core *core, struct array *array, struct channel **ret, struct refusal *r)
{
    uint32_t n_slots = (uint32_t)array_shape(array)[0];
    struct channel *channel = calloc(1, sizeof(*channel) + n_slots * sizeof(channel->kept[0]));

    if (!channel)
        return -ENOMEM;
    if (charge_init(&channel->charge, array->charge.user, RES_HOST, 0, CHANNEL_HOST(n_slots),
                    r)) {
        free(channel);
        return REFUSED;
    }
    channel->array = array;
    channel->n_slots = n_slots;
    TAILQ_INIT(&channel->participants);
    RB_INSERT(channels, &core->channels, channel);
    array->is_channel = true;
    *ret = channel;
    return 0;
}

static int
channel_get(struct core *core, struct array *array, struct channel **ret, struct refusal *r)
{
    int64_t n = array->ndim && !array->is_set ? array_shape(array)[0] : 0;

    *ret = channel_find(core, array);
    if (*ret)
        return 0;
    if (n < 2 || n > CHANNEL_SLOTS_MAX)
        return refuse(r, PROTO_ERR_INVALID,
                      "\"%s\" is no channel: its first extent is none of 2 to %d",
                      array_label(array), CHANNEL_SLOTS_MAX);
    return channel_new(core, array, ret, r);
}

/* ---- what an ended producer has left ---- */

static void
raise_sequence(struct channel *channel, uint64_t sequence)
{
    if (sequence > channel->sequence && sequence <= CHANNEL_SEQUENCE_MAX)
        channel->sequence = sequence;
}

static void
take_frame(struct channel *channel, struct record_kept *kept, const struct channel_entry *entry,
           uint64_t landed)
{
    kept->sequence = atomic_load(&entry->sequence);
    raise_sequence(channel, kept->sequence);
    if (kept->sequence > min_u64(landed, channel->sequence) ||
        atomic_load(&entry->given_up) == kept->sequence)
        kept->sequence = 0;
    for (size_t i = 0; i < ARRAY_SIZE(kept->info); i++)
        kept->info[i] = atomic_load(&entry->info[i]);
}

/* The page is the producer's word, and is read once. A producer whose `done` is not as high as what
 * it was told when it joined has not written its table, nor any slot of the array. */
static void
take_frames(struct channel *channel, struct timeline_slot *slots, uint64_t size)
{
    const struct channel_table *table = channel_table_of(slots);
    uint64_t done = atomic_load(&slots[0].done), submitted = timeline_submitted(&slots[0]);
    uint64_t landed = done < TIMELINE_DEAD ? done : atomic_load(&slots[0].landed);

    if (landed < channel->sequence ||
        size < TIMELINE_PAGE_BYTES + CHANNEL_TABLE_BYTES(channel->n_slots))
        return;
    for (uint32_t i = 0; i < channel->n_slots; i++) {
        channel->kept[i].slot = i;
        take_frame(channel, &channel->kept[i], &table->entries[i], landed);
    }
    raise_sequence(channel, landed);
    raise_sequence(channel, submitted);
    raise_sequence(channel, channel_sequence(atomic_load(&table->newest)));
}

/* ---- participants ---- */

/* A reader that finds the page alive may take what it says for the newest. A keeper that cannot
 * kill it (ARCHITECTURE.md, "The keeper") never will. */
static void
channel_hold(struct core *core, struct channel *channel)
{
    if (!channel->held)
        LIST_INSERT_HEAD(&core->held_channels, channel, of_held);
    channel->held = true;
    core->held_until_ns = core->now_ns + KILL_NS;
    linger_later(core, LINGER_TURN_NS);
}

static bool
is_producer(const struct participant *p)
{
    return p->channel->producer == p;
}

/* r NULL: no limit is checked. */
static int
participant_new(struct core *core, struct channel *channel, struct page *page,
                const struct participant *like, struct participant **ret, struct refusal *r)
{
    struct participant *p = calloc(1, sizeof(*p));

    if (!p)
        return -ENOMEM;
    *p = *like;
    if (charge_init(&p->charge, page->conn->user, RES_HOST, 0, sizeof(*p), r)) {
        free(p);
        return REFUSED;
    }
    p->channel = channel;
    p->page = page;
    page->participant = p;
    RB_INSERT(participants, &core->participants, p);
    TAILQ_INSERT_TAIL(&channel->participants, p, of_channel);
    channel->n_readers += !p->produces;
    channel->depths += p->depth;
    channel_change(core, channel);
    *ret = p;
    return 0;
}

static void
participant_stand(struct participant *p, enum msg_method method, uint32_t request)
{
    p->stands = true;
    p->method = method;
    p->request = request;
    LIST_INSERT_HEAD(&p->page->conn->standing, p, of_conn);
}

static void
participant_unstand(struct participant *p)
{
    if (p->stands)
        LIST_REMOVE(p, of_conn);
    p->stands = false;
}

/* Nobody reads the answer of a connection that is closing. */
static void
participant_refuse(struct core *core, struct participant *p, const struct refusal *r)
{
    struct conn *conn = p->page->conn;

    if (!p->stands)
        return;
    participant_unstand(p);
    if (!conn->closing)
        send_refusal(core, conn, p->request, p->method, r);
}

static void
participant_free(struct core *core, struct participant *p)
{
    struct channel *channel = p->channel;
    struct refusal r;

    refusal_fill(&r, PROTO_ERR_CANCELLED, "member %" PRIu64 " has left the channel", p->id);
    participant_refuse(core, p, &r);
    if (is_producer(p)) {
        take_frames(channel, p->page->slots, p->page->size);
        channel->former = p->page->id;
        channel->producer = NULL;
        if (p->page->restored)
            channel_hold(core, channel);
    }
    p->page->participant = NULL;
    RB_REMOVE(participants, &core->participants, p);
    TAILQ_REMOVE(&channel->participants, p, of_channel);
    channel->n_readers -= !p->produces;
    channel->depths -= p->depth;
    channel_change(core, channel);
    charge_deinit(&p->charge);
    free(p);
}

/* ---- answers ---- */

/* A client that is not sent what it asks for is refused, or hung up on. One that was never let in
 * is not. */
static void
answer_failed(struct core *core, struct participant *p, int rc, const struct refusal *r)
{
    if (rc != REFUSED) {
        conn_end(core, p->page->conn, "out of memory");
        return;
    }
    participant_refuse(core, p, r);
    if (!p->joined)
        participant_free(core, p);
}

static void
answer_join(struct core *core, struct participant *p, struct msg_join_result *result,
            const struct sent_pages *pages)
{
    participant_unstand(p);
    result->member = p->id;
    result->pages = pages->records;
    result->n_pages = pages->n;
    p->channel->changed |= !p->joined;
    p->joined = true;
    send_result(core, p->page->conn, p->request, MSG_JOIN, result, pages->fds, pages->n);
}

static void
answer_reader(struct core *core, struct participant *p)
{
    const struct channel *channel = p->channel;
    const struct participant *producer = channel->producer;
    struct sent_pages pages = {.n = 0};
    struct msg_join_result result = {
        .producer = producer ? producer->page->id : 0,
        .former = producer ? 0 : channel->former,
        .sequence = p->sequence,
    };
    struct refusal r;
    int rc = producer ? page_send(p->page->conn, producer->page, &pages, &r) : 0;

    if (rc)
        answer_failed(core, p, rc, &r);
    else
        answer_join(core, p, &result, &pages);
}

static void
answer_producer(struct core *core, struct participant *p)
{
    const struct channel *channel = p->channel;
    struct msg_kept_frame frames[CHANNEL_SLOTS_MAX];
    struct msg_join_result result = {.sequence = channel->sequence, .kept = frames};

    for (uint32_t i = 0; i < channel->n_slots; i++) {
        const struct record_kept *kept = &channel->kept[i];
        if (kept->sequence)
            frames[result.n_kept++] = (struct msg_kept_frame){
                .slot = kept->slot,
                .sequence = kept->sequence,
                .info = {kept->info, ARRAY_SIZE(kept->info)},
            };
    }
    answer_join(core, p, &result, &(struct sent_pages){.n = 0});
}

static void
answer_members(struct core *core, struct participant *p)
{
    const struct channel *channel = p->channel;
    struct msg_member_entry entries[CHANNEL_READERS_MAX];
    struct msg_members_result result = {.version = channel->version, .members = entries};
    const struct participant *reader;
    struct sent_pages pages = {.n = 0};
    struct refusal r;
    int rc = 0;

    TAILQ_FOREACH(reader, &channel->participants, of_channel) {
        if (reader->produces || rc)
            continue;
        entries[result.n_members++] = (struct msg_member_entry){
            .member = reader->id,
            .page = reader->page->id,
            .depth = reader->depth,
            .sequence = reader->sequence,
            .admitted = reader->admitted,
        };
        rc = page_send(p->page->conn, reader->page, &pages, &r);
    }
    if (rc) {
        pages_unsend(core, p->page->conn, &pages);
        answer_failed(core, p, rc, &r);
        return;
    }
    participant_unstand(p);
    result.pages = pages.records;
    result.n_pages = pages.n;
    send_result(core, p->page->conn, p->request, MSG_MEMBERS, &result, pages.fds, pages.n);
}

/* ---- who produces ---- */

static int
refuse_busy(const struct participant *producer, struct refusal *r)
{
    const struct conn *conn = producer->page->conn;

    return refuse(r, PROTO_ERR_BUSY, "pid %d%s%s%s produces in \"%s\"", conn->pid,
                  conn->client[0] ? " (" : "", conn->client, conn->client[0] ? ")" : "",
                  array_label(producer->channel->array));
}

static int
check_mode(const struct channel *channel, bool latest, struct refusal *r)
{
    if (!channel->has_mode || channel->latest == latest)
        return 0;
    return refuse(r, PROTO_ERR_INVALID, "channel \"%s\" is of mode \"%s\"",
                  array_label(channel->array), channel->latest ? "latest" : "fifo");
}

/* No reader counts with it yet. Those that took the channel for one of the other mode, when it had
 * none, leave. */
static void
producer_begin(struct core *core, struct participant *producer)
{
    struct channel *channel = producer->channel;
    struct participant *p, *next;
    struct refusal r;

    channel->producer = producer;
    channel->has_mode = true;
    channel->latest = producer->latest;
    channel_change(core, channel);
    for (p = TAILQ_FIRST(&channel->participants); p; p = next) {
        next = TAILQ_NEXT(p, of_channel);
        p->admitted = false;
        if (check_mode(channel, p->latest, &r) == 0)
            continue;
        participant_refuse(core, p, &r);
        participant_free(core, p);
    }
}

/* The first that waits for it. */
static void
choose_producer(struct core *core, struct channel *channel)
{
    struct participant *p;

    TAILQ_FOREACH(p, &channel->participants, of_channel)
        if (p->produces && p->stands && !p->page->conn->closing) {
            producer_begin(core, p);
            return;
        }
}

static void
answer_if_due(struct core *core, struct participant *p)
{
    const struct channel *channel = p->channel;
    const struct participant *producer = channel->producer;
    struct refusal r;

    if (!p->stands || p->page->conn->closing)
        return;
    if (p->method == MSG_MEMBERS) {
        if (p->seen != channel->version)
            answer_members(core, p);
    } else if (p == producer) {
        answer_producer(core, p);
    } else if (p->produces) {
        if (!producer || producer->page->conn->departed)
            return;
        refuse_busy(producer, &r);
        participant_refuse(core, p, &r);
        participant_free(core, p);
    } else if (producer ? p->admitted : !p->waits) {
        answer_reader(core, p);
    }
}

static void
answer_all_due(struct core *core, struct channel *channel)
{
    struct participant *p, *next;

    for (p = TAILQ_FIRST(&channel->participants); p; p = next) {
        next = TAILQ_NEXT(p, of_channel);
        answer_if_due(core, p);
    }
}

/* Answers all whose answer is known now, and records what has changed. Who is refused may leave,
 * which is another change. */
static void
channel_settle(struct core *core, struct channel *channel)
{
    uint64_t version;

    if (!channel->producer && !channel->held)
        choose_producer(core, channel);
    do {
        version = channel->version;
        answer_all_due(core, channel);
    } while (version != channel->version);
    if (channel->changed)
        persist_channel(core, channel);
    channel->changed = false;
}

/* ---- join ---- */

static int
check_limits(const struct channel *channel, bool latest, uint64_t depth, struct refusal *r)
{
    uint32_t spare = channel->array->kind == KIND_PINNED ? 2 : 3;

    if (channel->n_readers == CHANNEL_READERS_MAX)
        return refuse(r, PROTO_ERR_LIMIT, "channel \"%s\" has %d readers, its limit",
                      array_label(channel->array), CHANNEL_READERS_MAX);
    if (!latest || channel->depths + depth + spare <= channel->n_slots)
        return 0;
    return refuse(r, PROTO_ERR_LIMIT,
                  "channel \"%s\" has %u slots: its readers' depths, %u, with %" PRIu64
                  " more take all but %u",
                  array_label(channel->array), channel->n_slots, channel->depths, depth, spare);
}

static int
check_new(const struct channel *channel, const struct page *page,
          const struct msg_join_params *params, struct refusal *r)
{
    size_t tail = params->produce ? CHANNEL_TABLE_BYTES(channel->n_slots)
                                  : sizeof(struct channel_reader);

    if (page->size < TIMELINE_PAGE_BYTES + tail)
        return refuse(r, PROTO_ERR_INVALID,
                      "page %" PRIu64 " has no room for what a member of \"%s\" says", page->id,
                      array_label(channel->array));
    if (params->produce)
        return 0;
    if (params->depth == 0 || params->depth > CHANNEL_DEPTH_MAX)
        return refuse(r, PROTO_ERR_INVALID, "a reader's depth is 1 to %d", CHANNEL_DEPTH_MAX);
    return check_limits(channel, params->latest, params->depth, r);
}

static int
check_again(const struct participant *p, const struct channel *channel,
            const struct msg_join_params *params, struct refusal *r)
{
    if (p->stands)
        return refuse(r, PROTO_ERR_INVALID, "request %u of member %" PRIu64 " stands already",
                      p->request, p->id);
    if (p->channel != channel || p->produces != params->produce ||
        p->latest != params->latest || (!p->produces && p->depth != params->depth))
        return refuse(r, PROTO_ERR_INVALID, "page %" PRIu64 " takes part otherwise already",
                      p->page->id);
    return 0;
}

static int
join_new(struct core *core, struct channel *channel, struct page *page,
         const struct msg_join_params *params, struct participant **ret, struct refusal *r)
{
    const struct participant *producer = channel->producer;
    struct participant like = {
        .id = core->next_page + 1,
        .produces = params->produce,
        .latest = params->latest,
        .depth = params->produce ? 0 : (uint32_t)params->depth,
    };
    int rc = check_new(channel, page, params, r);

    if (rc == 0 && params->produce && producer && !producer->page->conn->departed)
        rc = refuse_busy(producer, r);
    if (rc == 0)
        rc = participant_new(core, channel, page, &like, ret, r);
    if (rc == 0)
        persist_id(core, ++core->next_page);
    return rc;
}

int
channel_join(struct core *core, struct conn *conn, uint32_t request, struct array *array,
             const struct msg_join_params *params, struct refusal *r)
{
    struct channel *channel;
    struct participant *p;
    struct page *page;
    int rc = page_get_own(core, conn, params->page, &page, r);

    if (rc == 0)
        rc = channel_get(core, array, &channel, r);
    if (rc == 0)
        rc = check_mode(channel, params->latest, r);
    if (rc)
        return rc;
    p = page->participant;
    rc = p ? check_again(p, channel, params, r) : join_new(core, channel, page, params, &p, r);
    if (rc)
        return rc;
    page_seal(core, page);
    p->waits = params->wait;
    participant_stand(p, MSG_JOIN, request);
    if (is_producer(p)) {
        take_frames(channel, page->slots, page->size);
        producer_begin(core, p);
    }
    channel_settle(core, channel);
    return 0;
}

/* ---- members ---- */

/* The connection produces in the array's channel, or NULL. */
static struct channel *
channel_of_producer(struct core *core, const struct conn *conn, const struct array *array)
{
    struct channel *channel = channel_find(core, array);
    const struct participant *producer = channel ? channel->producer : NULL;

    return producer && producer->page->conn == conn ? channel : NULL;
}

int
channel_ask(struct core *core, struct conn *conn, uint32_t request, const struct array *array,
            uint64_t seen, struct refusal *r)
{
    struct channel *channel = channel_of_producer(core, conn, array);

    if (!channel)
        return refuse(r, PROTO_ERR_INVALID, "members: the connection does not produce there");
    if (channel->producer->stands)
        return refuse(r, PROTO_ERR_INVALID, "request %u of the producer stands already",
                      channel->producer->request);
    channel->producer->seen = seen;
    participant_stand(channel->producer, MSG_MEMBERS, request);
    channel_settle(core, channel);
    return 0;
}

static struct participant *
participant_find(struct core *core, uint64_t id)
{
    struct participant key = {.id = id};

    return RB_FIND(participants, &core->participants, &key);
}

void
channel_admit(struct core *core, const struct conn *conn, const struct array *array,
              uint64_t member, uint64_t sequence)
{
    struct channel *channel = channel_of_producer(core, conn, array);
    struct participant *p = participant_find(core, member);

    if (!channel || !p || p->channel != channel || p->produces)
        return;
    p->admitted = true;
    p->sequence = sequence;
    channel->changed = true;
    channel_settle(core, channel);
}

/* ---- the end ---- */

void
participant_end(struct core *core, struct participant *p)
{
    struct channel *channel = p->channel;

    participant_free(core, p);
    channel_settle(core, channel);
}

void
channel_leave(struct core *core, const struct conn *conn, uint64_t member)
{
    struct participant *p = participant_find(core, member);

    if (p && p->page->conn == conn)
        participant_end(core, p);
}

/* One that was never let in takes no part without its request. */
static void
participant_give_up(struct core *core, struct participant *p)
{
    participant_unstand(p);
    if (!p->joined)
        participant_end(core, p);
}

void
channel_cancel(struct core *core, struct conn *conn, uint32_t request)
{
    struct participant *p;
    struct refusal r;

    LIST_FOREACH(p, &conn->standing, of_conn)
        if (p->request == request)
            break;
    if (!p)
        return;
    refusal_fill(&r, PROTO_ERR_CANCELLED, "the request was cancelled");
    send_refusal(core, conn, request, p->method, &r);
    participant_give_up(core, p);
}

void
channel_drop_request(struct core *core, struct conn *conn)
{
    participant_give_up(core, LIST_FIRST(&conn->standing));
}

static void
channel_free(struct core *core, struct channel *channel)
{
    RB_REMOVE(channels, &core->channels, channel);
    if (channel->held)
        LIST_REMOVE(channel, of_held);
    channel->array->is_channel = false;
    charge_deinit(&channel->charge);
    free(channel);
}

void
channel_end(struct core *core, struct array *array)
{
    struct channel *channel = channel_find(core, array);

    while (!TAILQ_EMPTY(&channel->participants))
        participant_free(core, TAILQ_FIRST(&channel->participants));
    persist_gone(core, RECORD_CHANNEL, (struct record_key){.id = array->id});
    channel_free(core, channel);
}

void
channels_forget(struct core *core)
{
    struct channel *channel;

    while ((channel = RB_MIN(channels, &core->channels)))
        channel_free(core, channel);
}

void
channels_look(struct core *core)
{
    struct core_figures figures = {0};
    struct channel *channel;

    if (LIST_EMPTY(&core->held_channels))
        return;
    if (core->units) /* the keeper is told of those that have exited when all is back */
        core->held_until_ns = core->now_ns + KILL_NS;
    else if (core->figures)
        core->figures(core->figures_userdata, &figures);
    if (core->units || (figures.dying && core->now_ns < core->held_until_ns)) {
        linger_later(core, LINGER_TURN_NS);
        return;
    }
    while ((channel = LIST_FIRST(&core->held_channels))) {
        LIST_REMOVE(channel, of_held);
        channel->held = false;
        channel_settle(core, channel);
    }
}

/* ---- restart ---- */

static int
restore_participant(struct core *core, struct channel *channel,
                    const struct record_channel *record, const struct record_participant *from,
                    const struct core_page_result *dead)
{
    struct page *page = page_find(core, from->page);
    bool produces = from->id == record->producer;
    const struct participant like = {
        .id = from->id,
        .produces = produces,
        .latest = from->latest,
        .joined = true,
        .admitted = from->admitted,
        .depth = from->depth,
        .sequence = from->sequence,
    };
    struct participant *p;

    if (produces && !page && dead) {
        take_frames(channel, dead->slots, dead->size);
        channel->former = from->page;
        channel_hold(core, channel);
    }
    if (!page || page->participant)
        return 0;
    int rc = participant_new(core, channel, page, &like, &p, NULL);
    if (rc == 0 && produces)
        channel->producer = p;
    return rc;
}

int
channel_restore(struct core *core, struct array *array, const struct record_channel *record,
                const struct core_page_result *dead)
{
    const struct record_kept *kept = (const struct record_kept *)(record + 1);
    const struct record_participant *from =
        (const struct record_participant *)(kept + record->n_kept);
    struct channel *channel;
    int rc = channel_new(core, array, &channel, NULL);

    if (rc)
        return rc;
    channel->changed = true;
    channel->former = record->former;
    channel->sequence = record->sequence;
    channel->has_mode = record->has_mode;
    channel->latest = record->latest;
    for (uint32_t i = 0; i < record->n_kept; i++)
        if (kept[i].slot < channel->n_slots)
            channel->kept[kept[i].slot] = kept[i];
    for (uint32_t i = 0; rc == 0 && i < record->n_participants; i++)
        rc = restore_participant(core, channel, record, &from[i], dead);
    if (rc == 0)
        channel_settle(core, channel);
    return rc;
}
