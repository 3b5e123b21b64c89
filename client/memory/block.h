/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block is an allocation of the daemon that this process has, with any number of arrays in it.
 * How it is mapped depends on its kind:
 *
 *   device  an fd, imported once; mapped at most once read-only and once read-write, for as many
 *           devices of this process as ask for it
 *   legacy  a 64-byte handle, opened once, in one primary context
 *   pinned  an fd of host memory, mapped once per mode, and registered when a device is to use it
 *
 * The hold. The daemon sends a block with the first lease in it, and then relies on this client
 * having it until the client says `forget`. So a block may be forgotten only when no lease in it is
 * left here, it is not mapped any more, and no open or create is in flight whose reply might refer
 * to it. Later requests follow the `forget` on the same socket.
 *
 * Life: made when it arrives; idle when it has lost its last lease, and nobody keeps it (struct
 * caid_mapping). A small idle block stays mapped for a while, so that creating and closing in a
 * loop makes no driver call. block_tidy() unmaps idle blocks, and frees them when they can be
 * forgotten. It runs on the client's thread (reaper.h), or, where there is none, on the thread that
 * made the block idle; then no block stays idle. The daemon may have freed a device block
 * meanwhile, whose id never comes again.
 *
 * Two blocks of one size may exchange their addresses (caid_exchange()). table->addresses keeps
 * them where they are for as long as the library enqueues work there. It is taken before
 * block->lock and the client's lock.
 *
 * The fields so marked are under the client's lock. Driver calls (up to milliseconds) are made
 * under block->lock: only threads that need the same block wait for them. A lease that comes while
 * the block is being unmapped maps it anew afterwards: fd or handle stay until the block is freed.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "caid/caid.h"

#include "base/tree.h"
#include "legacy_map.h"
#include "msg.h"
#include "pinned_map.h"
#include "vmm.h"

struct caid_client;

enum block_kind {
    BLOCK_DEVICE,
    BLOCK_LEGACY,
    BLOCK_PINNED,
    BLOCK_N_KINDS
};

/* The name of a kind ("device", ...), and the kind of a name; -1: there is none. */
const char *block_kind_name(enum block_kind kind);
int block_kind_find(struct msg_str name);

struct block {
    RB_ENTRY(block) entry;

    /* Fixed. */
    uint64_t id;
    size_t size;
    int32_t device; /* index */
    enum block_kind kind;
    uint8_t handle[CU_IPC_HANDLE_SIZE]; /* legacy */

    /* Under the client's lock. */
    uint32_t leases;
    uint32_t n_kept;   /* caid_array_keep_mapping(): it is not idle while it is kept */
    uint64_t n_leased; /* leases ever */
    uint32_t n_given;  /* how many of its arrays a call has that wants all of them */
    uint64_t idle_at;  /* an idle block is unmapped then; 0: at once */
    bool unmapped;     /* idle, and listed in table->unmapped */
    TAILQ_ENTRY(block) idle_entry;

    /* Under lock. */
    pthread_mutex_t lock;
    int fd; /* device: until it has been imported; the daemon is asked for another one */
    bool imported;
    struct vmm_alloc alloc;

    struct block_map {
        struct vmm_map vmm;
        uint64_t places; /* the devices that vmm is mapped for, a bit each (gpu.h) */
        struct caid_reservation *in; /* the reservation that vmm lies in; NULL: none */
        /* Whether vmm is parked, for readers without the lock; or an exchange has failed so that
         * nobody is to use it. */
        atomic_bool parked;
        bool suspended; /* it was parked by blocks_suspend() */
        struct pinned_map pinned;
    } maps[2]; /* read-only, read-write */

    CUdeviceptr legacy;
    uint32_t place; /* in whose context legacy or pinned memory was opened */
};

RB_HEAD(block_tree, block);
TAILQ_HEAD(block_list, block);

struct block_table { /* under the client's lock */
    struct block_tree tree;
    size_t n;
    struct block_list idle; /* mapped, the next to be unmapped first */
    size_t idle_bytes;
    struct block_list unmapped; /* to be forgotten, oldest first */
    size_t unmapped_bytes;
    uint64_t unmapped_since; /* when tidying first saw blocks in `unmapped`; 0: it has not */
    bool tidying;            /* a thread is in block_tidy() */
    size_t n_freeing;        /* forgotten, and about to be freed */
    struct caid_reservation *reservation; /* in which blocks are mapped; NULL: anywhere */
    pthread_rwlock_t addresses;           /* has a place of its own in the order, see above */
};

extern const struct feature block_feature;

void block_table_init(struct block_table *table);
struct block *block_find(struct block_table *table, uint64_t id);

/* The daemon's description of a block. */
struct block_spec {
    uint64_t id;
    size_t size;
    int32_t device;
    enum block_kind kind;
    int fd; /* taken on success */
    uint8_t handle[CU_IPC_HANDLE_SIZE];
};

/* Adds a new block, which is idle. The caller has to give it a lease before it drops the client's
 * lock. -ENOMEM. */
int block_add(struct caid_client *client, struct block_spec *spec);

/* One lease more, or less. */
void block_lease(struct caid_client *client, struct block *block);
void block_unlease(struct caid_client *client, struct block *block);

/* Unmaps the idle blocks that are due (all: every one), and forgets and frees blocks where that is
 * possible. Under the client's lock, which it drops meanwhile; the caller has a reference to the
 * client. */
void block_tidy(struct caid_client *client, bool all);

/* Waits until the daemon has been told of everything that is closed by now, and idle blocks are
 * forgotten. Fails when the connection has ended. Not under the client's lock. */
int block_drain(struct caid_client *client, struct caid_error *error);

struct block_address {
    CUdeviceptr ptr;
    void *host; /* NULL: the host cannot reach it */
};

/* Memory of the host is mapped for the host alone. */
#define BLOCK_NO_PLACE UINT32_MAX
/* The block's address in this process, for the device at `place`. Imports and maps the block if
 * that has not been done, or if it is parked. The caller has a lease in it, and not the client's
 * lock. */
int block_map(struct caid_client *client, struct block *block, enum vmm_mode mode,
              uint32_t place, struct block_address *ret, struct caid_error *error);

/* Unmaps a block of device memory, and keeps its addresses for the next block_map(). Not under the
 * client's lock. */
int block_park(struct caid_client *client, struct block *block, struct caid_error *error);

/* Unmaps all blocks, and gives back what the driver has of them but for their addresses, once the
 * work of all contexts is done. Nobody maps one meanwhile (client_check_awake()). After a failure,
 * as later, blocks_resume() maps again what this has unmapped, where it was. Not under the client's
 * lock. */
int blocks_suspend(struct caid_client *client, struct caid_error *error);
int blocks_resume(struct caid_client *client, struct caid_error *error);

/* Between these two no block exchanges its addresses. Under no other lock of these. */
void block_addresses_hold(struct caid_client *client);
void block_addresses_release(struct caid_client *client);

/* From the first of these to the second nobody enqueues work, and nobody else maps the two. */
void block_exchange_begin(struct caid_client *client, struct block *a, struct block *b);
void block_exchange_end(struct caid_client *client, struct block *a, struct block *b);
/* The devices that they are mapped for in these modes (VMM_READ, VMM_READ_WRITE), a bit each.
 * CAID_ERR_INVALID: they are not mapped alike, or unmapped. */
int block_exchange_check(const struct block *a, const struct block *b, const bool modes[2],
                         uint64_t *ret_places, struct caid_error *error);
/* Exchanges the addresses of these modes. On failure both are where they were, or parked. */
int block_exchange(struct caid_client *client, struct block *a, struct block *b,
                   const bool modes[2], struct caid_error *error);
