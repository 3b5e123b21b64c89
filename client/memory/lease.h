/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon is yet to be told of leases (array.h) and blocks (block.h): leases that have
 * ended, and blocks that are here no more. There is room for all leases that are held or asked for,
 * and for the blocks that they may bring: closing an array needs no memory. Lives as long as the
 * client; a connection that ends ends all leases, and there is nothing to tell.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

struct caid_client;

struct lease_table {                /* under the client's lock */
    size_t n;                       /* held or asked for */
    LIST_HEAD(, caid_array) arrays; /* that have one */
    uint64_t *closing;
    size_t n_closing, closing_capacity;
    uint64_t *forget;
    size_t n_forget, forget_capacity;
};

extern const struct feature lease_feature;

/* All under the client's lock. */

/* n leases more are asked for; n that there were, or that did not come, are no more. */
int lease_reserve(struct caid_client *client, size_t n, struct caid_error *error);
void lease_unreserve(struct caid_client *client, size_t n);

/* A lease has ended here: the next call_flush() says so. */
void lease_return(struct caid_client *client, uint64_t lease);
/* A block is here no more. Said after the last lease in it. */
void lease_forget_block(struct caid_client *client, uint64_t block);
