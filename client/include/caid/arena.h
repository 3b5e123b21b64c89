/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAID_CAID_H
#    include "caid/caid.h" /* this is a part of it */
#elif !defined(CAID_ARENA_H)
#    define CAID_ARENA_H

/**
 * Allocators over caid's memory, and publishing a part of an array or an allocation.
 *
 * An arena leases blocks of a pool and hands out pieces of them: an allocation costs no round trip
 * to the daemon and no driver call, and any stretch of it can be put under a name without a copy.
 */

/* ---- publishing a part of an array ---- */

struct caid_part_options {
    size_t struct_size;
    const char *typestr;    /* as for caid_array_create() */
    const char *descr;      /* or NULL */
    const int64_t *shape;   /* ndim extents; of no bytes at all: CAID_ERR_INVALID */
    const int64_t *strides; /* NULL: C order; else ndim byte steps, none negative */
    uint32_t ndim;
    const char *metadata; /* or NULL */
    /* Work that writes the part: waited for. 0: all work of the device's context, which ends every
     * capture of a graph in it; where there may be one, name a stream. */
    uint64_t stream;
    /* Called once, with userdata, when nobody can reach the part any more: its name is gone or
     * shows something else, every holder has closed it or exited, and their work is done. Until
     * then the caller leaves the memory as it is. By caid_client_dispatch(), with no lock held; or
     * by caid_client_close(), and then the part may live on. NULL: not wanted. */
    void (*gone)(void *userdata);
    void *userdata;
    /* Filled with a ticket for the part, which has no name then (name: NULL): caid_array_send().
     * NULL: the part has a name. */
    uint8_t *ret_ticket;
    bool many; /* the ticket is as caid_array_refer()'s */
    bool own;  /* the ticket ends with this client, which takes it itself */
};

/* Puts a part of the array, which begins `offset` bytes into it, under a name, as
 * caid_array_publish() does with a whole array. To those that open it, it is an array like any
 * other. The memory of the whole stays as long as one of its parts does, also when the array is
 * closed or its process gone; it stays charged to the uid that created the array, and only that one
 * may do this (CAID_ERR_PERMISSION). A part of bytes may begin anywhere, others where
 * caid_create_options says of strides. On failure `gone` is not called. CAID_ERR_READ_ONLY.
 * CAID_ERR_INVALID: it does not lie within the array, or is misaligned there; or the array is a
 * part itself. */
int caid_array_publish_part(struct caid_array *array, uint64_t offset, const char *name,
                            const struct caid_part_options *options, uint64_t *ret_generation,
                            struct caid_error *error);
/* Like caid_client_dispatch(), but calls only `gone`: for a thread beside the one that watches. */
int caid_client_dispatch_parts(struct caid_client *client, struct caid_error *error);

/* ---- arenas ---- */

struct caid_arena;

struct caid_arena_options {
    size_t struct_size;
    int32_t device;
    const char *pool;
    const char *memory; /* NULL or "device"; "legacy", for caid_arena_ipc_handle() */
    /* Bytes leased at a time, rounded up to the device's granularity; allocations of more than half
     * of it have a block of their own. 0: 32 MiB. */
    uint64_t block_size;
    /* What is freed waits, in the order in which it came, until more than so many entries wait, or
     * more bytes than this ratio of the device's memory, or memory is short; then all of it is
     * reusable as soon as the work that the context had by then is done. Blocks in which nothing is
     * left wait the same way, by count, ratio and age, before they go back to the daemon. */
    uint64_t max_pending_count;  /* 0: 10 */
    double max_pending_ratio;    /* 0: 0.2; negative: nothing waits */
    uint64_t max_pending_age_ns; /* of blocks; 0: 2 s */
};

/* An arena has no memory until the first allocation, which retains the device's primary context:
 * the work that may use its memory is that of this context. It may be used from any thread. It
 * works as long as the client is connected; what has been allocated stays afterwards.
 *
 * Before CUDA 12.5 blocks go back only by allocations, frees and trims, not in the
 * background. */
int caid_arena_new(struct caid_client *client, struct caid_arena **ret,
                   const struct caid_arena_options *options, struct caid_error *error);
/* Ends all allocations of the arena. Blocks are given back as arrays are: caid_array_close(). Parts
 * that were published stay for those who can reach them. Before caid_client_close() or after. */
void caid_arena_close(struct caid_arena *arena);

enum caid_arena_flags {
    /* CAID_ERR_TIMEOUT, and nothing is done, if another thread uses the arena, or a call to the
     * driver or the daemon is needed: for callers with a lock that such a call may wait for. */
    CAID_ARENA_NOWAIT = 1,
    /* Of an allocation: another block is leased rather than what was freed made reusable, unless
     * there is no memory otherwise. For callers beside whom other threads may capture graphs. */
    CAID_ARENA_LEASE_FIRST = 2,
    /* Of allocations and frees, as allocators that are ordered by streams have it: what uses the
     * memory is on the stream of caid_arena_work_on() (0: the default stream), or is ordered with
     * it there. What was freed so serves the next allocation of the same size on that stream at
     * once, with no event; all others wait for the work of the whole context, as ever. */
    CAID_ARENA_ORDERED = 4,
};

/* The stream that the calling thread works on, from now on; 0, as in the beginning: none. Returns
 * the one before. While it captures a graph, or a blocking stream of the context does, what is
 * freed waits, for to make it reusable would end the capture; it comes with a later free, flush or
 * allocation of any thread. Arenas ask the stream, so it has to exist until another is named. Of a
 * non-blocking stream that other threads work on nobody can tell whether it captures: beside one
 * that does, caid_arena_defer_begin() and CAID_ARENA_LEASE_FIRST leave it alone. */
uint64_t caid_arena_work_on(uint64_t stream);

/* Allocates so many bytes (0: as 1), at a multiple of 512. *ret is a CUdeviceptr. Where the arena
 * has no room it makes what was freed reusable, then leases a block; where the daemon has no memory
 * left either, it waits for the GPU to be done with what was freed, and tries once more, unless the
 * arena is deferred. CAID_ERR_NO_MEMORY (at once for more than the device has), CAID_ERR_QUOTA,
 * CAID_ERR_LIMIT; CAID_ERR_DISCONNECTED: no daemon, and no room. */
int caid_arena_alloc(struct caid_arena *arena, uint64_t nbytes, uint32_t flags, uint64_t *ret,
                     struct caid_error *error);
/* Work that uses the memory may still run, and is not waited for; while parts of it are published
 * it is not used again. A free that flushes calls the driver under the arena's lock, which may wait
 * as a launch does; so may its other users. CAID_ERR_INVALID: nothing was allocated there. */
int caid_arena_free(struct caid_arena *arena, uint64_t ptr, uint32_t flags,
                    struct caid_error *error);

struct caid_allocation {
    size_t struct_size;
    uint64_t ptr, nbytes; /* what was allocated, around the address that was asked for */
    uint64_t block;       /* the daemon's id of the memory that it lies in */
    uint64_t offset;      /* of ptr in the block, bytes */
};

/* The allocation that an address lies in, freed or not. CAID_ERR_NOT_FOUND. */
int caid_arena_find(struct caid_arena *arena, uint64_t ptr, struct caid_allocation *ret,
                    struct caid_error *error);
/* caid_array_ipc_handle() for an address in "legacy" memory, good while the allocation is. */
int caid_arena_ipc_handle(struct caid_arena *arena, uint64_t ptr, struct caid_ipc_handle *ret,
                          struct caid_error *error);
/* caid_array_publish_part() from an address, which lies in an allocation as all of the part does.
 * The allocation may be freed afterwards: the memory is not used again before the part is gone. */
int caid_arena_publish(struct caid_arena *arena, uint64_t ptr, const char *name,
                       const struct caid_part_options *options, uint64_t *ret_generation,
                       struct caid_error *error);

/* caid_set_create() of arrays in allocations of the arena: the offset of a member is its address,
 * in an allocation as all of it is, also where it has no bytes. Each pins its allocation as
 * caid_arena_publish() does. Where all lie in one block (caid_arena_find()), the set has a layout.
 * gone, if not NULL, is called once, as that of caid_part_options, when nobody can reach any of the
 * arrays. On failure nothing is left, and `gone` is not called. */
int caid_arena_set_create(struct caid_arena *arena, struct caid_array **ret,
                          const struct caid_member *members, size_t n,
                          void (*gone)(void *userdata), void *userdata,
                          struct caid_error *error);

/* Makes what waits reusable, without waiting for the GPU's work (the driver may wait as for a
 * launch): all but what is deferred, and what comes while a graph is captured or 32 flushes drain
 * already, which goes with a later free or flush. */
int caid_arena_flush(struct caid_arena *arena, struct caid_error *error);
/* The same, and waits for the GPU; then gives all empty blocks back to the daemon. Fails where the
 * GPU cannot be waited for; what is empty has gone back all the same. */
int caid_arena_trim(struct caid_arena *arena, struct caid_error *error);

/* Holds back what waits, until as many calls of caid_arena_defer_end(): neither reusable nor given
 * back. Ending flushes nothing by itself. CAID_ERR_INVALID: it was not begun. */
int caid_arena_defer_begin(struct caid_arena *arena, struct caid_error *error);
int caid_arena_defer_end(struct caid_arena *arena, struct caid_error *error);

/* Other limits from now on, as in the options, but exact: a count of 0 lets nothing wait, capacity
 * is what the ratio is of (bytes). They apply to the next free. */
int caid_arena_set_limits(struct caid_arena *arena, uint64_t count, double ratio,
                          uint64_t capacity, struct caid_error *error);

struct caid_arena_info {
    size_t struct_size;
    uint64_t blocks, bytes;                 /* leased */
    uint64_t allocations, allocated;        /* not freed; bytes as asked for */
    uint64_t pending, pending_bytes;        /* freed, and wait; bytes as asked for */
    uint64_t draining, draining_bytes;      /* flushed; the GPU may still use them */
    uint64_t published;                     /* parts that are not gone */
    uint64_t empty_blocks, empty_bytes;     /* that could be given back */
    uint64_t n_allocs, n_leased, n_flushes; /* ever; blocks for n_leased */
};

int caid_arena_info(struct caid_arena *arena, struct caid_arena_info *ret,
                    struct caid_error *error);

/* The index in caid_client_devices() of the device that CUDA calls `ordinal` in this process
 * (CUDA_VISIBLE_DEVICES). CAID_ERR_DEVICE: the daemon does not have it. */
int caid_client_find_device(struct caid_client *client, int32_t ordinal, int32_t *ret,
                            struct caid_error *error);

/* The index of the device that the text says: a UUID, a PCI address ("0000:65:00.0", "65:00.0"),
 * "cuda:1" (this process's ordinal), or "own": the device that is current to this thread, else the
 * first that this process sees. CAID_ERR_DEVICE: the daemon has none such. */
int caid_client_parse_device(struct caid_client *client, const char *text, int32_t *ret,
                             struct caid_error *error);

#endif
