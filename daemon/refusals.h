/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that the core did not take up, because their uid has as many as it may, or because
 * there is no core yet. Without this such a client would see its connection end, and no reason
 * (test_wire.py). An error carries the number of a request, so each connection is kept until its
 * first packet comes, at most for hello_timeout. Since they are over the limit, only a few are
 * kept: the oldest one makes room for a new one.
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

/* The caller sets timeout_ms and max_of_uid, at any time. */
void refusals_init(struct refusals *r, uv_loop_t *loop);
/* c->refused is set. Where there are too many, the oldest one is lost. */
void refusals_add(struct refusals *r, struct conn *c);
/* Called when a refused connection is lost. */
void refusals_remove(struct refusals *r, struct conn *c);
/* Answers the first packet, and loses the connection. not_ready: for a refusal with -EAGAIN, why
 * there is no core yet. */
void refusals_answer(struct refusals *r, struct conn *c, const char *not_ready,
                     const void *packet, size_t n);
