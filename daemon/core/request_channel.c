/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: join, members, admit, leave, channels.
 */
#include "array.h"
#include "participant.h"
#include "request.h"

HANDLER(on_join)
{
    const struct msg_join_params *p = params;
    struct lease *lease;

    if (lease_get(conn, p->lease, &lease, r))
        return REFUSED;
    if (p->produce && lease->readonly)
        return refuse(r, PROTO_ERR_INVALID, "the array was opened \"r\"");
    return channel_join(core, conn, id, lease->array, p, r);
}

HANDLER(on_members)
{
    const struct msg_members_params *p = params;
    struct lease *lease;

    if (lease_get(conn, p->lease, &lease, r))
        return REFUSED;
    return channel_ask(core, conn, id, lease->array, p->seen, r);
}

/* Who was to be let in, or the channel, may have gone meanwhile. */
HANDLER(on_admit)
{
    const struct msg_admit_params *p = params;
    const struct lease *lease = lease_find(conn, p->lease);

    if (p->sequence > CHANNEL_SEQUENCE_MAX)
        return refuse(r, PROTO_ERR_INVALID, "no frame has sequence %" PRIu64, p->sequence);
    if (lease)
        channel_admit(core, conn, lease->array, p->member, p->sequence);
    return 0;
}

HANDLER(on_leave)
{
    const struct msg_leave_params *p = params;

    channel_leave(core, conn, p->member);
    return 0;
}

/* ---- list ---- */

#define LOOKED_AT_MAX 256 /* by one request */

static uint64_t
sequence_of(const struct participant *p)
{
    struct timeline_slot *slots = p->page->slots;

    if (!p->produces)
        return atomic_load(&channel_reader_of(slots)->got);
    return timeline_is_dead(&slots[0]) ? atomic_load(&slots[0].landed)
                                       : timeline_submitted(&slots[0]);
}

/* What the pages say is their owners' word, within what can be. */
static uint64_t
bounded(uint64_t said)
{
    return min_u64(said, CHANNEL_SEQUENCE_MAX);
}

static struct msg_channel_entry
participant_record(const struct participant *p)
{
    const struct channel *channel = p->channel;
    const struct conn *conn = p->page->conn;
    uint64_t newest =
        bounded(channel->producer ? sequence_of(channel->producer) : channel->sequence);
    uint64_t sequence = bounded(sequence_of(p));
    bool reads = !p->produces;

    return (struct msg_channel_entry){
        .pool = MSG_STR(channel->array->pool->name),
        .name = array_name(channel->array),
        .member = p->id,
        .mode = MSG_STR(p->latest ? "latest" : "fifo"),
        .slots = channel->n_slots,
        .producer = p->produces,
        .client = msg_str_opt(*conn->client ? conn->client : NULL),
        .pid = (uint64_t)conn->pid,
        .uid = conn->user->uid,
        .hung_up = conn->departed,
        .depth = p->depth,
        .sequence = sequence,
        .missed =
            reads ? min_u64(atomic_load(&channel_reader_of(p->page->slots)->missed), sequence)
                  : 0,
        .lag = reads && newest > sequence ? newest - sequence : 0,
    };
}

/* Whether the request lists it. */
static bool
is_listed(const struct participant *p, const struct conn *conn, const struct pool *pool,
          struct msg_str prefix)
{
    const struct array *array = p->channel->array;
    struct msg_str name = array_name(array);

    if (pool ? array->pool != pool : !pool_may(array->pool, conn, MAY_READ))
        return false;
    return name.n >= prefix.n && (prefix.n == 0 || memcmp(name.p, prefix.p, prefix.n) == 0);
}

static struct participant *
participant_after(struct core *core, uint64_t id)
{
    struct participant key = {.id = id + 1};

    return id < UINT64_MAX ? RB_NFIND(participants, &core->participants, &key) : NULL;
}

HANDLER(on_channels)
{
    const struct msg_channels_params *p = params;
    struct msg_channel_entry records[LOOKED_AT_MAX];
    struct portion portion = PORTION(core, records, LOOKED_AT_MAX);
    struct msg_channels_result result = {.channels = records, .after = p->after};
    struct participant *at = participant_after(core, p->after);
    struct pool *pool = NULL;

    if (!p->all && pool_find_readable(core, conn, p->pool, &pool, r))
        return REFUSED;
    for (int i = 0; at && i < LOOKED_AT_MAX; i++) {
        const struct msg_channel_entry record = participant_record(at);
        if (is_listed(at, conn, pool, p->prefix) &&
            !portion_add(&portion, &record, msg_channel_entry_size(&record)))
            break;
        result.after = at->id;
        at = participant_after(core, at->id);
    }
    result.n_channels = portion.n;
    result.more = at;
    send_result(core, conn, id, MSG_CHANNELS, &result, NULL, 0);
    return 0;
}
