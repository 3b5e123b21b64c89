/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is still to be sent to the daemon about leases (array.h) and blocks (block.h): leases that
 * have ended, and blocks that are to be forgotten. The table has room for all leases that are held
 * or asked for, and for the blocks that may come with them, so that closing an array needs no
 * memory. It lives as long as the client. The end of the connection ends all leases, and nothing is
 * sent.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

struct caid_client;

struct lease_table {                /* under the client's lock */
    size_t n;                       /* held or asked for */
    LIST_HEAD(, caid_array) arrays; /* with a lease */
    uint64_t *closing;
    size_t n_closing, closing_capacity;
    uint64_t *forget;
    size_t n_forget, forget_capacity;
};

extern const struct feature lease_feature;

/* All under the client's lock. */

/* Makes room for n more leases; takes back room for n that have ended, or were not granted. */
int lease_reserve(struct caid_client *client, size_t n, struct caid_error *error);
void lease_unreserve(struct caid_client *client, size_t n);

/* A lease has ended here: the next call_flush() tells the daemon. */
void lease_return(struct caid_client *client, uint64_t lease);
/* A block is to be forgotten. It is sent after the last lease in it. */
void lease_forget_block(struct caid_client *client, uint64_t block);
