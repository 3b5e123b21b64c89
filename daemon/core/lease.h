/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease: what a connection has on an array, until it closes it or ends; if it hung up, on until
 * the process exits. It keeps a hold on the array's block. That of a ticket (ticket.h), in which it
 * lies, is no connection's and has no hold.
 */
#pragma once

#include "base/tree.h"
#include "user.h"

RB_HEAD(leases, lease);

struct lease {
    RB_ENTRY(lease) node; /* conn->leases */
    uint64_t id;
    struct conn *conn; /* NULL: a ticket's */
    struct charge charge;
    struct array *array;
    LIST_ENTRY(lease) of_array;
    struct hold *hold; /* NULL for an array without a block, and of a ticket */
    LIST_HEAD(, claim) claims;
    bool readonly;
    bool departed; /* counted as such by its array */
};

RB_PROTOTYPE(leases, lease, node, )

/* A ticket's. Returns 0 or REFUSED. */
int lease_init(struct lease *lease, struct core *core, struct user *user, struct array *array,
               bool readonly, struct refusal *r);
void lease_deinit(struct core *core, struct lease *lease);
/* -ENOMEM or REFUSED. */
int lease_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
              struct lease **ret, bool *ret_new_hold, struct refusal *r);
/* No lease has that number, and one may. */
bool lease_is_free(struct conn *conn, uint64_t id);
/* One by that number, which an earlier core has given. */
int lease_restore(struct core *core, struct conn *conn, uint64_t id, struct array *array,
                  bool readonly, struct refusal *r);
/* Its claims have ended. */
void lease_free(struct core *core, struct lease *lease);
/* Its connection has hung up. */
void lease_depart(struct core *core, struct lease *lease);
struct lease *lease_find(struct conn *conn, uint64_t id);
/* The same for a request; and one on a set. */
int lease_get(struct conn *conn, uint64_t id, struct lease **ret, struct refusal *r);
int lease_get_set(struct conn *conn, uint64_t id, struct lease **ret, struct refusal *r);
