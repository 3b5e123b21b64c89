/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reply that gives arrays to a client: their records and leases, and the blocks that it has not
 * been sent yet.
 */
#pragma once

#include "lease.h"
#include "reply.h"

struct grant {
    struct room room;
    struct pool *pool;
    bool named;              /* says the arrays' names, which the client does not know */
    const struct array *set; /* whose member the next one is; NULL: it has a name of its own */
    bool alone;              /* it is for one array, which has room however long what it says */
    bool full;               /* the next one does not fit */
    struct msg_array *arrays;
    struct lease **leases;
    uint32_t n_arrays;
    struct msg_block *blocks; /* those whose hold is new */
    struct hold **holds;
    uint32_t n_blocks;
    int *fds;
    uint32_t n_fds;
    void *storage;
};

/* For n arrays. -ENOMEM. */
int grant_init(struct grant *ret, const struct core *core, size_t n);
void grant_deinit(struct grant *grant);
/* Leases the array to conn and adds it, or finds that the reply is full. -ENOMEM or REFUSED. */
int grant_add(struct core *core, struct conn *conn, struct grant *grant, struct array *array,
              bool readonly, struct refusal *r);
/* Takes back what the client has not been told of. */
void grant_undo(struct core *core, struct grant *grant);
void grant_send(struct core *core, struct conn *conn, uint32_t id, enum msg_method method,
                const struct grant *grant);
/* The memory of a create is there: leases the array to its creator, records it and replies. */
void grant_created(struct core *core, struct conn *conn, uint32_t request, struct array *array);
