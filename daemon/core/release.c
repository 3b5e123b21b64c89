/* SPDX-License-Identifier: Apache-2.0 */
#include "release.h"

#include <assert.h>

#include "device.h"
#include "flush.h"
#include "state.h"
#include "waiter.h"

/* Whether that doom, and all before it, has been carried out or called off. */
static bool
is_over(const struct core *core, const struct device *device, uint64_t until)
{
    const struct block *next = core->stopping ? NULL : TAILQ_FIRST(&device->doomed);

    return (!device->releasing || device->releasing->doom > until) &&
           (!next || next->doom > until);
}

/* A waiter waits for blocks that were doomed when it came, not for what others doom later. */
static bool
serve_one(struct core *core, struct device *device)
{
    struct flusher *flusher = TAILQ_FIRST(&device->flushers);
    struct waiter *waiter = TAILQ_FIRST(&device->retries);

    if (flusher && is_over(core, device, flusher->until)) {
        TAILQ_REMOVE(&device->flushers, flusher, link);
        flush_leave(core, flusher);
        return true;
    }
    if (waiter && is_over(core, device, waiter->until)) {
        TAILQ_REMOVE(&device->retries, waiter, link);
        waiter_retry(core, waiter);
        return true;
    }
    return false;
}

static void
release_next(struct core *core, struct device *device)
{
    struct block *block = core->stopping ? NULL : TAILQ_FIRST(&device->doomed);

    if (!block || device->releasing)
        return;
    device->releasing = block;
    block_release(core, block);
    block_zone(core, block)->n_doomed++; /* counted until it is gone */
}

bool
release_run(struct core *core)
{
    bool again = true;

    for (uint32_t n = 0; n < core->pieces && again; n++) {
        again = false; /* waiters of one device may doom blocks of another one */
        for (size_t i = 0; i < core->config.n_devices; i++) {
            release_next(core, &core->devices[i]);
            again |= serve_one(core, &core->devices[i]);
        }
    }
    return again;
}

/* The block is written off: whether its memory is there is unknown, and its handle is not tried
 * again. The rest of the round is called off. */
static void
release_failed(struct core *core, struct device *device, const struct block *block, int cuda,
               const char *text)
{
    struct flusher *flusher;
    struct block *doomed;

    core->n_release_errors++;
    device->n_quarantined++;
    device->bytes_quarantined += block->size;
    device->calm_until_ns = core->now_ns + core->config.memory.pending_age_ns;
    if (device->calm_until_ns < core->now_ns)
        device->calm_until_ns = UINT64_MAX;
    TAILQ_FOREACH(flusher, &device->flushers, link)
        flush_fail(core, flusher->flush, block, cuda, text);
    while ((doomed = TAILQ_LAST(&device->doomed, block_list)))
        block_undoom(core, doomed);
}

void
release_done(struct core *core, struct block *block, int error, int cuda, const char *text)
{
    struct device *device = &core->devices[block->device];
    struct flusher *flusher;

    assert(device->releasing == block);
    device->releasing = NULL;
    if (error) {
        release_failed(core, device, block, cuda, text);
    } else {
        device->n_releases++;
        TAILQ_FOREACH(flusher, &device->flushers, link)
            flush_count(core, flusher->flush, block);
    }
    block_zone(core, block)->n_doomed--;
    block_destroy(core, block);
}
