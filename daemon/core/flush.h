/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's wish to have memory given back now. What is in the queues is freed at once; the answer
 * comes when every device that it is about has ended its round of releases (release.h).
 */
#pragma once

#include "base/tree.h"
#include "refusal.h"
#include "user.h"

struct block;
struct core;

/* A flush request that waits for blocks to be released. */
struct flush {
    LIST_ENTRY(flush) of_conn;
    struct conn *conn;
    struct charge charge; /* one job, and itself */
    uint32_t request;
    uint32_t n_waiting; /* devices */
    struct msg_flushed result;
    bool failed; /* a release; refusal says which */
    struct refusal refusal;

    struct flusher {
        TAILQ_ENTRY(flusher) link; /* device->flushers */
        struct flush *flush;       /* NULL: it does not wait there */
        uint64_t until;            /* the last doom that it waits for */
    } flushers[];                  /* one for each device */
};

/* On behalf of conn: of one device or of all (n_devices). Answered at once or later. -ENOMEM, or
 * REFUSED. */
int flush_start(struct core *core, struct conn *conn, uint32_t request, uint32_t device,
                struct refusal *r);
/* Nobody waits for it any more. */
void flush_drop(struct core *core, struct flush *flush);
/* A device has ended its round. */
void flush_leave(struct core *core, struct flusher *flusher);
/* A block was released, or could not be. */
void flush_count(const struct core *core, struct flush *flush, const struct block *block);
void flush_fail(const struct core *core, struct flush *flush, const struct block *block,
                int cuda, const char *text);
