/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extension _caid: libcaid for Python, thin. Types and their relations:
 *
 *   Client      one struct caid_client; ends with close() or with the object
 *   Lease       one struct caid_array; holds its Client alive; ends with its last share
 *   HostView    host memory of a Lease as a buffer; has a share of the Lease
 *   Stream, Event, Timeline, Bracket, Watch (handle.h)
 *               things of libcaid's that belong to a client; each holds its Client alive
 *   Mark        an event on a stream, behind work of this process; holds its Client alive
 *   Tensor      what another library gave by DLPack; given back with the object
 *   HostMemory  page-locked memory of this process as a buffer; holds its Client alive
 *   Channel, Frame (channel.h)
 *               one struct caid_channel, a thing as those above; and one of its frames, which
 *               holds it
 *   Arena, Allocation (arena.h)
 *               one struct caid_arena, a thing as those above; and a piece of its memory, which
 *               holds it
 *
 * What these files share is named py_: libcaid is linked in whole, with names of its own.
 *
 * All module state is in struct module_state, every type is a heap type, and every call that
 * talks to the daemon or the driver, or that takes a lock of libcaid, is made without the GIL:
 * a thread that waits for such a lock with the GIL held could wait for a thread that needs it.
 */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include <caid/caid.h>
#include <cuda/local.h>

/* Runs statements without the GIL, so that other threads run Python meanwhile: for calls that
 * may wait. */
#define WITHOUT_GIL(...)                           \
    do {                                           \
        PyThreadState *outer_ = py_waiting;        \
        Py_BEGIN_ALLOW_THREADS py_waiting = _save; \
        __VA_ARGS__;                               \
        py_waiting = outer_;                       \
        Py_END_ALLOW_THREADS                       \
    } while (0)

/* The state of this thread while it runs WITHOUT_GIL(), else NULL. Callbacks take the GIL by it. */
extern _Thread_local PyThreadState *py_waiting;

/* For caid_connect_options: runs Python's signal handlers, and returns whether one of them has
 * raised an exception, or what is waited for was closed (wait.c). A call that fails for that
 * reason raises the exception. A call that succeeds all the same returns its result, and a
 * handler's exception is raised right after it. */
int py_interrupted(void *unused);
/* What this thread waits for in a call of libcaid, or NULL. */
extern _Thread_local struct waiting *py_waits_for;
/* Whether it was closed; notes that. The caller has the GIL. */
bool py_wait_is_cancelled(void);
/* Sets the exception that a signal handler has raised. false: none has. */
bool py_interrupt_raise(void);

#define PY_FASTCALL(f) ((PyCFunction)(void (*)(void))(f))

/* Defines NAME(op), which casts an object to the struct of its type. */
#define PY_CAST(name)                                      \
    static inline struct name##_object *name(PyObject *op) \
    {                                                      \
        return (struct name##_object *)op;                 \
    }                                                      \
    struct name##_object

/* Defines py_NAME_spec, the spec of one of the module's types. Further arguments are slots. */
#define PY_SPEC(name_, Name, flags_, doc, ...)          \
    static PyType_Slot name_##_slots[] = {              \
        {Py_tp_doc, (void *)(uintptr_t)PyDoc_STR(doc)}, \
        __VA_ARGS__,                                    \
        {0, NULL},                                      \
    };                                                  \
    PyType_Spec py_##name_##_spec = {                   \
        .name = Name,                                   \
        .basicsize = sizeof(struct name_##_object),     \
        .flags = Py_TPFLAGS_DEFAULT | (flags_),         \
        .slots = name_##_slots,                         \
    }

/* clang-format off */
#define PY_TYPES(TYPE)                                                            \
    TYPE(client) TYPE(lease) TYPE(host_view) TYPE(watch) TYPE(host_memory)        \
    TYPE(mark) TYPE(tensor) TYPE(stream) TYPE(event) TYPE(timeline) TYPE(bracket) \
    TYPE(arena) TYPE(allocation) TYPE(mapping) TYPE(channel) TYPE(frame)
/* clang-format on */

#define PY_TYPE(name) extern PyType_Spec py_##name##_spec;
PY_TYPES(PY_TYPE)
#undef PY_TYPE

/* One per module object, and so per interpreter. The types own the module, objects own their
 * type: an object may keep a plain pointer to it. */
struct module_state {
#define PY_TYPE(name) PyTypeObject *name##_type;
    PY_TYPES(PY_TYPE)
#undef PY_TYPE
    PyObject *spent;      /* a list: to be dropped by a thread that may call CUDA */
    struct gate *gate;    /* of callbacks: handle.h */
    PyObject *make_error; /* caid._base._errors.make_error */
    bool strict;          /* the software driver's device memory is not for the host */
};

/* The state behind a type of this module, or behind a Python class derived from one. */
struct module_state *py_module_state_of(PyTypeObject *type);

static inline void
py_decrefp(PyObject **op)
{
    Py_XDECREF(*op);
}

#define _cleanup_py_ __attribute__((cleanup(py_decrefp)))

static inline PyObject *
py_take(PyObject **op)
{
    PyObject *taken = *op;
    *op = NULL;
    return taken;
}

/* Returns None, or NULL where r < 0, which means that an exception is set. */
static inline PyObject *
py_none(int r)
{
    if (r < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Slots of types whose objects only C makes, and whose tp_clear drops all references. */
PyObject *py_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
void py_tp_dealloc(PyObject *op);

/* ---- errors (error.c): each sets an exception and returns NULL ---- */

/* Sets the exception for an error of libcaid's. */
PyObject *py_error_raise(const struct module_state *state, int r,
                         const struct caid_error *error);
/* Sets the exception for an error that the extension finds itself. The format is that of
 * PyUnicode_FromFormat(). */
PyObject *py_error_raise_code(const struct module_state *state, enum caid_code code, int errnum,
                              const char *format, ...);

/* ---- conversions (convert.c): -1 with an exception set on failure ---- */

/* Gives a str's UTF-8, borrowed from the str; NULL for None. `what` is the argument's name in
 * messages. A NUL byte or a lone surrogate raises the error of `code`. */
int py_text_get(const struct module_state *state, PyObject *op, const char *what,
                enum caid_code code, const char **ret);

/* A list of extents or byte steps; v is NULL for None. The caller zeroes it first, and deinits
 * it. */
struct dims {
    int64_t *v;
    uint32_t n;
    int64_t few[8]; /* v, where they fit */
};

int py_dims_get(const struct module_state *state, PyObject *op, const char *what,
                struct dims *ret);
/* The same for byte steps. Another number of steps than of dimensions raises InvalidError. */
int py_strides_get(const struct module_state *state, PyObject *op, const char *what,
                   const struct dims *shape, struct dims *ret);
void py_dims_deinit(struct dims *dims);
#define _cleanup_dims_ __attribute__((cleanup(py_dims_deinit)))
PyObject *py_dims_tuple(const int64_t *v, uint32_t n);

/* Members of a set to be, and what they point to. Starts zeroed. */
struct member_list {
    size_t n;
    struct caid_member *v;
    struct member_dims *dims;
};

/* Reads a tuple of (key, offset, typestr, descr, shape, strides), which has to live as long. */
int py_members_init(struct member_list *list, const struct module_state *state,
                    PyObject *members);
void py_members_deinit(struct member_list *list);
#define _cleanup_members_ __attribute__((cleanup(py_members_deinit)))

/* Reads a device index. An int outside int32_t raises DeviceError. */
int py_device_get(const struct module_state *state, PyObject *op, int32_t *ret);

/* Reads an int. One outside uint64_t raises InvalidError. */
int py_u64_get(const struct module_state *state, PyObject *op, const char *what, uint64_t *ret);

/* Reads a name: py_text_get(), but None is refused. */
int py_name_get(const struct module_state *state, PyObject *op, const char *what,
                const char **ret);

/* A str of a C string that need not be UTF-8; None for NULL. */
PyObject *py_text_or_none(const char *s);

/* A positional argument of a method: the variable that it is read into, whose name (of
 * "options.pool" the last word) messages use. Text and objects are borrowed. */
struct py_arg {
    char kind;
    const char *what;
    void *ret;
    enum caid_code code;      /* of text */
    const struct dims *shape; /* of strides */
};

#define PY_ARG(at)                                                                   \
    {                                                                                \
        .kind = _Generic((at), int32_t: 'i', uint32_t: 'I', uint64_t: 'K',         \
                      double: 'd', bool: '?', struct dims: 'D', PyObject *: 'O'), \
     .what = #at,                                                               \
     .ret = &(at) \
    }
#define PY_ARG_OF(kind_, at, ...)                               \
    {                                                           \
        .kind = (kind_), .what = #at, .ret = &(at), __VA_ARGS__ \
    }
#define PY_TEXT(at, code_)     PY_ARG_OF('s', at, .code = CAID_ERR_##code_)
#define PY_POOL(at)            PY_TEXT(at, INVALID_NAME)
#define PY_NAME(at)            PY_ARG_OF('n', at, .code = CAID_ERR_INVALID_NAME) /* not None */
#define PY_TUPLE(at)           PY_ARG_OF('T', at, )
#define PY_STRIDES(at, shape_) PY_ARG_OF('S', at, .shape = &(shape_))

/* Reads the arguments `args`, `n_args` of a method. Another number of them raises TypeError. */
#define PY_ARGS(state, method, ...)                                                \
    py_args_get(state, args, n_args, method, (const struct py_arg[]){__VA_ARGS__}, \
                sizeof((const struct py_arg[]){__VA_ARGS__}) / sizeof(struct py_arg))
int py_args_get(const struct module_state *state, PyObject *const *args, Py_ssize_t n_args,
                const char *method, const struct py_arg *each, size_t n);

PyObject *py_ipc_handle_tuple(const struct caid_ipc_handle *handle);

/* A tuple of all fields of an answer, in their order, which is that of the class in
 * caid/_answers.py. */
struct answer;
PyObject *py_answer(const struct answer *answer, const void *record);

/* ---- Client (client.c) ---- */

struct lease_object;
struct handle_object;
struct keep;

struct client_object {
    PyObject_HEAD
    struct module_state *state;
    struct caid_client *client; /* NULL: closed, or never connected */
    Py_ssize_t n_calls;         /* under way, in threads that gave the GIL up */
    bool closing;               /* closed; the last call under way frees `client` */
    bool leaving;               /* and leaves the memory of its leases as it is */
    bool host_accessible; /* its driver's device memory is the host's: caid.Client says so */
    LIST_HEAD(, lease_object) leases;   /* that have not ended; each takes itself out */
    LIST_HEAD(, handle_object) handles; /* the same */
    LIST_HEAD(, keep) keeps;            /* what parts keep alive: keep.h */
    Py_ssize_t n_keeps;
    _Atomic(struct keep *) gone; /* those of parts that are gone; without the GIL */
    struct gate *gate;           /* for libcaid's thread, as are these */
    PyInterpreterState *interpreter;
    PyObject *reference; /* to itself, weak; NULL before it has connected */
};

static inline struct client_object *
py_client(PyObject *op)
{
    return (struct client_object *)op;
}

/* Enters the client: until it is left, close() by another thread does not free it. For calls
 * without the GIL. NULL with an exception set, as by py_client_check(). */
struct caid_client *py_client_enter(struct client_object *self);
void py_client_leave(struct client_object *self);
/* Leaves the client, and returns what the call returned, r; or -1 with the exception set, where
 * r < 0. */
int py_client_leave_with(struct client_object *self, int r, const struct caid_error *error);

/* Calls libcaid without the GIL; the call uses the client, c, and the error, error. Gives what
 * the call returned, or -1 with an exception set. */
#define PY_CALL(enter, leave, call)      \
    ({                                   \
        struct caid_client *c = (enter); \
        struct caid_error error = {0};   \
        int r_ = -1;                     \
        if (c) {                         \
            WITHOUT_GIL(r_ = (call));    \
            r_ = (leave);                \
        }                                \
        r_;                              \
    })
#define PY_CLIENT_CALL(self, call) \
    PY_CALL(py_client_enter(self), py_client_leave_with(self, r_, &error), call)

bool py_client_is_closed(const struct client_object *self);
/* 0; or -1 with ClosedError set, or with ForkedError in a forked child. The second function is
 * for objects that may outlive their client, and takes NULL. */
int py_client_check(const struct client_object *self);
int py_client_check_process(const struct client_object *self);
/* Whether the host has device memory at the device's address: of the software driver. */
bool py_client_reaches_device(const struct client_object *self);
/* Whether the client is neither closed nor inherited by fork(): then a ResourceWarning is due
 * when it is collected. */
bool py_client_is_live(const struct client_object *self);

/* Methods of Client that other files define: FAST of several arguments, METHOD of one or none.
 * caid/_caid.pyi has their signatures. */
/* clang-format off */
#define PY_CLIENT_METHODS(FAST, METHOD)                                                       \
    FAST(create, "Creates an array: a Lease.")                                                \
    FAST(open, "Opens an array: a Lease.")                                                    \
    FAST(open_many, "Opens arrays, or those of a set: a list of Leases.")                     \
    FAST(take, "Takes what a ticket is for: a Lease.")                                        \
    FAST(publish_many, "Puts arrays of leases under names of a set: its generation.")         \
    FAST(set_create, "Makes a set of parts of a lease's array: a Lease.")                      \
    METHOD(map, METH_O, "Maps the blocks of leases again.")                                   \
    METHOD(unmap, METH_O, "Unmaps the blocks of leases, and keeps their addresses.")          \
    METHOD(suspend, METH_O, "Unmaps everything for a checkpoint, within a timeout.")          \
    METHOD(resume, METH_NOARGS, "Maps it again: (name, pool, generation) of what was replaced.") \
    FAST(vacate, "Waits until nobody else has one of some sets of parts: which.")              \
    FAST(exchange, "Exchanges the addresses of the blocks of two tuples of leases.")          \
    FAST(reserve, "Reserves addresses: (a capsule, the first of them).")                      \
    METHOD(use_reservation, METH_O, "Where blocks are mapped from now on; None: anywhere.")   \
    FAST(read_files, "Reads files into a device's memory, as one of several threads.")        \
    FAST(unlink, "Removes a name.")                                                           \
    FAST(rename, "Gives an array another name: its generation.")                              \
    FAST(expire, "Gives a name a time to live: its generation.")                              \
    FAST(watch, "Watches a name: a Watch.")                                                   \
    FAST(watch_prefix, "Watches all names with a prefix: a Watch.")                           \
    FAST(stream_new, "Creates a CUDA stream: a Stream.")                                      \
    FAST(stream_wrap, "Wraps a stream of another library: a Stream.")                         \
    FAST(event_new, "Creates a CUDA event: an Event.")                                        \
    FAST(event_open, "Opens an event of another process: an Event.")                          \
    FAST(timeline, "Creates or opens a timeline: a Timeline.")                                \
    FAST(channel, "Becomes the producer of a channel: a Channel.")                            \
    FAST(channel_open, "Becomes a reader of a channel: a Channel.")                           \
    FAST(begin, "Begins to use the arrays of leases on a stream, 0 for the host: a Bracket.") \
    FAST(arena_new, "Makes an allocator: an Arena.")                                          \
    METHOD(find_device, METH_O, "The index of a device: of CUDA's ordinal here, or of a text.")  \
    METHOD(set_list, METH_O, "Keys of a set: a list of tuples.")                              \
    FAST(show, "What is known of a name: a list of one tuple.")                               \
    FAST(query, "A list of the daemon's, by its name: tuples of caid/_answers.py's fields.")  \
    METHOD(memory_info, METH_O, "Memory of a device: a tuple.")                               \
    METHOD(flush, METH_O, "Frees what waits: (entries, blocks, bytes).")                      \
    METHOD(defer_begin, METH_NOARGS, "Holds back what waits to be freed.")                    \
    FAST(withdraw, "Ends tickets: how many.")                                                 \
    METHOD(kick, METH_O, "Ends a connection, by its number.")                                 \
    METHOD(defer_end, METH_NOARGS, "Undoes one _defer_begin().")                              \
    METHOD(status, METH_NOARGS, "The daemon: a tuple.")                                       \
    METHOD(daemon, METH_NOARGS, "driver, socket, machine_id and daemon_id; asks nobody.")     \
    METHOD(devices, METH_NOARGS, "The daemon's devices: a list of tuples.")                   \
    FAST(host_alloc, "Page-locked memory: a HostMemory.")                                     \
    FAST(host_register, "Page-locks memory; its device address, or 0.")                       \
    FAST(host_unregister, "Undoes _host_register().")                                         \
    FAST(mark, "A Mark for work on a stream; keeps whose that is, and what the work uses.")   \
    FAST(copy, "Copies elements; dst and src are addresses, or buffers on the host.")         \
    METHOD(pointer_resolve, METH_O, "(device pointer, device index or -1).")                  \
    FAST(pointer_attribute, "What the driver knows of a pointer, as a number.")               \
    FAST(stream_synchronize, "Waits for a CUDA stream.")
/* clang-format on */

#define PY_DECLARE_FAST(name, ...) \
    PyObject *py_client_##name(PyObject *op, PyObject *const *args, Py_ssize_t n_args);
#define PY_DECLARE(name, ...) PyObject *py_client_##name(PyObject *op, PyObject *arg);

PY_CLIENT_METHODS(PY_DECLARE_FAST, PY_DECLARE)

/* ---- Lease (lease.c) ---- */

enum lease_fact {
    LEASE_SHAPE,
    LEASE_STRIDES,
    LEASE_TYPESTR,
    LEASE_DESCR,
    LEASE_NAME,
    LEASE_POOL,
    LEASE_MEMORY,
    LEASE_METADATA,
    LEASE_FACT_MAX,
};

struct lease_object {
    PyObject_HEAD
    struct client_object *client;  /* NULL only after tp_clear */
    LIST_ENTRY(lease_object) link; /* in client->leases; le_prev NULL: not there */
    struct caid_array *array;      /* NULL: ended */
    Py_ssize_t n_shares;
    Py_ssize_t n_views; /* shares of HostViews and tensors: a closed client leaves it alone */

    /* How earlier shares were given up. The last close reads this. */
    uint64_t stream;   /* by a close that named this one; 0: none did */
    bool other_closes; /* by a close that named none, or another */

    struct caid_array_info
        info;     /* its numbers, which outlive `array`; not its texts and lists */
    bool created; /* by this client, which has not opened it */

    /* Work on the memory that may not be done, caid/_handoff/_pending.py; or NULL. */
    PyObject *pending;

    /* The array's texts and lists as Python objects. They are made when they are first asked
     * for, or when `array` ends, so that opening many arrays makes no objects that nobody reads. */
    PyObject *facts[LEASE_FACT_MAX];
};

/* Makes a Lease with one share. It owns `array` from here on, also where this fails. */
PyObject *py_lease_new(struct client_object *client, struct caid_array *array);
/* Calls libcaid, as PY_CLIENT_CALL(), and makes the Lease of the array that the call gives. The
 * client is left only after that, so that a close() during the call ends this lease, too. */
#define PY_LEASE_OF(self, call)                                        \
    ({                                                                 \
        struct caid_client *c = py_client_enter(self);                 \
        struct caid_array *array = NULL;                               \
        struct caid_error error = {0};                                 \
        PyObject *lease = NULL;                                        \
        int r_;                                                        \
        if (c) {                                                       \
            WITHOUT_GIL(r_ = (call));                                  \
            lease = r_ < 0 ? py_error_raise((self)->state, r_, &error) \
                           : py_lease_new(self, array);                \
            py_client_leave(self);                                     \
        }                                                              \
        lease;                                                         \
    })
/* Takes one more share for the time of a call, during which the client is not closed either.
 * py_lease_unpin() gives it back. -1 with ClosedError set. */
int py_lease_pin(struct lease_object *self);
void py_lease_unpin(struct lease_object *self);
/* Checks that op is a Lease, and pins it; NULL with an exception set. */
struct lease_object *py_lease_get_pinned(const struct module_state *state, PyObject *op);
/* Pins the leases of a tuple, and gives their arrays where ret_arrays is not NULL. Returns how
 * many are pinned: where that is fewer than all, an exception is set. */
Py_ssize_t py_leases_pin(const struct module_state *state, PyObject *leases,
                         struct caid_array **ret_arrays);
void py_leases_unpin(PyObject *leases, Py_ssize_t n);
/* The addresses of the arrays of a tuple of pinned leases may have changed. */
void py_leases_moved(PyObject *leases);
/* Takes one more share for a bracket. The bracket's end waits for the bracket's work, so giving
 * this share back does not. -1 with ClosedError set. */
int py_lease_use(struct lease_object *self);
void py_lease_unuse(struct lease_object *self);
/* The host's address of the array, or 0. */
uintptr_t py_lease_host(const struct lease_object *self);
/* Takes one more share for a HostView or a tensor. These keep the memory mapped, also when the
 * client is closed. */
void py_lease_view_begin(struct lease_object *self);
void py_lease_view_end(struct lease_object *self);
/* Ends all leases of a closed client, except those that a HostView or a tensor has a share of.
 * leave: the memory stays mapped for good, since the work on it may never end. */
void py_leases_end(struct client_object *client, bool leave);

/* ---- Mapping (mapping.c) ---- */

/* Makes a Mapping of the block of the lease, which is pinned meanwhile. */
PyObject *py_mapping_new(struct lease_object *lease);

/* ---- HostView (host_view.c) ---- */

/* Makes a HostView, which takes a share of the lease. [at, at + nbytes) is host memory of the
 * array. */
PyObject *py_host_view_new(struct lease_object *lease, uintptr_t at, uint64_t nbytes,
                           bool readonly);

/* ---- Mark (mark.c) ---- */

/* To be called before work is started on the mark's stream; py_mark_end() is called after it. In
 * between, with the client entered and without the GIL, the caller enqueues the work and then
 * calls py_mark_record(). lists is a tuple of lists to which the mark is appended. -1 with an
 * exception set. */
int py_mark_begin(PyObject *mark, PyObject *lists);
int py_mark_record(PyObject *mark, struct caid_error *error);
/* r: what py_mark_record() has returned, or 1 where no work was started. */
void py_mark_end(PyObject *mark, int r);
uint64_t py_mark_stream(PyObject *mark);
bool py_mark_is_of(PyObject *op, const struct client_object *client);

/* ---- DLPack (dlpack.c) ---- */

PyObject *py_dlpack_export(PyObject *module, PyObject *args);
PyObject *py_dlpack_import(PyObject *module, PyObject *capsule);

/* ---- Arena (arena.c) ---- */

/* Gives the struct of an open Arena. From then on nothing ends the struct, though the Arena
 * itself may be closed. NULL with TypeError or ClosedError set. */
struct caid_arena *py_arena_pin(const struct module_state *state, PyObject *op);

/* ---- the sync state of storages (sync.c) ---- */

PyObject *py_sync_load(PyObject *module, PyObject *words);
/* args: words, side, version. Records that this side was modified; with side 0, that both sides
 * are equal up to this version. */
PyObject *py_sync_change(PyObject *module, PyObject *args);
/* The same in stream order: a driver callback changes the words when the Stream reaches this
 * point. The words are in memory of a lease. */
PyObject *py_sync_change_on(PyObject *stream, PyObject *args);

/* ---- for PyTorch (torch.c) ---- */

/* args: CUDA ordinal, Arena. From now on PyTorch allocates in that arena on that device. */
PyObject *py_torch_set(PyObject *module, PyObject *args);
/* Keeps an object alive until the process exits: its reference is never dropped. */
PyObject *py_torch_keep(PyObject *module, PyObject *op);
/* The error of the last allocation that failed, as an exception; None where none has failed
 * since the previous call. */
PyObject *py_torch_error(PyObject *module, PyObject *unused);

/* ---- Watch (watch.c), HostMemory (host.c) ---- */
