/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unlink, rename, expire.
 */
#include "array.h"
#include "audit.h"
#include "lost.h"
#include "publish.h"
#include "request.h"
#include "set.h"

int
name_find(struct core *core, struct conn *conn, const struct msg_name_params *p, int what,
          struct named *ret, struct refusal *r)
{
    struct pool *pool = pool_find(core, conn, p->pool);
    struct named named = {0};

    if (name_check(p->name, r))
        return REFUSED;
    if (pool && what == MAY_WRITE && pool_may(pool, conn, MAY_READ) &&
        pool_check_writable(pool, conn, r))
        return REFUSED;
    if (pool && pool_may(pool, conn, what))
        named = named_find(pool, p->name);
    if (!named.array && pool && pool_may(pool, conn, what) && lost_check(pool, p->name, r))
        return REFUSED;
    if (!named.array)
        return refuse_array(r, pool && pool_may(pool, conn, what) ? pool : NULL, p->pool,
                            p->name);
    *ret = named;
    return 0;
}

/* The array that is to lose that name. Names of a set change only together. */
static int
name_find_own(struct core *core, struct conn *conn, const struct msg_name_params *p,
              struct array **ret, struct refusal *r)
{
    struct named named;

    if (name_find(core, conn, p, MAY_WRITE, &named, r))
        return REFUSED;
    if (named.set)
        return refuse(r, PROTO_ERR_INVALID, "\"%.*s\" is of set \"%s\", and changes with it",
                      STR_FMT(p->name), named.set->name);
    *ret = named.array;
    return 0;
}

/* A lost name of a pool that conn may write. */
static struct lost *
find_lost(struct core *core, const struct conn *conn, const struct msg_name_params *p)
{
    struct pool *pool = pool_find(core, conn, p->pool);

    return pool && pool_may(pool, conn, MAY_WRITE) ? lost_find(pool, p->name) : NULL;
}

HANDLER(on_unlink)
{
    struct lost *lost = find_lost(core, conn, params);
    struct array *array;

    if (lost) {
        lost_free(lost);
    } else {
        if (name_find_own(core, conn, params, &array, r))
            return REFUSED;
        audit_name(core, conn, AUDIT_REMOVE, "unlinks", array);
        array_unlink(core, array);
    }
    done_note(core, conn, id, MSG_UNLINK, 0, 0);
    send_result(core, conn, id, MSG_UNLINK, &(struct msg_none){}, NULL, 0);
    return 0;
}

/* Unlike publish, this does not say that the contents are whole: an abandoned array stays
 * abandoned. */
HANDLER(on_rename)
{
    const struct msg_rename_params *p = params;
    const struct msg_name_params from = {.name = p->name, .pool = p->pool};
    const struct publish_request req = {.name = p->to, .new = !p->replace, .keeps_ttl = true};
    struct array *array;

    if (name_find_own(core, conn, &from, &array, r) || name_check(p->to, r))
        return REFUSED;
    int rc = array_publish(core, array, conn, &req, r);
    if (rc)
        return rc;
    done_note(core, conn, id, MSG_RENAME, array->generation, 0);
    send_result(core, conn, id, MSG_RENAME,
                &(struct msg_publish_result){.generation = array->generation}, NULL, 0);
    return 0;
}

HANDLER(on_expire)
{
    const struct msg_expire_params *p = params;
    const struct msg_name_params name = {.name = p->name, .pool = p->pool};
    struct expiry *expiry = NULL;
    struct array *array;
    int rc;

    if (name_find_own(core, conn, &name, &array, r))
        return REFUSED;
    if (p->generation && p->generation != array->generation)
        return refuse(r, PROTO_ERR_STALE, "array \"%s\" is of generation %llu, not %llu",
                      array->name, (unsigned long long)array->generation,
                      (unsigned long long)p->generation);
    rc = p->ttl_ns ? expiry_new(&expiry, conn->user, p->ttl_ns, r) : 0;
    if (rc)
        return rc;
    audit_name(core, conn, AUDIT_REMOVE, "sets a time to live for", array);
    expiry_set(core, array, expiry);
    persist_array(array);
    send_result(core, conn, id, MSG_EXPIRE,
                &(struct msg_publish_result){.generation = array->generation}, NULL, 0);
    return 0;
}
