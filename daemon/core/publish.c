/* SPDX-License-Identifier: Apache-2.0 */
#include "publish.h"

#include "array.h"
#include "audit.h"
#include "lost.h"
#include "set.h"
#include "settle.h"
#include "state.h"

void
array_unlink(struct core *core, struct array *array)
{
    expiry_set(core, array, NULL);
    array_drop_name(core, array);
    watch_notify(core, array->pool, array_name(array), array, NULL);
    array_settle(core, array);
}

/* An array that is being created has a waiter. */
void
names_expire(struct core *core)
{
    struct array *array;

    for (uint32_t i = 0; i < core->pieces && (array = expiry_due(core)); i++)
        if (array->creating)
            expiry_put_off(core, array);
        else
            array_unlink(core, array);
}

/* What publishing needs and may fail to get: made before anything changes. */
struct publication {
    struct text *name, *metadata; /* NULL: the old one stays */
    struct expiry *expiry;        /* NULL: no expiry */
};

static void
publication_deinit(struct publication *p)
{
    text_free(p->name);
    text_free(p->metadata);
    expiry_free(p->expiry);
}

static bool
has_name(const struct array *array, struct msg_str name)
{
    return array->named && array->n_name == name.n && memcmp(array->name, name.p, name.n) == 0;
}

static int
publication_init(struct publication *p, const struct array *array, struct user *user,
                 const struct publish_request *req, struct refusal *r)
{
    int rc = has_name(array, req->name) ? 0 : text_new(&p->name, user, req->name, r);

    if (rc == 0 && req->metadata.p)
        rc = text_new(&p->metadata, user, req->metadata, r);
    if (rc == 0 && req->ttl_ns)
        rc = expiry_new(&p->expiry, user, req->ttl_ns, r);
    return rc;
}

/* The array's user needs one name more. At its limit it may still publish in place of a name of its
 * own. */
static int
publication_charge(const struct array *array, const struct array *old, struct refusal *r)
{
    struct user *user = array->charge.user;

    if (array->named)
        return 0;
    if (old && old->charge.user == user) {
        user_charge_anyway(user, RES_NAMES, 1); /* the commit uncharges one */
        return 0;
    }
    return user_charge(user, RES_NAMES, 1, r);
}

/* Drops the array's present or last name, whose charge the new name takes over. */
static void
publication_rename(struct core *core, struct publication *p, struct array *array)
{
    if (array->named) {
        array_drop_name(core, array);
        user_charge_anyway(array->charge.user, RES_NAMES, 1);
        watch_notify(core, array->pool, array_name(array), array, NULL);
    }
    array_unlist(array);
    array_set_name(array, TAKE_PTR(p->name));
}

/* Names of the set may have been other arrays'. */
static uint64_t
next_generation(const struct array *array, const struct array *old)
{
    uint64_t floor = array->pool->floor;

    return old && (!array->is_set || old->generation > floor) ? old->generation + 1 : floor + 1;
}

static void
publication_commit(struct core *core, struct publication *p, struct array *array,
                   struct array *old, const struct publish_request *req)
{
    struct array *companion = req->companion;
    uint64_t generation = next_generation(array, old);
    /* before its old name, with which that goes */
    bool stays = req->keeps_ttl && array->droppable;
    const uint64_t droppable[] = {req->droppable || stays,
                                  stays ? array->set->priority : req->priority,
                                  stays ? array->set->reload_ns : req->reload_ns};

    if (old && old != array) {
        expiry_set(core, old, NULL);
        array_drop_name(core, old);
    }
    if (!req->keeps_ttl)
        expiry_set(core, array, TAKE_PTR(p->expiry));
    if (old != array)
        publication_rename(core, p, array);
    array->generation = generation;
    if (old != array)
        array_insert_name(core, array);
    else
        array->published = stamp_now(core);
    if (p->metadata) {
        text_free(array->metadata);
        array->metadata = TAKE_PTR(p->metadata);
    }
    if (companion) {
        array->companion = companion;
        companion->companion = array;
        companion->is_companion = true;
    }
    if (!droppable[0])
        set_stays(array);
    else
        set_may_go(core, array, droppable[1], droppable[2]);
    lost_forget(array->pool, array_name(array));
    persist_array(array);
    if (companion)
        persist_array(companion);
    watch_notify(core, array->pool, array_name(array), old, array);
    if (old && old != array)
        array_settle(core, old);
    whole_touch(core, array);
}

static int
name_is_free(const struct array *old, bool new, struct refusal *r)
{
    if (!old || !(new || old->creating))
        return 0;
    return refuse(r, PROTO_ERR_EXISTS, "\"%s\" %s in pool \"%s\"", old->name,
                  old->creating ? "is being created" : "exists", old->pool->name);
}

static int
name_is_left_at(struct pool *pool, struct msg_str name, uint64_t generation, struct refusal *r)
{
    const struct lost *lost = generation ? lost_find(pool, name) : NULL;

    if (!generation || (lost && lost->generation == generation))
        return 0;
    return refuse(r, PROTO_ERR_STALE, "\"%.*s\" in pool \"%s\" is not left at generation %llu",
                  STR_FMT(name), pool->name, (unsigned long long)generation);
}

int
array_publish(struct core *core, struct array *array, const struct conn *conn,
              const struct publish_request *req, struct refusal *r)
{
    struct array *old = pool_find_array(array->pool, req->name);
    _cleanup_(publication_deinit) struct publication p = {0};
    int rc = name_is_free(old, req->new, r);

    if (rc == 0)
        rc = name_is_left_at(array->pool, req->name, req->after, r);
    if (rc == 0)
        rc = set_check_name(array, req->name, r);
    if (rc == 0)
        rc = publication_init(&p, array, conn->user, req, r);
    if (rc == 0)
        rc = publication_charge(array, old, r);
    if (rc)
        return rc;
    if (old && old != array)
        audit_name(core, conn, AUDIT_REPLACE, "replaces", old);
    if (array->named && old != array)
        audit_name(core, conn, AUDIT_REMOVE, "moves", array);
    publication_commit(core, &p, array, old, req);
    return 0;
}
