/* SPDX-License-Identifier: Apache-2.0 */
#include "ticket.h"

#include "array.h"
#include "audit.h"
#include "state.h"
#include "units.h"

static int
cmp_secret(const struct ticket *a, const struct ticket *b)
{
    int c = CMP(a->secret[0], b->secret[0]);

    return c ? c : CMP(a->secret[1], b->secret[1]); /* the order of their records, too */
}

static int
cmp_id(const struct ticket *a, const struct ticket *b)
{
    return CMP(a->id, b->id);
}

static int
cmp_end(const struct ticket *a, const struct ticket *b)
{
    return a->ends_ns != b->ends_ns ? CMP(a->ends_ns, b->ends_ns) : cmp_id(a, b);
}

RB_GENERATE_STATIC(tickets, ticket, node, cmp_secret)
RB_GENERATE_STATIC(tickets_of_user, ticket, of_user, cmp_id)
RB_GENERATE_STATIC(ticket_ends, ticket, of_ends, cmp_end)

/* ---- search ---- */

int
ticket_check(struct msg_u64s words, struct refusal *r)
{
    return words.n == TICKET_WORDS
               ? 0
               : refuse(r, PROTO_ERR_INVALID, "a ticket is %d numbers, not %u", TICKET_WORDS,
                        words.n);
}

struct ticket *
ticket_find(struct core *core, const uint64_t *secret)
{
    struct ticket key;

    memcpy(key.secret, secret, sizeof(key.secret));
    return RB_FIND(tickets, &core->tickets, &key);
}

struct ticket *
ticket_find_next(struct core *core, struct msg_str secret)
{
    struct ticket key, *found;

    if (!secret.n)
        return RB_MIN(tickets, &core->tickets);
    memcpy(key.secret, secret.p, sizeof(key.secret));
    found = RB_NFIND(tickets, &core->tickets, &key);
    return found && cmp_secret(found, &key) == 0 ? RB_NEXT(tickets, &core->tickets, found)
                                                 : found;
}

struct ticket *
ticket_of_user(struct user *user, uint64_t after)
{
    struct ticket key = {.id = after + 1};

    return after == UINT64_MAX ? NULL : RB_NFIND(tickets_of_user, &user->tickets, &key);
}

/* ---- life ---- */

/* The sender's end and the age limit: the earlier one. */
static void
end_by(struct core *core, struct ticket *ticket, uint64_t ns)
{
    if (ticket->ends_ns && ticket->ends_ns <= ns)
        return;
    if (ticket->ends_ns)
        RB_REMOVE(ticket_ends, &core->ticket_ends, ticket);
    ticket->ends_ns = ns;
    RB_INSERT(ticket_ends, &core->ticket_ends, ticket);
}

static void
insert(struct core *core, struct user *user, struct ticket *ticket)
{
    ticket->id = ++core->next_ticket;
    RB_INSERT(tickets, &core->tickets, ticket);
    RB_INSERT(tickets_of_user, &user->tickets, ticket);
    if (ticket->ends_ns)
        RB_INSERT(ticket_ends, &core->ticket_ends, ticket);
    if (ticket->conn)
        LIST_INSERT_HEAD(&ticket->conn->tickets, ticket, of_conn);
}

/* A copy of `like`, with a lease of its own. */
static int
ticket_make(struct core *core, struct user *user, struct array *array, bool readonly,
            const struct ticket *like, struct ticket **ret, struct refusal *r)
{
    _cleanup_free_ struct ticket *ticket = malloc(sizeof(*ticket));

    if (!ticket)
        return -ENOMEM;
    *ticket = *like;
    if (lease_init(&ticket->lease, core, user, array, readonly, r))
        return REFUSED;
    insert(core, user, ticket);
    *ret = TAKE_PTR(ticket);
    return 0;
}

int
ticket_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
           const uint64_t *secret, enum ticket_kind kind, struct refusal *r)
{
    uint64_t age_ns = core->config.ticket_age_ns;
    const struct ticket like = {
        .secret = {secret[0], secret[1]},
        .made_ns = core->boot_ns,
        .ends_ns = kind != TICKET_ONE || age_ns == UINT64_MAX ? 0 : expiry_time(core, age_ns),
        .conn = conn,
        .pid = conn->pid,
        .kind = kind,
    };
    struct ticket *ticket;

    if (ticket_find(core, secret))
        return refuse(r, PROTO_ERR_INVALID,
                      "there is such a ticket: its bits are to be random");
    int rc = ticket_make(core, conn->user, array, readonly, &like, &ticket, r);
    if (rc == 0)
        persist_ticket(core, ticket);
    return rc;
}

int
ticket_restore(struct core *core, struct user *user, struct array *array, bool readonly,
               const struct ticket *like, struct ticket **ret)
{
    if (like->kind == TICKET_OWN && !like->conn)
        return 0;
    if (ticket_make(core, user, array, readonly, like, ret, NULL))
        return -ENOMEM;
    if (!like->conn) /* from one time for all, whenever each is restored */
        end_by(core, *ret,
               expiry_time(core, core->config.ticket_ttl_ns) -
                   (core->boot_ns - core->units->boot_ns));
    return 0;
}

void
ticket_leave(struct core *core, struct ticket *ticket)
{
    if (ticket->kind == TICKET_OWN) {
        ticket_free(core, ticket);
        return;
    }
    LIST_REMOVE(ticket, of_conn);
    ticket->conn = NULL;
    end_by(core, ticket, expiry_time(core, core->config.ticket_ttl_ns));
    persist_ticket(core, ticket);
}

static void
take_out(struct core *core, struct ticket *ticket)
{
    RB_REMOVE(tickets, &core->tickets, ticket);
    RB_REMOVE(tickets_of_user, &ticket->lease.charge.user->tickets, ticket);
    if (ticket->ends_ns)
        RB_REMOVE(ticket_ends, &core->ticket_ends, ticket);
}

void
ticket_free(struct core *core, struct ticket *ticket)
{
    persist_ticket_gone(core, ticket);
    take_out(core, ticket);
    if (ticket->conn)
        LIST_REMOVE(ticket, of_conn);
    lease_deinit(core, &ticket->lease);
    free(ticket);
}

void
tickets_forget(struct core *core)
{
    struct ticket *ticket;

    while ((ticket = RB_MIN(tickets, &core->tickets))) {
        take_out(core, ticket);
        free(ticket);
    }
}

/* ---- time ---- */

void
tickets_run_out(struct core *core)
{
    struct ticket *ticket;

    for (uint32_t i = 0; i < core->pieces && tickets_end_ns(core) <= core->boot_ns; i++) {
        ticket = RB_MIN(ticket_ends, &core->ticket_ends);
        if (units_lack(core->units, ticket->lease.array->pool->unit))
            break;
        audit_ticket(core, ticket);
        memcpy(core->ran_out[core->n_ran_out++ % RAN_OUT_MAX], ticket->secret,
               sizeof(ticket->secret));
        ticket_free(core, ticket);
    }
}

uint64_t
tickets_end_ns(const struct core *core)
{
    struct core *c = (struct core *)(uintptr_t)core; /* the tree macros take no const */
    const struct ticket *first = RB_MIN(ticket_ends, &c->ticket_ends);

    return first ? first->ends_ns : UINT64_MAX;
}

bool
ticket_ran_out(const struct core *core, const uint64_t *secret)
{
    for (size_t i = 0; i < RAN_OUT_MAX && i < core->n_ran_out; i++)
        if (memcmp(core->ran_out[i], secret, sizeof(core->ran_out[i])) == 0)
            return true;
    return false;
}
