/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish, watch, cancel.
 */
#include "access.h"
#include "array.h"
#include "bracket.h"
#include "lease.h"
#include "pool.h"
#include "publish.h"
#include "request.h"
#include "watch.h"

static int
publish_check(struct core *core, const struct msg_publish_params *p, struct conn *conn,
              struct array **ret, struct refusal *r)
{
    struct lease *lease = lease_find(conn, p->lease);

    if (!lease)
        return refuse(r, PROTO_ERR_INVALID, "no lease %llu", (unsigned long long)p->lease);
    if (!pool_may(lease->array->pool, conn, MAY_WRITE))
        return refuse(r, PROTO_ERR_PERMISSION, "pool \"%s\" may be read, not written",
                      lease->array->pool->name);
    if (name_check(p->name, r) || metadata_check(p->metadata, r))
        return REFUSED;
    if (access_is_abandoned(core, lease->array))
        return refuse(r, PROTO_ERR_ABANDONED, "the array's writer died: write or discard it");
    *ret = lease->array;
    return 0;
}

int
on_publish(struct core *core, struct conn *conn, uint32_t id, const void *params,
           struct refusal *r)
{
    const struct msg_publish_params *p = params;
    struct array *array;
    int rc = publish_check(core, p, conn, &array, r);

    if (rc == 0)
        rc = array_publish(core, array, p->name, p->metadata, r);
    if (rc == 0) /* the caller's lease keeps the array */
        send_result(core, conn, id, MSG_PUBLISH,
                    &(struct msg_publish_result){.generation = array->generation}, NULL, 0);
    return rc;
}

int
on_watch(struct core *core, struct conn *conn, uint32_t id, const void *params,
         struct refusal *r)
{
    const struct msg_watch_params *p = params;
    struct pool *pool = pool_find(core, conn, p->pool);

    if (name_check(p->name, r))
        return REFUSED;
    if (!pool || !pool_may(pool, conn, MAY_READ))
        return refuse(r, PROTO_ERR_NOT_FOUND, "no pool \"%.*s\"", STR_FMT(p->pool));
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
int
on_cancel(struct core *core, struct conn *conn, uint32_t id, const void *params,
          struct refusal *r)
{
    const struct msg_cancel_params *p = params;
    uint32_t request = (uint32_t)p->request;
    struct watch *watch;
    struct bracket *bracket;

    (void)id;
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
