/* SPDX-License-Identifier: Apache-2.0 */
#include "lease.h"

#include <assert.h>

#include "array.h"
#include "settle.h"
#include "state.h"
#include "ticket.h"

RB_GENERATE_BY(leases, lease, node, id)

int
lease_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
          struct lease **ret, bool *ret_new_hold, struct refusal *r)
{
    _cleanup_free_ struct lease *lease = calloc(1, sizeof(*lease));
    struct block *block = array_block(array);
    int rc;

    if (!lease)
        return -ENOMEM;
    if (charge_init(&lease->charge, conn->user, RES_LEASES, 1, 0, r))
        return REFUSED;
    if (ret_new_hold)
        *ret_new_hold = false;
    if (!block && ret_new_hold)
        persist_conn_needed(core, conn);
    if (block && ret_new_hold) {
        rc = hold_get(conn, &conn->holds, block->id, &block->holds, &lease->hold, ret_new_hold,
                      r);
        if (rc) {
            charge_deinit(&lease->charge);
            return rc;
        }
        lease->hold->block = block;
        if (*ret_new_hold)
            persist_hold(core, lease->hold);
        lease->hold->n_leases++;
    }
    lease->id = ++conn->next_lease;
    lease->conn = conn;
    lease->array = array;
    lease->readonly = readonly;
    RB_INSERT(leases, &conn->leases, lease);
    LIST_INSERT_HEAD(&array->leases, lease, of_array);
    array->n_leases++;
    core->n_leases++;
    metrics_count(conn->user, COUNT_LEASES, 1);
    *ret = TAKE_PTR(lease);
    return 0;
}

int
lease_send(struct core *core, struct conn *conn, struct array *array, bool readonly,
           const uint64_t *secret, struct refusal *r)
{
    struct lease *lease;
    int rc = lease_new(core, conn, array, readonly, &lease, NULL, r);

    if (rc)
        return rc;
    rc = ticket_new(core, secret, lease, r);
    if (rc)
        lease_free(core, lease);
    else
        persist_ticket(core, lease);
    return rc;
}

#define LEASE_MAX (UINT64_C(1) << 62)

bool
lease_is_free(struct conn *conn, uint64_t id)
{
    struct lease key = {.id = id};

    return id > 0 && id <= LEASE_MAX && !RB_FIND(leases, &conn->leases, &key);
}

int
lease_restore(struct core *core, struct conn *conn, uint64_t id, struct array *array,
              bool readonly, const uint64_t *secret, struct refusal *r)
{
    uint64_t next = conn->next_lease;
    struct lease *lease;
    bool is_new;
    int rc;

    conn->next_lease = id - 1;
    rc = secret ? lease_send(core, conn, array, readonly, secret, r)
                : lease_new(core, conn, array, readonly, &lease, &is_new, r);
    if (conn->next_lease < next)
        conn->next_lease = next;
    return rc;
}

void
lease_free(struct core *core, struct lease *lease)
{
    struct conn *conn = lease->conn;
    struct array *array = lease->array;

    assert(LIST_EMPTY(&lease->claims));
    RB_REMOVE(leases, &conn->leases, lease);
    LIST_REMOVE(lease, of_array);
    if (lease->hold)
        lease->hold->n_leases--;
    if (lease->ticket) {
        persist_ticket_gone(core, lease);
        ticket_free(core, lease->ticket);
    }
    charge_deinit(&lease->charge);
    if (lease->departed) {
        array->n_departed--;
    } else {
        array->n_leases--;
        core->n_leases--;
    }
    free(lease);
    array_settle(core, array);
}

void
lease_depart(struct core *core, struct lease *lease)
{
    lease->departed = true;
    lease->array->n_leases--;
    lease->array->n_departed++;
    core->n_leases--;
    array_settle(core, lease->array);
}

struct lease *
lease_find(struct conn *conn, uint64_t id)
{
    struct lease key = {.id = id};
    struct lease *lease = RB_FIND(leases, &conn->leases, &key);

    return lease && !lease->ticket ? lease : NULL;
}

int
lease_get(struct conn *conn, uint64_t id, struct lease **ret, struct refusal *r)
{
    *ret = lease_find(conn, id);
    return *ret ? 0 : refuse(r, PROTO_ERR_INVALID, "no lease %" PRIu64, id);
}

int
lease_get_set(struct conn *conn, uint64_t id, struct lease **ret, struct refusal *r)
{
    if (lease_get(conn, id, ret, r))
        return REFUSED;
    return (*ret)->array->is_set
               ? 0
               : refuse(r, PROTO_ERR_INVALID, "lease %" PRIu64 " is on no set", id);
}
