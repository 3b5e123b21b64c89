/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reply that gives arrays to a client: records, leases, and the blocks that it has not been sent
 * yet.
 */
#pragma once

#include "lease.h"
#include "reply.h"

struct grant {
    struct room room;
    struct pool *pool;
    bool named; /* the records have names, which the client does not know */
    /* the set whose member comes next; NULL: an array with a name of its own */
    const struct array *set;
    bool alone; /* one array, for which there is room however long its record */
    bool full;  /* the next array does not fit */
    struct msg_array *arrays;
    struct lease **leases;
    uint32_t n_arrays;
    struct msg_block *blocks; /* blocks that are sent with this reply */
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
/* Undoes what was prepared for a reply that is not sent. */
void grant_undo(struct core *core, struct grant *grant);
void grant_send(struct core *core, struct conn *conn, uint32_t id, enum msg_method method,
                const struct grant *grant);
/* The memory for a CREATE is there: leases the array to its creator, records it and replies. */
void grant_created(struct core *core, struct conn *conn, uint32_t request, struct array *array);
