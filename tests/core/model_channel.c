/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels in histories: who takes part, who produces, whom he has let in, and what he leaves to
 * the next one. The clients write into their pages what the library does.
 */
#include "base/clock.h"
#include "books.h"
#include "caid_test.h"
#include "channel.h"
#include "model.h"

#define ERR_LIMITS (ERR(LIMIT) | ERR(QUOTA))
#define TAIL       CHANNEL_TABLE_BYTES(M_FRAMES)

static struct m_member *
member_of(struct model *m, uint64_t page)
{
    for (int i = 0; page && i < m->n_members; i++)
        if (m->members[i].page == page)
            return &m->members[i];
    return NULL;
}

static struct m_channel *
channel_of(struct model *m, int array)
{
    for (int i = 0; i < m->n_channels; i++)
        if (m->channels[i].array == array)
            return &m->channels[i];
    return NULL;
}

/* NULL: it has exited. */
static const struct m_slot *
owner(struct model *m, uint64_t page)
{
    const struct h_page *p = h_page(&m->h, page);

    for (int s = 0; s < M_SLOTS && p; s++)
        if (m->slots[s].conn == p->conn)
            return &m->slots[s];
    return NULL;
}

/* ---- what follows from what ---- */

static void
refuse(struct model *m, struct m_member *p, uint32_t errors)
{
    for (int i = 0; i < m->n_requests; i++)
        if (m->requests[i].id == p->request)
            model_refuse(&m->requests[i], p->request, errors);
    p->request = 0;
}

/* The producer's frames that are whole, and the highest sequence that it used. Who has not begun
 * where it was told to has written nothing. */
static void
take_frames(struct model *m, struct m_channel *channel)
{
    struct timeline_slot *slot = h_slot(&m->h, channel->producer, 0);
    const struct channel_entry *entries = channel_table_of(slot)->entries;
    uint64_t landed = atomic_load(timeline_is_dead(slot) ? &slot->landed : &slot->done);

    if (landed < channel->sequence)
        return;
    for (uint32_t i = 0; i < M_FRAMES; i++) {
        uint64_t sequence = entries[i].sequence;
        bool is_whole = sequence <= landed && entries[i].given_up != sequence;
        channel->kept[i] = is_whole ? sequence : 0;
        channel->sequence = sequence > channel->sequence ? sequence : channel->sequence;
    }
}

static void
end_member(struct model *m, struct m_member *p, uint32_t errors)
{
    struct m_channel *channel = channel_of(m, p->array);

    refuse(m, p, errors);
    if (channel->producer == p->page) {
        take_frames(m, channel);
        channel->former = p->page;
        channel->producer = 0;
        channel->held = p->page <= m->last_page;
    }
    m->n_members--;
    memmove(p, p + 1, (size_t)(&m->members[m->n_members] - p) * sizeof(*p));
}

static void
begin(struct model *m, struct m_channel *channel, const struct m_member *producer)
{
    channel->producer = producer->page;
    channel->has_mode = true;
    channel->latest = producer->latest;
    channel->n_told = M_NONE;
    channel->is_unsettled = channel->held = false;
    for (int i = m->n_members; i-- > 0;) {
        struct m_member *p = &m->members[i];
        p->admitted = p->admitted && p->array != channel->array;
        if (p->array == channel->array && p->latest != channel->latest)
            end_member(m, p, ERR(INVALID));
    }
}

static struct m_member *
next_producer(struct model *m, const struct m_channel *channel)
{
    for (int i = 0; i < m->n_members; i++) {
        struct m_member *p = &m->members[i];
        if (p->array == channel->array && p->produces && p->request &&
            p->page != channel->producer)
            return p;
    }
    return NULL;
}

/* It is not being waited for. */
static bool
is_there(struct model *m, const struct m_channel *channel)
{
    const struct m_slot *slot = owner(m, channel->producer);

    return slot && !slot->gone && !slot->away;
}

static void
settle(struct model *m, struct m_channel *channel)
{
    struct m_member *p = next_producer(m, channel);

    if (p && !channel->producer && !channel->held)
        begin(m, channel, p);
    if (!channel->producer || !is_there(m, channel) || channel->is_unsettled)
        return;
    while ((p = next_producer(m, channel)))
        end_member(m, p, ERR(BUSY));
}

void
model_member_gone(struct model *m, uint64_t page)
{
    struct m_member *p = member_of(m, page);

    if (!p)
        return;
    struct m_channel *channel = channel_of(m, p->array);
    end_member(m, p, ERR(CANCELLED));
    settle(m, channel);
}

void
model_channel_end(struct model *m, int array)
{
    struct m_channel *channel = channel_of(m, array);
    bool lingers = m->arrays[array].fenced || m->returning;

    if (!channel)
        return;
    for (int i = m->n_members; i-- > 0;) {
        struct m_member *p = &m->members[i];
        if (p->array != array)
            continue;
        for (int j = 0; j < m->n_requests; j++)
            m->requests[j].was_unsure |= lingers && m->requests[j].id == p->request;
        if (lingers)
            m->spoiled[m->n_spoiled++ % M_MEMBERS] = p->page;
        end_member(m, p, ERR(CANCELLED));
    }
    *channel = m->channels[--m->n_channels];
}

void
model_member_asks_no_more(struct model *m, const struct m_request *r)
{
    for (int i = 0; i < m->n_members; i++)
        if (m->members[i].request == r->id) {
            m->members[i].request = 0;
            m->members[i].is_ghost = !m->members[i].joined;
        }
}

static void
drop_ghosts(struct model *m)
{
    for (int i = m->n_members; i-- > 0;)
        if (m->members[i].is_ghost)
            end_member(m, &m->members[i], 0);
}

void
model_channels_kill(struct model *m)
{
    drop_ghosts(m);
    for (int i = 0; i < m->n_channels; i++) {
        m->channels[i].n_told = M_NONE;
        m->channels[i].is_unsettled = true;
    }
    for (size_t i = 0; i < m->h.n_pages; i++)
        if (m->h.pages[i].id > m->last_page)
            m->last_page = m->h.pages[i].id;
}

void
model_channels_pass(struct model *m, uint64_t ns)
{
    for (int i = 0; i < m->n_channels && ns >= NSEC_PER_SEC && !m->returning; i++) {
        m->channels[i].held = false;
        settle(m, &m->channels[i]);
    }
}

/* ---- answers ---- */

static void
check_producer(struct model *m, const struct m_channel *channel, const struct m_member *p,
               const struct h_reply *reply)
{
    uint32_t n = 0;

    EXPECT(m, channel->producer == p->page, "page %llu produces, too",
           (unsigned long long)p->page);
    EXPECT(m, reply->sequence == channel->sequence, "goes on at %llu, not %llu",
           (unsigned long long)reply->sequence, (unsigned long long)channel->sequence);
    for (uint32_t i = 0; i < M_FRAMES; i++)
        if (channel->kept[i]) {
            const struct h_kept *kept = &reply->kept[n++];
            EXPECT(m,
                   kept->slot == i && kept->sequence == channel->kept[i] &&
                       kept->info == 1000 + kept->sequence,
                   "frame %llu is not kept", (unsigned long long)channel->kept[i]);
        }
    EXPECT(m, reply->n_entries == n, "%u frames are kept, not %u", reply->n_entries, n);
}

static void
check_reader(struct model *m, const struct m_channel *channel, const struct m_member *p,
             const struct h_reply *reply)
{
    EXPECT(m, channel->producer ? p->admitted : !p->waits, "page %llu is let in by nobody",
           (unsigned long long)p->page);
    EXPECT(m, reply->producer == channel->producer, "another producer");
    EXPECT(m, reply->producer || reply->former == channel->former, "another former producer");
    EXPECT(m, reply->sequence == p->sequence, "another sequence to begin at");
}

static void
joined(struct model *m, struct m_channel *channel, struct m_member *p,
       const struct h_reply *reply)
{
    (p->produces ? check_producer : check_reader)(m, channel, p, reply);
    EXPECT(m, !p->id || p->id == reply->member, "another member");
    p->id = reply->member;
    p->joined = true;
    p->request = 0;
}

/* All readers in the order of their coming; who is going may be among them. */
static void
told_members(struct model *m, struct m_channel *channel, struct m_member *p,
             const struct h_reply *reply)
{
    uint32_t n = 0;

    EXPECT(m, channel->producer == p->page, "who does not produce is told");
    channel->n_told = 0;
    for (int i = 0; i < m->n_members; i++) {
        struct m_member *reader = &m->members[i];
        const struct msg_member_entry *entry = &reply->in_channel[n];
        if (reader->array != channel->array || reader->produces || n == 8)
            continue;
        if (reader->is_ghost && (n == reply->n_entries || entry->page != reader->page))
            continue;
        EXPECT(m, n < reply->n_entries && entry->page == reader->page, "a reader is missing");
        EXPECT(m,
               entry->depth == reader->depth && entry->admitted == reader->admitted &&
                   entry->sequence == reader->sequence &&
                   (!reader->id || reader->id == entry->member),
               "another reader");
        reader->id = entry->member;
        channel->told[channel->n_told++] = reader->id;
        n++;
    }
    EXPECT(m, n == reply->n_entries || n == 8, "a reader too many");
    channel->version = reply->producer;
    p->request = 0;
}

/* A limit stands against the producer's page, or all of them; or the producer has come back; or
 * the array has ended. */
static void
refused_later(struct model *m, struct m_channel *channel, struct m_member *p, uint32_t error)
{
    uint32_t may_fail = ERR_LIMITS | (p->produces && channel->is_unsettled ? ERR(BUSY) : 0);

    if (error == PROTO_ERR_CANCELLED) { /* of which the answer to another request tells */
        channel->ends = true;
        may_fail |= ERR(CANCELLED);
    }
    EXPECT(m, may_fail & UINT32_C(1) << error, "refused with %s", proto_error_name(error));
    p->request = 0;
    if (p->joined)
        return;
    end_member(m, p, 0);
    settle(m, channel);
}

/* When the keeper has killed the last producer's page, the next one begins: the core knows when. */
static void
begin_late(struct model *m, struct m_channel *channel, const struct m_member *p, uint32_t error)
{
    const struct m_member *next = next_producer(m, channel);
    bool tells = p->produces ? !error || error == PROTO_ERR_BUSY : error == PROTO_ERR_INVALID;

    if (!channel->held || channel->producer || !next || !tells)
        return;
    channel->held = false;
    settle(m, channel);
}

static struct m_member *
asking(struct model *m, uint32_t request)
{
    for (int i = 0; i < m->n_members; i++)
        if (m->members[i].request == request)
            return &m->members[i];
    return NULL;
}

static void
undo_join(struct model *m)
{
    memcpy(m->members, m->before_join.members, sizeof(m->members));
    memcpy(m->channels, m->before_join.channels, sizeof(m->channels));
    m->n_members = m->before_join.n_members;
    m->n_channels = m->before_join.n_channels;
    for (int i = 0; i < m->n_requests; i++)
        if (asking(m, m->requests[i].id))
            m->requests[i].must_fail = false;
}

void
model_channel_answered(struct model *m, const struct m_request *r, const struct h_reply *reply)
{
    struct m_member *p = asking(m, r->id);

    if (p && !r->was_unsure)
        begin_late(m, channel_of(m, p->array), p, reply->error);
    if (r->was_unsure) /* of a channel that was ending */
        return;
    EXPECT(m, !r->must_fail || r->may_fail & UINT32_C(1) << reply->error,
           "%s is answered with %s: %s", msg_method_name(r->method),
           proto_error_name(reply->error), reply->text);
    if (p && reply->error && m->joining == r->id) { /* nothing has come of it */
        EXPECT(m, r->may_fail & UINT32_C(1) << reply->error, "refused with %s: %s",
               proto_error_name(reply->error), reply->text);
        undo_join(m);
        return;
    }
    p = asking(m, r->id);
    if (!p)
        EXPECT(m, reply->error, "%s was not refused", msg_method_name(r->method));
    else if (reply->error)
        refused_later(m, channel_of(m, p->array), p, reply->error);
    else if (r->method == MSG_JOIN)
        joined(m, channel_of(m, p->array), p, reply);
    else
        told_members(m, channel_of(m, p->array), p, reply);
}

/* ---- after each step ---- */

static bool
was_told(const struct m_channel *channel, uint64_t id)
{
    for (int i = 0; i < channel->n_told; i++)
        if (channel->told[i] == id)
            return true;
    return false;
}

/* Somebody has come, or gone. */
static bool
has_news(const struct model *m, const struct m_channel *channel)
{
    int n = 0, n_ghosts = 0;

    for (int i = 0; i < m->n_members; i++) {
        const struct m_member *p = &m->members[i];
        if (p->array != channel->array || p->produces)
            continue;
        bool told = p->id && was_told(channel, p->id);
        n += told;
        n_ghosts += p->is_ghost;
        if (!told && !p->is_ghost)
            return true;
    }
    return n != channel->n_told && !n_ghosts;
}

static void
check_member(struct model *m, const struct m_channel *channel, const struct m_member *p)
{
    if (p->asks)
        EXPECT(m, channel->version == p->seen && !has_news(m, channel),
               "the producer is not told who takes part");
    else if (p->produces)
        EXPECT(m,
               channel->producer ? !is_there(m, channel) || channel->is_unsettled
                                 : channel->held,
               "page %llu waits to produce", (unsigned long long)p->page);
    else
        EXPECT(m, channel->producer ? !p->admitted : p->waits, "page %llu is not let in",
               (unsigned long long)p->page);
}

void
model_check_channels(struct model *m, bool are_ghosts_gone)
{
    if (are_ghosts_gone)
        drop_ghosts(m);
    for (int i = 0; i < m->n_channels; i++)
        EXPECT(m, !m->channels[i].ends, "channel %d has not ended", m->channels[i].array);
    for (int i = 0; i < m->n_members; i++)
        if (m->members[i].request)
            check_member(m, channel_of(m, m->members[i].array), &m->members[i]);
    for (int i = 0; i < m->n_requests; i++)
        EXPECT(m,
               (m->requests[i].method != MSG_JOIN && m->requests[i].method != MSG_MEMBERS) ||
                   !m->requests[i].must_fail || m->requests[i].was_unsure,
               "%s is not refused", msg_method_name(m->requests[i].method));
}

/* ---- steps ---- */

static struct m_channel *
channel_get(struct model *m, int array)
{
    struct m_channel *channel = channel_of(m, array);

    if (channel)
        return channel;
    cr_assert_lt(m->n_channels, M_CHANNELS);
    channel = &m->channels[m->n_channels++];
    *channel = (struct m_channel){.array = array, .n_told = M_NONE};
    return channel;
}

/* Mostly as the page takes part already, or of the channel's mode. */
static struct msg_join_params
choose_join(struct model *m, const struct m_channel *channel, const struct m_member *p,
            bool readonly)
{
    struct msg_join_params params = {.produce = model_random(m, readonly ? 12 : 2) == 0,
                                     .latest = model_random(m, 2),
                                     .depth = 1 + model_random(m, 3),
                                     .wait = model_random(m, 2)};

    if (model_random(m, 20) == 0)
        params.depth = model_random(m, 2) * (CHANNEL_DEPTH_MAX + 1);
    if (channel && channel->has_mode && model_random(m, 6))
        params.latest = channel->latest;
    if (p && model_random(m, 6)) {
        params.produce = p->produces;
        params.latest = p->latest;
        params.depth = p->depth;
    }
    return params;
}

static void
expect_new(struct model *m, struct m_request *r, const struct m_channel *channel,
           const struct msg_join_params *params)
{
    uint64_t least = params->depth + (m->arrays[r->seen].is_pinned ? 2 : 3), all = least;

    model_refuse(r, h_page(&m->h, params->page)->size < TIMELINE_PAGE_BYTES + TAIL,
                 ERR(INVALID));
    if (params->produce && channel && channel->producer) {
        const struct m_slot *slot = owner(m, channel->producer);
        model_refuse(r, is_there(m, channel), ERR(BUSY));
        r->may_fail |= slot && slot->away ? ERR(BUSY) : 0;
    }
    if (params->produce)
        return;
    for (int i = 0; i < m->n_members; i++) {
        const struct m_member *p = &m->members[i];
        least += p->array == (int)r->seen && !p->is_ghost ? p->depth : 0;
        all += p->array == (int)r->seen ? p->depth : 0;
    }
    model_refuse(r, params->depth == 0 || params->depth > CHANNEL_DEPTH_MAX, ERR(INVALID));
    model_refuse(r, params->latest && least > M_FRAMES, ERR(LIMIT));
    r->may_fail |= params->latest && all > M_FRAMES ? ERR(LIMIT) : 0;
}

static void
expect_join(struct model *m, struct m_request *r, const struct m_lease *lease,
            const struct msg_join_params *params)
{
    const struct m_channel *channel = channel_of(m, lease->array);
    const struct m_member *p = member_of(m, params->page);

    r->may_fail = ERR(QUOTA);
    model_refuse(r, lease->readonly && params->produce, ERR(INVALID));
    model_refuse(r, m->arrays[lease->array].extent != M_FRAMES, ERR(INVALID));
    model_refuse(r, channel && channel->has_mode && channel->latest != params->latest,
                 ERR(INVALID));
    if (!p)
        expect_new(m, r, channel, params);
    else
        model_refuse(r,
                     p->request || p->is_ghost || p->array != lease->array ||
                         p->produces != params->produce || p->latest != params->latest ||
                         p->depth != (params->produce ? 0 : params->depth),
                     ERR(INVALID));
}

static void
join(struct model *m, const struct m_request *r, const struct msg_join_params *params)
{
    m->before_join.n_members = m->n_members;
    m->before_join.n_channels = m->n_channels;
    memcpy(m->before_join.members, m->members, sizeof(m->members));
    memcpy(m->before_join.channels, m->channels, sizeof(m->channels));
    m->joining = r->id;
    struct m_channel *channel = channel_get(m, (int)r->seen);
    struct m_member *p = member_of(m, params->page);
    if (!p) {
        p = &m->members[m->n_members++];
        *p = (struct m_member){.array = (int)r->seen,
                               .page = params->page,
                               .produces = params->produce,
                               .latest = params->latest,
                               .depth = params->produce ? 0 : params->depth};
    }
    p->request = r->id;
    p->waits = params->wait;
    p->asks = false;
    if (channel->producer == p->page) {
        take_frames(m, channel);
        begin(m, channel, p);
    }
    settle(m, channel);
}

static bool
has_frames(const struct m_array *array)
{
    return array->extent == M_FRAMES && array->whole == M_NONE;
}

/* On an array that may be a channel, mostly; what might have other frames is left alone. */
static const struct m_lease *
some_lease(struct model *m, const struct m_slot *slot)
{
    const struct m_lease *lease = NULL;

    for (int tries = 0; tries < 4 && slot->n_leases; tries++) {
        lease = &slot->leases[model_random(m, (uint32_t)slot->n_leases)];
        if (has_frames(&m->arrays[lease->array]))
            break;
    }
    if (!lease || has_frames(&m->arrays[lease->array]))
        return lease;
    return m->arrays[lease->array].extent > CHANNEL_SLOTS_MAX ? lease : NULL;
}

static bool
is_spoiled(const struct model *m, uint64_t page)
{
    for (uint32_t i = 0; i < m->n_spoiled && i < M_MEMBERS; i++)
        if (m->spoiled[i] == page)
            return true;
    return false;
}

static void
step_join(struct model *m, int s)
{
    const struct m_slot *slot = &m->slots[s];
    const struct m_lease *lease = some_lease(m, slot);
    uint64_t page = model_some_page(m, slot->conn, model_random(m, 20));

    if (!lease || !page || is_spoiled(m, page) || m->n_members == M_MEMBERS)
        return;
    struct m_channel *channel = channel_of(m, lease->array);
    struct msg_join_params params =
        choose_join(m, channel, member_of(m, page), lease->readonly);
    if (!channel && m->n_channels == M_CHANNELS)
        return;
    if (params.produce && timeline_submitted(h_slot(&m->h, page, 0)) &&
        !(channel && (channel->former == page || channel->producer == page)))
        return; /* its table is another channel's */
    params.lease = lease->lease;
    params.page = page;
    model_note(m, "slot %d: join %d by page %llu, %s, %s, depth %llu%s", s, lease->array,
               (unsigned long long)page, params.produce ? "produces" : "reads",
               params.latest ? "latest" : "fifo", (unsigned long long)params.depth,
               params.wait ? ", waits" : "");
    struct m_request *r = model_ask(m, s, MSG_JOIN);
    r->seen = (uint64_t)lease->array;
    expect_join(m, r, lease, &params);
    if (!r->must_fail)
        join(m, r, &params);
    h_request(&m->h, slot->conn, MSG_JOIN, &params);
    m->joining = 0;
}

static bool
produces_in(struct model *m, const struct m_slot *slot, const struct m_channel *channel)
{
    return channel->producer && owner(m, channel->producer) == slot;
}

/* The channel that the slot has a lease on, and produces in, mostly. */
static const struct m_lease *
some_produced(struct model *m, const struct m_slot *slot, struct m_channel **ret)
{
    for (int i = 0; i < slot->n_leases; i++) {
        *ret = channel_of(m, slot->leases[i].array);
        if (*ret && (produces_in(m, slot, *ret) || model_random(m, 8) == 0))
            return &slot->leases[i];
    }
    return NULL;
}

static void
step_members(struct model *m, int s)
{
    struct m_channel *channel;
    const struct m_lease *lease = some_produced(m, &m->slots[s], &channel);

    if (!lease)
        return;
    struct m_member *p = member_of(m, channel->producer);
    struct m_request *r = model_ask(m, s, MSG_MEMBERS);
    struct msg_members_params params = {lease->lease,
                                        model_random(m, 3) ? channel->version : 0};
    model_note(m, "slot %d: members of %d, seen %llu", s, lease->array,
               (unsigned long long)params.seen);
    r->may_fail = ERR_LIMITS;
    if (!model_refuse(r, !produces_in(m, &m->slots[s], channel) || p->request, ERR(INVALID))) {
        p->request = r->id;
        p->asks = true;
        p->seen = params.seen;
        channel->is_unsettled = false;
        settle(m, channel);
    }
    h_request(&m->h, m->slots[s].conn, MSG_MEMBERS, &params);
}

static void
step_admit(struct model *m, int s)
{
    struct m_channel *channel;
    const struct m_lease *lease = some_produced(m, &m->slots[s], &channel);

    if (!lease || !m->n_members)
        return;
    struct m_member *p = &m->members[model_random(m, (uint32_t)m->n_members)];
    if (!p->id && model_random(m, 8)) { /* it was not told of that one */
        step_members(m, s);
        return;
    }
    struct msg_admit_params params = {lease->lease, p->id, model_random(m, 50)};
    model_note(m, "slot %d: admits %llu to %d from %llu on", s, (unsigned long long)p->id,
               lease->array, (unsigned long long)params.sequence);
    if (produces_in(m, &m->slots[s], channel) && p->id && p->array == channel->array &&
        !p->produces) {
        p->admitted = true;
        p->sequence = params.sequence;
        channel->is_unsettled = false;
        settle(m, channel);
    }
    h_notify(&m->h, m->slots[s].conn, MSG_ADMIT, &params);
}

/* A member of the slot's, its producer first; now and then another's. */
static struct m_member *
some_member(struct model *m, const struct m_slot *slot)
{
    struct m_member *p = NULL;

    for (int tries = 0; tries < 4 && m->n_members; tries++) {
        p = &m->members[model_random(m, (uint32_t)m->n_members)];
        if (owner(m, p->page) == slot && (p->produces || tries > 1))
            break;
    }
    return p && !p->is_ghost ? p : NULL;
}

static void
step_leave(struct model *m, int s)
{
    struct m_member *p = some_member(m, &m->slots[s]);

    if (!p || !p->id)
        return;
    struct msg_leave_params params = {p->id};
    model_note(m, "slot %d: page %llu leaves %d", s, (unsigned long long)p->page, p->array);
    if (owner(m, p->page) == &m->slots[s])
        model_member_gone(m, p->page);
    h_notify(&m->h, m->slots[s].conn, MSG_LEAVE, &params);
}

static void
step_cancel(struct model *m, int s)
{
    struct m_member *p = some_member(m, &m->slots[s]);

    if (!p || !p->request || owner(m, p->page) != &m->slots[s])
        return;
    uint32_t request = p->request;
    model_note(m, "slot %d: cancel request %u of page %llu", s, request,
               (unsigned long long)p->page);
    if (p->joined)
        refuse(m, p, ERR(CANCELLED));
    else
        model_member_gone(m, p->page);
    h_cancel(&m->h, m->slots[s].conn, request);
}

/* The producer's library begins where it was told to, with what was kept. */
static void
go_on(const struct m_channel *channel, struct timeline_slot *slot)
{
    for (uint32_t i = 0; i < M_FRAMES; i++) {
        channel_table_of(slot)->entries[i].sequence = channel->kept[i];
        channel_table_of(slot)->entries[i].info[0] = 1000 + channel->kept[i];
    }
    atomic_store(&slot->submitted, channel->sequence);
    atomic_store(&slot->done, channel->sequence);
}

/* A frame, which lands, or not yet; some puts are given up. */
static void
step_put(struct model *m, int s)
{
    struct m_channel *channel;
    const struct m_lease *lease = some_produced(m, &m->slots[s], &channel);

    if (!lease || !produces_in(m, &m->slots[s], channel) ||
        !member_of(m, channel->producer)->joined)
        return;
    struct timeline_slot *slot = h_slot(&m->h, channel->producer, 0);
    if (timeline_is_dead(slot))
        return;
    if (atomic_load(&slot->done) < channel->sequence)
        go_on(channel, slot);
    uint64_t sequence = timeline_submitted(slot) + 1;
    uint32_t at = model_random(m, M_FRAMES);
    struct channel_entry *entry = &channel_table_of(slot)->entries[at];
    model_note(m, "slot %d: puts %llu into %u of %d", s, (unsigned long long)sequence, at,
               lease->array);
    entry->sequence = sequence;
    entry->info[0] = 1000 + sequence;
    if (model_random(m, 4) == 0)
        entry->given_up = sequence;
    atomic_store(&channel_table_of(slot)->newest, channel_word(sequence, at));
    atomic_store(&slot->submitted, sequence);
    if (model_random(m, 2))
        atomic_store(&slot->done, sequence);
}

void
model_step_tail(struct model *m, int s)
{
    model_note(m, "slot %d: page with a tail", s);
    model_ask(m, s, MSG_PAGE)->may_fail = ERR_LIMITS;
    h_page_new_with(&m->h, m->slots[s].conn, TAIL);
}

void
model_step_channel(struct model *m, int s)
{
    static void (*const steps[])(struct model *, int) = {
        step_join,    step_join,  step_join,  step_join,  step_join,       step_members,
        step_members, step_admit, step_admit, step_admit, step_leave,      step_cancel,
        step_put,     step_put,   step_put,   step_put,   model_step_tail,
    };

    saved_finish(
        &m->h); /* a join waits for that, and what was true before it need not be then */
    steps[model_random(m, ARRAY_SIZE(steps))](m, s);
}
