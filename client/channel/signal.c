/* SPDX-License-Identifier: Apache-2.0 */
#include "port.h"
#include "session/client.h"

struct fence
signal_fence(const struct caid_channel *channel, uint32_t slot)
{
    return (struct fence){.page = channel->page,
                          .slot = slot,
                          .value = timeline_submitted(&channel->page->slots[slot])};
}

int
signal_find_wait(const struct caid_channel *channel, const struct lane *lane)
{
    uint32_t from = lane && lane == channel->last ? PAGE_SLOT + 1 : PAGE_SLOT;
    uint32_t to = channel->latest ? PAGE_SLOT : channel->depth; /* "latest" has no markers */

    for (uint32_t i = from; channel_waits(lane) && i <= to; i++)
        if (!page_slot_has_landed(channel->page, i))
            return (int)i;
    return -1;
}

bool
signal_is_behind(const struct caid_channel *channel, const struct lane *lane)
{
    return !(lane && lane == channel->last) && !page_slot_has_landed(channel->page, PAGE_SLOT);
}

void
signal_raise(const struct caid_channel *channel, uint32_t slot, uint64_t value)
{
    struct timeline_slot *at = &channel->page->slots[slot];

    slot_raise(&at->done, value);
    slot_raise(&at->submitted, value);
}

/* The stream has been waited for: so are the others that it was to come after. */
static bool
wait_for_all(const struct caid_channel *channel, const struct fence *fences, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fence_wait(channel->client, &fences[i], true, UINT64_MAX, NULL) != 0)
            return false;
    return true;
}

/* The frame has ended: other codes would say that it has not. */
static int
fail_for_good(struct caid_channel *channel, const struct caid_error *why,
              struct caid_error *error)
{
    member_break(channel);
    if (why->code != CAID_ERR_INVALID && why->code != CAID_ERR_INTERRUPTED)
        return fail_again(error, why);
    return fail(error, CAID_ERR_ABANDONED, "channel \"%s\" cannot be signalled in any more: %s",
                channel_name(channel), why->message);
}

int
signal_value(struct caid_channel *channel, struct lane *lane, struct fence *after, size_t n,
             uint32_t slot, uint64_t value, struct caid_error *error)
{
    struct caid_client *client = channel->client;
    struct caid_error why = {0};

    if (channel_is_broken(channel) || timeline_is_dead(&channel->page->slots[slot])) {
        member_break(channel);
        return channel_fail_broken(channel, error);
    }
    if (!lane) {
        signal_raise(channel, slot, value);
        return 0;
    }
    int r = lane_wait(client, lane, after, n, UINT64_MAX, &why);
    if (r >= 0)
        r = lane_signal_slot(client, lane, channel->page, slot, value, &why);
    if (r == 0)
        return 0;
    if (lane_drain(client, lane, &why) && wait_for_all(channel, after, n)) {
        signal_raise(channel, slot, value);
        timeline_wake(&channel->page->slots[slot]);
        return 0;
    }
    return fail_for_good(channel, &why, error);
}

void
signal_note(struct caid_channel *channel, struct lane *lane)
{
    if (channel->last)
        lane_put(channel->last);
    channel->last = lane;
}
