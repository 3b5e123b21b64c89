/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAID_CAID_H
#define CAID_CAID_H

/**
 * libcaid: named arrays in GPU memory, shared between processes by the daemon caid(8).
 *
 * Every function that can fail returns 0 (or a count) when it worked, else a negative errno, and
 * then fills `error` where that is not NULL: the code of the table below and a message that
 * names the thing and the limit. Results are written only on success.
 *
 * A client and its arrays may be used from any thread. Nothing here raises SIGPIPE, starts a
 * thread or keeps global state. After fork() without exec() every call on an inherited client
 * fails with CAID_ERR_FORKED; freeing is safe and leaves the parent's memory alone.
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
    CAID_ERR_NO_DAEMON = 64,     /* nobody listens at the socket */
    CAID_ERR_DISCONNECTED = 65,  /* the daemon closed the connection, or died */
    CAID_ERR_FORKED = 66,        /* used after fork() without exec() */
    CAID_ERR_CLOSED = 67,        /* the array or client was closed */
    CAID_ERR_READ_ONLY = 68,     /* a write to an array opened "r" */
    CAID_ERR_SYSTEM = 69,        /* a system call failed: see the returned errno */
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
 * A client of no daemon: the driver alone, for caid_copy(), caid_pointer_resolve() and
 * caid_stream_synchronize() on memory that did not come from caid. driver: as `driver` above,
 * NULL: $CAID_CUDA_DRIVER, or "auto". Device indices are the driver's ordinals, which
 * caid_client_devices() lists. Every call that needs the daemon fails with CAID_ERR_NO_DAEMON.
 */
CAID_API int caid_driver_open(struct caid_client **ret, const char *driver,
                              struct caid_error *error);

/**
 * Ends the connection and with it every lease. Arrays of this client that are still open stay
 * mapped and may be read and written by their pointer until caid_array_close(); the client's
 * memory goes with the last of them. NULL is allowed.
 */
CAID_API void caid_client_close(struct caid_client *client);

/* A file descriptor that is readable when caid_client_dispatch() has something to do. Borrowed.
 * -EPERM after fork(), -ENOTCONN for a client of no daemon. */
CAID_API int caid_client_get_fd(const struct caid_client *client);

/* Handles what has come from the daemon, without blocking. -ECONNRESET: the daemon is gone. */
CAID_API int caid_client_dispatch(struct caid_client *client, struct caid_error *error);

/* A round trip. */
CAID_API int caid_client_ping(struct caid_client *client, struct caid_error *error);

struct caid_device {
    char uuid[48]; /* "GPU-..." */
    char name[128];
    uint64_t total;       /* bytes */
    uint64_t granularity; /* bytes */
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
};

CAID_API int caid_client_status(struct caid_client *client, struct caid_status *ret,
                                struct caid_error *error);

/* ---- arrays ---- */

struct caid_array;

enum caid_array_flags {
    CAID_ARRAY_EXCLUSIVE = 1, /* a block of its own, shared with no other array */
};

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
};

/**
 * Creates an array, mapped read-write. Its contents are undefined until written. A name is
 * taken exclusively: CAID_ERR_EXISTS. A named array outlives its creator until it is unlinked.
 * The array is the caller's, to be ended by caid_array_close().
 */
CAID_API int caid_array_create(struct caid_client *client, struct caid_array **ret,
                               const struct caid_create_options *options,
                               struct caid_error *error);

struct caid_open_options {
    size_t struct_size;
    const char *pool; /* NULL: the caller's own */
    const char *mode; /* NULL or "r": read-only mapping; "rw" */
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
 * Ends the lease and the array object; its pointer is not to be used afterwards, by the GPU
 * either: the caller has synchronised. One way, never blocks on the daemon. NULL is allowed.
 */
CAID_API void caid_array_close(struct caid_array *array);

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
};

/* Borrowed: lives as long as the array. */
CAID_API const struct caid_array_info *caid_array_get_info(const struct caid_array *array);

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
    uint64_t leases; /* how many hold it */
    uint32_t uid;    /* who created it */
};

struct caid_list_options {
    size_t struct_size;
    const char *pool;   /* NULL: the caller's own */
    const char *prefix; /* NULL: all names */
    bool all;           /* every pool that the caller may read; pool is ignored */
};

/* Calls fn for each name, in byte order, pool by pool; what fn is given lives for the call. No
 * lock is held meanwhile: fn may call this library, and may wait for a thread that does. A value other than 0 from fn ends the list and is returned. */
CAID_API int caid_list(struct caid_client *client, const struct caid_list_options *options,
                       int (*fn)(const struct caid_entry *entry, void *userdata),
                       void *userdata, struct caid_error *error);

struct caid_holder {
    const char *client; /* the name that it gave itself, or NULL */
    uint64_t pid;
    uint32_t uid;
    bool readonly;
};

struct caid_details {
    struct caid_entry entry;
    const int64_t *strides; /* NULL: C order */
    const char *descr;      /* or NULL */
    uint64_t array, block, block_size, offset;
    const struct caid_holder *holders;
    size_t n_holders; /* at most entry.leases; less where a packet would not hold all */
};

/* Like caid_list() for one name; fn is called once. */
CAID_API int caid_show(struct caid_client *client, const char *name, const char *pool,
                       int (*fn)(const struct caid_details *details, void *userdata),
                       void *userdata, struct caid_error *error);

struct caid_pool {
    const char *name;
    uint32_t uid, gid;
    uint32_t mode;  /* permission bits */
    uint64_t quota; /* bytes; 0: none */
    uint64_t used;  /* bytes of blocks */
    uint64_t names, arrays;
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
};

CAID_API int caid_memory_info(struct caid_client *client, int32_t device,
                              struct caid_memory_info *ret, struct caid_error *error);

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
};

/* Copies ndim dimensions from src to dst; they may not overlap. */
CAID_API int caid_copy(struct caid_client *client, const struct caid_copy *copy,
                       struct caid_error *error);

struct caid_pointer {
    size_t struct_size;
    uint64_t device_ptr; /* CU_POINTER_ATTRIBUTE_DEVICE_POINTER */
    int32_t device;      /* index, or -1 for a device that the daemon has not */
};

/* What a pointer of any origin is here: cuPointerGetAttribute. CAID_ERR_INVALID: not the
 * device's to reach. */
CAID_API int caid_pointer_resolve(struct caid_client *client, uint64_t ptr,
                                  struct caid_pointer *ret, struct caid_error *error);

/* Waits on the host for a CUDA stream of this process: a CUstream, 1 the legacy default stream,
 * 2 the per-thread one; 0 is refused as ambiguous (CAI v3). */
CAID_API int caid_stream_synchronize(struct caid_client *client, uint64_t stream,
                                     int32_t device, struct caid_error *error);

/* The software driver of this build. -ENOENT. */
CAID_API int caid_softcuda_path(char *ret_path, size_t size);

#ifdef __cplusplus
}
#endif

#endif
