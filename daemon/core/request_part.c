/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish_part, stage_parts, parts. A part that has a ticket in place of a name is kept by that.
 */
#include <inttypes.h>

#include "array.h"
#include "publish.h"
#include "request.h"
#include "settle.h"
#include "ticket.h"

/* The memory stays charged to the creator of the whole, so nobody else may publish parts of it. */
static int
whole_check(struct conn *conn, const struct lease *lease, struct refusal *r)
{
    const struct array *array = lease->array;

    if (pool_check_writable(array->pool, conn, r))
        return REFUSED;
    if (array->charge.user != conn->user)
        return refuse(r, PROTO_ERR_PERMISSION,
                      "parts of an array are published by its creator, uid %u: publish a copy",
                      (unsigned int)array->charge.user->uid);
    if (lease->readonly)
        return refuse(r, PROTO_ERR_INVALID, "the array was opened \"r\"");
    if (array->is_part)
        return refuse(
            r, PROTO_ERR_INVALID,
            "the array is a part of another one itself: publish parts of that one, or a copy");
    if (use_is_abandoned(lease->array))
        return refuse(r, PROTO_ERR_ABANDONED, "the array's writer died: write or discard it");
    return 0;
}

static int
place_check(const struct array *whole, uint64_t offset, const struct geometry *g,
            struct refusal *r)
{
    if (offset > whole->span || g->span > whole->span - offset)
        return refuse(r, PROTO_ERR_INVALID,
                      "%" PRIu64 " bytes at %" PRIu64 " are not within the array's %" PRIu64,
                      g->span, offset, whole->span);
    if (offset % g->alignment)
        return refuse(r, PROTO_ERR_INVALID,
                      "offset %" PRIu64 " is no multiple of %" PRIu64
                      ": publish it as bytes, \"|u1\"",
                      offset, g->alignment);
    return 0;
}

static int
part_check(struct conn *conn, const struct msg_publish_part_params *p,
           struct array_request *req, struct array **ret_whole, struct refusal *r)
{
    struct lease *lease;

    if (lease_get(conn, p->lease, &lease, r) ||
        (p->ticket.n ? ticket_check(p->ticket, r) : name_check(p->name, r)) ||
        metadata_check(p->metadata, r) || whole_check(conn, lease, r) ||
        geometry_check(p->name, p->typestr, p->shape, p->strides, p->descr, &req->geometry,
                       r) ||
        place_check(lease->array, p->offset, &req->geometry, r))
        return REFUSED;
    if (!req->geometry.span)
        return refuse(r, PROTO_ERR_INVALID, "a part with a name has at least one byte");
    *ret_whole = lease->array;
    return 0;
}

static int
part_name(struct core *core, struct conn *conn, struct array *array, struct msg_str name,
          struct refusal *r)
{
    array->creating = false;
    return array_publish(core, array, conn, &(struct publish_request){.name = name}, r);
}

static int
part_send(struct core *core, struct conn *conn, struct array *array, const uint64_t *ticket,
          enum ticket_kind kind, struct refusal *r)
{
    int rc = ticket_new(core, conn, array, false, ticket, kind, r);

    if (rc == 0)
        array_promise(core, array);
    return rc;
}

HANDLER(on_publish_part)
{
    const struct msg_publish_part_params *p = params;
    struct array_request req = {.typestr = p->typestr,
                                .descr = p->descr,
                                .metadata = p->metadata};
    struct array *whole, *array;
    int rc = part_check(conn, p, &req, &whole, r);

    if (rc == 0)
        rc = part_new(core, conn, whole, p->offset, true, &req, &array, r);
    if (rc)
        return rc;
    rc = p->ticket.n ? part_send(core, conn, array, p->ticket.v,
                                 p->own    ? TICKET_OWN
                                 : p->many ? TICKET_MANY
                                           : TICKET_ONE,
                                 r)
                     : part_name(core, conn, array, p->name, r);
    if (rc) {
        array_abandon(core, array);
        return rc;
    }
    done_note(core, conn, id, MSG_PUBLISH_PART, array->generation, array->id);
    send_result(core, conn, id, MSG_PUBLISH_PART,
                &(struct msg_publish_part_result){.generation = array->generation,
                                                  .part = array->id},
                NULL, 0);
    return 0;
}

/* ---- parts that are members ---- */

static int
stage_part(struct core *core, struct conn *conn, struct array *set, struct array *whole,
           const struct msg_member *m, bool told, struct member **ret, struct refusal *r)
{
    struct array_request req = {.typestr = m->typestr, .descr = m->descr};
    struct array *array;
    int rc = name_check(m->key, r);

    if (rc == 0)
        rc = geometry_check(m->key, m->typestr, m->shape, m->strides, m->descr, &req.geometry,
                            r);
    if (rc == 0)
        rc = place_check(whole, m->offset, &req.geometry, r);
    if (rc == 0)
        rc = part_new(core, conn, whole, m->offset, told, &req, &array, r);
    if (rc)
        return rc;
    rc = set_add(set, m->key, array, ret, r);
    if (rc)
        array_abandon(core, array);
    return rc;
}

/* All are made and staged, or none. */
static int
stage_parts(struct core *core, struct conn *conn, struct array *set, struct array *whole,
            const struct msg_stage_parts_params *p, struct member **members, struct refusal *r)
{
    uint32_t n = 0;
    int rc = 0;

    while (n < p->n_parts && rc == 0) {
        rc = stage_part(core, conn, set, whole, &p->parts[n], p->told, &members[n], r);
        n += rc == 0;
    }
    while (rc && n-- > 0) {
        struct array *array = members[n]->array;
        set_remove(set, members[n]);
        array_abandon(core, array);
    }
    return rc;
}

HANDLER(on_stage_parts)
{
    const struct msg_stage_parts_params *p = params;
    struct member *members[PROTO_OPEN_MAX];
    struct array *set;
    struct lease *lease;
    int rc = set_check(conn, p->lease, p->n_parts, &set, r);

    if (rc == 0)
        rc = lease_get(conn, p->whole, &lease, r);
    if (rc == 0)
        rc = whole_check(conn, lease, r);
    if (rc == 0 && (lease->array == set || lease->array->pool != set->pool))
        rc = refuse(r, PROTO_ERR_INVALID,
                    "a set's members are of its pool, and not parts of it");
    if (rc == 0)
        rc = stage_parts(core, conn, set, lease->array, p, members, r);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        array_promise(core, members[i]->array);
        set_keep(set, members[i]);
    }
    uint64_t first = members[0]->array->id, layout = set_layout(set);
    done_note(core, conn, id, MSG_STAGE_PARTS, layout, first);
    send_result(core, conn, id, MSG_STAGE_PARTS,
                &(struct msg_stage_parts_result){.part = first, .layout = layout}, NULL, 0);
    return 0;
}

HANDLER(on_parts)
{
    return published_ask(core, conn, id, r);
}
