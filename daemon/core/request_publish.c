/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish, watch, cancel.
 */
#include "array.h"
#include "publish.h"
#include "request.h"

static int
check_whole(struct array *array, struct refusal *r)
{
    return use_is_abandoned(array)
               ? refuse(r, PROTO_ERR_ABANDONED, "the array's writer died: write or discard it")
               : 0;
}

/* Whoever created the array pays for what it keeps. */
static int
companion_check(const struct array *array, const struct lease *lease, struct refusal *r)
{
    struct array *companion = lease->array;

    if (companion == array->companion)
        return 0;
    if (companion->pool != array->pool || companion->charge.user != array->charge.user)
        return refuse(r, PROTO_ERR_INVALID, "a companion is of the same pool and creator");
    if (lease->readonly || companion == array || companion->named || companion->is_part ||
        companion->companion || array->companion) /* so there is no circle of who keeps whom */
        return refuse(
            r, PROTO_ERR_INVALID,
            "a companion is leased \"rw\", has no name, is no part, and goes with one "
            "array");
    return check_whole(companion, r);
}

static int
publish_check(const struct msg_publish_params *p, struct conn *conn,
              struct publish_request *req, struct array **ret, struct refusal *r)
{
    struct lease *lease, *companion = NULL;

    if (lease_get(conn, p->lease, &lease, r) ||
        (p->companion && lease_get(conn, p->companion, &companion, r)) ||
        pool_check_writable(lease->array->pool, conn, r) || name_check(p->name, r) ||
        metadata_check(p->metadata, r) || check_whole(lease->array, r))
        return REFUSED;
    if (lease->array->is_companion)
        return refuse(r, PROTO_ERR_INVALID, "the array is the companion of another one");
    if (companion && companion_check(lease->array, companion, r))
        return REFUSED;
    *req = (struct publish_request){
        .name = p->name,
        .metadata = p->metadata,
        .companion = companion ? companion->array : NULL,
        .new = p->new,
        .ttl_ns = p->ttl_ns,
    };
    *ret = lease->array;
    return 0;
}

HANDLER(on_publish)
{
    struct publish_request req;
    struct array *array;
    int rc = publish_check(params, conn, &req, &array, r);

    if (rc == 0)
        rc = array_publish(core, array, conn->user, &req, r);
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
