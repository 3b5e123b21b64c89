/* SPDX-License-Identifier: Apache-2.0 */
#include "hold.h"

#include <assert.h>

#include "conn.h"
#include "user.h"

RB_GENERATE_BY(holds, hold, node, id)

struct hold *
hold_find(struct holds *tree, uint64_t id)
{
    struct hold key = {.id = id};

    return RB_FIND(holds, tree, &key);
}

/* Holds are charged as host memory: they outlive leases for as long as the client likes. */
int
hold_get(struct conn *conn, struct holds *tree, uint64_t id, struct hold_list *list,
         struct hold **ret, bool *ret_new, struct refusal *r)
{
    struct hold *hold = hold_find(tree, id);

    *ret = hold;
    *ret_new = !hold;
    if (hold)
        return 0;
    hold = calloc(1, sizeof(*hold));
    if (!hold)
        return -ENOMEM;
    if (charge_init(&hold->charge, conn->user, RES_HOST, 0, HOLD_HOST, r)) {
        free(hold);
        return REFUSED;
    }
    hold->conn = conn;
    hold->id = id;
    hold->tree = tree;
    RB_INSERT(holds, tree, hold);
    LIST_INSERT_HEAD(list, hold, of_held);
    *ret = hold;
    return 0;
}

void
hold_free(struct hold *hold)
{
    assert(!hold->n_leases);
    RB_REMOVE(holds, hold->tree, hold);
    LIST_REMOVE(hold, of_held);
    charge_deinit(&hold->charge);
    free(hold);
}
