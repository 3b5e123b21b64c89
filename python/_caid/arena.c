/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include "keep.h"

PY_CAST(arena);

/* ---- life ---- */

/* Ends the struct when the arena is closed and its last Allocation is gone. */
static void
arena_settle(struct arena_object *self)
{
    struct caid_arena *ended = self->arena;

    if (!ended || !self->over || self->pinned || self->n_freeing > 0 ||
        (self->n_live > 0 && !self->ending))
        return;
    self->arena = NULL;
    WITHOUT_GIL(caid_arena_close(ended));
}

static void
arena_over(struct handle_object *handle, struct caid_client *Py_UNUSED(client))
{
    struct arena_object *self = (struct arena_object *)handle;

    self->over = true;
    arena_settle(self);
}

static const struct handle_class arena_class = {.name = "arena", .end = arena_over};

/* Of the last four arguments, 0 stands for libcaid's default. */
PyObject *
py_client_arena_new(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_arena_options options = CAID_INIT(struct caid_arena_options);

    if (PY_ARGS(self->state, "arena_new", PY_ARG(options.device), PY_POOL(options.pool),
                PY_TEXT(options.memory, INVALID), PY_ARG(options.block_size),
                PY_ARG(options.max_pending_count), PY_ARG(options.max_pending_ratio),
                PY_ARG(options.max_pending_age_ns)) < 0)
        return NULL;
    return PY_HANDLE_MAKE(self, arena,
                          caid_arena_new(c, &arena(made)->arena, &options, &error));
}

/* Ends the struct with all that was allocated. */
static PyObject *
arena_end(PyObject *op, PyObject *unused)
{
    arena(op)->ending = true;
    Py_XDECREF(py_handle_close(op, unused));
    arena_settle(arena(op)); /* it was closed before */
    Py_RETURN_NONE;
}

struct caid_arena *
py_arena_pin(const struct module_state *state, PyObject *op)
{
    if (!PyObject_TypeCheck(op, state->arena_type)) {
        PyErr_Format(PyExc_TypeError, "an Arena is needed, not %.100s", Py_TYPE(op)->tp_name);
        return NULL;
    }
    if (!py_handle_enter(py_handle(op)))
        return NULL;
    arena(op)->pinned = true;
    py_handle_leave(py_handle(op));
    return arena(op)->arena;
}

/* ---- allocating and freeing ---- */

/* The number of the stream that the arena's framework works on, from arena._current_stream(); 0
 * where that is None. It is called where memory may become reusable. An exception may be set
 * meanwhile, since an Allocation may end at any time. */
static uint64_t
current_stream(struct arena_object *self)
{
    PyObject *type, *value, *traceback;
    unsigned long long stream = 0;

    PyErr_Fetch(&type, &value, &traceback);
    _cleanup_py_ PyObject *ask = PyObject_GetAttrString((PyObject *)self, "_current_stream");
    if (ask && ask != Py_None) {
        _cleanup_py_ PyObject *found = PyObject_CallNoArgs(ask);
        _cleanup_py_ PyObject *op = found ? PyObject_GetAttrString(found, "ptr") : NULL;
        stream = op ? PyLong_AsUnsignedLongLong(op) : 0;
    }
    if (PyErr_Occurred())
        stream = 0;
    PyErr_Restore(type, value, traceback);
    return stream;
}

/* given NULL: the stream is asked for where the driver may be. */
static int
reserve(struct arena_object *self, uint64_t nbytes, const uint64_t *given, uint64_t *ret)
{
    const uint32_t flags = given ? CAID_ARENA_ORDERED : 0;
    struct caid_error error = {0};
    uint64_t stream = given ? *given : 0;
    int r = ON_STREAM(stream, caid_arena_alloc(self->arena, nbytes, flags | CAID_ARENA_NOWAIT,
                                               ret, NULL));

    if (r >= 0)
        return 0;
    if (!given)
        stream = current_stream(self);
    WITHOUT_GIL(
        r = ON_STREAM(stream, caid_arena_alloc(self->arena, nbytes, flags, ret, &error)));
    if (r >= 0)
        return 0;
    py_error_raise(self->handle.client->state, r, &error);
    return -1;
}

int
py_arena_reserve(struct arena_object *self, uint64_t nbytes, uint64_t *ret)
{
    return reserve(self, nbytes, NULL, ret);
}

static PyObject *
arena_alloc(PyObject *op, PyObject *nbytes_op)
{
    struct handle_object *self = py_handle(op);
    PyObject *made = NULL;
    uint64_t nbytes;

    if (!py_handle_enter(self))
        return NULL;
    if (py_u64_get(self->client->state, nbytes_op, "nbytes", &nbytes) == 0)
        made = py_allocation_new(arena(op), nbytes);
    py_handle_leave(self);
    return made;
}

static int
give_back(struct arena_object *self, uint64_t ptr, const uint64_t *given,
          struct caid_error *error)
{
    const uint32_t flags = given ? CAID_ARENA_ORDERED : 0;
    uint64_t stream = given ? *given : 0;
    int r =
        ON_STREAM(stream, caid_arena_free(self->arena, ptr, flags | CAID_ARENA_NOWAIT, NULL));

    if (r >= 0)
        return 0;
    self->n_freeing++;
    if (!given)
        stream = current_stream(self);
    WITHOUT_GIL(r = ON_STREAM(stream, caid_arena_free(self->arena, ptr, flags, error)));
    self->n_freeing--;
    return r;
}

void
py_arena_release(struct arena_object *self, uint64_t ptr)
{
    if (ptr && self->arena)
        give_back(self, ptr, NULL, NULL);
    self->n_live--;
    if (self->over)
        arena_settle(self);
}

/* ---- by address, ordered by a stream: for libraries' allocators ---- */

static PyObject *
arena_alloc_on(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct arena_object *self = arena(op);
    uint64_t nbytes, stream, ptr;

    if (PY_ARGS(py_handle_state(op), "alloc_on", PY_ARG(nbytes), PY_ARG(stream)) < 0 ||
        !py_handle_enter(py_handle(op)))
        return NULL;
    int r = reserve(self, nbytes, &stream, &ptr);
    self->n_live += r == 0;
    py_handle_leave(py_handle(op));
    return r == 0 ? PyLong_FromUnsignedLongLong(ptr) : NULL;
}

/* What is of an arena that has ended has gone with it. */
static PyObject *
arena_free_on(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct arena_object *self = arena(op);
    struct caid_error error = {0};
    uint64_t ptr, stream;

    if (PY_ARGS(py_handle_state(op), "free_on", PY_ARG(ptr), PY_ARG(stream)) < 0)
        return NULL;
    if (self->arena) {
        int r = give_back(self, ptr, &stream, &error);
        if (r < 0)
            return py_error_raise(py_handle_state(op), r, &error);
        self->n_live--;
        if (self->over)
            arena_settle(self);
    }
    Py_RETURN_NONE;
}

/* ---- what is where ---- */

static PyObject *
arena_find(PyObject *op, PyObject *ptr_op)
{
    struct caid_allocation found = CAID_INIT(struct caid_allocation);
    uint64_t ptr;

    if (py_u64_get(py_handle_state(op), ptr_op, "ptr", &ptr) < 0 ||
        PY_HANDLE_CALL(py_handle(op), caid_arena_find(arena(op)->arena, ptr, &found, &error)) <
            0)
        return NULL;
    return Py_BuildValue("(KKKK)", (unsigned long long)found.ptr,
                         (unsigned long long)found.nbytes, (unsigned long long)found.block,
                         (unsigned long long)found.offset);
}

static PyObject *
arena_ipc_handle(PyObject *op, PyObject *ptr_op)
{
    struct caid_ipc_handle handle;
    uint64_t ptr;

    if (py_u64_get(py_handle_state(op), ptr_op, "ptr", &ptr) < 0 ||
        PY_HANDLE_CALL(py_handle(op),
                       caid_arena_ipc_handle(arena(op)->arena, ptr, &handle, &error)) < 0)
        return NULL;
    return py_ipc_handle_tuple(&handle);
}

static int
info_get(PyObject *op, struct caid_arena_info *ret)
{
    *ret = (struct caid_arena_info)CAID_INIT(struct caid_arena_info);
    return PY_HANDLE_CALL(py_handle(op), caid_arena_info(arena(op)->arena, ret, &error));
}

#define F(field) offsetof(struct caid_arena_info, field)

/* In the order of the class in caid/_base/_records.py. */
static const size_t arena_info_fields[] = {
    F(blocks),        F(bytes),    F(allocations),    F(allocated), F(pending),
    F(pending_bytes), F(draining), F(draining_bytes), F(published), F(empty_blocks),
    F(empty_bytes),   F(n_allocs), F(n_leased),       F(n_flushes),
};

#undef F

static PyObject *
arena_info(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const Py_ssize_t n = (Py_ssize_t)Py_ARRAY_LENGTH(arena_info_fields);
    _cleanup_py_ PyObject *tuple = NULL;
    struct caid_arena_info info;

    if (info_get(op, &info) < 0)
        return NULL;
    tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple && i < n; i++) {
        const void *at = (const char *)&info + arena_info_fields[i];
        PyObject *figure = PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
        if (!figure)
            return NULL;
        PyTuple_SET_ITEM(tuple, i, figure);
    }
    return py_take(&tuple);
}

static PyObject *
arena_get_pending(PyObject *op, void *Py_UNUSED(closure))
{
    struct caid_arena_info info;

    if (info_get(op, &info) < 0)
        return NULL;
    return Py_BuildValue("(KK)", (unsigned long long)info.pending,
                         (unsigned long long)info.pending_bytes);
}

/* ---- what waits ---- */

/* Defines a method that calls libcaid with the arena and no other argument. */
#define ARENA_CALL(name)                                                                     \
    static PyObject *arena_##name(PyObject *op, PyObject *Py_UNUSED(unused))                 \
    {                                                                                        \
        uint64_t stream = current_stream(arena(op));                                         \
                                                                                             \
        return py_none(                                                                      \
            PY_HANDLE_CALL(py_handle(op),                                                    \
                           ON_STREAM(stream, caid_arena_##name(arena(op)->arena, &error)))); \
    }

ARENA_CALL(flush)
ARENA_CALL(trim)
ARENA_CALL(defer_begin)
ARENA_CALL(defer_end)

static PyObject *
arena_set_limits(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    uint64_t count, capacity;
    double ratio;

    if (PY_ARGS(py_handle_state(op), "set_limits", PY_ARG(count), PY_ARG(ratio),
                PY_ARG(capacity)) < 0)
        return NULL;
    return py_none(
        PY_HANDLE_CALL(py_handle(op), caid_arena_set_limits(arena(op)->arena, count, ratio,
                                                            capacity, &error)));
}

/* ---- publishing ---- */

struct publishing {
    uint64_t ptr, generation;
    const char *name;
    struct caid_part_options options;
    uint8_t ticket[CAID_TICKET_SIZE]; /* where name is NULL */
};

static bool
is_lost(int code)
{
    return code == CAID_ERR_DISCONNECTED || code == CAID_ERR_PROTOCOL ||
           code == CAID_ERR_KICKED || code == CAID_ERR_CLOSED;
}

/* Runs without the GIL. *ret_unknown: the part may exist although the call has failed, since the
 * connection was lost during the call. Where the connection was lost before the call, the
 * function fails first, and no part exists. */
static int
arena_ask(struct arena_object *self, struct publishing *what, bool *ret_unknown,
          struct caid_error *error)
{
    int r = caid_client_dispatch_parts(self->handle.client->client, error);

    *ret_unknown = false;
    if (r < 0 && is_lost(error->code))
        return r;
    r = caid_arena_publish(self->arena, what->ptr, what->name, &what->options,
                           &what->generation, error);
    *ret_unknown = r < 0 && is_lost(error->code);
    return r;
}

static PyObject *
arena_publish_kept(struct arena_object *self, struct publishing *what, PyObject *kept)
{
    struct client_object *client = self->handle.client;
    struct keep *keep = py_keep_new(client, kept);
    struct caid_error error = {0};
    bool unknown;
    int r;

    if (!keep)
        return NULL;
    what->options.gone = py_keep_gone;
    what->options.userdata = keep;
    WITHOUT_GIL(r = arena_ask(self, what, &unknown, &error));
    if (r >= 0 && !what->name)
        return PyBytes_FromStringAndSize((const char *)what->ticket, sizeof(what->ticket));
    if (r >= 0)
        return PyLong_FromUnsignedLongLong(what->generation);
    if (!unknown)
        py_keep_free(keep);
    return py_error_raise(client->state, r, &error);
}

static PyObject *
arena_publish(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct publishing what = {.options = CAID_INIT(struct caid_part_options)};
    _cleanup_dims_ struct dims shape = {0}, strides = {0};
    struct handle_object *self = py_handle(op);
    PyObject *keep, *result;

    if (PY_ARGS(py_handle_state(op), "publish", PY_ARG(what.ptr), PY_POOL(what.name),
                PY_TEXT(what.options.typestr, INVALID), PY_TEXT(what.options.descr, INVALID),
                PY_ARG(shape), PY_STRIDES(strides, shape),
                PY_TEXT(what.options.metadata, INVALID), PY_ARG(what.options.stream),
                PY_ARG(keep), PY_ARG(what.options.many), PY_ARG(what.options.own)) < 0 ||
        !py_handle_enter(self))
        return NULL;
    what.options.shape = shape.v;
    what.options.strides = strides.v;
    what.options.ndim = shape.n;
    what.options.ret_ticket = what.name ? NULL : what.ticket;
    result = arena_publish_kept(arena(op), &what, keep);
    py_handle_leave(self);
    py_keeps_drop(self->client);
    return result;
}

/* A set that was not made is reached by nobody: what it was to keep is let go at once. */
static PyObject *
set_create_kept(struct arena_object *self, const struct member_list *list, PyObject *kept)
{
    struct client_object *client = self->handle.client;
    struct keep *keep = py_keep_new(client, kept);

    if (!keep)
        return NULL;
    int made = -1;
    PyObject *set =
        PY_LEASE_OF(client, made = caid_arena_set_create(self->arena, &array, list->v, list->n,
                                                         py_keep_gone, keep, &error));
    if (made < 0)
        py_keep_free(keep);
    return set;
}

static PyObject *
arena_set_create(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    _cleanup_members_ struct member_list list = {0};
    struct handle_object *self = py_handle(op);
    PyObject *members, *keep, *lease;

    if (PY_ARGS(py_handle_state(op), "set_create", PY_TUPLE(members), PY_ARG(keep)) < 0 ||
        py_members_init(&list, py_handle_state(op), members) < 0 || !py_handle_enter(self))
        return NULL;
    lease = set_create_kept(arena(op), &list, keep);
    py_handle_leave(self);
    py_keeps_drop(self->client);
    return lease;
}

/* ---- the type ---- */

static PyMethodDef arena_methods[] = {
    {"_alloc", arena_alloc, METH_O, PyDoc_STR("Allocates so many bytes: an Allocation.")},
    {"_alloc_on", PY_FASTCALL(arena_alloc_on), METH_FASTCALL,
     PyDoc_STR("Allocates so many bytes on a stream: their address.")},
    {"_free_on", PY_FASTCALL(arena_free_on), METH_FASTCALL,
     PyDoc_STR("Frees what _alloc_on() gave, on a stream.")},
    {"_find", arena_find, METH_O,
     PyDoc_STR("The allocation that an address lies in: (ptr, nbytes, block, offset).")},
    {"_ipc_handle", arena_ipc_handle, METH_O,
     PyDoc_STR("(handle, offset, size) of legacy memory.")},
    {"_publish_part", PY_FASTCALL(arena_publish), METH_FASTCALL,
     PyDoc_STR("Publishes the array at an address under a name: its generation; under None: a "
               "ticket. keep lives as long as the part.")},
    {"_set_create", PY_FASTCALL(arena_set_create), METH_FASTCALL,
     PyDoc_STR("Makes a set of the arrays at addresses: a Lease. keep lives as long as one of "
               "them.")},
    {"flush", arena_flush, METH_NOARGS,
     PyDoc_STR(
         "flush()\n--\n\nMakes freed memory reusable as soon as the work that may use it is "
         "done; waits for nothing.\ndefer_cleanup() still holds back.")},
    {"trim", arena_trim, METH_NOARGS,
     PyDoc_STR(
         "trim()\n--\n\nflush(), which also waits for the work, and gives all empty blocks "
         "back.")},
    {"_defer_begin", arena_defer_begin, METH_NOARGS, PyDoc_STR("Holds back what was freed.")},
    {"_defer_end", arena_defer_end, METH_NOARGS, PyDoc_STR("Undoes one _defer_begin().")},
    {"_set_limits", PY_FASTCALL(arena_set_limits), METH_FASTCALL,
     PyDoc_STR("How many entries, and which part of so many bytes, may wait.")},
    {"_info", arena_info, METH_NOARGS, PyDoc_STR("Its figures: a tuple.")},
    {"_end", arena_end, METH_NOARGS,
     PyDoc_STR("Ends it with all that was allocated. Idempotent.")},
    PY_HANDLE_CLOSE(
        "Ends the arena, which allocates no more. Idempotent. Its blocks go back when the last\n"
        "allocation is gone and the work that may use them is done; published parts stay as long "
        "as\nsomebody can reach them."),
    {0},
};

static PyGetSetDef arena_getset[] = {
    PY_HANDLE_CLOSED,
    {"pending", arena_get_pending, NULL,
     PyDoc_STR("tuple of int: how many allocations are freed and wait, and their bytes."),
     NULL},
    {0},
};

PY_SPEC(arena, "caid._caid.Arena", PY_HANDLE_FLAGS,
        "An allocator over blocks that are leased from the daemon.", PY_HANDLE_LIFE,
        {Py_tp_methods, arena_methods}, {Py_tp_getset, arena_getset});
