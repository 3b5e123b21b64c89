/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAID_CAID_H
#define CAID_CAID_H

/**
 * libcaid: named arrays in GPU memory, shared between processes by the daemon caid(8). libcaid(3)
 * explains the whole; here is what each function says to its caller.
 *
 * What can fail returns 0 (or a count) when it worked, else a negative errno, and
 * then fills `error` where that is not NULL. Results are written only on success. What a function
 * makes is the caller's, to be ended by the function of its type that closes, frees or destroys;
 * that takes NULL. `options` may be NULL where none is needed; a `pool` that is NULL is the
 * caller's own; `device` is an index in caid_client_devices(). struct_size is to be set to
 * sizeof(the struct), so that a later library reads no more than the caller knew of: CAID_INIT does
 * that and zeroes the rest.
 *
 * A client and its arrays may be used from any thread. Nothing here raises SIGPIPE or keeps global
 * state. A client has one thread of its own, which takes no signals, from the first close that has
 * to wait for the GPU, or leaves a block empty, or the first flush of an arena, to
 * caid_client_close(). After fork() without exec() every call on an inherited client fails with
 * CAID_ERR_FORKED, and so does what needs the driver on a new one, where the parent has used CUDA;
 * freeing is safe and leaves the parent's memory alone.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "caid/records.h"

#define CAID_FOREVER UINT64_MAX
#define CAID_NEVER   (UINT64_MAX - 1)

#ifdef __cplusplus
#    define CAID_INIT(type) \
        {                   \
            sizeof(type)    \
        }
extern "C" {
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
    CAID_ERR_TIMEOUT = 19,       /* that did not come in time, or the daemon did not answer */
    CAID_ERR_DEADLOCK = 20,      /* it would wait for what this thread has to end */
    CAID_ERR_ABANDONED = 21,     /* a process died before its work was done */
    CAID_ERR_NOT_READY = 22,     /* its driver is not there, or not all is back: try again */
    CAID_ERR_LOST = 23,          /* the array did not come back from an earlier daemon */
    CAID_ERR_INTERNAL = 24,      /* two daemons have died of this call */
    CAID_ERR_KICKED = 25,        /* the connection was ended by caid_kick() */
    CAID_ERR_DROPPED = 26,   /* a droppable set that made room; who opens it makes it again */
    CAID_ERR_BUSY = 27,      /* another process produces in the channel */
    CAID_ERR_NO_DAEMON = 64, /* nobody listens at the socket */
    CAID_ERR_DISCONNECTED = 65, /* the daemon closed the connection, or died */
    CAID_ERR_FORKED = 66,       /* used after fork() without exec() */
    CAID_ERR_CLOSED = 67,       /* the array or client was closed */
    CAID_ERR_READ_ONLY = 68,    /* a write to an array opened "r" */
    CAID_ERR_SYSTEM = 69,       /* a system call failed: see the returned errno */
    CAID_ERR_CORRUPT = 70,      /* an array's descr is invalid: from what parses it */
    CAID_ERR_INTERRUPTED = 71,  /* by a signal: the options of caid_connect() say when */
};

struct caid_error {
    int32_t code;        /* enum caid_code */
    int32_t cuda_result; /* CUresult behind it, or 0 */
    char message[504];   /* terminated */
};

const char *caid_code_name(int32_t code); /* "NOT_FOUND"; NULL for a number that is no code */
const char *caid_version(void);           /* of the library: "0.1.0" */

/* ---- connection ---- */

struct caid_client;
struct caid_array;
struct caid_watch;

struct caid_connect_options {
    size_t struct_size;
    /* NULL: $CAID_SOCKET, $XDG_RUNTIME_DIR/caid.sock if it exists, /run/caid/caid.sock */
    const char *socket;
    const char *name;   /* what `caidctl show` calls this client; NULL: the program's name */
    const char *driver; /* NULL: $CAID_CUDA_DRIVER, or what the daemon uses; see caid(8) */
    /* How long the daemon has to take the client up. 0: $CAID_TIMEOUT seconds, or 30; or
     * CAID_FOREVER. */
    uint64_t timeout_ns;
    /* How long it has to answer each call, and to let a bracket begin that has no time of its own.
     * 0: $CAID_TIMEOUT, or CAID_FOREVER. A call that takes longer is CAID_ERR_TIMEOUT, and the
     * client is as usable as before: what a later answer grants is given back, what the call does
     * elsewhere (a name is unlinked, renamed, published) may have been done. */
    uint64_t call_timeout_ns;
    /* Asked, on the thread that waits for the daemon, or for a stream or an event, when a signal
     * handler has run there, and now and then: whether to give up what it waits for, which is then
     * CAID_ERR_INTERRUPTED. It may not use this client. NULL: signals interrupt nothing. */
    int (*interrupted)(void *userdata);
    void *userdata;
    /* How long calls wait for a daemon that has gone, and keeps what it had (caid(8)), to come
     * back: then the client goes on where it was, and its arrays, brackets and watches are its own
     * as before. After that time, and where nothing was kept, it is CAID_ERR_DISCONNECTED; what a
     * call had made by then under a name is unlinked when a daemon is there again, unless the
     * client was closed before. 0: 10 seconds; CAID_FOREVER; CAID_NEVER: it does not come back. Who
     * waits does not start a service that was stopped and whose socket still listens. */
    uint64_t reconnect_timeout_ns;
    /* Called when the client has come back, on a thread of the library's: n_lost of its arrays it
     * has not got back, which their brackets say (CAID_ERR_LOST). It may use the client, but not
     * close it. NULL: nobody is told. */
    void (*returned)(uint64_t n_lost, void *userdata);
};

/* Connects and says HELLO: CAID_ERR_TIMEOUT where the daemon does not answer. No CUDA library is
 * loaded before the first array is mapped. */
int caid_connect(struct caid_client **ret, const struct caid_connect_options *options,
                 struct caid_error *error);

/* Ends the connection and with it every lease, after the closes that wait for the GPU; what cannot
 * be waited for (a capture is under way) stays mapped for good. Arrays of this client that are
 * still open stay mapped until caid_array_close(); the client's memory goes with the last of them,
 * and the daemon gives theirs to nobody before this process has exited. Calls `gone` of parts. */
void caid_client_close(struct caid_client *client);

/* A file descriptor that is readable when caid_client_dispatch() has something to do, and when a
 * watch without fn has news since the last dispatch. Always the same. -EPERM after fork(). */
int caid_client_get_fd(struct caid_client *client);
/* Handles what has come from the daemon, without blocking, and calls the callbacks of watches that
 * have news, and of parts that are gone (arena.h), with no lock held. -ECONNRESET: no daemon. */
int caid_client_dispatch(struct caid_client *client, struct caid_error *error);
int caid_client_ping(struct caid_client *client, struct caid_error *error); /* a round trip */

/* The daemon's devices, borrowed, fixed for the life of the connection. Returns their number. */
int caid_client_devices(const struct caid_client *client,
                        const struct caid_device *const **ret);

/* What the daemon is, as it said when the client connected. Fields are only appended. */
struct caid_daemon {
    const char *driver;                 /* "cuda", "soft" */
    const char *socket;                 /* that this client is connected to */
    const char *pool;                   /* the caller's own */
    const char *machine_id, *daemon_id; /* as in caid_status; "": of an old one */
};

/* Borrowed, fixed for the life of the connection. Asks nobody. */
const struct caid_daemon *caid_client_daemon(const struct caid_client *client);

int caid_client_status(struct caid_client *client, struct caid_status *ret,
                       struct caid_error *error);

/* ---- arrays ---- */

enum caid_array_flags {
    CAID_ARRAY_EXCLUSIVE = 1,   /* a block of its own, shared with no other array */
    CAID_ARRAY_ATTACH_HOST = 2, /* "managed" only: CU_MEM_ATTACH_HOST, not _GLOBAL */
};

/* Types that the array interface has no word for, by the names of ml_dtypes: a typestr, too. What
 * has fewer than 8 bits takes a byte; an element of the three with an _X is that many, packed. */
#define CAID_BFLOAT16           "bfloat16"
#define CAID_COMPLEX32          "complex32"
#define CAID_FLOAT8_E3M4        "float8_e3m4"
#define CAID_FLOAT8_E4M3        "float8_e4m3"
#define CAID_FLOAT8_E4M3FN      "float8_e4m3fn"
#define CAID_FLOAT8_E4M3B11FNUZ "float8_e4m3b11fnuz"
#define CAID_FLOAT8_E4M3FNUZ    "float8_e4m3fnuz"
#define CAID_FLOAT8_E5M2        "float8_e5m2"
#define CAID_FLOAT8_E5M2FNUZ    "float8_e5m2fnuz"
#define CAID_FLOAT8_E8M0FNU     "float8_e8m0fnu"
#define CAID_FLOAT6_E2M3FN      "float6_e2m3fn"
#define CAID_FLOAT6_E3M2FN      "float6_e3m2fn"
#define CAID_FLOAT4_E2M1FN      "float4_e2m1fn"
#define CAID_FLOAT4_E2M1FN_X2   "float4_e2m1fn_x2"
#define CAID_FLOAT6_E2M3FN_X4   "float6_e2m3fn_x4"
#define CAID_FLOAT6_E3M2FN_X4   "float6_e3m2fn_x4"
#define CAID_INT4               "int4"
#define CAID_UINT4              "uint4"
#define CAID_INT2               "int2"
#define CAID_UINT2              "uint2"
#define CAID_INT1               "int1"
#define CAID_UINT1              "uint1"

/* `memory` says where an array lies:
 *   "device"   memory of the device, mapped by an fd (cuMemCreate). The default.
 *   "legacy"   the same, opened by a 64-byte handle (cuIpcOpenMemHandle), which retains the
 *              device's primary context. A read-only lease is no more than a promise. Only in pools
 *              that caid.conf(5) allows it (else CAID_ERR_PERMISSION).
 *   "pinned"   page-locked host memory, at host_ptr of the info, shared by a memfd that each client
 *              registers (cuMemHostRegister). ptr is its address on the device.
 *   "mapped"   the same, said to be for kernels: it exports the CUDA array interface.
 *   "managed"  managed memory (cuMemAllocManaged) of this process alone: no name, no daemon. */
struct caid_create_options {
    size_t struct_size;
    const char *name; /* NULL: unnamed, ends with its last holder */
    const char *pool;
    int32_t device;
    uint32_t flags; /* enum caid_array_flags */
    const char
        *typestr; /* as in NumPy's array interface, "<f4", "|u1", "|V12"; or CAID_BFLOAT16 … */
    const char *descr;    /* NULL, or the fields of a "V" type as JSON: [["x", "<f4"], ...] */
    const int64_t *shape; /* ndim extents, none negative */
    /* NULL: C order; else ndim byte steps, none negative, and multiples of the element's alignment:
     * its size, 16 at most; 4 of "U", 1 of "S" and "V". */
    const int64_t *strides;
    uint32_t ndim;        /* at most 32 */
    const char *memory;   /* see above; NULL: "device" */
    uint64_t alignment;   /* bytes, a power of 2 up to 2 MiB; 0: 512 */
    const char *metadata; /* NULL, or up to 4,096 bytes of UTF-8 that go with the array */
    uint64_t ttl_ns;      /* of the name: caid_expire(); 0: it stays */
    bool host_only;       /* as caid_open_options */
};

/* Creates an array, mapped read-write. Its contents are undefined until written. A name is taken
 * exclusively: CAID_ERR_EXISTS. A named array outlives its creator until it is unlinked. One that
 * was made and then cannot be mapped is unlinked again. Where the daemon has no memory left, it
 * waits for the closes of this client that wait for the GPU, and tries once more. */
int caid_array_create(struct caid_client *client, struct caid_array **ret,
                      const struct caid_create_options *options, struct caid_error *error);

struct caid_open_options {
    size_t struct_size;
    const char *pool;
    const char *mode;    /* NULL or "r": read-only mapping; "rw" */
    uint64_t generation; /* this one and no other; 0: the name's current one */
    /* The device here that is to reach the memory, over the peer link where it is another; given as
     * to caid_client_parse_device(), most often by its UUID.
     * NULL: the array's own device, or, where this process does not see that one
     * (CUDA_VISIBLE_DEVICES), the first that it sees. */
    const char *device_uuid;
    bool keep; /* caid_array_take(): the ticket stays valid, for other receivers */
    /* "pinned" memory is mapped for the host alone: no driver is called, and need be there, until
     * caid_array_register(). Till then ptr is host_ptr. Nothing where device_uuid is given. */
    bool host_only;
};

int caid_array_open(struct caid_client *client, struct caid_array **ret, const char *name,
                    const struct caid_open_options *options, struct caid_error *error);
/* All of them or none, in as few messages as they fit in. */
int caid_array_open_many(struct caid_client *client, struct caid_array **ret_arrays,
                         const char *const *names, size_t n,
                         const struct caid_open_options *options, struct caid_error *error);

/* Memory that was mapped for the host alone is a device's, too; nothing for other memory.
 * CAID_ERR_UNSUPPORTED: the device has it at another address than the host. CAID_ERR_DEVICE. */
int caid_array_register(const struct caid_array *array, struct caid_error *error);

/* Ends the lease and the array object; its pointer is not to be used afterwards. Work that was
 * enqueued before may still use it: the daemon is told when the primary context of the device (of
 * all devices, if it is "pinned", "mapped" or "managed"), and the context that is current to this
 * thread, have drained; that one has to live until then. A thread of the client waits for that: the
 * call never blocks on the daemon or the GPU, but after caid_client_close(), or when no thread can
 * be started. Where CUDA cannot say whether a context has drained, the array keeps its lease and
 * its mapping until the process exits. The attempt ends a capture of a graph in the context: who
 * captures closes by caid_array_close_on(). */
void caid_array_close(struct caid_array *array);
/* The same, where work on this stream alone still uses the array: a CUstream, 1 the legacy default
 * stream, 2 the per-thread one. On failure (0 is refused as ambiguous) the array stays open. */
int caid_array_close_on(struct caid_array *array, uint64_t stream, struct caid_error *error);
/* Closes an array of no bytes when the lease of `with` ends, another array of the client, which
 * stays open: for a set whose members are used by the address of one. On failure it stays open.
 * CAID_ERR_INVALID: it has bytes, or its publication is under way (caid_array_publish_behind()). */
int caid_array_close_with(struct caid_array *array, struct caid_array *with,
                          struct caid_error *error);

struct caid_array_info {
    uint64_t ptr;    /* CUdeviceptr of the first element; 0 for an array of no bytes */
    uint64_t nbytes; /* elements times itemsize */
    uint64_t itemsize;
    uint32_t ndim;
    int32_t device;
    const int64_t *shape;   /* ndim extents */
    const int64_t *strides; /* ndim byte steps, always given */
    const char *typestr;
    const char *descr, *name; /* or NULL */
    const char *pool;
    uint64_t generation; /* of the name */
    uint64_t block;      /* the daemon's id of the memory; 0 for an array of no bytes */
    uint64_t offset;     /* bytes from the block's start */
    bool readonly;
    const char *memory;     /* "device", "legacy", "pinned", "mapped", "managed" */
    const char *metadata;   /* or NULL */
    void *host_ptr;         /* of the first element, where the host reaches it; else NULL */
    int32_t mapped_ordinal; /* CUDA's here, of the device that ptr is for; -1: none */
    int32_t mapped_device;  /* the same as an index; -1: none that the daemon has */
    uint32_t uid;           /* who created it */
    uint64_t members;       /* arrays of a set: caid_publish_many(); 0: it is none */
    /* Of a set whose arrays are all parts of one array: the same number for all sets of the same
     * keys, types, shapes and places in it, so that what is known of one version's need not be
     * asked for another's. It is no proof that they are the same. 0: it is no such set. */
    uint64_t layout;
    uint64_t block_size; /* bytes of the block, all of which are mapped; 0: no bytes */
};

/* Lives as long as the array, and does not change, but for ptr by caid_exchange(). After
 * caid_array_publish() this returns another one, with the new name, generation and metadata; what
 * was returned before stays as it was. */
const struct caid_array_info *caid_array_get_info(const struct caid_array *array);

struct caid_ipc_handle {
    uint8_t handle[64];    /* a CUipcMemHandle, for any process but caid's */
    uint64_t offset, size; /* bytes: of the first element in what it opens, of all of that */
};

/* The handle of a "legacy" array (else CAID_ERR_UNSUPPORTED). Good as long as the array. */
int caid_array_ipc_handle(const struct caid_array *array, struct caid_ipc_handle *ret,
                          struct caid_error *error);

/* ---- publishing ---- */

enum caid_publish_flags {
    CAID_PUBLISH_NEW = 1 << 0, /* CAID_ERR_EXISTS where the name is taken */
    /* A set whose members are all parts of one array (caid_set_create()): where memory is short,
     * the daemon drops it if nobody has it open, and opening it is CAID_ERR_DROPPED.
     * caid_list_lost() tells what it was; who opens it makes it again. */
    CAID_PUBLISH_DROPPABLE = 1 << 1,
};

struct caid_publish_options {
    size_t struct_size;
    const char *metadata; /* NULL: the array's own stays */
    /* Work that writes the array: waited for. 0: all work of the device's context. */
    uint64_t stream;
    /* An array "rw" without a name, of the same pool and creator, that this one keeps from now on:
     * its companion, which whoever has this one open can open. NULL: none, or the one it has. */
    struct caid_array *companion;
    uint32_t flags;  /* enum caid_publish_flags */
    uint64_t ttl_ns; /* of the name: caid_expire(); 0: it stays */
    /* Of a droppable set: in a pool, those of a lower priority are dropped first, then those that
     * take fewer bytes and less time to make again. */
    uint64_t priority, reload_ns;
    uint64_t after; /* the generation that the name was dropped at, or CAID_ERR_STALE; 0: any */
};

/* Puts the array under a name of its pool, at once and as a whole: whoever opens the name before
 * gets what was there, which lives on as long as somebody holds it; whoever opens it after gets
 * this array. The name's generation goes up by one (a new name starts above all that were taken
 * away in its pool). An array that had another name gives that up. Waits on the host for the work
 * that writes it. */
int caid_array_publish(struct caid_array *array, const char *name,
                       const struct caid_publish_options *options, uint64_t *ret_generation,
                       struct caid_error *error);

/* The same, and returns at once: a thread of the client publishes the array when the work that is
 * on the stream by now (0: in all primary contexts, and in the one that is current to this thread)
 * has landed; not, if the work has failed. Publications of a client are made in the order of these
 * calls, over a restart of the daemon, too. caid_client_close() waits for the work, and up to ten
 * seconds for the daemon. An array that is closed before keeps its lease until then; a companion
 * has to stay open. Where no thread can be started, the call waits. CAID_ERR_INVALID: the array's
 * last publication is under way yet. */
int caid_array_publish_behind(struct caid_array *array, const char *name,
                              const struct caid_publish_options *options,
                              struct caid_error *error);
/* Waits for the result of the last of these calls: the generation, or what the publication failed
 * with. It may be asked for again. CAID_ERR_TIMEOUT: not yet. CAID_ERR_INVALID: there is none. */
int caid_array_publish_wait(struct caid_array *array, uint64_t timeout_ns,
                            uint64_t *ret_generation, struct caid_error *error);

/* The companion that an array was published with, in the mode in which that is open.
 * CAID_ERR_NOT_FOUND: it has none. */
int caid_array_open_companion(struct caid_array *array, struct caid_array **ret,
                              struct caid_error *error);

/* ---- sets ---- */

/* Puts n arrays of one pool under names that change in one step, all or none: each name is the
 * set's, then the array's key; together at most 255 bytes. The set, an array of no bytes, is under
 * `name`, which ends in "/" (else CAID_ERR_INVALID_NAME). All names have its generation, and it has
 * the metadata of the options, which have no companion. What had the name loses it, a set all of
 * its names; a process that holds that set opens its arrays as before. An array may be in several
 * sets, and have a name of its own.
 *
 * A set owns all names that begin with its own: others are refused under it, and CAID_ERR_EXISTS
 * says that there is one already. Sets are not nested. A set has 1 to 262,144 arrays, each of which
 * is charged as a name. On failure nothing is left. Waits for work as caid_array_publish() does. */
int caid_publish_many(struct caid_client *client, const char *name, const char *const *keys,
                      struct caid_array *const *arrays, size_t n,
                      const struct caid_publish_options *options, uint64_t *ret_generation,
                      struct caid_error *error);

/* One array of a set that is made of parts of another array, the whole. */
struct caid_member {
    const char *key;
    uint64_t offset;             /* bytes from the first byte of the whole */
    const char *typestr, *descr; /* as of caid_create_options */
    uint32_t ndim;
    const int64_t *shape, *strides; /* ndim each; strides NULL: C order */
};

/* Makes a set without a name, whose n arrays are parts of `whole`, which is open "rw", and was made
 * by this uid; they may overlap. The set is opened "rw": caid_array_publish() puts it under a name,
 * which ends in "/" and owns what begins so, and waits for the work on the whole. It may be
 * published again and again, and is the same set each time, with another generation. The set keeps
 * its arrays, and these the memory of the whole, when that is closed. Charges: an array and a name
 * for each. On failure nothing is left. */
int caid_set_create(struct caid_client *client, struct caid_array **ret,
                    struct caid_array *whole, const struct caid_member *members, size_t n,
                    struct caid_error *error);
/* Waits until the arrays of one of several sets may be written again, the first where there are
 * more: until nobody but this client can reach them. `sets` are of parts of one array each, open
 * "rw", were published, and have lost their name to another set; `own` are other arrays of this
 * client's that are open there, and do not count: the whole, or arrays of the set. All else counts:
 * other leases on the set, its arrays, the whole and other parts of that, also by tickets and
 * references, and of processes that have hung up and not exited; names of these; other sets that
 * they are in; and GPU work that has been enqueued by readers' brackets. Mappings do not count,
 * such as caid_array_keep_mapping() has. *ret_which is the place of the set in `sets`; ret_which
 * may be NULL. Afterwards nobody gets that set, until it is published again; its old generation is
 * gone.
 *
 * timeout_ns: CAID_FOREVER, or how long the call may wait; CAID_ERR_TIMEOUT then names processes
 * that have them. 0 does not wait. CAID_ERR_INVALID: one has its name, since it is the current
 * version, or gets it meanwhile; is no set of parts of one array; or another thread waits for it
 * already. CAID_ERR_CANCELLED: caid_set_cancel(). At most 64 sets are waited for. */
int caid_set_vacate(struct caid_client *client, struct caid_array *const *sets, size_t n_sets,
                    struct caid_array *const *own, size_t n_own, uint64_t timeout_ns,
                    size_t *ret_which, struct caid_error *error);
/* Ends waits of other threads in caid_set_vacate() for the set, or, where it is NULL, for all sets
 * of the client's, now and from now on. Both are to be closed then. */
void caid_set_cancel(struct caid_client *client, struct caid_array *set);
/* Opens arrays of the set that was opened as `set`, by their keys, whether it has its name yet or
 * not; all or none, at most in its mode. The options name no pool and no generation. */
int caid_set_open_many(struct caid_array *set, struct caid_array **ret_arrays,
                       const char *const *keys, size_t n,
                       const struct caid_open_options *options, struct caid_error *error);

#define CAID_TICKET_SIZE 16 /* bytes */

/* Makes a ticket for the array: random bytes by which one process takes it over, once, in the mode
 * in which it is open here or for reading. The ticket keeps the array until it is taken or
 * withdrawn, whether this client is there or not: it runs out `ticket_ttl` after its connection has
 * ended (10 minutes), and where `ticket_age` is set that long from now (caid.conf(5)). It is
 * charged to the uid as a lease. Waits for no work: that is for brackets. Where the sender dies
 * before its work on the array is done, the array arrives abandoned. */
int caid_array_send(struct caid_array *array, uint8_t ret_ticket[CAID_TICKET_SIZE],
                    struct caid_error *error);
/* The same for any number of receivers, which take it with `keep`. The ticket stays until its maker
 * takes it without `keep`, or until `ticket_ttl` after its maker has gone. */
int caid_array_refer(struct caid_array *array, uint8_t ret_ticket[CAID_TICKET_SIZE],
                     struct caid_error *error);

/* Takes over what a ticket is for. The options name no pool and no generation. CAID_ERR_NOT_FOUND:
 * it was taken or withdrawn, has run out, or the caller may not open arrays of its pool;
 * CAID_ERR_PERMISSION: "rw" of what was sent "r". One that cannot be mapped here is lost. */
int caid_array_take(struct caid_client *client, struct caid_array **ret,
                    const uint8_t ticket[CAID_TICKET_SIZE],
                    const struct caid_open_options *options, struct caid_error *error);

struct caid_withdraw_options {
    size_t struct_size;
    uint64_t pid; /* tickets that this process has sent; 0: any */
    bool gone;    /* tickets whose sender has gone */
};

/* Ends tickets that nobody has taken. Without options those that this client has sent, but not
 * caid_array_refer()'s; else those of the caller's uid, or of all for root and the daemon's own,
 * that the options say, whatever made them. ret_n may be NULL: how many it were. */
int caid_withdraw(struct caid_client *client, const struct caid_withdraw_options *options,
                  uint64_t *ret_n, struct caid_error *error);

struct caid_change {
    char name[256]; /* at most 255 bytes */
    const char *pool;
    uint64_t generation; /* 0: there is no array of that name now */
};

/* Watches a name, which need not exist. fn is called from caid_client_dispatch() when the name's
 * generation is another than it was told last, first for one that is there already: always the
 * latest, in between some may be left out. fn may be NULL for those who call caid_watch_next().
 * *ret is set before fn can be called, and fn may close the watch. */
int caid_watch_new(struct caid_client *client, struct caid_watch **ret, const char *name,
                   const char *pool,
                   void (*fn)(const struct caid_change *change, void *userdata), void *userdata,
                   struct caid_error *error);
/* The same for all names that begin with the prefix ("": all of the pool), members of sets among
 * them: each change is of one name. Whenever some have changed, the daemon is asked for all names
 * with the prefix. */
int caid_watch_prefix(struct caid_client *client, struct caid_watch **ret, const char *prefix,
                      const char *pool,
                      void (*fn)(const struct caid_change *change, void *userdata),
                      void *userdata, struct caid_error *error);
/* Waits for news of this watch, at most timeout_ns (UINT64_MAX: for ever), and takes them.
 * CAID_ERR_TIMEOUT; CAID_ERR_CANCELLED when the watch is closed meanwhile. */
int caid_watch_next(struct caid_watch *watch, uint64_t timeout_ns, struct caid_change *ret,
                    struct caid_error *error);
/* Wakes whoever waits in caid_watch_next(); no call of fn begins afterwards. */
void caid_watch_close(struct caid_watch *watch);

/* ---- names ---- */

/* Removes a name; processes that have the array open keep it. */
int caid_unlink(struct caid_client *client, const char *name, const char *pool,
                struct caid_error *error);

/* Gives an array another name of its pool, at once: nobody sees both names or neither. Holders keep
 * it, and it keeps its metadata and its state ("abandoned"). A name that is taken is
 * CAID_ERR_EXISTS, or with replace given over as by caid_array_publish(). The caller need not have
 * the array open. Nothing is copied, and no work is waited for: use caid_array_publish() for what
 * this process writes. ret_generation: of the new name, or NULL. */
int caid_rename(struct caid_client *client, const char *name, const char *to, const char *pool,
                bool replace, uint64_t *ret_generation, struct caid_error *error);

/* Gives a name a time to live: when it is over, the daemon unlinks the name, whether or not this
 * process is still there. Time that the machine sleeps counts (CLOCK_BOOTTIME). The time belongs to
 * the array that has the name: a rename keeps it, and publishing over the name ends it, unless that
 * gives another one. ttl_ns 0: the name stays. generation: this one and no other
 * (CAID_ERR_STALE), or 0. The pool has to be writable, as for caid_unlink(). ret_generation: of the
 * name, or NULL. */
int caid_expire(struct caid_client *client, const char *name, const char *pool,
                uint64_t generation, uint64_t ttl_ns, uint64_t *ret_generation,
                struct caid_error *error);

struct caid_list_options {
    size_t struct_size;
    const char *pool;
    const char *prefix; /* NULL: all names */
    bool all;           /* every pool that the caller may read; pool is ignored */
};

/* Calls fn for each name, in byte order, pool by pool; what fn is given lives for the call. No lock
 * is held meanwhile: fn may call this library, and may wait for a thread that does. A value other
 * than 0 from fn ends the list and is returned. */
int caid_list(struct caid_client *client, const struct caid_list_options *options,
              int (*fn)(const struct caid_entry *entry, void *userdata), void *userdata,
              struct caid_error *error);
/* Like caid_list() for the keys of a set that was opened, in place of names. */
int caid_set_list(struct caid_array *set,
                  int (*fn)(const struct caid_entry *entry, void *userdata), void *userdata,
                  struct caid_error *error);

/* Like caid_list() for one name; fn is called once. */
int caid_show(struct caid_client *client, const char *name, const char *pool,
              int (*fn)(const struct caid_details *details, void *userdata), void *userdata,
              struct caid_error *error);
/* Like caid_list() for the arrays that never had a name or have none any more, with the holders of
 * their memory; entry.name is the last name, "" if there was none. prefix is ignored. */
int caid_unnamed(struct caid_client *client, const struct caid_list_options *options,
                 int (*fn)(const struct caid_details *details, void *userdata), void *userdata,
                 struct caid_error *error);

/* Like caid_list() for memory, block by block: all that lies in it, from offset to offset + bytes,
 * without a gap. entry has pool, device and memory in any case, name and the rest for "array",
 * "dead" and "pending". prefix is ignored. state is "array", "creating" (its memory is on its way),
 * "dead" (nobody has it, but work that may use it goes on), "pending" (to be freed), "free",
 * "aside" (free, unless its user before a restart comes back), or "many" (all that follows the
 * first 2,047 ranges of a block). */
int caid_ranges(struct caid_client *client, const struct caid_list_options *options,
                int (*fn)(const struct caid_details *details, void *userdata), void *userdata,
                struct caid_error *error);

/* Like caid_list() for tickets that nobody has taken: of the caller's uid, or of all for root and
 * the daemon's own. */
int caid_tickets(struct caid_client *client,
                 int (*fn)(const struct caid_ticket *ticket, void *userdata), void *userdata,
                 struct caid_error *error);

/* Like caid_list() for the names whose arrays did not come back from an earlier daemon, until they
 * are unlinked or given to arrays anew: opening one is CAID_ERR_LOST; and for those of droppable
 * sets that made room: CAID_ERR_DROPPED. */
int caid_list_lost(struct caid_client *client, const struct caid_list_options *options,
                   int (*fn)(const struct caid_lost *lost, void *userdata), void *userdata,
                   struct caid_error *error);

/* Like caid_list(): the caller's uid, or all of them for root and the daemon's own uid. */
int caid_users(struct caid_client *client,
               int (*fn)(const struct caid_user *user, void *userdata), void *userdata,
               struct caid_error *error);

/* Like caid_list(): the connections of the caller's uid, or all of them for root and the daemon's
 * own uid, by number. */
int caid_connections(struct caid_client *client,
                     int (*fn)(const struct caid_connection *connection, void *userdata),
                     void *userdata, struct caid_error *error);
/* Ends the connection with that number, by caid_connections(). Its client's calls fail with
 * CAID_ERR_KICKED, and the client does not come back, also not to a daemon that is started later;
 * its program may connect anew. What the client has open stays until its process has exited, since
 * the GPU may use it. CAID_ERR_NOT_FOUND: the connection is none of the caller's, or has ended. */
int caid_kick(struct caid_client *client, uint64_t conn, struct caid_error *error);

/* Like caid_list() for the pools that the caller may read. */
int caid_pools(struct caid_client *client,
               int (*fn)(const struct caid_pool *pool, void *userdata), void *userdata,
               struct caid_error *error);

/* Like caid_list(): what has been counted since the daemon's start, and what there is, of all users
 * together, of those of caid_users(), and of the pools of caid_pools(). */
int caid_metrics(struct caid_client *client,
                 int (*fn)(const struct caid_metric *metric, void *userdata), void *userdata,
                 struct caid_error *error);

int caid_memory_info(struct caid_client *client, int32_t device, struct caid_memory_info *ret,
                     struct caid_error *error);

/* Memory that nobody holds is not given back at once: it waits in a queue (caid.conf(5):
 * max_pending_*). Frees what waits in that of a device (-1: of all) and the empty blocks: those of
 * the caller's uid, or all for root and the daemon's own uid. Waits for this client's closes first.
 * What caid_defer_begin() holds back stays. ret may be NULL. CAID_ERR_DRIVER: a release failed. */
int caid_flush(struct caid_client *client, int32_t device, struct caid_flushed *ret,
               struct caid_error *error);
/* From now on the daemon makes no array, for nobody: a create is CAID_ERR_SHUTDOWN. Those that are
 * there go on, and may be opened, published and used until the last has gone; caid_users() says
 * whose are left. drain false: arrays are made again. It ends with the daemon. For root and the
 * daemon's own uid; CAID_ERR_PERMISSION. */
int caid_drain(struct caid_client *client, bool drain, struct caid_error *error);
/* Holds back what waits in the queues for the caller's uid, until as many calls of
 * caid_defer_end(), or the end of the connection. Ending flushes nothing by itself. */
int caid_defer_begin(struct caid_client *client, struct caid_error *error);
int caid_defer_end(struct caid_client *client, struct caid_error *error);

/* ---- addresses ---- */

/* Takes the blocks that the arrays lie in out of this process, once the work of the arrays'
 * contexts is done, and keeps their leases and their addresses, which nobody may use before
 * caid_map_many(). The memory itself stays. CAID_ERR_INVALID: there are other arrays in those
 * blocks that this client has open; opening one later maps its block again. CAID_ERR_UNSUPPORTED:
 * no device memory. */
int caid_unmap_many(struct caid_array *const *arrays, size_t n, struct caid_error *error);
/* Maps the blocks again at their addresses: CUDA graphs that were captured before stay valid. */
int caid_map_many(struct caid_array *const *arrays, size_t n, struct caid_error *error);
/* Whether the array is mapped; one without memory counts as mapped. */
bool caid_array_is_mapped(const struct caid_array *array);

struct caid_mapping;

/* Keeps the block that the array lies in mapped, also when this client has no array in it any more,
 * so that the next open in it makes no driver call. That is no lease: the daemon may free the
 * memory meanwhile, or give it to others of the pool, and the addresses may not be used without an
 * array there. What the daemon has freed is the driver's again when the mapping is released, too.
 * CAID_ERR_UNSUPPORTED: the array has no memory of a device. */
int caid_array_keep_mapping(struct caid_array *array, struct caid_mapping **ret,
                            struct caid_error *error);
/* By any thread, also after caid_client_close(). NULL is allowed. */
void caid_mapping_release(struct caid_mapping *mapping);

/* Puts the block of the `new` arrays where that of the `old` ones is, and that one where the new
 * one was: info->ptr of each changes. Pointers, tensors and CUDA graphs that have the old
 * addresses find the new block's contents there. Between the call and its return no thread may
 * enqueue work on either, or capture a graph: work on memory that is not mapped ends the
 * process's contexts. Copies and begins of brackets by this client wait meanwhile. It waits on
 * the host for all work of the primary contexts of the devices that the blocks are mapped for,
 * and of the thread's current one.
 *
 * `old` and `new` are all arrays that this client has open in the two blocks; those without
 * bytes do not count. Before anything is touched it fails with CAID_ERR_INVALID: others are
 * open, or one is in a bracket; the sizes of the blocks differ, or the modes and devices for
 * which they are open; one is unmapped; a stream captures a graph, of `streams` or a blocking
 * one. (No call tells of other streams' captures, and the wait ends these: then, too, it fails.)
 * CAID_ERR_UNSUPPORTED: no memory of a device.
 *
 * If mapping fails, both blocks are mapped again where they were, and the call fails. If that
 * fails, too, they stay unmapped, with their addresses: caid_array_is_mapped(). */
int caid_exchange(struct caid_client *client, struct caid_array *const *old, size_t n_old,
                  struct caid_array *const *new_, size_t n_new, const uint64_t *streams,
                  size_t n_streams, struct caid_error *error);

/* Prepares the process for the driver's checkpoint (cuCheckpointProcessCheckpoint()), which cannot
 * be restored while there are handles of others' memory: waits for the work of brackets, of the
 * devices' primary contexts and of the thread's current one, unmaps all arrays, and gives back
 * every handle and registration. Addresses, leases and the connection stay, and what others see is
 * as before. Shared memory is not in the checkpoint, and stays on the GPU.
 *
 * From the call on, until caid_client_resume(), creates, opens, copies, brackets, new timelines and
 * channels, and allocations of arenas are CAID_ERR_NOT_READY; closes, and what only asks the
 * daemon, go on. No other thread may enqueue work meanwhile, by this library or another one, or
 * capture a graph. Every client of the process has to be suspended, or closed.
 *
 * CAID_ERR_INVALID, and the text names it: a bracket is not over, a channel or a timeline that this
 * client has made is open, or a stream captures a graph. CAID_ERR_UNSUPPORTED: an array is legacy
 * memory. CAID_ERR_UNKNOWN_METHOD: the daemon is too old. CAID_ERR_TIMEOUT: after timeout_ns (or
 * CAID_FOREVER) a stream still waits for another process, or has a signal yet to store. Other work
 * is waited for without a limit. CAID_ERR_CLOSED: another thread has closed the client meanwhile.
 * After a failure the client is as before; if its arrays cannot be mapped again, it is suspended,
 * and caid_client_resume() tries once more. */
int caid_client_suspend(struct caid_client *client, uint64_t timeout_ns,
                        struct caid_error *error);
/* Maps the arrays again at their addresses: pointers, tensors and CUDA graphs are good as before.
 * It asks the daemon for the memory, and waits for one that has gone and comes back. Then it calls
 * fn, unless NULL, for each name of an open array that another array has by now, or (generation 0)
 * none: what is open is what it was. A set is told of for all of its members that are open.
 * CAID_ERR_FORKED: another pid (the process was restored elsewhere). CAID_ERR_INVALID: it is not
 * suspended. After a failure it is still so, with some of its arrays mapped, and the call may be
 * made again. An array whose memory was lost with an earlier daemon stays unmapped. */
int caid_client_resume(struct caid_client *client,
                       void (*fn)(const struct caid_change *change, void *userdata),
                       void *userdata, struct caid_error *error);

/* A dma-buf of the block that the array has for itself: *ret_fd, CLOEXEC, which the caller closes;
 * the array's first byte is at *ret_offset. A network card is given it, for example. Whoever has
 * it, or gets it, may read and write the memory for as long as he likes, whatever becomes of the
 * array, of this process, and of the daemon. So the daemon notes it first: the block serves no
 * other array any more, goes to the driver when this one ends, and is not charged from then on.
 * CAID_ERR_INVALID: the array shares its block with others (it is small, and was made without
 * CAID_ARRAY_EXCLUSIVE), lies in another one's memory, or is unmapped. CAID_ERR_READ_ONLY.
 * CAID_ERR_NOT_READY: the client is suspended.
 * CAID_ERR_UNSUPPORTED: no memory of a device; the driver makes none, which the message says. */
int caid_array_dmabuf(struct caid_array *array, int *ret_fd, uint64_t *ret_offset,
                      struct caid_error *error);

struct caid_reservation;

/* Addresses of this process for device memory, `size` bytes of them, rounded up to 2 MiB, from
 * `address` on, or (0) where there are some: *ret_address. Several processes that reserve the
 * same ones, and open the same arrays in them, have these at the same addresses.
 * CAID_ERR_INVALID: they are not free here (cuMemAddressReserve()). */
int caid_reserve(struct caid_client *client, size_t size, uint64_t address,
                 struct caid_reservation **ret, uint64_t *ret_address,
                 struct caid_error *error);
/* From now on blocks that are mapped for the first time are so there, one after another; with NULL
 * anywhere. CAID_ERR_INVALID: another one is in use; of a call that maps, that there is no room. */
int caid_reservation_use(struct caid_client *client, struct caid_reservation *reservation,
                         struct caid_error *error);
/* The addresses are freed when nothing is mapped there any more. NULL is allowed. */
void caid_reservation_free(struct caid_reservation *reservation);

/* ---- data ---- */

/* Copies run on the primary context of the array's device, which they retain on first use, and have
 * happened when the call returns. dst or src has info->nbytes bytes, elements in C order whatever
 * the strides are. */
int caid_array_copy_to_host(struct caid_array *array, void *dst, size_t nbytes,
                            struct caid_error *error);
int caid_array_copy_from_host(struct caid_array *array, const void *src, size_t nbytes,
                              struct caid_error *error);

struct caid_copy {
    size_t struct_size;
    uint64_t dst, src; /* addresses of the first elements */
    bool dst_on_host, src_on_host;
    const int64_t *dst_strides, *src_strides; /* bytes; NULL: C order */
    const int64_t *shape;
    uint32_t ndim, itemsize;
    int32_t device; /* its primary context makes the copy */
    /* 0: the copy has happened when the call returns. Else a stream (handoff.h): the copy is
     * enqueued there, and what it reads and writes on the host has to stay until the stream has
     * come past it. From host to host the call waits for the stream, then copies. */
    uint64_t stream;
};

/* Copies ndim dimensions from src to dst, which may not overlap. With src_strides that are all 0 an
 * element is repeated: from the host to a device, that is a fill, of few driver calls. */
int caid_copy(struct caid_client *client, const struct caid_copy *copy,
              struct caid_error *error);

int caid_softcuda_path(char *ret_path, size_t size); /* the software driver's file; -ENOENT */

#include "caid/arena.h"
#include "caid/channel.h"
#include "caid/handoff.h"

#ifdef __cplusplus
}
#endif

#endif
