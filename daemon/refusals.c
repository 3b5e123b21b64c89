/* SPDX-License-Identifier: Apache-2.0 */
#include "refusals.h"

#include <stdio.h>

#include "base/macros.h"

#define TEXT_MAX 320 /* bytes of an answer's text */

void
refusals_init(struct refusals *r, uv_loop_t *loop)
{
    TAILQ_INIT(&r->conns);
    r->n = 0;
    r->timeout_ms = 0;
    r->max_of_uid = 0;
    uv_timer_init(loop, &r->timer);
    r->timer.data = r;
}

/* Runs when the time of the first connection is over. */
static void
on_timer(uv_timer_t *timer)
{
    struct refusals *r = timer->data;
    struct conn *c;

    while ((c = TAILQ_FIRST(&r->conns)) && c->refused_ms + r->timeout_ms <= uv_now(timer->loop))
        conn_lose(c, "refused, and silent");
    if (c)
        uv_timer_start(timer, on_timer, c->refused_ms + r->timeout_ms - uv_now(timer->loop), 0);
}

void
refusals_add(struct refusals *r, struct conn *c)
{
    if (r->n >= REFUSALS_MAX)
        conn_lose(TAILQ_FIRST(&r->conns), "refused, and silent");
    c->refused_ms = uv_now(r->timer.loop);
    TAILQ_INSERT_TAIL(&r->conns, c, refusal);
    if (r->n++ == 0)
        uv_timer_start(&r->timer, on_timer, r->timeout_ms, 0);
}

void
refusals_remove(struct refusals *r, struct conn *c)
{
    TAILQ_REMOVE(&r->conns, c, refusal);
    if (--r->n == 0)
        uv_timer_stop(&r->timer);
}

static enum proto_error
refusal_code(int refused)
{
    return refused == -EAGAIN    ? PROTO_ERR_NOT_READY
           : refused == -ENOTSUP ? PROTO_ERR_UNSUPPORTED
                                 : PROTO_ERR_LIMIT;
}

static void
refusal_text(const struct refusals *r, const struct conn *c, const char *not_ready, char *ret,
             size_t size)
{
    unsigned uid = c->uid;

    switch (c->refused) {
    case -EAGAIN: snprintf(ret, size, "caid is not ready, try again: %s", not_ready); return;
    case -ENOTSUP:
        snprintf(ret, size,
                 "a process in another pid namespace cannot be served, " NEEDS_PEERPIDFD);
        return;
    case -EMFILE:
        snprintf(ret, size, "uid %u: its share of the daemon's file descriptors is taken", uid);
        return;
    default: snprintf(ret, size, "uid %u: limit of %u connections reached", uid, r->max_of_uid);
    }
}

void
refusals_answer(struct refusals *r, struct conn *c, const char *not_ready, const void *packet,
                size_t n)
{
    _cleanup_(msg_buf_deinit) struct msg_buf buf = {0};
    char text[TEXT_MAX];
    struct msg_error e = {.code = refusal_code(c->refused)};
    struct msg m;

    refusal_text(r, c, not_ready, text, sizeof(text));
    e.text = MSG_STR(text);
    if (msg_parse(&m, packet, n) == 0) {
        if (m.type == MSG_REQUEST && msg_encode_error(&buf, m.id, &e) == 0)
            conn_send(c, buf.data, buf.n, NULL, 0);
        msg_deinit(&m);
    }
    conn_lose(c, "refused");
}
