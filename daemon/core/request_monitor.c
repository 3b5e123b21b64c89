/* SPDX-License-Identifier: Apache-2.0 */
/*
 * monitor.
 */
#include "array.h"
#include "monitor.h"
#include "request.h"

HANDLER(on_monitor)
{
    const struct msg_monitor_params *p = params;
    const struct user *user = conn->user;
    uint64_t uid = p->uid.n ? p->uid.v[0] : user->uid;

    if (p->uid.n > 1 || uid > UINT32_MAX)
        return refuse(r, PROTO_ERR_INVALID, "uid is one number of 32 bits");
    if (conn->monitor && conn->monitor->asks)
        return refuse(r, PROTO_ERR_INVALID, "another monitor request waits");
    if (!is_administrator(core, user) && (p->all || uid != user->uid || user->pool->is_none))
        return refuse(
            r, PROTO_ERR_PERMISSION,
            "messages of others, as those of a uid that stands for many, are for root "
            "and the daemon's own uid");
    return monitor_ask(core, conn, id, p->all, (uid_t)uid, r);
}

struct msg_str
request_pool(struct conn *conn, enum msg_method method, const void *params)
{
    const struct msg_str *pool = msg_param(method, params, "pool");
    const uint64_t *id = msg_param(method, params, "lease");
    const struct lease *lease = id ? lease_find(conn, *id) : NULL;

    if (pool)
        return pool->p ? *pool : MSG_STR(conn->user->pool->name);
    return msg_str_opt(lease ? lease->array->pool->name : NULL);
}
