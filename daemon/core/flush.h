/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FLUSH: a client wants memory to be given back now. What is in the queues is freed at once. The
 * answer comes when every device that it concerns has ended its round of releases (release.h).
 */
#pragma once

#include "base/tree.h"
#include "refusal.h"
#include "user.h"

struct block;
struct core;

/* A flush that waits for blocks to be released. */
struct flush {
    LIST_ENTRY(flush) of_conn;
    struct conn *conn;
    struct charge charge; /* one job, and the struct */
    uint32_t request;
    uint32_t n_waiting; /* devices that have not ended their round */
    struct msg_flushed result;
    bool failed; /* a release has failed; `refusal` says which */
    struct refusal refusal;

    struct flusher {
        TAILQ_ENTRY(flusher) link; /* device->flushers */
        struct flush *flush;       /* NULL: it does not wait there */
        uint64_t until;            /* the last doom of those that it waits for */
    } flushers[];                  /* one for each device */
};

/* For conn: flushes one device, or all (n_devices). Answers now or later. -ENOMEM or REFUSED. */
int flush_start(struct core *core, struct conn *conn, uint32_t request, uint32_t device,
                struct refusal *r);
/* The client does not wait any more. */
void flush_drop(struct core *core, struct flush *flush);
/* The device has ended its round. */
void flush_leave(struct core *core, struct flusher *flusher);
/* A block was released, or its release has failed. */
void flush_count(const struct core *core, struct flush *flush, const struct block *block);
void flush_fail(const struct core *core, struct flush *flush, const struct block *block,
                int cuda, const char *text);
