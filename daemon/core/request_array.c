/* SPDX-License-Identifier: Apache-2.0 */
/*
 * create, open, open_companion, block, close.
 */
#include "array.h"
#include "device.h"
#include "drop.h"
#include "former.h"
#include "grant.h"
#include "lost.h"
#include "request.h"
#include "set.h"
#include "settle.h"
#include "waiter.h"

/* ---- create ---- */

static int
create_kind(struct msg_str memory, struct array_request *req, struct refusal *r)
{
    req->mapped = msg_str_eq(memory, "mapped");
    req->kind = req->mapped ? KIND_PINNED : KIND_DEVICE;
    if (req->mapped || !memory.p)
        return 0;
    for (enum core_kind kind = 0; kind < N_KINDS; kind++)
        if (msg_str_eq(memory, core_kind_name(kind))) {
            req->kind = kind;
            return 0;
        }
    return refuse(
        r, PROTO_ERR_INVALID,
        "memory \"%.*s\" is none of \"device\", \"legacy\", \"pinned\" and \"mapped\"",
        STR_FMT(memory));
}

static int
create_memory(const struct core *core, const struct msg_create_params *p,
              struct array_request *req, struct refusal *r)
{
    const struct core_device *d;

    if (device_find(core, p->device, &req->device, r) || create_kind(p->memory, req, r))
        return REFUSED;
    d = &core->devices[req->device].info;
    if (d->lacks[req->kind])
        return refuse(r, PROTO_ERR_UNSUPPORTED, "device %u (%s) has no memory of kind \"%s\"",
                      req->device, d->name, core_kind_name(req->kind));
    if (p->alignment > PROTO_ALIGNMENT_MAX || (p->alignment & (p->alignment - 1)))
        return refuse(r, PROTO_ERR_INVALID,
                      "an alignment is a power of 2 up to %d, and %llu is not",
                      PROTO_ALIGNMENT_MAX, (unsigned long long)p->alignment);
    req->alignment = p->alignment > SPACE_UNIT ? p->alignment : SPACE_UNIT;
    return 0;
}

/* All users of a device pay for the daemon's context there, so a pool's administrator decides. */
static int
check_legacy(const struct array_request *req, struct refusal *r)
{
    if (req->kind != KIND_LEGACY || req->pool->legacy)
        return 0;
    return refuse(r, PROTO_ERR_PERMISSION,
                  "pool \"%s\": legacy arrays need legacy = yes in %s of caid.conf",
                  req->pool->name, req->pool->owner ? "[user-pools]" : "its section");
}

static int
create_check(struct core *core, struct conn *conn, const struct msg_create_params *p,
             struct array_request *ret, struct refusal *r)
{
    struct array_request req = {
        .name = p->name,
        .typestr = p->typestr,
        .descr = p->descr,
        .metadata = p->metadata,
        .exclusive = p->exclusive,
    };

    if (p->ttl_ns && !p->name.p)
        return refuse(r, PROTO_ERR_INVALID, "a time to live is a name's, and this has none");
    if (job_admit(core, conn, r) || (p->name.p && name_check(p->name, r)) ||
        metadata_check(p->metadata, r) || create_memory(core, p, &req, r) ||
        pool_find_writable(core, conn, p->pool, &req.pool, r) || check_legacy(&req, r) ||
        geometry_check(p->name, p->typestr, p->shape, p->strides, p->descr, &req.geometry, r))
        return REFUSED;
    *ret = req;
    return 0;
}

/* The name's time to live begins now, whenever its memory comes. */
static int
create_expiry(struct core *core, struct conn *conn, struct array *array, uint64_t ttl_ns,
              struct refusal *r)
{
    struct expiry *expiry;
    int rc = ttl_ns ? expiry_new(&expiry, conn->user, ttl_ns, r) : 0;

    if (rc)
        array_abandon(core, array);
    else if (ttl_ns)
        expiry_set(core, array, expiry);
    return rc;
}

/* Gives the new array its memory, now or later; or abandons it. */
static int
create_place(struct core *core, struct conn *conn, uint32_t id, struct array *array,
             const struct array_request *req, struct refusal *r)
{
    struct waiter *waiter = NULL;
    int rc = waiter_new(conn, id, array, req, &waiter, r);

    if (rc == 0)
        rc = waiter_place(core, waiter, r);
    if (rc == WAITS)
        return 0;
    if (waiter)
        waiter_free(waiter);
    if (rc == 0)
        grant_created(core, conn, id, array);
    else
        array_abandon(core, array);
    return rc;
}

/* The earlier core has made the array, by the same request. */
static int
create_again(struct core *core, struct conn *conn, uint32_t id, const struct array_request *req,
             uint64_t generation, struct refusal *r)
{
    struct array *array = pool_find_array(req->pool, req->name);
    _cleanup_(grant_deinit) struct grant grant = {0};
    int rc = grant_init(&grant, core, 1);

    if (rc < 0)
        return rc;
    if (!array || array->generation != generation)
        return refuse_name(r, "array", MSG_STR(req->pool->name), req->name);
    grant.pool = req->pool;
    rc = grant_add(core, conn, &grant, array, false, r);
    if (rc == 0)
        grant_send(core, conn, id, MSG_CREATE, &grant);
    return rc;
}

/* Over its limit of bytes, the user makes room by sets of its own. */
static int
create_charged(struct core *core, struct conn *conn, const struct array_request *req,
               struct array **ret, struct refusal *r)
{
    uint64_t bytes = array_request_bytes(core, req), limit = user_limit(core, RES_BYTES);
    int rc = array_new(core, conn, req, ret, r);

    if (rc != REFUSED || r->limit != COUNT_LIMIT_BYTES || bytes > limit || core->units ||
        (req->name.p && pool_find_array(req->pool, req->name)))
        return rc;
    if (drop_of_user(core, conn, conn->user->used[RES_BYTES] + bytes - limit))
        rc = array_new(core, conn, req, ret, r);
    return rc;
}

HANDLER(on_create)
{
    const struct msg_create_params *p = params;
    const struct done *done = done_find(conn, id, MSG_CREATE);
    struct array_request req;
    struct array *array;
    int rc = create_check(core, conn, p, &req, r);

    if (rc == 0 && !done && core->draining)
        return refuse(r, PROTO_ERR_SHUTDOWN,
                      "the daemon makes no new arrays: it is drained (caidctl drain)");
    if (rc == 0 && done)
        return create_again(core, conn, id, &req, done->generation, r);
    if (rc == 0)
        rc = create_charged(core, conn, &req, &array, r);
    if (rc == 0)
        rc = create_expiry(core, conn, array, p->ttl_ns, r);
    if (rc)
        return rc;
    if (array->span)
        return create_place(core, conn, id, array, &req, r);
    grant_created(core, conn, id, array);
    return 0;
}

/* ---- open ---- */

struct opening {
    const struct msg_open_params *params;
    struct pool *pool; /* NULL: none that the caller may read */
    /* the set whose keys the names are; NULL: they are names of the pool */
    const struct array *set;
    bool readonly;
};

/* An array that has lost that name, and that a connected client has leased. */
static struct array *
find_held(struct pool *pool, struct msg_str name, uint64_t generation)
{
    struct array *old = pool_find_nameless(pool, name, generation, 0);

    return old && old->n_leases && old->generation == generation && old->n_name == name.n &&
                   memcmp(old->name, name.p, name.n) == 0
               ? old
               : NULL;
}

/* An array that has lost its name can be opened while a connected client has it leased. So can a
 * member of a set that has lost its name, while another set has the name. */
static int
open_find_generation(struct pool *pool, const struct named *current, struct msg_str name,
                     uint64_t generation, struct named *ret, struct refusal *r)
{
    struct named old = {.array = find_held(pool, name, generation)};

    if (current->array && named_generation(current) == generation)
        old = *current;
    if (!old.array && current->set) {
        old.set = find_held(pool, array_name(current->set), generation);
        old.array = set_get(old.set, set_key(current->set, name));
    }
    if (old.array) {
        *ret = old;
        return 0;
    }
    if (!current->array)
        return refuse(r, PROTO_ERR_STALE,
                      "no array \"%.*s\" of generation %llu; there is none of that name now",
                      STR_FMT(name), (unsigned long long)generation);
    return refuse(r, PROTO_ERR_STALE,
                  "no array \"%.*s\" of generation %llu; the current one is %llu",
                  STR_FMT(name), (unsigned long long)generation,
                  (unsigned long long)named_generation(current));
}

static int
open_find(const struct opening *o, struct msg_str name, struct named *ret, struct refusal *r)
{
    struct named named = {0};

    if (name_check(name, r))
        return REFUSED;
    if (o->set)
        named = (struct named){set_get(o->set, name), o->set};
    else if (o->pool)
        named = named_find(o->pool, name);
    if (!named.array && !o->set && o->pool && lost_check(o->pool, name, r))
        return REFUSED;
    if (o->pool && o->params->generation)
        return open_find_generation(o->pool, &named, name, o->params->generation, ret, r);
    if (!named.array && o->set)
        return refuse(r, PROTO_ERR_NOT_FOUND, "no key \"%.*s\" in set \"%s\"", STR_FMT(name),
                      array_label(o->set));
    if (!named.array)
        return refuse_array(r, o->pool, o->params->pool, name);
    *ret = named;
    return 0;
}

/* The mode that the lease on the set allows, and the pool. */
static int
open_set(struct conn *conn, struct opening *o, struct refusal *r)
{
    const struct msg_open_params *p = o->params;
    struct lease *lease;

    if (p->pool.p || p->generation)
        return refuse(r, PROTO_ERR_INVALID, "a lease says which set: no pool, no generation");
    if (lease_get_set(conn, p->of, &lease, r))
        return REFUSED;
    if (!o->readonly && lease->readonly)
        return refuse(r, PROTO_ERR_PERMISSION, "the set was opened \"r\"");
    o->set = lease->array;
    o->pool = lease->array->pool;
    return o->readonly ? 0 : pool_check_writable(o->pool, conn, r);
}

static int
open_begin(struct core *core, struct conn *conn, struct opening *o, struct refusal *r)
{
    const struct msg_open_params *p = o->params;
    struct pool *pool = pool_find(core, conn, p->pool);

    o->readonly = msg_str_eq(p->mode, "r");
    if (!o->readonly && !msg_str_eq(p->mode, "rw"))
        return refuse(r, PROTO_ERR_INVALID, "mode \"%.*s\" is neither \"r\" nor \"rw\"",
                      STR_FMT(p->mode));
    if (p->names.n == 0 || p->names.n > PROTO_OPEN_MAX)
        return refuse(r, PROTO_ERR_INVALID, "open takes 1 to %d names, not %u", PROTO_OPEN_MAX,
                      p->names.n);
    if (p->of)
        return open_set(conn, o, r);
    if (p->generation && p->names.n > 1)
        return refuse(r, PROTO_ERR_INVALID, "a generation is of one name, not of %u",
                      p->names.n);
    if (pool && !pool_may(pool, conn, MAY_READ))
        pool = NULL;
    if (pool && !o->readonly && pool_check_writable(pool, conn, r))
        return REFUSED;
    o->pool = pool;
    return 0;
}

static int
open_all(struct core *core, struct conn *conn, struct opening *o, struct grant *grant,
         struct refusal *r)
{
    const struct msg_strs *names = &o->params->names;
    struct named named;
    int rc = open_begin(core, conn, o, r);

    for (uint32_t i = 0; rc == 0 && !grant->full && i < names->n; i++) {
        rc = open_find(o, names->v[i], &named, r);
        if (rc)
            break;
        grant->set = named.set;
        rc = grant_add(core, conn, grant, named.array, o->readonly, r);
    }
    if (rc)
        grant_undo(core, grant);
    grant->pool = o->pool;
    return rc;
}

HANDLER(on_open)
{
    struct opening opening = {.params = params};
    struct grant grant;
    int rc;

    if (grant_init(&grant, core, opening.params->names.n) < 0)
        return -ENOMEM;
    rc = open_all(core, conn, &opening, &grant, r);
    if (rc == 0)
        grant_send(core, conn, id, MSG_OPEN, &grant);
    grant_deinit(&grant);
    return rc;
}

HANDLER(on_open_companion)
{
    const struct msg_open_companion_params *p = params;
    _cleanup_(grant_deinit) struct grant grant = {0};
    struct lease *lease;
    int rc = lease_get(conn, p->lease, &lease, r);

    if (rc == 0 && (lease->array->is_companion || !lease->array->companion))
        return refuse(r, PROTO_ERR_NOT_FOUND, "\"%s\" has no companion",
                      array_label(lease->array));
    if (rc == 0)
        rc = grant_init(&grant, core, 1);
    if (rc == 0)
        rc = grant_add(core, conn, &grant, lease->array->companion, lease->readonly, r);
    if (rc)
        return rc;
    grant.pool = lease->array->pool;
    grant_send(core, conn, id, MSG_OPEN_COMPANION, &grant);
    return 0;
}

/* ---- block ---- */

HANDLER(on_block)
{
    const struct msg_block_params *p = params;
    const struct hold *hold = hold_find(&conn->holds, p->block);

    if (!hold || hold->block->fd < 0)
        return refuse(r, PROTO_ERR_NOT_FOUND, "block %llu was not sent as an fd, or has gone",
                      (unsigned long long)p->block);
    send_result(core, conn, id, MSG_BLOCK, &(struct msg_none){}, &hold->block->fd, 1);
    return 0;
}

/* ---- close ---- */

/* A block on which the client has no hold was released meanwhile. */
static int
forget(struct core *core, struct conn *conn, uint64_t block, struct refusal *r)
{
    struct hold *hold = hold_find(&conn->holds, block);

    if (hold && hold->n_leases)
        return refuse(r, PROTO_ERR_INVALID, "block %llu is in use", (unsigned long long)block);
    if (hold)
        block_unhold(core, hold);
    return 0;
}

/* Who forgets a block is done with what it wrote there, unless its context has died. That is noted
 * while it is known where it wrote. */
static void
note_death(struct conn *conn)
{
    const struct page *page;

    former_forgets(conn);
    LIST_FOREACH(page, &conn->pages, of_conn)
        if (page->slots && timeline_is_dead(page->slots)) {
            fences_sweep(conn, UINT32_MAX);
            return;
        }
}

HANDLER(on_close)
{
    const struct msg_close_params *p = params;
    int rc = 0;

    if (p->leases.n > PROTO_CLOSE_MAX || p->forget.n > PROTO_CLOSE_MAX)
        return refuse(r, PROTO_ERR_INVALID, "close takes at most %d leases, and blocks",
                      PROTO_CLOSE_MAX);
    for (uint32_t i = 0; i < p->leases.n; i++) {
        struct lease *lease;
        if (lease_get(conn, p->leases.v[i], &lease, r))
            return REFUSED;
        bracket_drop_lease(core, lease);
        lease_free(core, lease);
    }
    if (p->forget.n)
        note_death(conn);
    for (uint32_t i = 0; rc == 0 && i < p->forget.n; i++)
        rc = forget(core, conn, p->forget.v[i], r);
    return rc;
}
