/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage, publish, vacate, watch, cancel.
 */
#include "array.h"
#include "drop.h"
#include "publish.h"
#include "request.h"
#include "set.h"

static int
check_whole(struct array *array, struct refusal *r)
{
    return use_is_abandoned(array)
               ? refuse(r, PROTO_ERR_ABANDONED, "the array's writer died: write or discard it")
               : 0;
}

/* The array's creator pays for what the array keeps. */
static int
companion_check(const struct array *array, const struct lease *lease, struct refusal *r)
{
    struct array *companion = lease->array;

    if (companion == array->companion)
        return 0;
    if (companion->pool != array->pool || companion->charge.user != array->charge.user)
        return refuse(r, PROTO_ERR_INVALID, "a companion is of the same pool and creator");
    if (lease->readonly || companion == array || companion->named || companion->is_part ||
        companion->is_set || companion->companion ||
        array->companion) /* so that no circle of companions can arise */
        return refuse(
            r, PROTO_ERR_INVALID,
            "a companion is leased \"rw\", has no name, is no part or set, and goes with one "
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
    if ((companion && companion_check(lease->array, companion, r)) ||
        (p->droppable && drop_check(lease->array, conn->user, r)))
        return REFUSED;
    *req = (struct publish_request){
        .name = p->name,
        .metadata = p->metadata,
        .companion = companion ? companion->array : NULL,
        .new = p->new,
        .ttl_ns = p->ttl_ns,
        .droppable = p->droppable,
        .priority = p->priority,
        .reload_ns = p->reload_ns,
        .after = p->after,
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
        rc = array_publish(core, array, conn, &req, r);
    if (rc)
        return rc;
    done_note(core, conn, id, MSG_PUBLISH, array->generation, 0);
    /* the array is not freed: the caller has a lease */
    send_result(core, conn, id, MSG_PUBLISH,
                &(struct msg_publish_result){.generation = array->generation}, NULL, 0);
    return 0;
}

/* ---- stage ---- */

int
set_check(struct conn *conn, uint64_t id, uint32_t n, struct array **ret, struct refusal *r)
{
    const struct array *array;
    struct lease *lease;

    if (n == 0 || n > PROTO_OPEN_MAX)
        return refuse(r, PROTO_ERR_INVALID, "1 to %d members are staged in a request",
                      PROTO_OPEN_MAX);
    if (lease_get(conn, id, &lease, r) || pool_check_writable(lease->array->pool, conn, r))
        return REFUSED;
    array = lease->array;
    if (array->charge.user != conn->user)
        return refuse(r, PROTO_ERR_PERMISSION, "a set is filled by its creator, uid %u",
                      (unsigned int)array->charge.user->uid);
    if (lease->readonly || array->span || array->name[0] || array->is_companion ||
        array->is_whole || array->is_part || array->n_sets)
        return refuse(
            r, PROTO_ERR_INVALID,
            "a set is leased \"rw\", has no bytes and no parts, never had a name, and is "
            "no part and kept by no other array");
    if (array->is_set && array->set->n + n > PROTO_SET_MAX)
        return refuse(r, PROTO_ERR_INVALID, "a set has at most %d members", PROTO_SET_MAX);
    *ret = lease->array;
    return 0;
}

static int
stage_one(struct conn *conn, struct array *array, struct msg_str key, uint64_t id,
          struct member **ret, struct refusal *r)
{
    struct lease *lease;

    if (name_check(key, r) || lease_get(conn, id, &lease, r) || check_whole(lease->array, r))
        return REFUSED;
    if (lease->array->pool != array->pool || lease->array->is_set || lease->array == array)
        return refuse(r, PROTO_ERR_INVALID,
                      "\"%.*s\": a member is of its set's pool, and no set", STR_FMT(key));
    return set_add(array, key, lease->array, ret, r);
}

/* All are staged, or none. */
static int
stage_all(struct conn *conn, struct array *array, const struct msg_stage_params *p,
          struct member **members, struct refusal *r)
{
    uint32_t n = 0;
    int rc = 0;

    while (n < p->keys.n && rc == 0) {
        rc = stage_one(conn, array, p->keys.v[n], p->leases.v[n], &members[n], r);
        n += rc == 0;
    }
    while (rc && n-- > 0)
        set_remove(array, members[n]);
    return rc;
}

HANDLER(on_stage)
{
    const struct msg_stage_params *p = params;
    struct member *members[PROTO_OPEN_MAX];
    struct array *array;
    int rc = set_check(conn, p->lease, p->keys.n, &array, r);

    if (rc == 0 && p->keys.n != p->leases.n)
        rc = refuse(r, PROTO_ERR_INVALID, "stage takes a lease for each key");
    if (rc == 0)
        rc = stage_all(conn, array, p, members, r);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < p->keys.n; i++)
        set_keep(array, members[i]);
    done_note(core, conn, id, MSG_STAGE, 0, 0);
    send_result(core, conn, id, MSG_STAGE, &(struct msg_none){}, NULL, 0);
    return 0;
}

/* ---- vacate ---- */

HANDLER(on_vacate)
{
    const struct msg_vacate_params *p = params;

    return vacate_new(core, conn, id,
                      &(struct vacate_request){.leases = p->leases,
                                               .own = p->own,
                                               .timeout_ns = p->timeout_ns,
                                               .nowait = p->nowait},
                      r);
}

/* ---- watch, cancel ---- */

HANDLER(on_watch)
{
    const struct msg_watch_params *p = params;
    struct pool *pool;

    if (name_check(p->name, r) || pool_find_readable(core, conn, p->pool, &pool, r))
        return REFUSED;
    return watch_new(core, conn, id, pool, p->name, p->seen, r);
}

/* An empty prefix is of all names. */
HANDLER(on_changes)
{
    const struct msg_changes_params *p = params;
    struct pool *pool;

    if ((p->prefix.n && name_check(p->prefix, r)) ||
        pool_find_readable(core, conn, p->pool, &pool, r))
        return REFUSED;
    return watch_new_prefix(core, conn, id, pool, p, r);
}

/* A watch or a wait for parts that has been answered is unknown here: the answer is on its way. */
HANDLER(on_cancel)
{
    const struct msg_cancel_params *p = params;
    uint32_t request = (uint32_t)p->request;
    struct watch *watch;

    if (p->request > UINT32_MAX)
        return 0;
    watch = watch_find(conn, request);
    if (watch)
        watch_cancel(core, watch);
    if (published_cancel(conn, request)) {
        refusal_fill(r, PROTO_ERR_CANCELLED, "the wait for parts was cancelled");
        send_refusal(core, conn, request, MSG_PARTS, r);
    }
    bracket_cancel(core, conn, request);
    vacate_cancel(core, conn, request);
    channel_cancel(core, conn, request);
    return 0;
}
