/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send, take.
 */
#include <assert.h>

#include "array.h"
#include "grant.h"
#include "request.h"
#include "ticket.h"

HANDLER(on_send)
{
    const struct msg_send_params *p = params;
    struct lease *lease;
    int rc;

    if (ticket_check(p->ticket, r) || lease_get(conn, p->lease, &lease, r))
        return REFUSED;
    rc = lease_send(core, conn, lease->array, lease->readonly, p->ticket.v, r);
    if (rc)
        return rc;
    done_note(core, conn, id, MSG_SEND, 0, 0);
    send_result(core, conn, id, MSG_SEND, &(struct msg_none){}, NULL, 0);
    return 0;
}

/* What `open` needs, and no more than the sender had. To who may not know of the array, the ticket
 * is none. */
static int
take_check(struct core *core, struct conn *conn, const struct msg_take_params *p,
           struct ticket **ret, struct refusal *r)
{
    bool readonly = msg_str_eq(p->mode, "r");
    struct ticket *ticket;

    if (ticket_check(p->ticket, r))
        return REFUSED;
    if (!readonly && !msg_str_eq(p->mode, "rw"))
        return refuse(r, PROTO_ERR_INVALID, "mode \"%.*s\" is neither \"r\" nor \"rw\"",
                      STR_FMT(p->mode));
    ticket = ticket_find(core, p->ticket.v);
    if (!ticket || !pool_may(ticket->lease->array->pool, conn, MAY_READ))
        return refuse(r, PROTO_ERR_NOT_FOUND,
                      "the array was taken already, or its sender has ended");
    if (!readonly && ticket->lease->readonly)
        return refuse(r, PROTO_ERR_PERMISSION, "the array was sent \"r\"");
    if (!readonly && pool_check_writable(ticket->lease->array->pool, conn, r))
        return REFUSED;
    *ret = ticket;
    return 0;
}

/* Asked again, it is as it was. */
static void
take_end(struct core *core, struct conn *conn, uint32_t id, struct ticket *ticket)
{
    done_put(core, conn,
             &(struct done){.ticket = {ticket->secret[0], ticket->secret[1]},
                            .array = ticket->lease->array->id,
                            .request = id,
                            .method = MSG_TAKE,
                            .readonly = ticket->lease->readonly});
    lease_free(core, ticket->lease);
}

HANDLER(on_take)
{
    const struct msg_take_params *p = params;
    _cleanup_(grant_deinit) struct grant grant = {0};
    struct ticket *ticket;
    struct array *array;
    bool in_place; /* of the ticket, whose lease its user is charged for */
    int rc = take_check(core, conn, p, &ticket, r);

    if (rc == 0)
        rc = grant_init(&grant, core, 1);
    if (rc)
        return rc;
    array = ticket->lease->array;
    in_place = !p->keep && ticket->lease->conn->user == conn->user;
    grant.pool = array->pool;
    grant.named = true;
    if (in_place) /* else a user at his limit could not end his own */
        charge_deinit(&ticket->lease->charge);
    rc = grant_add(core, conn, &grant, array, msg_str_eq(p->mode, "r"), r);
    if (rc && in_place)
        charge_init(&ticket->lease->charge, conn->user, RES_LEASES, 1, 0, NULL);
    if (rc)
        return rc;
    assert(grant.n_arrays == 1); /* one has room, however long what it says */
    if (!p->keep)
        take_end(core, conn, id, ticket);
    grant_send(core, conn, id, MSG_TAKE, &grant);
    return 0;
}
