/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ticket: 128 random bits of the sender's, by which whoever knows them takes an array over, once,
 * or leases it and leaves the ticket to others.
 * Until then, or until the sender's connection ends, a lease of the sender's keeps the array; the
 * ticket is part of that lease, which maps nothing. Both outlive the core with that connection. The
 * bits are shown to nobody.
 */
#pragma once

#include <stdint.h>

#include "base/tree.h"
#include "refusal.h"

#define TICKET_WORDS 2

struct core;
struct lease;

struct ticket {
    RB_ENTRY(ticket) node; /* core->tickets */
    uint64_t secret[TICKET_WORDS];
    struct lease *lease;
};

RB_HEAD(tickets, ticket);

/* Whether a request has one in it: refuses. */
int ticket_check(struct msg_u64s words, struct refusal *r);
/* For a lease that has none. -ENOMEM; REFUSED: there is one like it. */
int ticket_new(struct core *core, const uint64_t *secret, struct lease *lease,
               struct refusal *r);
struct ticket *ticket_find(struct core *core, const uint64_t *secret);
/* The first one after that secret; n 0: of all. */
struct ticket *ticket_find_next(struct core *core, struct msg_str secret);
void ticket_free(struct core *core, struct ticket *ticket);
