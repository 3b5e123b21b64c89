/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of actions. Order is the order in which they were pushed. Entries that carry bytes
 * of their own (packets, names) are allocated with them and freed after they were taken out;
 * the others are embedded in the object that they are about.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "state.h"

void
refusal_fill(struct refusal *r, enum proto_error code, const char *fmt, ...)
{
    va_list ap;

    r->code = code;
    r->cuda = 0;
    va_start(ap, fmt);
    vsnprintf(r->text, sizeof(r->text), fmt, ap);
    va_end(ap);
}

const char *
size_text(char buf[static SIZE_TEXT_MAX], uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < ARRAY_SIZE(units)) {
        value /= 1024;
        unit++;
    }
    snprintf(buf, SIZE_TEXT_MAX, "%.*f %s", unit && value < 100 && value != (double)(int)value,
             value, units[unit]);
    return buf;
}

void
entry_push(struct core *core, struct entry *e)
{
    assert(!e->queued);
    e->queued = true;
    TAILQ_INSERT_TAIL(&core->queue, e, link);
}

void
entry_remove(struct core *core, struct entry *e)
{
    if (e->queued)
        TAILQ_REMOVE(&core->queue, e, link);
    e->queued = false;
}

/* An owned entry with n bytes after it. */
static struct entry *
entry_new(enum core_action_type type, size_t n)
{
    struct entry *e = malloc(sizeof(*e) + n);

    if (e)
        *e = (struct entry){.action = {.type = type, .fd = -1}, .owned = true};
    return e;
}

struct entry *
entry_new_name(enum core_record_type record, const struct pool *pool, const char *name,
               uint32_t n_name)
{
    size_t n_pool = strlen(pool->name) + 1;
    struct entry *e = entry_new(CORE_PERSIST, n_pool + n_name + 1);
    char *text;

    if (!e)
        return NULL;
    text = (char *)(e + 1);
    memcpy(text, pool->name, n_pool);
    memcpy(text + n_pool, name, n_name);
    text[n_pool + n_name] = '\0';
    e->action.record = record;
    e->action.pool = text;
    e->action.name = text + n_pool;
    return e;
}

struct entry *
entry_new_page(enum core_action_type type, uint64_t page)
{
    struct entry *e = entry_new(type, 0);

    if (e)
        e->action.page = page;
    return e;
}

struct entry *
entry_new_conn(enum core_action_type type, uint64_t conn)
{
    struct entry *e = entry_new(type, 0);

    if (e)
        e->action.conn = conn;
    return e;
}

void
entry_free(struct entry *e)
{
    if (e && e->owned)
        free(e);
}

void
entry_drop_sends(struct core *core, uint64_t conn)
{
    struct entry *e, *next;

    for (e = TAILQ_FIRST(&core->queue); e; e = next) {
        next = TAILQ_NEXT(e, link);
        if (e->action.type == CORE_SEND && e->action.conn == conn) {
            entry_remove(core, e);
            entry_free(e);
        }
    }
}

void
entry_drop_all(struct core *core)
{
    struct entry *e;

    while ((e = TAILQ_FIRST(&core->queue))) {
        entry_remove(core, e);
        entry_free(e);
    }
    free(core->taken);
    core->taken = NULL;
}

bool
core_next(struct core *core, struct core_action *ret)
{
    struct entry *e = TAILQ_FIRST(&core->queue);

    free(core->taken);
    core->taken = NULL;
    if (!e)
        return false;
    entry_remove(core, e);
    if (e->owned)
        core->taken = e;
    *ret = e->action;
    return true;
}

void
conn_end(struct core *core, struct conn *conn, const char *reason)
{
    if (conn->closing)
        return;
    conn->closing = true;
    conn->close.action =
        (struct core_action){.type = CORE_CLOSE, .conn = conn->id, .reason = reason, .fd = -1};
    entry_push(core, &conn->close);
}

void
send_buf(struct core *core, struct conn *conn, const int *fds, size_t n_fds)
{
    size_t n_fd_bytes = n_fds * sizeof(*fds);
    struct entry *e;

    if (conn->closing)
        return;
    e = entry_new(CORE_SEND, n_fd_bytes + core->buf.n);
    if (!e) {
        conn_end(core, conn, "out of memory");
        return;
    }
    int *own_fds = (int *)(e + 1);
    uint8_t *own_data = (uint8_t *)(e + 1) + n_fd_bytes;
    if (n_fds)
        memcpy(own_fds, fds, n_fd_bytes);
    memcpy(own_data, core->buf.data, core->buf.n);
    e->action.conn = conn->id;
    e->action.packet = own_data;
    e->action.n_packet = core->buf.n;
    e->action.fds = own_fds;
    e->action.n_fds = n_fds;
    entry_push(core, e);
}

void
send_result(struct core *core, struct conn *conn, uint32_t request, enum msg_method method,
            const void *result, const int *fds, size_t n_fds)
{
    int r = msg_encode_result(&core->buf, request, method, result);

    if (r < 0)
        conn_end(core, conn, r == -ENOMEM ? "out of memory" : "a reply exceeds a packet");
    else
        send_buf(core, conn, fds, n_fds);
}

void
send_refusal(struct core *core, struct conn *conn, uint32_t request, const struct refusal *r)
{
    if (msg_encode_error(&core->buf, request, r->code, r->text, r->cuda) < 0)
        conn_end(core, conn, "out of memory");
    else
        send_buf(core, conn, NULL, 0);
}
