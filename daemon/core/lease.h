/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease: what a connection has on an array, until the client closes it or the connection ends;
 * after a hang-up, until the process exits. It keeps a hold on the array's block. A ticket
 * (ticket.h) has a lease of its own, without a connection or a hold.
 */
#pragma once

#include "base/tree.h"
#include "user.h"

RB_HEAD(leases, lease);

struct lease {
    RB_ENTRY(lease) node; /* conn->leases */
    uint64_t id;
    struct conn *conn; /* NULL: it is a ticket's */
    struct charge charge;
    struct array *array;
    LIST_ENTRY(lease) of_array;
    struct hold *hold; /* NULL: the array has no block, or the lease is a ticket's */
    LIST_HEAD(, claim) claims;
    bool readonly;
    bool departed; /* counted in array->n_departed */
    uint32_t made; /* a stamp, in what would be padding */
};

RB_PROTOTYPE(leases, lease, node, )

/* A ticket's lease. 0 or REFUSED. */
int lease_init(struct lease *lease, struct core *core, struct user *user, struct array *array,
               bool readonly, struct refusal *r);
void lease_deinit(struct core *core, struct lease *lease);
/* -ENOMEM or REFUSED. */
int lease_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
              struct lease **ret, bool *ret_new_hold, struct refusal *r);
/* Whether conn may have a lease with that number, and has none. */
bool lease_is_free(struct conn *conn, uint64_t id);
/* A lease with a number that an earlier core gave it. */
int lease_restore(struct core *core, struct conn *conn, uint64_t id, struct array *array,
                  bool readonly, struct refusal *r);
/* Ends the lease; no claims are left on it. */
void lease_free(struct core *core, struct lease *lease);
/* The connection has hung up. */
void lease_depart(struct core *core, struct lease *lease);
struct lease *lease_find(struct conn *conn, uint64_t id);
/* The lease that a request names, or a REFUSED; then the same for a set. */
int lease_get(struct conn *conn, uint64_t id, struct lease **ret, struct refusal *r);
int lease_get_set(struct conn *conn, uint64_t id, struct lease **ret, struct refusal *r);
