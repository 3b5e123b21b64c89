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

/* ---- what a request is about ---- */

static void
add_name(struct subject *s, const struct pool *pool, struct msg_str name)
{
    if (s->n == SUBJECT_NAMES)
        s->n_more += name.p != NULL;
    else if (pool && name.n > 0 && name.n <= PROTO_NAME_MAX)
        s->names[s->n++] = (struct subject_name){pool, name};
}

static void
add_names(struct subject *s, const struct pool *pool, const struct msg_strs *names)
{
    for (uint32_t i = 0; i < names->n; i++)
        add_name(s, pool, names->v[i]);
}

/* Names of arrays, or the last ones that they had. */
static void
add_leases(struct subject *s, struct conn *conn, const struct msg_u64s *ids)
{
    const struct lease *lease;

    for (uint32_t i = 0; i < ids->n; i++)
        if (s->n == SUBJECT_NAMES)
            s->n_more++;
        else if ((lease = lease_find(conn, ids->v[i])))
            add_name(s, lease->array->pool, array_name(lease->array));
}

/* By the keys of params. Keys of a set are no names, and neither is where a list goes on; a client
 * that resumes has no leases yet. */
static void
subject_add(struct subject *s, struct conn *conn, const struct pool *pool,
            enum msg_method method, const void *params)
{
    static const char *const one_lease[] = {"lease", "of", "companion"};
    static const char *const leases[] = {"read", "write", "leases"};
    static const char *const one_name[] = {"name", "to"};
    const uint64_t *id, *of = msg_param(method, params, "of");
    const struct msg_strs *names = msg_param(method, params, "names");
    const struct msg_u64s *ids;
    const struct msg_str *name;

    for (size_t i = 0; i < ARRAY_SIZE(one_lease); i++)
        if ((id = msg_param(method, params, one_lease[i])))
            add_leases(s, conn, &(struct msg_u64s){id, 1});
    for (size_t i = 0; i < ARRAY_SIZE(leases); i++)
        if ((ids = msg_param(method, params, leases[i])))
            add_leases(s, conn, ids);
    for (size_t i = 0; i < ARRAY_SIZE(one_name); i++)
        if ((name = msg_param(method, params, one_name[i])))
            add_name(s, pool, *name);
    if (names && !(of && *of))
        add_names(s, pool, names);
}

struct subject
request_subject(struct core *core, struct conn *conn, enum msg_method method,
                const void *params)
{
    const struct msg_str *named = msg_param(method, params, "pool");
    const uint64_t *id = msg_param(method, params, "lease");
    const struct lease *lease = id ? lease_find(conn, *id) : NULL;
    const struct pool *pool = named   ? pool_find(core, conn, *named)
                              : lease ? lease->array->pool
                                      : NULL;
    struct subject subject = {
        .pool = named && named->p ? *named : msg_str_opt(pool ? pool->name : NULL),
    };

    if (method != MSG_RESUME && method != MSG_UNNAMED && method != MSG_RANGES)
        subject_add(&subject, conn, pool, method, params);
    return subject;
}
