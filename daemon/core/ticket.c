/* SPDX-License-Identifier: Apache-2.0 */
#include "ticket.h"

#include "lease.h"
#include "state.h"

static int
cmp_secret(const struct ticket *a, const struct ticket *b)
{
    return memcmp(a->secret, b->secret, sizeof(a->secret));
}

RB_GENERATE_STATIC(tickets, ticket, node, cmp_secret)

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

int
ticket_new(struct core *core, const uint64_t *secret, struct lease *lease, struct refusal *r)
{
    struct ticket *ticket;

    if (ticket_find(core, secret))
        return refuse(r, PROTO_ERR_INVALID,
                      "there is such a ticket: its bits are to be random");
    ticket = calloc(1, sizeof(*ticket));
    if (!ticket)
        return -ENOMEM;
    memcpy(ticket->secret, secret, sizeof(ticket->secret));
    ticket->lease = lease;
    lease->ticket = ticket;
    RB_INSERT(tickets, &core->tickets, ticket);
    return 0;
}

void
ticket_free(struct core *core, struct ticket *ticket)
{
    RB_REMOVE(tickets, &core->tickets, ticket);
    free(ticket);
}
