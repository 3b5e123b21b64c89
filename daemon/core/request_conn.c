/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connections, kick.
 */
#include "former.h"
#include "request.h"

#define LOOKED_AT_MAX 256 /* by one request */

/* An administrator may know of any, and end it, a uid of its own; one that stands for many uids has
 * none beside the connection itself. */
static bool
may_end(const struct core *core, const struct conn *conn, const struct conn *other)
{
    return other == conn || is_administrator(core, conn->user) ||
           (other->user == conn->user && !conn->user->pool->is_none);
}

static struct conn *
conn_after(struct conns *conns, uint64_t id)
{
    struct conn key = {.id = id + 1};

    return id < UINT64_MAX ? RB_NFIND(conns, conns, &key) : NULL;
}

/* The first connection after that number, whether it has hung up or not. */
static struct conn *
next_conn(struct core *core, uint64_t id)
{
    struct conn *conn = conn_after(&core->conns, id), *gone = conn_after(&core->departed, id);

    return !conn || (gone && gone->id < conn->id) ? gone : conn;
}

HANDLER(on_connections)
{
    const struct msg_connections_params *p = params;
    struct msg_connection records[LOOKED_AT_MAX];
    struct portion portion = PORTION(core, records, LOOKED_AT_MAX);
    struct msg_connections_result result = {.connections = records, .after = p->after};
    struct conn *other = next_conn(core, p->after);

    for (int i = 0; other && i < LOOKED_AT_MAX; i++) {
        const struct msg_connection record = {
            .conn = other->id,
            .uid = other->user->uid,
            .pid = (uint64_t)other->pid,
            .client = msg_str_opt(*other->client ? other->client : NULL),
            .hung_up = other->departed,
            .former = former_may_resume(other),
        };
        if ((other->greeted || other->departed) && may_end(core, conn, other) &&
            !portion_add(&portion, &record, msg_connection_size(&record)))
            break;
        result.after = other->id;
        other = next_conn(core, result.after);
    }
    result.n_connections = portion.n;
    result.more = other;
    send_result(core, conn, id, MSG_CONNECTIONS, &result, NULL, 0);
    return 0;
}

/* The client cannot come back, whatever becomes of the daemon: the journal says so before the
 * answer is sent. */
static void
void_token(struct core *core, struct conn *conn, uid_t by)
{
    if (conn->former) {
        former_kick(core, conn, by);
        return;
    }
    conn->resumes = false;
    persist_process(core, conn);
}

/* What the client has waits for the exit of its process, as ever (I2). */
HANDLER(on_kick)
{
    const struct msg_kick_params *p = params;
    struct conn *other = conn_find(&core->conns, p->conn);
    struct refusal why;

    if (!other)
        other = conn_find(&core->departed, p->conn);
    if (!other || !may_end(core, conn, other))
        return refuse(r, PROTO_ERR_NOT_FOUND, "there is no connection %llu, or it is another's",
                      (unsigned long long)p->conn);
    if (other->closing && !former_may_resume(other))
        return refuse(
            r, PROTO_ERR_NOT_FOUND,
            "connection %llu has ended: what it has left waits for its process to exit",
            (unsigned long long)p->conn);
    void_token(core, other, conn->user->uid);
    send_result(core, conn, id, MSG_KICK, &(struct msg_none){}, NULL, 0);
    if (other->departed)
        return 0;
    refuse_kicked(&why, conn->user->uid);
    conn_dismiss(core, other, &why,
                 conn->user == other->user ? "kicked by its own user"
                                           : "kicked by an administrator");
    return 0;
}
