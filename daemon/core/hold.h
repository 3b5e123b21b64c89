/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a connection has of memory that it was sent once and may keep mapped (I3): of a block, or of
 * another one's page. It lasts until the client forgets the block or the page, its process exits,
 * or the block is released.
 */
#pragma once

#include "base/tree.h"
#include "records.h"
#include "user.h"

RB_HEAD(holds, hold);
LIST_HEAD(hold_list, hold);

struct hold {
    RB_ENTRY(hold) node; /* tree, by id */
    struct holds *tree;  /* conn->holds, or ->page_holds */
    LIST_ENTRY(hold) of_held;
    struct conn *conn;
    struct charge charge;
    uint64_t id; /* the block's, or the page's */

    union {
        struct block *block;
        struct page *page;
    };

    uint64_t n_leases;
    bool before;  /* by a connection of an earlier core: restore.h */
    bool awaited; /* of a former one: former.h */
    bool landing; /* of one that was, and has streams that are still to store something */
    bool claimed; /* which has told of it */
};

/* What one is charged. */
#define HOLD_HOST (sizeof(struct hold) + RECORD_HOST(sizeof(struct record_hold)))

RB_PROTOTYPE(holds, hold, node, )

struct hold *hold_find(struct holds *tree, uint64_t id);
/* The one that conn has, or a new one of what the list is that of. -ENOMEM or REFUSED. */
int hold_get(struct conn *conn, struct holds *tree, uint64_t id, struct hold_list *list,
             struct hold **ret, bool *ret_new, struct refusal *r);
void hold_free(struct hold *hold);
