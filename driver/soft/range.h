/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver knows about addresses: one ordered map of reservations and one of usable
 * ranges (VMM mappings, device and managed allocations, pinned and registered host memory). Every
 * other address is ordinary host memory, "pageable" in CUDA's words.
 *
 * Operations look their addresses up twice: when they are enqueued, for the answer to the
 * caller, and when they run, since the range may be gone by then. While one runs it is a user of
 * its ranges, and whoever wants to unmap them or narrow their access waits for those few
 * microseconds. (Hardware does not wait: there the operation faults.)
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/tree.h"
#include "cuda_abi.h"
#include "device.h"

struct memory;
struct pool;
struct share_offer;

enum range_kind {
    RANGE_PAGEABLE,    /* not in the map */
    RANGE_RESERVATION, /* cuMemAddressReserve */
    RANGE_MAPPING,     /* cuMemMap */
    RANGE_DEVICE,      /* cuMemAlloc */
    RANGE_HOST,        /* cuMemHostAlloc */
    RANGE_OPENED,      /* cuIpcOpenMemHandle */
    RANGE_REGISTERED,  /* cuMemHostRegister: the pages are the program's */
    RANGE_MANAGED,     /* cuMemAllocManaged */
    RANGE_POOL,        /* cuMemAllocAsync */
    RANGE_POOL_HOST,   /* the same, from a pool of host memory */
};

/* What memory of a kind is to those who use it; range.c has the table. */
enum range_trait {
    TRAIT_DEVICE = 1, /* the device's own, in copies, fills and attributes */
    TRAIT_HOST = 2,   /* pinned memory of the host */
    TRAIT_MEMOPS = 4, /* stream memory operations take it */
    TRAIT_ROW = 8,    /* work may go on in the next range of the kind */
};

bool range_kind_has(enum range_kind kind, enum range_trait trait);

/* Owned by the map from range_insert() to range_remove(); read under the map's lock only. */
struct range {
    RB_ENTRY(range) node;
    enum range_kind kind;
    uintptr_t start;
    size_t size;
    uint64_t id;
    CUdevice ordinal;      /* of the device, -2 for one that this process does not have */
    struct memory *memory; /* of mappings and device allocations; one reference */
    uint64_t context;      /* handle of the context it belongs to; 0: none */
    int access;            /* CUmemAccess_flags that the pages have */
    uint8_t device_access[SOFT_MAX_DEVICES];
    unsigned int host_flags;
    unsigned int n_users;
    struct share_offer *offer; /* of an allocation that others may open; ends with it */

    struct { /* of opened memory, from its ticket */
        uint64_t socket, id[2];
    } opened;

    unsigned int n_opens; /* and how many closes are owed */
    struct pool *pool;    /* of a pool's allocation; one reference */
    uint64_t offset;      /* of the same: in the pool's file */
};

int range_compare(const struct range *a, const struct range *b);
RB_HEAD(range_tree, range);
RB_PROTOTYPE(range_tree, range, node, range_compare);

struct range_map {
    pthread_mutex_t lock;
    pthread_cond_t idle; /* some range lost its last user */
    struct range_tree reservations;
    struct range_tree usable;
    struct range_tree freed; /* pools' allocations, until their streams have come by */
    uint64_t last_id;
};

/* For range_insert(). NULL: no memory for it. */
struct range *range_new(enum range_kind kind, uintptr_t start, size_t size);
/* These need the map's lock. */
struct range *range_find(struct range_tree *tree, uintptr_t address);
/* The first range that starts at the address or above. */
struct range *range_find_from(struct range_tree *tree, uintptr_t address);
/* The first range that has any of [start, start + size). */
struct range *range_find_in(struct range_tree *tree, uintptr_t start, size_t size);
/* Ends registrations that lie where the range is: the program has unmapped their pages, or there
 * would be no room for others. */
void range_insert(struct range_tree *tree, struct range *range);
void range_move(struct range_tree *from, struct range_tree *to, struct range *range);
/* Takes the range out of its tree and frees it. Its pages are the caller's business. */
void range_remove(struct range_tree *tree, struct range *range);

/* Takes the map's lock. What kind of memory [start, start + size) is, and whether a copy may
 * read or write it: INVALID_VALUE for pages without that access, for reserved but unmapped
 * addresses, and for a range that only partly is the driver's. */
CUresult range_check(uintptr_t start, size_t size, bool write, enum range_kind *ret_kind);
/* The same, and the caller becomes a user of the ranges until range_leave(). */
CUresult range_enter(uintptr_t start, size_t size, bool write);
void range_leave(uintptr_t start, size_t size);

/* Addresses anywhere, with no pages: reserves more than asked for and gives back what lies
 * around the aligned part. NULL: there are none. */
void *range_reserve(size_t size, size_t alignment);

/* How many ranges of a kind there are. */
size_t range_count(enum range_kind kind);
