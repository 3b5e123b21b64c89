/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block is one allocation of the daemon's that this process has mapped: the whole of it, at
 * most once read-only and once read-write, however many arrays lie in it.
 *
 * The fd. The daemon sends a block's fd with a lease when, at that moment, the connection has no
 * lease in that block. So a block may be forgotten when it has no lease here and no reply can
 * still come that counts on it: one to a request that was sent before the daemon was told of the
 * last close. Until then it is idle. A second fd for a block that is still here is closed.
 *
 * Life: made when its fd arrives, idle whenever it has no lease, freed from the idle list by
 * client_leave() once no such call is in flight. The fd is closed after the import. Mappings
 * stay as long as the block.
 *
 * leases, idle and idle_since are under the client's lock. The driver calls (up to milliseconds)
 * are under block->lock: only who needs the same block waits for them.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "base/tree.h"
#include "vmm.h"

struct caid_client;

struct block {
    RB_ENTRY(block) entry;
    TAILQ_ENTRY(block) idle_entry;
    uint64_t id;
    size_t size;
    int32_t device;
    uint32_t leases;
    uint64_t idle_since; /* client->seq when the last lease ended */

    pthread_mutex_t lock;
    int fd; /* until it has been imported */
    bool imported;
    struct vmm_alloc alloc;
    struct vmm_map maps[2]; /* read-only, read-write; ptr 0: not mapped */
};

RB_HEAD(block_tree, block);
TAILQ_HEAD(block_list, block);

struct block_table {
    struct block_tree tree;
    struct block_list idle; /* by idle_since */
};

void block_table_init(struct block_table *table);
struct block *block_find(struct block_table *table, uint64_t id);

/* Adds an idle block; *fd is taken on success. -EEXIST, -ENOMEM. */
int block_add(struct caid_client *client, uint64_t id, size_t size, int32_t device, int *fd);

/* One lease more, or less. */
void block_lease(struct caid_client *client, struct block *block);
void block_unlease(struct caid_client *client, struct block *block);

/* Moves the blocks that nothing can refer to any more to ret, to be freed without the lock. */
void block_sweep(struct caid_client *client, struct block_list *ret);
void block_list_free(struct caid_client *client, struct block_list *list);

/* Frees every block's host memory and fd in a child after fork(). */
void block_table_abandon(struct block_table *table);

/* The block's address in this process, imported and mapped now where it was not yet. The caller
 * has a lease in it and does not hold the client's lock. */
int block_map(struct caid_client *client, struct block *block, enum vmm_access access,
              CUdeviceptr *ret, struct caid_error *error);
