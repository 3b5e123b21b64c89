/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease: what a connection has on an array, until it closes it or ends; if it hung up, on until
 * the process exits. It keeps a hold on the array's block; that of a ticket has none, and ends with
 * the connection.
 */
#pragma once

#include "base/tree.h"
#include "user.h"

RB_HEAD(leases, lease);

struct lease {
    RB_ENTRY(lease) node; /* conn->leases */
    uint64_t id;
    struct conn *conn;
    struct charge charge;
    struct array *array;
    LIST_ENTRY(lease) of_array;
    struct hold *hold; /* NULL for an array without a block, and with a ticket */
    struct ticket *ticket;
    LIST_HEAD(, claim) claims;
    bool readonly;
    bool departed; /* counted as such by its array */
};

RB_PROTOTYPE(leases, lease, node, )

/* ret_new_hold NULL: without a hold. */
int lease_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
              struct lease **ret, bool *ret_new_hold, struct refusal *r);
/* One with a ticket of that secret, which keeps the array and maps nothing. -ENOMEM or REFUSED. */
int lease_send(struct core *core, struct conn *conn, struct array *array, bool readonly,
               const uint64_t *secret, struct refusal *r);
/* No lease has that number, and one may. */
bool lease_is_free(struct conn *conn, uint64_t id);
/* One by that number, which an earlier core has given: as lease_send(), or secret NULL: as
 * lease_new(). */
int lease_restore(struct core *core, struct conn *conn, uint64_t id, struct array *array,
                  bool readonly, const uint64_t *secret, struct refusal *r);
/* Its claims have ended. */
void lease_free(struct core *core, struct lease *lease);
/* Its connection has hung up. */
void lease_depart(struct core *core, struct lease *lease);
/* Not one with a ticket, of which the client has not been told. */
struct lease *lease_find(struct conn *conn, uint64_t id);
/* The same for a request; and one on a set. */
int lease_get(struct conn *conn, uint64_t id, struct lease **ret, struct refusal *r);
int lease_get_set(struct conn *conn, uint64_t id, struct lease **ret, struct refusal *r);
