/* SPDX-License-Identifier: Apache-2.0 */
#include "flush.h"

#include <inttypes.h>

#include "device.h"
#include "reclaim.h"
#include "state.h"

static void
flush_device(struct core *core, struct flush *flush, uint32_t index)
{
    struct conn *conn = flush->conn;
    /* all: entries of other uids, and their blocks in reserve, too */
    bool all = is_administrator(core, conn->user);
    struct flusher_list *flushers = &core->devices[index].flushers;
    struct flusher *flusher = &flush->flushers[index], *before;

    flush->result.entries += reclaim_queue(core, index, all ? NULL : conn->user);
    flusher->until = reclaim_doom(core, index, all ? NULL : conn);
    flusher->flush = flush;
    flush->n_waiting++;
    TAILQ_FOREACH_REVERSE(before, flushers, flusher_list, link)
        if (before->until <= flusher->until)
            break;
    if (before)
        TAILQ_INSERT_AFTER(flushers, before, flusher, link);
    else
        TAILQ_INSERT_HEAD(flushers, flusher, link);
}

int
flush_start(struct core *core, struct conn *conn, uint32_t request, uint32_t device,
            struct refusal *r)
{
    uint32_t n = (uint32_t)core->config.n_devices;
    size_t size = sizeof(struct flush) + n * sizeof(struct flusher);
    struct flush *flush = calloc(1, size);

    if (!flush)
        return -ENOMEM;
    if (charge_init(&flush->charge, conn->user, RES_JOBS, 1, size, r)) {
        free(flush);
        return REFUSED;
    }
    flush->conn = conn;
    flush->request = request;
    LIST_INSERT_HEAD(&conn->flushes, flush, of_conn);
    for (uint32_t i = 0; i < n; i++)
        if (device == n || device == i)
            flush_device(core, flush, i);
    return 0; /* release_run() answers it, in this event or later */
}

void
flush_drop(struct core *core, struct flush *flush)
{
    for (size_t i = 0; i < core->config.n_devices; i++)
        if (flush->flushers[i].flush)
            TAILQ_REMOVE(&core->devices[i].flushers, &flush->flushers[i], link);
    LIST_REMOVE(flush, of_conn);
    charge_deinit(&flush->charge);
    free(flush);
}

static bool
concerns(const struct core *core, const struct flush *flush, const struct block *block)
{
    return is_administrator(core, flush->conn->user) ||
           pool_may(block->pool, flush->conn, MAY_WRITE);
}

void
flush_count(const struct core *core, struct flush *flush, const struct block *block)
{
    if (!concerns(core, flush, block))
        return;
    flush->result.blocks++;
    flush->result.bytes += block->size;
}

/* Only a client that may know the block is told which one failed; all are told that theirs were
 * called off. */
void
flush_fail(const struct core *core, struct flush *flush, const struct block *block, int cuda,
           const char *text)
{
    flush->failed = true;
    if (!concerns(core, flush, block)) {
        refusal_fill(&flush->refusal, PROTO_ERR_DRIVER,
                     "a release failed on the device, what was to follow waits on: %s", text);
        flush->refusal.cuda = cuda;
        return;
    }
    refusal_fill(&flush->refusal, PROTO_ERR_DRIVER,
                 "block %" PRIu64
                 " of %s could not be released and is written off, what was to "
                 "follow waits on: %s",
                 block->id, SIZE_TEXT(block->size), text);
    flush->refusal.cuda = cuda;
}

void
flush_leave(struct core *core, struct flusher *flusher)
{
    struct flush *flush = TAKE_PTR(flusher->flush);

    if (--flush->n_waiting)
        return;
    if (flush->failed)
        send_refusal(core, flush->conn, flush->request, MSG_FLUSH, &flush->refusal);
    else
        send_result(core, flush->conn, flush->request, MSG_FLUSH, &flush->result, NULL, 0);
    flush_drop(core, flush);
}
