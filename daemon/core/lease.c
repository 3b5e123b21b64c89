/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases, which are what a connection has on arrays, and holds, which are what it has of blocks:
 * an fd or a handle that it was sent once and may keep mapped (I3).
 */
#include <assert.h>

#include "state.h"

static int
lease_compare(const struct lease *a, const struct lease *b)
{
    return CMP(a->id, b->id);
}

static int
hold_compare(const struct hold *a, const struct hold *b)
{
    return CMP(a->block->id, b->block->id);
}

RB_GENERATE(leases, lease, node, lease_compare)
RB_GENERATE(holds, hold, node, hold_compare)

/* ---- holds ---- */

struct hold *
hold_find(struct conn *conn, uint64_t id)
{
    struct block block = {.id = id};
    struct hold key = {.block = &block};

    return RB_FIND(holds, &conn->holds, &key);
}

/* Holds are charged as host memory: they outlive leases for as long as the client likes. */
static int
hold_get(struct core *core, struct conn *conn, struct block *block, struct hold **ret,
         bool *ret_new, struct refusal *r)
{
    struct hold *hold = hold_find(conn, block->id);

    *ret = hold;
    *ret_new = !hold;
    if (hold)
        return 0;
    hold = calloc(1, sizeof(*hold));
    if (!hold)
        return -ENOMEM;
    if (user_charge(core, conn->user, RES_HOST, sizeof(*hold), r)) {
        free(hold);
        return REFUSED;
    }
    hold->block = block;
    hold->conn = conn;
    RB_INSERT(holds, &conn->holds, hold);
    LIST_INSERT_HEAD(&block->holds, hold, of_block);
    *ret = hold;
    return 0;
}

void
hold_free(struct core *core, struct hold *hold)
{
    struct block *block = hold->block;

    assert(!hold->n_leases);
    RB_REMOVE(holds, &hold->conn->holds, hold);
    LIST_REMOVE(hold, of_block);
    user_uncharge(hold->conn->user, RES_HOST, sizeof(*hold));
    free(hold);
    block_settle(core, block);
}

/* ---- leases ---- */

int
lease_new(struct core *core, struct conn *conn, struct array *array, bool readonly,
          struct lease **ret, bool *ret_new_hold, struct refusal *r)
{
    _cleanup_free_ struct lease *lease = calloc(1, sizeof(*lease));
    int rc;

    if (!lease)
        return -ENOMEM;
    if (user_charge(core, conn->user, RES_LEASES, 1, r))
        return REFUSED;
    *ret_new_hold = false;
    if (array_block(array)) {
        rc = hold_get(core, conn, array_block(array), &lease->hold, ret_new_hold, r);
        if (rc) {
            user_uncharge(conn->user, RES_LEASES, 1);
            return rc;
        }
        lease->hold->n_leases++;
    }
    lease->id = ++conn->next_lease;
    lease->conn = conn;
    lease->array = array;
    lease->readonly = readonly;
    LIST_INIT(&lease->claims);
    RB_INSERT(leases, &conn->leases, lease);
    LIST_INSERT_HEAD(&array->leases, lease, of_array);
    array->n_leases++;
    core->n_leases++;
    *ret = TAKE_PTR(lease);
    return 0;
}

void
lease_depart(struct core *core, struct lease *lease)
{
    lease->array->n_leases--;
    lease->array->n_departed++;
    core->n_leases--;
    array_settle(core, lease->array);
}

void
lease_free(struct core *core, struct lease *lease)
{
    struct conn *conn = lease->conn;
    struct array *array = lease->array;

    bracket_drop_lease(core, lease);
    RB_REMOVE(leases, &conn->leases, lease);
    LIST_REMOVE(lease, of_array);
    if (lease->hold)
        lease->hold->n_leases--;
    user_uncharge(conn->user, RES_LEASES, 1);
    if (conn->departed) {
        array->n_departed--;
    } else {
        array->n_leases--;
        core->n_leases--;
    }
    free(lease);
    array_settle(core, array);
}

struct lease *
lease_find(struct conn *conn, uint64_t id)
{
    struct lease key = {.id = id};

    return RB_FIND(leases, &conn->leases, &key);
}
