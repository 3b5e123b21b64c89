/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease on an array. Made when the reply that grants it is taken (array_take()), mapped by the
 * thread that asked, ended by caid_array_close(), which tells the daemon. It holds the client,
 * and as long as it exists its block stays mapped. When the connection has ended, the daemon has
 * ended the lease, and the mapping alone is left.
 */
#pragma once

#include "caid/caid.h"

#include "call.h"

struct block;
struct caid_client;

struct caid_array {
    struct caid_client *client;
    struct block *block; /* NULL: no bytes */
    uint64_t lease;
    struct caid_array_info info;
    int64_t data[]; /* shape, strides, then the strings that info points to */
};

/* A request whose reply grants leases. */
struct array_call {
    struct call call;
    struct caid_array **arrays; /* where they go: n_wanted of them */
    size_t n_wanted, n_got;
    bool readonly;
};

/* struct call's take. */
int array_take(struct caid_client *client, struct call *call, struct msg *reply,
               struct call_fds *fds);
