/* SPDX-License-Identifier: Apache-2.0 */
#include "lease.h"

#include <assert.h>

#include "array.h"
#include "settle.h"
#include "state.h"

RB_GENERATE_BY(leases, lease, node, id)

/* Puts the lease, which is charged, on the array. */
static void
add_to_array(struct core *core, struct lease *lease, struct array *array)
{
    lease->array = array;
    LIST_INSERT_HEAD(&array->leases, lease, of_array);
    array->n_leases++;
    if (array->is_part)
        array->part->whole->n_leases++;
    lease->made = array->opened = stamp_now(core);
    core->n_leases++;
    metrics_count(lease->charge.user, COUNT_LEASES, 1);
}

int
lease_init(struct lease *lease, struct core *core, struct user *user, struct array *array,
           bool readonly, struct refusal *r)
{
    *lease = (struct lease){.readonly = readonly};
    if (charge_init(&lease->charge, user, RES_LEASES, 1, TICKET_HOST, r))
        return REFUSED;
    add_to_array(core, lease, array);
    return 0;
}

static int
take_hold(struct core *core, struct conn *conn, struct block *block, struct hold **ret,
          bool *ret_new, struct refusal *r)
{
    int rc = hold_get(conn, &conn->holds, block->id, &block->holds, ret, ret_new, r);

    if (rc)
        return rc;
    (*ret)->block = block;
    if (*ret_new)
        persist_hold(core, *ret);
    (*ret)->n_leases++;
    return 0;
}

int
lease_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
          struct lease **ret, bool *ret_new_hold, struct refusal *r)
{
    _cleanup_free_ struct lease *lease = calloc(1, sizeof(*lease));
    struct block *block = array_block(array);
    int rc = 0;

    if (!lease)
        return -ENOMEM;
    if (charge_init(&lease->charge, conn->user, RES_LEASES, 1, sizeof(*lease), r))
        return REFUSED;
    *ret_new_hold = false;
    if (block)
        rc = take_hold(core, conn, block, &lease->hold, ret_new_hold, r);
    else
        persist_conn_needed(core, conn);
    if (rc) {
        charge_deinit(&lease->charge);
        return rc;
    }
    lease->id = ++conn->next_lease;
    lease->conn = conn;
    lease->readonly = readonly;
    RB_INSERT(leases, &conn->leases, lease);
    add_to_array(core, lease, array);
    *ret = TAKE_PTR(lease);
    return 0;
}

#define LEASE_MAX (UINT64_C(1) << 62)

bool
lease_is_free(struct conn *conn, uint64_t id)
{
    return id > 0 && id <= LEASE_MAX && !lease_find(conn, id);
}

int
lease_restore(struct core *core, struct conn *conn, uint64_t id, struct array *array,
              bool readonly, struct refusal *r)
{
    uint64_t next = conn->next_lease;
    struct lease *lease;
    bool is_new;

    conn->next_lease = id - 1;
    int rc = lease_new(core, conn, array, readonly, &lease, &is_new, r);
    if (conn->next_lease < next)
        conn->next_lease = next;
    return rc;
}

/* The array may be freed with the lease. */
void
lease_deinit(struct core *core, struct lease *lease)
{
    struct array *array = lease->array;

    LIST_REMOVE(lease, of_array);
    charge_deinit(&lease->charge);
    if (lease->departed) {
        array->n_departed--;
    } else {
        array->n_leases--;
        core->n_leases--;
    }
    if (array->is_part)
        array->part->whole->n_leases--;
    array_settle(core, array);
}

void
lease_free(struct core *core, struct lease *lease)
{
    assert(LIST_EMPTY(&lease->claims));
    RB_REMOVE(leases, &lease->conn->leases, lease);
    if (lease->hold)
        lease->hold->n_leases--;
    lease_deinit(core, lease);
    free(lease);
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

    return RB_FIND(leases, &conn->leases, &key);
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
