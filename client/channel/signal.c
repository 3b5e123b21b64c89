/* SPDX-License-Identifier: Apache-2.0 */
#include "port.h"
#include "session/client.h"

#define LAND_PAUSE_NS (100 * NSEC_PER_USEC)

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

/* What is on its way would make the page a living one again: it lands first. What a dead context
 * was to signal never does. */
static void
kill_page(const struct caid_channel *channel, const struct lane *lane,
          const struct caid_error *why)
{
    const struct page *page = channel->page;
    bool is_gone = gpu_is_gone((CUresult)why->cuda_result);

    for (uint32_t i = 0; i < TIMELINE_SLOTS; i++)
        while (!page_slot_has_landed(page, i) &&
               !(is_gone && page->of_slot[i].context == lane->context))
            clock_pause_ns(LAND_PAUSE_NS);
    timeline_kill_page(channel->page->slots);
}

int
signal_value(struct caid_channel *channel, struct lane *lane, struct fence *after, size_t n,
             uint32_t slot, uint64_t value, struct caid_error *error)
{
    struct caid_client *client = channel->client;
    struct caid_error why = {0};

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
    kill_page(channel, lane, &why);
    return fail_again(error, &why);
}

void
signal_note(struct caid_channel *channel, struct lane *lane)
{
    if (channel->last)
        lane_put(channel->last);
    channel->last = lane;
}
