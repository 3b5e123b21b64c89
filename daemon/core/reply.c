/* SPDX-License-Identifier: Apache-2.0 */
#include "reply.h"

#include "audit.h"
#include "monitor.h"
#include "state.h"

struct room
room_init(const struct core *core)
{
    return (struct room){.bytes = PROTO_PACKET_MAX - 256,
                         .fds = PROTO_FDS_MAX,
                         .share = core->reply_max};
}

bool
room_take(struct room *room, size_t bytes, size_t fds)
{
    if (room->bytes < bytes || room->fds < fds || room->taken >= room->share)
        return false;
    room->taken += bytes;
    room->bytes -= bytes;
    room->fds -= fds;
    return true;
}

bool
portion_add(struct portion *portion, const void *record, size_t bytes)
{
    portion->more = portion->n == portion->max || !room_take(&portion->room, bytes, 0);
    if (!portion->more)
        memcpy((char *)portion->records + portion->n++ * portion->size, record, portion->size);
    return !portion->more;
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

/* Sends core->buf to conn, with the fds. -ENOMEM: conn ends. */
static int
push_buf(struct core *core, struct conn *conn, const int *fds, size_t n_fds)
{
    size_t n_fd_bytes = n_fds * sizeof(*fds);
    struct entry *e = entry_new(CORE_SEND, n_fd_bytes + core->buf.n);

    if (!e) {
        conn_end(core, conn, "out of memory");
        return -ENOMEM;
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
    return 0;
}

/* Sends core->buf as an answer. */
static void
send_buf(struct core *core, struct conn *conn, enum msg_method method, const struct refusal *r,
         const int *fds, size_t n_fds)
{
    if (!conn->closing && push_buf(core, conn, fds, n_fds) == 0)
        metrics_count_outcome(conn->user, method, r);
}

void
send_result(struct core *core, struct conn *conn, uint32_t request, enum msg_method method,
            const void *result, const int *fds, size_t n_fds)
{
    int r = msg_encode_result(&core->buf, request, method, result);

    if (r < 0)
        conn_end(core, conn, r == -ENOMEM ? "out of memory" : "a reply exceeds a packet");
    else
        send_buf(core, conn, method, NULL, fds, n_fds);
    MONITOR(core, conn, MSG_RESPONSE, method, request, result, (struct subject){0});
}

static struct msg_error
error_of(const struct refusal *r)
{
    return (struct msg_error){.code = r->code,
                              .text = MSG_STR(r->text),
                              .cuda = r->cuda,
                              .left = r->left};
}

void
send_refusal(struct core *core, struct conn *conn, uint32_t request, enum msg_method method,
             const struct refusal *r)
{
    const struct msg_error error = error_of(r);

    audit_refusal(core, conn, r);
    if (msg_encode_error(&core->buf, request, &error) < 0)
        conn_end(core, conn, "out of memory");
    else
        send_buf(core, conn, method, r, NULL, 0);
    MONITOR(core, conn, MSG_RESPONSE, MSG_UNKNOWN, request, &error, (struct subject){0});
}

void
conn_dismiss(struct core *core, struct conn *conn, const struct refusal *r, const char *reason)
{
    const struct msg_error error = error_of(r);

    if (conn->is_told && !conn->closing && msg_encode_error(&core->buf, 0, &error) == 0 &&
        push_buf(core, conn, NULL, 0) == 0)
        MONITOR(core, conn, MSG_RESPONSE, MSG_UNKNOWN, 0, &error, (struct subject){0});
    conn_end(core, conn, reason);
}
