/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tickets in the model: an array is kept by each, until it is taken, once, is withdrawn, or has
 * run out.
 */
#include "caid_test.h"
#include "model.h"

#define ERR_LIMITS (ERR(LIMIT) | ERR(QUOTA))

static struct m_ticket *
find(struct model *m, uint64_t secret)
{
    for (int i = 0; i < m->n_tickets; i++)
        if (m->tickets[i].secret == secret)
            return &m->tickets[i];
    return NULL;
}

static void
drop(struct model *m, struct m_ticket *ticket)
{
    struct m_array *array = &m->arrays[ticket->array];

    m->spent[m->n_spent++ % M_TICKETS] = ticket->secret;
    *ticket = m->tickets[--m->n_tickets];
    array->n_leases--;
    model_settle(m, array);
}

static uint64_t
unknown_lease(struct model *m, const struct m_slot *slot)
{
    uint64_t id = 1 + model_random(m, M_LEASES);

    for (int i = 0; i < slot->n_leases; i++)
        if (slot->leases[i].lease == id)
            return UINT64_MAX;
    return id;
}

static void
step_send(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];

    if (!slot->n_leases || m->n_tickets == M_TICKETS)
        return;
    const struct m_lease *lease = &slot->leases[model_random(m, (uint32_t)slot->n_leases)];
    struct m_request *r = model_ask(m, s, MSG_SEND);
    r->label = m->n_tickets && model_random(m, 8) == 0 ? m->tickets[0].secret : r->id;
    r->seen = (uint64_t)lease->array;
    r->readonly = lease->readonly;
    r->keeps = model_random(m, 4) == 0;
    r->may_fail = ERR_LIMITS;
    model_refuse(r, find(m, r->label), ERR(INVALID));
    const uint64_t words[] = {r->label, 1};
    struct msg_send_params params = {.lease = lease->lease,
                                     .ticket = {words, 2},
                                     .many = r->keeps};
    if (model_random(m, 8) ==
        0) { /* one that the slot has not been told of: a ticket's, perhaps */
        params.lease = unknown_lease(m, slot);
        model_refuse(r, true, ERR(INVALID));
    }
    model_note(m, "slot %d: send lease %llu by %llu", s, (unsigned long long)lease->lease,
               (unsigned long long)r->label);
    h_request(&m->h, slot->conn, MSG_SEND, &params);
}

/* Who has taken it, and has not heard so: until it asks again, the ticket may be there. */
static struct m_slot *
unheard(struct model *m, uint64_t secret)
{
    for (int s = 0; s < M_SLOTS; s++)
        if (model_is_lost(&m->slots[s], MSG_TAKE) && m->slots[s].granted.secret == secret)
            return &m->slots[s];
    return NULL;
}

/* As of a ticket that may be there, "r" perhaps, or not. */
static void
expect_unheard(struct model *m, const struct m_slot *taker, struct m_request *r)
{
    r->may_fail = ERR_LIMITS | ERR(NOT_FOUND) | ERR(PERMISSION);
    r->pool = m->arrays[taker->granted.array].pool;
}

static void
expect_take(struct model *m, const struct m_slot *slot, const struct m_ticket *ticket,
            struct m_request *r)
{
    r->may_fail = ERR_LIMITS;
    if (!ticket || !model_may(m, slot, m->arrays[ticket->array].pool, 4))
        r->may_fail |= ERR(NOT_FOUND);
    else if (!r->readonly &&
             (ticket->readonly || !model_may(m, slot, m->arrays[ticket->array].pool, 2)))
        r->may_fail |= ERR(PERMISSION);
    r->must_fail = r->may_fail != ERR_LIMITS;
    r->pool = ticket ? m->arrays[ticket->array].pool : M_NONE;
}

static void
step_take(struct model *m, int s)
{
    struct m_slot *slot = &m->slots[s];

    if (slot->n_leases + 8 > M_LEASES)
        return;
    struct m_request *r = model_ask(m, s, MSG_TAKE);
    if (m->n_tickets && model_random(m, 4))
        r->label = m->tickets[model_random(m, (uint32_t)m->n_tickets)].secret;
    else
        r->label = m->spent[model_random(m, M_TICKETS)];
    r->readonly = model_random(m, 2);
    r->keeps = model_random(m, 2);
    const struct m_ticket *ticket = find(m, r->label);
    const struct m_slot *taker = ticket ? NULL : unheard(m, r->label);
    if (taker)
        expect_unheard(m, taker, r);
    else
        expect_take(m, slot, ticket, r);
    const uint64_t words[] = {r->label, 1};
    struct msg_take_params params = {.ticket = {words, 2},
                                     .mode = MSG_STR(r->readonly ? "r" : "rw"),
                                     .keep = r->keeps};
    model_note(m, "slot %d: take %llu, %s%s", s, (unsigned long long)r->label, params.mode.p,
               r->keeps ? ", and keep it" : "");
    h_request(&m->h, slot->conn, MSG_TAKE, &params);
}

static bool
is_withdrawn(struct model *m, const struct m_request *r, const struct m_ticket *ticket)
{
    bool is_gone = ticket->slot == M_NONE;
    uid_t uid = m->slots[r->slot].uid;

    if (uid && uid != ticket->uid)
        return false;
    return r->readonly ? is_gone : ticket->slot == r->slot && !ticket->many && !ticket->own;
}

/* Its own, or, `readonly`, those whose senders have gone. */
static void
step_withdraw(struct model *m, int s)
{
    struct m_request *r = model_ask(m, s, MSG_WITHDRAW);

    r->readonly = model_random(m, 2);
    struct msg_withdraw_params params = {.gone = r->readonly};
    model_note(m, "slot %d: withdraw%s", s, r->readonly ? ", those that are left" : "");
    h_request(&m->h, m->slots[s].conn, MSG_WITHDRAW, &params);
}

void
model_withdrawn(struct model *m, const struct m_request *r, uint64_t n)
{
    for (int i = m->n_tickets; i-- > 0;)
        if (is_withdrawn(m, r, &m->tickets[i])) {
            drop(m, &m->tickets[i]);
            n--;
        }
    EXPECT(m, !n, "others are withdrawn");
}

void
model_step_ticket(struct model *m, int s)
{
    if (model_random(m, 8) == 0)
        step_withdraw(m, s);
    else
        (model_random(m, 2) ? step_send : step_take)(m, s);
}

void
model_ticket_add(struct model *m, const struct m_request *r, int array, bool readonly)
{
    uint64_t age_ns = r->keeps || r->owns ? UINT64_MAX : m->h.config.ticket_age_ns;

    m->tickets[m->n_tickets++] = (struct m_ticket){
        .secret = r->label,
        .ends_ns = age_ns == UINT64_MAX ? 0 : model_boottime(m) + age_ns,
        .uid = m->slots[r->slot].uid,
        .slot = r->slot,
        .array = array,
        .readonly = readonly,
        .many = r->keeps,
        .own = r->owns,
    };
    m->arrays[array].n_leases++;
}

/* The taker's lease is there already. */
void
model_taken(struct model *m, const struct m_request *r)
{
    struct m_ticket *ticket = find(m, r->label);

    if (ticket && !r->keeps)
        drop(m, ticket);
    else if (!ticket && !r->keeps)
        model_take_given_up(m, unheard(m, r->label));
}

void
model_tickets_stay(struct model *m, int slot)
{
    for (int i = 0; i < m->n_tickets; i++)
        m->tickets[i].slot += m->tickets[i].slot == slot ? M_SLOTS : 0;
}

void
model_tickets_hangup(struct model *m, int slot)
{
    uint64_t ends_ns = model_boottime(m) + m->h.config.ticket_ttl_ns;

    for (int i = m->n_tickets; i-- > 0;) {
        struct m_ticket *ticket = &m->tickets[i];
        if (ticket->slot != slot)
            continue;
        if (ticket->own) {
            drop(m, ticket);
            continue;
        }
        ticket->slot = M_NONE;
        if (!ticket->ends_ns || ticket->ends_ns > ends_ns)
            ticket->ends_ns = ends_ns;
    }
}

void
model_tickets_pass(struct model *m, uint64_t boot_ns)
{
    for (int i = m->n_tickets; i-- > 0;)
        if (m->tickets[i].ends_ns && m->tickets[i].ends_ns <= boot_ns)
            drop(m, &m->tickets[i]);
}
