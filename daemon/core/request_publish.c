/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish, watch, cancel.
 */
#include "array.h"
#include "publish.h"
#include "request.h"

static int
publish_check(const struct msg_publish_params *p, struct conn *conn, struct array **ret,
              struct refusal *r)
{
    struct lease *lease;

    if (lease_get(conn, p->lease, &lease, r) ||
        pool_check_writable(lease->array->pool, conn, r))
        return REFUSED;
    if (name_check(p->name, r) || metadata_check(p->metadata, r))
        return REFUSED;
    if (use_is_abandoned(lease->array))
        return refuse(r, PROTO_ERR_ABANDONED, "the array's writer died: write or discard it");
    *ret = lease->array;
    return 0;
}

HANDLER(on_publish)
{
    const struct msg_publish_params *p = params;
    struct array *array;
    int rc = publish_check(p, conn, &array, r);

    if (rc == 0)
        rc = array_publish(core, array, conn->user, p->name, p->metadata, r);
    if (rc == 0) /* the caller's lease keeps the array */
        send_result(core, conn, id, MSG_PUBLISH,
                    &(struct msg_publish_result){.generation = array->generation}, NULL, 0);
    return rc;
}

HANDLER(on_watch)
{
    const struct msg_watch_params *p = params;
    struct pool *pool;

    if (name_check(p->name, r) || pool_find_readable(core, conn, p->pool, &pool, r))
        return REFUSED;
    return watch_new(core, conn, id, pool, p->name, p->seen, r);
}

static void
cancel_watch(struct core *core, struct watch *watch)
{
    struct refusal r;

    refusal_fill(&r, PROTO_ERR_CANCELLED, "the watch was cancelled");
    send_refusal(core, watch->conn, watch->request, &r);
    watch_free(core, watch);
}

/* What has been answered is unknown here: its answer is on the way. */
HANDLER(on_cancel)
{
    const struct msg_cancel_params *p = params;
    uint32_t request = (uint32_t)p->request;
    struct watch *watch;
    struct bracket *bracket;

    if (p->request > UINT32_MAX)
        return 0;
    watch = watch_find(conn, request);
    bracket = bracket_find_request(conn, request);
    if (watch)
        cancel_watch(core, watch);
    if (published_cancel(conn, request)) {
        refusal_fill(r, PROTO_ERR_CANCELLED, "the wait for parts was cancelled");
        send_refusal(core, conn, request, r);
    }
    if (bracket) {
        refusal_fill(r, PROTO_ERR_CANCELLED, "the wait for an array was cancelled");
        bracket_refuse(core, bracket, r);
    }
    return 0;
}
