/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that core did not take up, because their uid has as many as it may, or there is no
 * core yet. The error that says so has to carry the number of a request, so each is kept until its
 * first packet comes, at most for as long as others may take to say hello; and only a few at a
 * time, since they are over the limit. Those who have kept silent for longest make room for others.
 *
 * The core knows nothing of them, so its table of errors does not serve here: without this a client
 * that is one too many would see its connection end, and not why (test_wire.py).
 */
#pragma once

#include <uv.h>

#include "conn.h"
#include "msg.h"

#define REFUSALS_MAX 64
#define NEEDS_PEERPIDFD                                                                       \
    "as this kernel cannot tell of its exit: run caid in the host's pid namespace, or Linux " \
    "6.5 or later (caid(8), CONTAINERS)"

struct refusals {
    TAILQ_HEAD(, conn) conns; /* by deadline */
    uint32_t n;
    uint64_t timeout_ms;
    uint32_t max_of_uid; /* connections */
    uv_timer_t timer;
};

/* timeout_ms and max_of_uid are the caller's to set, at any time. */
void refusals_init(struct refusals *r, uv_loop_t *loop);
/* c->refused is set. Where there are too many, c takes the place of the first. */
void refusals_add(struct refusals *r, struct conn *c);
/* When a refused connection is lost. */
void refusals_remove(struct refusals *r, struct conn *c);
/* Answers the first packet, and loses the connection. not_ready: why there is no core yet, for one
 * that is refused with -EAGAIN. */
void refusals_answer(struct refusals *r, struct conn *c, const char *not_ready,
                     const void *packet, size_t n);
