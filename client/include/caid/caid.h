/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAID_CAID_H
#define CAID_CAID_H

/**
 * libcaid: named arrays in GPU memory, shared between processes by the daemon caid(8).
 *
 * Every function that can fail returns 0 (or a count) when it worked, else a negative errno,
 * and then fills `error` where that is not NULL: the code of the table below and a message that
 * names the thing and the limit. Results are written only on success.
 *
 * A client and its arrays may be used from any thread. Nothing here raises SIGPIPE or keeps
 * global state. A client has one thread of its own, from the first close that has to wait for
 * the GPU, or leaves a block empty, or the first flush of an arena, to caid_client_close(); it
 * takes no signals. After fork() without exec() every call on an inherited client fails with
 * CAID_ERR_FORKED; freeing is safe and leaves the parent's memory alone.
 *
 * Option structs start with struct_size, to be set to sizeof(the struct): a later library reads
 * no more than the caller knew of. CAID_INIT does that and zeroes the rest.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef CAID_API
#    if defined(__GNUC__)
#        define CAID_API __attribute__((visibility("default")))
#    else
#        define CAID_API
#    endif
#endif

#ifdef __cplusplus
#    define CAID_INIT(type) \
        {                   \
            sizeof(type)    \
        }
#else
#    define CAID_INIT(type)             \
        {                               \
            .struct_size = sizeof(type) \
        }
#endif

enum caid_code {
    CAID_ERR_PROTOCOL = 1,       /* the other side broke the protocol */
    CAID_ERR_VERSION = 2,        /* no common protocol version */
    CAID_ERR_UNKNOWN_METHOD = 3, /* the daemon is too old for this call */
    CAID_ERR_INVALID = 4,        /* a shape, stride, typestr, mode, ... is not valid */
    CAID_ERR_INVALID_NAME = 5,   /* not 1 to 255 bytes of UTF-8 without control characters */
    CAID_ERR_NOT_FOUND = 6,      /* no such name, or none that the caller may see */
    CAID_ERR_EXISTS = 7,         /* create: the name is taken */
    CAID_ERR_PERMISSION = 8,     /* the pool may be read but not written */
    CAID_ERR_QUOTA = 9,          /* a pool's or a user's bytes */
    CAID_ERR_LIMIT = 10,         /* names, leases, connections, ... */
    CAID_ERR_NO_MEMORY = 11,     /* the device has not got that much */
    CAID_ERR_DEVICE = 12,        /* no such device, here or at the daemon */
    CAID_ERR_DRIVER = 13,        /* a CUDA driver call failed: see cuda_result */
    CAID_ERR_SHUTDOWN = 14,      /* the daemon is stopping */
    CAID_ERR_TOO_LARGE = 15,     /* more than fits a packet */
    CAID_ERR_UNSUPPORTED = 16,   /* not on this device or driver */
    CAID_ERR_CANCELLED = 17,     /* a watch was closed */
    CAID_ERR_STALE = 18,         /* that generation is gone, or has not come */
    CAID_ERR_TIMEOUT = 19,       /* that did not come in time */
    CAID_ERR_DEADLOCK = 20,      /* it would wait for what this thread has to end */
    CAID_ERR_ABANDONED =
        21, /* a process died before its work was done: contents are not whole */
    CAID_ERR_NO_DAEMON = 64,    /* nobody listens at the socket */
    CAID_ERR_DISCONNECTED = 65, /* the daemon closed the connection, or died */
    CAID_ERR_FORKED = 66,       /* used after fork() without exec() */
    CAID_ERR_CLOSED = 67,       /* the array or client was closed */
    CAID_ERR_READ_ONLY = 68,    /* a write to an array opened "r" */
    CAID_ERR_SYSTEM = 69,       /* a system call failed: see the returned errno */
    CAID_ERR_CORRUPT = 70,      /* an array's descr cannot be: who parses it says so */
};

struct caid_error {
    int32_t code;        /* enum caid_code */
    int32_t cuda_result; /* CUresult behind it, or 0 */
    char message[504];   /* terminated */
};

/* "NOT_FOUND"; NULL for a number that is no code. Static. */
CAID_API const char *caid_code_name(int32_t code);

/* The version of the library: "0.1.0". Static. */
CAID_API const char *caid_version(void);

/* ---- connection ---- */

struct caid_client;

struct caid_connect_options {
    size_t struct_size;
    const char
        *socket;      /* NULL: $CAID_SOCKET, $XDG_RUNTIME_DIR/caid.sock, /run/caid/caid.sock */
    const char *name; /* what `caidctl show` calls this client; NULL: the program's name */
    const char *driver; /* NULL: $CAID_CUDA_DRIVER, or what the daemon uses; see caid(8) */
};

/**
 * Connects and says HELLO. No CUDA library is loaded before the first array is mapped.
 * options may be NULL. The client is the caller's, to be ended by caid_client_close().
 */
CAID_API int caid_connect(struct caid_client **ret, const struct caid_connect_options *options,
                          struct caid_error *error);

/**
 * Ends the connection and with it every lease, after the closes that wait for the GPU; what
 * cannot be waited for (a capture is under way) stays mapped for good. Arrays of this client
 * that are still open stay mapped and may be read and written by their pointer until
 * caid_array_close(); the client's memory goes with the last of them, and the daemon gives
 * theirs to nobody before this process has exited. Calls back for parts whose `gone` has not come
 * (arena.h). NULL is allowed.
 */
CAID_API void caid_client_close(struct caid_client *client);

/* A file descriptor that is readable when caid_client_dispatch() has something to do, and when
 * a watch without fn has news since the last dispatch. Borrowed, the same at every call. -EPERM
 * after fork(), -errno. */
CAID_API int caid_client_get_fd(struct caid_client *client);

/* Handles what has come from the daemon, without blocking, and calls the callbacks of watches
 * that have news, and of parts that are gone (arena.h), with no lock held. -ECONNRESET: the daemon
 * is gone. */
CAID_API int caid_client_dispatch(struct caid_client *client, struct caid_error *error);

/* A round trip. */
CAID_API int caid_client_ping(struct caid_client *client, struct caid_error *error);

struct caid_device {
    char uuid[48]; /* "GPU-..." */
    char name[128];
    uint64_t total;       /* bytes */
    uint64_t granularity; /* bytes */
    /* How streams of it wait for those of other processes: "memops" (stream memory operations),
     * "host" (the host waits), "events" (inter-process events). */
    char handoff[16];
    char kinds[64];        /* of memory that it can share: "device legacy pinned" */
    bool memops;           /* it has 64-bit stream memory operations */
    bool readonly_host;    /* it takes host memory that is mapped for reading */
    bool mps;              /* contexts of it are MPS clients', as the daemon sees it */
    char persistence[8];   /* "on", "off", "": not known */
    char compute_mode[16]; /* "default", "exclusive", "prohibited", "": not known */
};

/* The daemon's devices; index i is what `device` means elsewhere. Borrowed, fixed for the life
 * of the connection. Returns their number. */
CAID_API int caid_client_devices(const struct caid_client *client,
                                 const struct caid_device **ret);

struct caid_status {
    size_t struct_size;
    char server[64]; /* "caid 0.1.0" */
    char driver[16]; /* "cuda", "soft" */
    char driver_path[256];
    char socket[108]; /* that this client is connected to */
    char pool[72];    /* the caller's own */
    uint64_t driver_version;
    uint64_t pid;
    uint64_t uptime_ns;
    uint64_t connections, pools, blocks, arrays, names, leases; /* now */
    uint64_t jobs;                                              /* driver calls under way */
    uint64_t release_errors; /* blocks that the driver would not take back, ever */
    uint64_t watches;
    uint64_t pending;   /* entries of the deallocation queues */
    uint64_t contexts;  /* that the daemon has made, for legacy handles */
    uint64_t brackets;  /* that are open, or wait */
    uint64_t pages;     /* of timelines */
    uint64_t timelines; /* that have a name */
};

CAID_API int caid_client_status(struct caid_client *client, struct caid_status *ret,
                                struct caid_error *error);

/* ---- arrays ---- */

struct caid_array;

enum caid_array_flags {
    CAID_ARRAY_EXCLUSIVE = 1,   /* a block of its own, shared with no other array */
    CAID_ARRAY_ATTACH_HOST = 2, /* "managed" only: CU_MEM_ATTACH_HOST, not _GLOBAL */
};

/*
 * Where an array lies, as `memory` of the options says:
 *   "device"   memory of the device, mapped by an fd (cuMemCreate). The default.
 *   "legacy"   memory of the device, opened by a 64-byte handle (cuIpcOpenMemHandle), for
 *              consumers that need one: caid_array_ipc_handle(). Opening it retains the device's
 *              primary context. A read-only lease is a promise here: the driver enforces nothing.
 *   "pinned"   page-locked host memory, shared by a memfd that each client registers
 *              (cuMemHostRegister): host_ptr in the info. ptr is its address on the device.
 *   "mapped"   the same, said to be for kernels: it exports the CUDA array interface.
 *   "managed"  managed memory (cuMemAllocManaged) of this process alone: no name, no daemon.
 */

struct caid_create_options {
    size_t struct_size;
    const char *name;       /* NULL: unnamed, ends with its last holder */
    const char *pool;       /* NULL: the caller's own */
    int32_t device;         /* index, 0 the first */
    uint32_t flags;         /* enum caid_array_flags */
    const char *typestr;    /* as in NumPy's array interface: "<f4", "|u1", "|V12" */
    const char *descr;      /* NULL, or the fields of a "V" type as JSON: [["x", "<f4"], ...] */
    const int64_t *shape;   /* ndim extents, none negative */
    const int64_t *strides; /* NULL: C order; else ndim byte steps, none negative */
    uint32_t ndim;          /* at most 32 */
    const char *memory;     /* see above; NULL: "device" */
    uint64_t alignment;     /* bytes, a power of 2 up to 2 MiB; 0: 512 */
    const char *metadata;   /* NULL, or up to 4,096 bytes of UTF-8 that go with the array */
};

/**
 * Creates an array, mapped read-write. Its contents are undefined until written. A name is
 * taken exclusively: CAID_ERR_EXISTS. A named array outlives its creator until it is unlinked.
 * The array is the caller's, to be ended by caid_array_close(). One that was made and then
 * cannot be mapped is unlinked again. Where the daemon has no memory left, it waits for the
 * closes of this client that wait for the GPU, and tries once more.
 */
CAID_API int caid_array_create(struct caid_client *client, struct caid_array **ret,
                               const struct caid_create_options *options,
                               struct caid_error *error);

struct caid_open_options {
    size_t struct_size;
    const char *pool;    /* NULL: the caller's own */
    const char *mode;    /* NULL or "r": read-only mapping; "rw" */
    uint64_t generation; /* this one and no other; 0: the name's current one */
    /* UUID of the device of this process that is to reach the memory, over the peer link where
     * it is another than the array's. NULL: the array's own device, or, where this process does
     * not see that one (CUDA_VISIBLE_DEVICES), the first that it sees. */
    const char *device_uuid;
};

/* Opens an array by name. options may be NULL. */
CAID_API int caid_array_open(struct caid_client *client, struct caid_array **ret,
                             const char *name, const struct caid_open_options *options,
                             struct caid_error *error);

/* Opens n arrays, in as few messages as they fit in: all of them or none. */
CAID_API int caid_array_open_many(struct caid_client *client, struct caid_array **ret_arrays,
                                  const char *const *names, size_t n,
                                  const struct caid_open_options *options,
                                  struct caid_error *error);

/**
 * Ends the lease and the array object; its pointer is not to be used afterwards. Work that was
 * enqueued before may still use it: the daemon is told when the primary context of the device,
 * and the context that is current to this thread, have drained (at once where there is none); a
 * thread of the client waits for that. Never blocks on the daemon or the GPU, but where that
 * thread cannot be: after caid_client_close(), or when none can be started, it waits itself. A
 * context that is not the primary one has to live until then. For "pinned", "mapped" and
 * "managed" arrays it is the primary contexts of all devices. Where CUDA cannot say whether a
 * context has drained (no memory for the driver, a capture when the client is closed, ...), the
 * array keeps its lease and its mapping until the process exits. While a stream of the context
 * captures a graph CUDA cannot wait for it, and the attempt ends the capture: who captures
 * closes by caid_array_close_on(). NULL is allowed.
 */
CAID_API void caid_array_close(struct caid_array *array);

/**
 * The same, where work on this stream alone still uses the array: a CUstream, 1 the legacy
 * default stream, 2 the per-thread one. On failure (0 is refused as ambiguous) the array stays
 * open.
 */
CAID_API int caid_array_close_on(struct caid_array *array, uint64_t stream,
                                 struct caid_error *error);

struct caid_array_info {
    uint64_t ptr;    /* CUdeviceptr of the first element; 0 for an array of no bytes */
    uint64_t nbytes; /* elements times itemsize */
    uint64_t itemsize;
    uint32_t ndim;
    int32_t device;         /* index in caid_client_devices() */
    const int64_t *shape;   /* ndim extents */
    const int64_t *strides; /* ndim byte steps, always given */
    const char *typestr;
    const char *descr; /* or NULL */
    const char *name;  /* or NULL */
    const char *pool;
    uint64_t generation; /* of the name */
    uint64_t block;      /* the daemon's id of the memory; 0 for an array of no bytes */
    uint64_t offset;     /* bytes from the block's start */
    bool readonly;
    const char *memory;   /* "device", "legacy", "pinned", "mapped", "managed" */
    const char *metadata; /* or NULL */
    void *host_ptr;       /* of the first element, where the host reaches it; else NULL */
    int32_t
        mapped_ordinal; /* CUDA ordinal, in this process, of the device that ptr was mapped for;
                           * -1: no bytes */
    int32_t mapped_device; /* the same as an index in caid_client_devices(); -1: none of them */
    uint32_t uid;          /* who created it */
};

/* Borrowed: lives as long as the array, and does not change. After caid_array_publish() this
 * returns another one, with the new name, generation and metadata; what was returned before
 * stays valid, and as it was. */
CAID_API const struct caid_array_info *caid_array_get_info(const struct caid_array *array);

struct caid_ipc_handle {
    uint8_t
        handle[64];  /* a CUipcMemHandle, for cuIpcOpenMemHandle() in any process but caid's */
    uint64_t offset; /* of the first element in what it opens, bytes */
    uint64_t size;   /* of what it opens */
};

/* The handle of a "legacy" array. Good while the array is open somewhere or has a name.
 * CAID_ERR_UNSUPPORTED for other kinds. */
CAID_API int caid_array_ipc_handle(const struct caid_array *array, struct caid_ipc_handle *ret,
                                   struct caid_error *error);

/* ---- publishing ---- */

struct caid_publish_options {
    size_t struct_size;
    const char *metadata; /* NULL: the array's own stays */
    /* Work that writes the array: waited for. 0: all work of the device's context. */
    uint64_t stream;
};

/**
 * Puts the array under a name of its pool, at once and as a whole: whoever opens the name
 * before gets what was there, whoever opens it after gets this array. The name's generation
 * goes up by one (a new name starts above all that were taken away in its pool). What had the name lives
 * on without it as long as somebody holds it; an array that had another name gives that up.
 * Waits on the host for the work that writes the array, so that a published name shows a
 * complete one. options may be NULL.
 */
CAID_API int caid_array_publish(struct caid_array *array, const char *name,
                                const struct caid_publish_options *options,
                                uint64_t *ret_generation, struct caid_error *error);

struct caid_watch;

struct caid_change {
    const char *name, *pool; /* pool NULL: the caller's own */
    uint64_t generation;     /* 0: there is no array of that name now */
};

/**
 * Watches a name, which need not exist. fn is called from caid_client_dispatch() when the
 * name's generation is another than it was told last, first for one that is there already:
 * always the latest, in between some may be left out. fn may be NULL for those who call
 * caid_watch_next(). *ret is set before fn can be called. The watch is the caller's, to be
 * ended by caid_watch_close(), from fn, too. pool NULL: the caller's own.
 */
CAID_API int caid_watch_new(struct caid_client *client, struct caid_watch **ret,
                            const char *name, const char *pool,
                            void (*fn)(const struct caid_change *change, void *userdata),
                            void *userdata, struct caid_error *error);

/* Waits for news of this watch, at most timeout_ns (UINT64_MAX: without end), and takes it.
 * CAID_ERR_TIMEOUT; CAID_ERR_CANCELLED when the watch is closed meanwhile. */
CAID_API int caid_watch_next(struct caid_watch *watch, uint64_t timeout_ns,
                             struct caid_change *ret, struct caid_error *error);

/* Wakes whoever waits in caid_watch_next(); no call of fn begins afterwards. Needed after
 * caid_client_close(), too. NULL is allowed. */
CAID_API void caid_watch_close(struct caid_watch *watch);

/* ---- names ---- */

/* Removes a name; whoever holds the array keeps it. pool NULL: the caller's own. */
CAID_API int caid_unlink(struct caid_client *client, const char *name, const char *pool,
                         struct caid_error *error);

struct caid_entry {
    const char *pool;
    const char *name;
    const char *typestr;
    const int64_t *shape;
    uint32_t ndim;
    int32_t device; /* index, or -1 */
    uint64_t generation;
    uint64_t nbytes;
    uint64_t leases;           /* how many hold it */
    uint32_t uid;              /* who created it */
    const char *memory;        /* "device", "legacy", "pinned", "mapped" */
    uint64_t readers, writers; /* brackets that are open on it: handoff.h */
    uint64_t waiting;          /* brackets that wait for those */
    bool abandoned;            /* a writer died, and nobody has written it since */
    uint64_t parts;            /* arrays in its memory: caid_array_publish_part() */
};

struct caid_list_options {
    size_t struct_size;
    const char *pool;   /* NULL: the caller's own */
    const char *prefix; /* NULL: all names */
    bool all;           /* every pool that the caller may read; pool is ignored */
};

/* Calls fn for each name, in byte order, pool by pool; what fn is given lives for the call. No
 * lock is held meanwhile: fn may call this library, and may wait for a thread that does. A
 * value other than 0 from fn ends the list and is returned. */
CAID_API int caid_list(struct caid_client *client, const struct caid_list_options *options,
                       int (*fn)(const struct caid_entry *entry, void *userdata),
                       void *userdata, struct caid_error *error);

struct caid_holder {
    const char *client; /* the name that it gave itself, or NULL */
    uint64_t pid;
    uint32_t uid;
    bool readonly;
    bool hung_up;                       /* its connection has ended, its process has not */
    uint64_t reading, writing, waiting; /* brackets that it has on the array */
};

struct caid_details {
    struct caid_entry entry;
    const int64_t *strides; /* NULL: C order */
    const char *descr;      /* or NULL */
    uint64_t array, block, block_size, offset;
    const struct caid_holder *holders;
    size_t n_holders;     /* at most entry.leases; less where a packet would not hold all */
    const char *metadata; /* or NULL */
};

/* Like caid_list() for one name; fn is called once. */
CAID_API int caid_show(struct caid_client *client, const char *name, const char *pool,
                       int (*fn)(const struct caid_details *details, void *userdata),
                       void *userdata, struct caid_error *error);

/* Calls fn for each array that has no name, or has it no more, and who keeps its memory;
 * entry.name is the last name, "" where it never had one. Options as for caid_list(); prefix is
 * ignored. */
CAID_API int caid_unnamed(struct caid_client *client, const struct caid_list_options *options,
                          int (*fn)(const struct caid_details *details, void *userdata),
                          void *userdata, struct caid_error *error);

struct caid_user { /* what a uid is charged */
    uint32_t uid;
    uint64_t connections, arrays, names, leases, watches, jobs;
    uint64_t bytes;    /* of device memory, of the arrays that it created */
    uint64_t pinned;   /* the same of page-locked host memory */
    uint64_t host;     /* of the daemon's own memory */
    uint64_t pending;  /* entries of the deallocation queues */
    uint64_t deferred; /* connections that hold them back: caid_defer_begin() */
    uint64_t brackets; /* arrays in them, and fences of those that have ended */
    uint64_t pages;    /* of timelines */
};

/* Like caid_list(): the caller's uid, or all of them for root and the daemon's own uid. */
CAID_API int caid_users(struct caid_client *client,
                        int (*fn)(const struct caid_user *user, void *userdata), void *userdata,
                        struct caid_error *error);

struct caid_pool {
    const char *name;
    uint32_t uid, gid;
    uint32_t mode;  /* permission bits */
    uint64_t quota; /* bytes; 0: none */
    uint64_t used;  /* bytes of blocks */
    uint64_t names, arrays;
    uint64_t blocks;
    uint64_t allocated; /* bytes that arrays take of them */
    uint64_t pending;   /* bytes in the deallocation queues */
    uint64_t reserve;   /* bytes of empty blocks */
    uint64_t holes;     /* bytes free in blocks that are not empty */
    uint64_t largest;   /* bytes of the largest hole */
    uint64_t pinned;    /* bytes of blocks in host memory; not in the others */
};

/* Like caid_list() for the pools that the caller may read. */
CAID_API int caid_pools(struct caid_client *client,
                        int (*fn)(const struct caid_pool *pool, void *userdata), void *userdata,
                        struct caid_error *error);

struct caid_memory_info {
    size_t struct_size;
    uint64_t free, total; /* bytes, as the driver reports them now */
    uint64_t used;        /* bytes of caid's blocks on this device */
    uint64_t blocks, arrays;
    uint64_t allocated; /* bytes that arrays take of the blocks */
    uint64_t reserve;   /* bytes of empty blocks, of all pools */
    /* Bytes that the caller's own pool has in its blocks, free or in the queue. */
    uint64_t available;
    uint64_t pending, pending_bytes;         /* in the deallocation queue */
    uint64_t pinned;                         /* bytes of page-locked host memory made for it */
    uint64_t flushes, releases;              /* of the queue, of blocks to the driver; ever */
    uint64_t quarantined, quarantined_bytes; /* blocks that the driver would not take back */
    bool context; /* the daemon has a context there, for legacy handles */
};

CAID_API int caid_memory_info(struct caid_client *client, int32_t device,
                              struct caid_memory_info *ret, struct caid_error *error);

/*
 * Memory that nobody holds is not given back at once: it waits in a queue (caid.conf(5):
 * max_pending_*).
 */

struct caid_flushed {
    size_t struct_size;
    uint64_t entries; /* that left the deallocation queue */
    uint64_t blocks;  /* that went back to the driver */
    uint64_t bytes;   /* of those */
};

/* Frees what waits in the queue of a device (-1: of all) and the empty blocks: those of the
 * caller's uid, or all for root and the daemon's own uid. Waits for this client's closes first.
 * What caid_defer_begin() holds back stays. ret may be NULL. CAID_ERR_DRIVER: a release failed;
 * what came after it waits on. */
CAID_API int caid_flush(struct caid_client *client, int32_t device, struct caid_flushed *ret,
                        struct caid_error *error);

/* Holds back what waits in the queues for the caller's uid, until as many calls of
 * caid_defer_end(), or the end of the connection. Ending flushes nothing by itself. */
CAID_API int caid_defer_begin(struct caid_client *client, struct caid_error *error);
CAID_API int caid_defer_end(struct caid_client *client, struct caid_error *error);

/* ---- data ---- */

/*
 * Copies run on the primary context of the array's device, which they retain on first use
 * (cuDevicePrimaryCtxRetain), and have happened when the call returns.
 */

/* dst or src has info->nbytes bytes, elements in C order whatever the array's strides are. */
CAID_API int caid_array_copy_to_host(struct caid_array *array, void *dst, size_t nbytes,
                                     struct caid_error *error);
CAID_API int caid_array_copy_from_host(struct caid_array *array, const void *src, size_t nbytes,
                                       struct caid_error *error);

struct caid_copy {
    size_t struct_size;
    uint64_t dst, src; /* addresses of the first elements */
    bool dst_on_host, src_on_host;
    const int64_t *dst_strides, *src_strides; /* bytes; NULL: C order */
    const int64_t *shape;
    uint32_t ndim;
    uint32_t itemsize;
    int32_t device; /* whose primary context does it; index */
    /* 0: the copy has happened when the call returns. Else a stream (handoff.h) of the current
     * context, or of the device's primary one: the copy is enqueued there, and what it reads and
     * writes on the host has to stay until the stream has come past it. From host to host it is
     * not enqueued: the call waits for the stream, then copies. */
    uint64_t stream;
};

/* Copies ndim dimensions from src to dst; they may not overlap. */
CAID_API int caid_copy(struct caid_client *client, const struct caid_copy *copy,
                       struct caid_error *error);

/* The software driver of this build. -ENOENT. */
CAID_API int caid_softcuda_path(char *ret_path, size_t size);

#ifdef __cplusplus
}
#endif

#include "caid/arena.h"
#include "caid/handoff.h"

#endif
