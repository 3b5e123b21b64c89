/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send, take, tickets, withdraw.
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
    rc = ticket_new(core, conn, lease->array, lease->readonly, p->ticket.v,
                    p->many ? TICKET_MANY : TICKET_ONE, r);
    if (rc)
        return rc;
    done_note(core, conn, id, MSG_SEND, 0, 0);
    send_result(core, conn, id, MSG_SEND, &(struct msg_none){}, NULL, 0);
    return 0;
}

/* Checks as `open` does, and that the mode is no more than the sender had. For a user who may not
 * know of the array, the ticket does not exist. */
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
    if (!ticket || !pool_may(ticket->lease.array->pool, conn, MAY_READ))
        return refuse(r, PROTO_ERR_NOT_FOUND, "%s",
                      ticket_ran_out(core, p->ticket.v)
                          ? "nobody took the array in time: its ticket has run out "
                            "(ticket_ttl and ticket_age in caid.conf)"
                          : "the array was taken already, or its sender has withdrawn it");
    if (!readonly && ticket->lease.readonly)
        return refuse(r, PROTO_ERR_PERMISSION, "the array was sent \"r\"");
    if (!readonly && pool_check_writable(ticket->lease.array->pool, conn, r))
        return REFUSED;
    *ret = ticket;
    return 0;
}

/* Ends the ticket. If the client repeats the TAKE after a restart, the answer is the same. */
static void
take_end(struct core *core, struct conn *conn, uint32_t id, struct ticket *ticket)
{
    done_put(core, conn,
             &(struct done){.ticket = {ticket->secret[0], ticket->secret[1]},
                            .array = ticket->lease.array->id,
                            .request = id,
                            .method = MSG_TAKE,
                            .readonly = ticket->lease.readonly});
    ticket_free(core, ticket);
}

HANDLER(on_take)
{
    const struct msg_take_params *p = params;
    _cleanup_(grant_deinit) struct grant grant = {0};
    struct ticket *ticket;
    struct array *array;
    bool in_place; /* the new lease takes over the charge of the ticket's */
    int rc = take_check(core, conn, p, &ticket, r);

    if (rc == 0)
        rc = grant_init(&grant, core, 1);
    if (rc)
        return rc;
    array = ticket->lease.array;
    in_place = !p->keep && ticket->lease.charge.user == conn->user;
    grant.pool = array->pool;
    grant.named = true;
    if (in_place) /* else a user at its limit could not take its own tickets */
        charge_deinit(&ticket->lease.charge);
    rc = grant_add(core, conn, &grant, array, msg_str_eq(p->mode, "r"), r);
    if (rc && in_place)
        charge_init(&ticket->lease.charge, conn->user, RES_LEASES, 1, TICKET_HOST, NULL);
    if (rc)
        return rc;
    assert(grant.n_arrays == 1); /* one array has room, however long its record */
    if (!p->keep)
        take_end(core, conn, id, ticket);
    grant_send(core, conn, id, MSG_TAKE, &grant);
    return 0;
}

/* ---- all of them ---- */

#define LOOKED_AT_MAX 256 /* by one withdraw */

/* The ticket after that one of that uid: of conn's user or, for an administrator, of all. */
static struct ticket *
next_ticket(struct core *core, const struct conn *conn, uint64_t uid, uint64_t after)
{
    bool all = is_administrator(core, conn->user);
    struct user key = {.uid = (uid_t)uid}, *user = conn->user;
    struct ticket *ticket = NULL;

    if (all)
        user = uid > (uid_t)-1 ? NULL : RB_NFIND(users, &core->users, &key);
    for (; user && !ticket; user = all ? RB_NEXT(users, &core->users, user) : NULL)
        ticket = ticket_of_user(user, user->uid == uid ? after : 0);
    return ticket;
}

static uint64_t
uid_of(const struct ticket *ticket)
{
    return ticket->lease.charge.user->uid;
}

static struct msg_ticket
ticket_record(const struct core *core, const struct ticket *ticket)
{
    const struct array *array = ticket->lease.array;

    return (struct msg_ticket){
        .number = ticket->id,
        .uid = uid_of(ticket),
        .pid = (uint64_t)ticket->pid,
        .pool = MSG_STR(array->pool->name),
        .name = array_name(array),
        .array = array->id,
        .nbytes = array->nbytes,
        .readonly = ticket->lease.readonly,
        .many = ticket->kind == TICKET_MANY,
        .gone = !ticket->conn,
        .age_ns = core->boot_ns - ticket->made_ns,
        .ttl_ns = ticket->ends_ns > core->boot_ns ? ticket->ends_ns - core->boot_ns
                                                  : ticket->ends_ns > 0,
    };
}

HANDLER(on_tickets)
{
    const struct msg_tickets_params *p = params;
    _cleanup_free_ struct msg_ticket *records = calloc(PORTION_MAX, sizeof(*records));
    struct portion portion = PORTION(core, records, PORTION_MAX);
    const struct ticket *ticket = next_ticket(core, conn, p->uid, p->number);

    if (!records)
        return -ENOMEM;
    for (; ticket && !portion.more;
         ticket = next_ticket(core, conn, uid_of(ticket), ticket->id)) {
        struct msg_ticket record = ticket_record(core, ticket);
        portion_add(&portion, &record, msg_ticket_size(&record));
    }
    SEND_PORTION(core, conn, id, TICKETS, tickets_result, tickets, portion);
    return 0;
}

static bool
is_withdrawn(const struct ticket *ticket, const struct conn *conn,
             const struct msg_withdraw_params *p)
{
    if (p->pid || p->gone)
        return (!p->pid || (uint64_t)ticket->pid == p->pid) && (!p->gone || !ticket->conn);
    return ticket->conn == conn && ticket->kind == TICKET_ONE;
}

HANDLER(on_withdraw)
{
    const struct msg_withdraw_params *p = params;
    struct msg_withdraw_result result = {.uid = p->uid, .number = p->number};
    struct ticket *ticket = next_ticket(core, conn, p->uid, p->number);

    for (int i = 0; ticket && i < LOOKED_AT_MAX; i++) {
        result.uid = uid_of(ticket);
        result.number = ticket->id;
        if (is_withdrawn(ticket, conn, p)) {
            ticket_free(core, ticket);
            result.n++;
        }
        ticket = next_ticket(core, conn, result.uid, result.number);
    }
    result.more = ticket;
    send_result(core, conn, id, MSG_WITHDRAW, &result, NULL, 0);
    return 0;
}
