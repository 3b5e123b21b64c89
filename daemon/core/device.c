/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "state.h"

const char *
core_kind_name(enum core_kind kind)
{
    static const char *const names[N_KINDS] = {
        [KIND_DEVICE] = "device",
        [KIND_LEGACY] = "legacy",
        [KIND_PINNED] = "pinned",
    };

    return names[kind];
}

const char *
core_handoff_name(enum core_handoff handoff)
{
    static const char *const names[N_HANDOFFS] = {
        [HANDOFF_MEMOPS] = "memops",
        [HANDOFF_HOST] = "host",
        [HANDOFF_EVENTS] = "events",
    };

    return names[handoff];
}

static struct dealloc_limits
queue_limits(const struct core_device *info, const struct core_memory *memory)
{
    return (struct dealloc_limits){
        .max_count = memory->pending_count,
        .max_bytes = dealloc_ratio_bytes(info->total, memory->pending_ratio),
        .max_age_ns = memory->pending_age_ns,
    };
}

void
device_set_memory(struct device *device, const struct core_memory *memory)
{
    device->queue.limits = queue_limits(&device->info, memory);
}

void
device_init(struct device *device, const struct core_device *info,
            const struct core_memory *memory)
{
    struct dealloc_limits limits = queue_limits(info, memory);

    device->info = *info;
    dealloc_init(&device->queue, &limits);
    TAILQ_INIT(&device->reserved);
    TAILQ_INIT(&device->doomed);
    TAILQ_INIT(&device->retries);
    TAILQ_INIT(&device->flushers);
}

int
device_find(const struct core *core, struct msg_str uuid, uint32_t *ret, struct refusal *r)
{
    if (!uuid.p && core->config.n_devices) {
        *ret = 0;
        return 0;
    }
    for (uint32_t i = 0; i < core->config.n_devices; i++)
        if (msg_str_eq(uuid, core->devices[i].info.uuid)) {
            *ret = i;
            return 0;
        }
    return refuse(r, PROTO_ERR_DEVICE, "no device \"%.*s\" here", STR_FMT(uuid));
}
