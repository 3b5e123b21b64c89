/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bracket: one struct caid_bracket. Client._begin() makes and begins it. It ends by end() or
 * abandon(); else it is abandoned when the object or its client ends. While it is open, it has a
 * share of each of its leases, and its Stream does not end. After its end it can only be checked.
 */
#include "handle.h"

struct bracket_object {
    struct handle_object handle;
    struct caid_bracket *bracket;
    PyObject *leases;    /* while it is open: a tuple; a share of each that was pinned */
    Py_ssize_t n_shares; /* of its first ones */
    struct handle_object *stream; /* held; NULL: the host, or one that is no Stream */
};

PY_CAST(bracket);

/* ---- life ---- */

/* Gives back what an open bracket holds: its shares and its stream. */
static void
bracket_settle(struct bracket_object *self)
{
    PyObject *leases = self->leases;
    struct handle_object *stream = self->stream;
    Py_ssize_t n = self->n_shares;

    self->leases = NULL;
    self->stream = NULL;
    self->n_shares = 0;
    while (n > 0)
        py_lease_unuse((struct lease_object *)PyTuple_GET_ITEM(leases, --n));
    Py_XDECREF(leases);
    if (stream)
        py_handle_release(stream);
}

static void
bracket_end(struct handle_object *self, struct caid_client *Py_UNUSED(client))
{
    struct bracket_object *ended = (struct bracket_object *)self;

    WITHOUT_GIL(caid_bracket_free(ended->bracket));
    bracket_settle(ended);
}

static const struct handle_class bracket_class = {.name = "bracket", .end = bracket_end};

static int
bracket_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(bracket(op)->leases);
    Py_VISIT(bracket(op)->stream);
    return py_handle_traverse(op, visit, arg);
}

static int
bracket_clear(PyObject *op)
{
    py_handle_clear(op);
    bracket_settle(bracket(op)); /* of one that was not begun */
    return 0;
}

/* ---- begin ---- */

/* The arrays of the leases, and their ranges, as libcaid takes them. */
struct arrays {
    struct caid_array **v;
    struct caid_range *ranges; /* NULL: all of each */
};

static void
arrays_deinit(struct arrays *arrays)
{
    PyMem_Free(arrays->v);
    PyMem_Free(arrays->ranges);
}

/* Takes a share of each lease, and gives their arrays: those to be read, then those to be
 * written. */
static int
bracket_use(struct bracket_object *self, struct arrays *arrays)
{
    Py_ssize_t n = PyTuple_GET_SIZE(self->leases);

    arrays->v = PyMem_Calloc((size_t)n + 1, sizeof(arrays->v[0]));
    if (!arrays->v) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *op = PyTuple_GET_ITEM(self->leases, i);
        struct lease_object *lease = (struct lease_object *)op;

        if (!Py_IS_TYPE(op, self->handle.client->state->lease_type) ||
            lease->client != self->handle.client) {
            PyErr_SetString(PyExc_TypeError, "leases of this client are needed");
            return -1;
        }
        if (py_lease_use(lease) < 0)
            return -1;
        self->n_shares++;
        arrays->v[i] = lease->array;
    }
    return 0;
}

/* Two numbers for each lease; none: all of each array. */
static int
arrays_add_ranges(struct arrays *arrays, PyObject *numbers, Py_ssize_t n)
{
    if (PyTuple_GET_SIZE(numbers) == 0)
        return 0;
    if (PyTuple_GET_SIZE(numbers) != 2 * n) {
        PyErr_SetString(PyExc_TypeError, "two numbers for each lease are needed");
        return -1;
    }
    arrays->ranges = PyMem_Calloc((size_t)n, sizeof(arrays->ranges[0]));
    if (!arrays->ranges) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        struct caid_range *range = &arrays->ranges[i];
        range->from = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(numbers, 2 * i));
        range->end = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(numbers, 2 * i + 1));
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* The caller has entered the client. The begin has two steps, so that a signal can end the wait:
 * the bracket is then given up with the object. */
static int
begin(struct bracket_object *self, struct caid_client *c,
      const struct caid_bracket_options *options)
{
    struct caid_error error = {0};
    int r;

    WITHOUT_GIL(r = caid_bracket_start(c, &self->bracket, options, &error));
    if (r >= 0) {
        py_handle_begin(&self->handle);
        r = PY_WAIT(&self->handle, caid_bracket_wait(self->bracket, CAID_FOREVER, &error));
    }
    if (r < 0)
        py_error_raise(self->handle.client->state, r, &error);
    return r;
}

/* Reads a timeout in seconds. For 0, which is a try, libcaid has a flag; its timeout of 0 is
 * none. */
static int
options_timeout(PyObject *op, struct caid_bracket_options *options)
{
    uint64_t timeout_ns;

    if (py_timeout_get(op, &timeout_ns) < 0)
        return -1;
    options->nowait = timeout_ns == 0;
    options->timeout_ns = timeout_ns == CAID_FOREVER ? 0 : timeout_ns;
    return 0;
}

/* keep: the Stream that has the stream's number, or None. */
static int
bracket_init(struct bracket_object *self, PyObject *reads, PyObject *writes, PyObject *keep)
{
    self->leases = PySequence_Concat(reads, writes);
    if (!self->leases)
        return -1;
    if (!Py_IS_TYPE(keep, self->handle.client->state->stream_type))
        return 0;
    if (py_handle_hold(py_handle(keep)) < 0)
        return -1;
    self->stream = py_handle(keep);
    return 0;
}

PyObject *
py_client_begin(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    struct caid_bracket_options options = CAID_INIT(struct caid_bracket_options);
    __attribute__((cleanup(arrays_deinit))) struct arrays arrays = {0};
    _cleanup_py_ PyObject *made = NULL;
    PyObject *reads, *writes, *ranges, *keep, *timeout;
    struct caid_client *c;
    int r;

    if (PY_ARGS(self->state, "begin", PY_TUPLE(reads), PY_TUPLE(writes), PY_TUPLE(ranges),
                PY_ARG(options.stream), PY_ARG(keep), PY_ARG(timeout)) < 0 ||
        options_timeout(timeout, &options) < 0)
        return NULL;
    made = py_handle_new(self->state->bracket_type, self, &bracket_class);
    if (!made || bracket_init(bracket(made), reads, writes, keep) < 0 ||
        bracket_use(bracket(made), &arrays) < 0 ||
        arrays_add_ranges(&arrays, ranges, PyTuple_GET_SIZE(bracket(made)->leases)) < 0)
        return NULL;
    options.n_reads = (size_t)PyTuple_GET_SIZE(reads);
    options.n_writes = (size_t)PyTuple_GET_SIZE(writes);
    options.reads = arrays.v;
    options.writes = arrays.v + options.n_reads;
    options.read_ranges = arrays.ranges;
    options.write_ranges = arrays.ranges ? arrays.ranges + options.n_reads : NULL;
    c = py_client_enter(self);
    if (!c)
        return NULL;
    r = begin(bracket(made), c, &options);
    py_client_leave(self);
    return r < 0 ? NULL : py_take(&made);
}

/* ---- end ---- */

static PyObject *
finish(PyObject *op, int (*f)(struct caid_bracket *, struct caid_error *))
{
    struct bracket_object *self = bracket(op);
    struct caid_error error = {0};
    int r;

    if (!py_handle_enter(&self->handle))
        return NULL;
    WITHOUT_GIL(r = f(self->bracket, &error));
    bracket_settle(self);
    return py_none(py_handle_leave_with(&self->handle, r, &error));
}

static PyObject *
bracket_do_end(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return finish(op, caid_bracket_end);
}

static PyObject *
bracket_do_abandon(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return finish(op, caid_bracket_abandon);
}

static PyObject *
bracket_check(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(
        PY_HANDLE_CALL(py_handle(op), caid_bracket_check(bracket(op)->bracket, &error)));
}

/* ---- the type ---- */

static PyMethodDef bracket_methods[] = {
    {"end", bracket_do_end, METH_NOARGS, PyDoc_STR("Ends the bracket.")},
    {"abandon", bracket_do_abandon, METH_NOARGS,
     PyDoc_STR("Ends it; what it wrote is not whole.")},
    {"check", bracket_check, METH_NOARGS,
     PyDoc_STR("AbandonedError where it waited for a process that died.")},
    PY_HANDLE_CLOSE("Ends it. Idempotent."),
    {0},
};

PY_SPEC(bracket, "caid._caid.Bracket", Py_TPFLAGS_HAVE_GC,
        "A bracket around the use of arrays.", {Py_tp_new, py_tp_new},
        {Py_tp_traverse, bracket_traverse}, {Py_tp_clear, bracket_clear},
        {Py_tp_dealloc, py_tp_dealloc}, {Py_tp_methods, bracket_methods},
        {Py_tp_getset, py_handle_getset});
