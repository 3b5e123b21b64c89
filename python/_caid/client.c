/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client: one connection to the daemon, or (Client._local) the driver alone.
 *
 * It ends by close() or with the object. Its leases hold it alive. close() may come while other
 * threads are in a call: from then on new calls raise ClosedError, and the last call under way ends
 * the handles, the leases and the connection, in this order. Leases are ended one by one before the
 * connection: memory whose lease ends with a connection is given to nobody before this process
 * exits.
 */
#include "handle.h"

#include <errno.h>
#include <stddef.h>
#include <structmember.h>

#include "keep.h"

bool
py_client_is_closed(const struct client_object *self)
{
    return !self->client || self->closing;
}

bool
py_client_is_live(const struct client_object *self)
{
    return !py_client_is_closed(self) && cuda_client_check(self->client, NULL) == 0;
}

int
py_client_check_process(const struct client_object *self)
{
    struct caid_error error;

    if (!self || !self->client || cuda_client_check(self->client, NULL) == 0)
        return 0;
    error = (struct caid_error){0};
    py_error_raise(self->state, cuda_client_check(self->client, &error), &error);
    return -1;
}

int
py_client_check(const struct client_object *self)
{
    if (!py_client_is_closed(self))
        return py_client_check_process(self);
    py_error_raise_code(self->state, CAID_ERR_CLOSED, EBADF, "the client is closed");
    return -1;
}

struct caid_client *
py_client_enter(struct client_object *self)
{
    if (py_client_check(self) < 0)
        return NULL;
    self->n_calls++;
    return self->client;
}

/* ---- coming back ---- */

struct comeback {
    const struct client_object *client;
    uint64_t n_lost;
};

static void
tell_return(void *arg)
{
    const struct comeback *back = arg;
    PyObject *type = (PyObject *)Py_TYPE(back->client);
    PyObject *result = PyObject_CallMethod(type, "_returned", "OK", back->client->reference,
                                           (unsigned long long)back->n_lost);

    if (!result)
        PyErr_WriteUnraisable(type);
    Py_XDECREF(result);
}

/* Runs on libcaid's thread, for which the client's end waits. So this thread may not drop the
 * last reference to the Client: it uses a weak one. */
static void
client_returned(uint64_t n_lost, void *userdata)
{
    const struct client_object *self = userdata;
    struct comeback back = {self, n_lost};

    py_gate_run(self->gate, self->interpreter, tell_return, &back);
}

/* ---- the end ---- */

static void
client_free(struct client_object *self)
{
    struct caid_client *ended = self->client;

    self->client = NULL;
    if (ended)
        py_keeps_let_go(self);
    py_handles_end(self, ended);
    py_leases_end(self, self->leaving);
    if (ended) {
        WITHOUT_GIL(caid_client_close(ended));
        py_keeps_end(self);
    }
}

void
py_client_leave(struct client_object *self)
{
    if (--self->n_calls == 0 && self->closing)
        client_free(self);
}

static PyObject *
client_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct client_object *self = py_client(op);

    self->closing = true;
    self->n_calls++;
    if (self->client) {
        WITHOUT_GIL(caid_set_cancel(self->client, NULL)); /* the last call may be such a wait */
    }
    py_client_leave(self);
    Py_RETURN_NONE;
}

static PyObject *
client_leave(PyObject *op, PyObject *unused)
{
    py_client(op)->leaving = true;
    return client_close(op, unused);
}

/* ---- making one ---- */

static PyObject *
client_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    struct module_state *state = py_module_state_of(type);
    struct client_object *self;

    if (!state)
        return NULL;
    self = py_client(type->tp_alloc(type, 0));
    if (!self)
        return NULL;
    self->state = state;
    self->gate = py_gate_ref(state->gate);
    self->interpreter = PyInterpreterState_Get();
    return (PyObject *)self;
}

/* Converts a path (str, bytes or os.PathLike) to bytes; NULL for None. */
static int
path_get(PyObject *op, PyObject **ret_bytes, const char **ret)
{
    if (op == Py_None) {
        *ret = NULL;
        return 0;
    }
    if (!PyUnicode_FSConverter(op, ret_bytes))
        return -1;
    *ret = PyBytes_AS_STRING(*ret_bytes);
    return 0;
}

/* Checks that a Client was never connected: then it may be, since it has no calls under way. */
static int
client_check_new(struct client_object *self)
{
    if (!self->client && !self->closing && self->n_calls == 0)
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "a Client connects once");
    return -1;
}

static int
client_connect(struct client_object *self, struct caid_connect_options *options)
{
    struct caid_client *made = NULL;
    struct caid_error error = {0};
    int r;

    if (!self->reference)
        self->reference = PyWeakref_NewRef((PyObject *)self, NULL);
    if (!self->reference)
        return -1;
    options->userdata = self;
    WITHOUT_GIL(r = caid_connect(&made, options, &error));
    if (r < 0)
        py_error_raise(self->state, r, &error);
    if (r < 0 || client_check_new(self) < 0) { /* another thread has connected it */
        WITHOUT_GIL(caid_client_close(made));
        return -1;
    }
    self->client = made;
    return 0;
}

/* Reads a timeout: seconds, more than 0, or None for libcaid's default. */
static int
limit_get(PyObject *op, const char *what, uint64_t *ret_ns)
{
    if (op == Py_None)
        return 0;
    if (py_timeout_get(op, ret_ns) < 0)
        return -1;
    if (*ret_ns > 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s %R: seconds, more than 0, or None", what, op);
    return -1;
}

/* Reads the reconnect timeout; 0 seconds: the client does not reconnect. */
static int
reconnect_get(PyObject *op, uint64_t *ret_ns)
{
    if (op == Py_None)
        return 0;
    if (py_timeout_get(op, ret_ns) < 0)
        return -1;
    if (*ret_ns == 0)
        *ret_ns = CAID_NEVER;
    return 0;
}

static int
client_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"address",           "name", "driver", "timeout", "call_timeout",
                               "reconnect_timeout", NULL};
    struct client_object *self = py_client(op);
    struct caid_connect_options options = {
        .struct_size = sizeof(options),
        .interrupted = py_interrupted,
        .returned = client_returned,
    };
    PyObject *address = Py_None, *name = Py_None, *driver = Py_None;
    PyObject *timeout = Py_None, *call_timeout = Py_None, *reconnect = Py_None;
    _cleanup_py_ PyObject *address_bytes = NULL, *driver_bytes = NULL;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$OOOOO:Client", keywords, &address, &name,
                                     &driver, &timeout, &call_timeout, &reconnect) ||
        limit_get(timeout, "timeout", &options.timeout_ns) < 0 ||
        limit_get(call_timeout, "call_timeout", &options.call_timeout_ns) < 0 ||
        reconnect_get(reconnect, &options.reconnect_timeout_ns) < 0 ||
        client_check_new(self) < 0 || path_get(address, &address_bytes, &options.socket) < 0 ||
        py_text_get(self->state, name, "name", CAID_ERR_INVALID_NAME, &options.name) < 0 ||
        path_get(driver, &driver_bytes, &options.driver) < 0)
        return -1;
    return client_connect(self, &options);
}

static PyObject *
client_local(PyObject *type, PyObject *driver)
{
    _cleanup_py_ PyObject *op = client_new((PyTypeObject *)type, NULL, NULL);
    _cleanup_py_ PyObject *driver_bytes = NULL;
    struct caid_client *made = NULL;
    struct caid_error error = {0};
    const char *path;
    int r;

    if (!op || path_get(driver, &driver_bytes, &path) < 0)
        return NULL;
    WITHOUT_GIL(r = cuda_driver_open(&made, path, &error));
    if (r < 0)
        return py_error_raise(py_client(op)->state, r, &error);
    py_client(op)->client = made;
    return py_take(&op);
}

/* Visits what the keeps hold, which may hold the client. There is no tp_clear: the collector
 * breaks such a cycle at another object. */
static int
client_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    return py_keeps_traverse(py_client(op), visit, arg);
}

static void
client_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    client_free(py_client(op));
    Py_XDECREF(py_client(op)->reference);
    py_gate_unref(py_client(op)->gate);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- the connection ---- */

static PyObject *
fileno_failed(const struct client_object *self, int r)
{
    if (r == -ENOTCONN)
        return py_error_raise_code(self->state, CAID_ERR_CLOSED, ENOTCONN,
                                   "the client has no connection to a daemon");
    return py_error_raise_code(self->state, CAID_ERR_SYSTEM, -r, "no file descriptor: %s",
                               strerror(-r));
}

static PyObject *
client_fileno(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct client_object *self = py_client(op);
    struct caid_client *c = py_client_enter(self);
    int fd;

    if (!c)
        return NULL;
    WITHOUT_GIL(fd = caid_client_get_fd(c));
    py_client_leave(self);
    return fd < 0 ? fileno_failed(self, fd) : PyLong_FromLong(fd);
}

int
py_client_leave_with(struct client_object *self, int r, const struct caid_error *error)
{
    py_client_leave(self);
    if (r >= 0)
        return r;
    py_error_raise(self->state, r, error);
    return -1;
}

/* Drops the keeps that a call has noted as gone. */
static PyObject *
dispatched(PyObject *op, int r)
{
    py_keeps_drop(py_client(op));
    return py_none(r);
}

static PyObject *
client_dispatch(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return dispatched(op, PY_CLIENT_CALL(py_client(op), caid_client_dispatch(c, &error)));
}

static PyObject *
client_dispatch_parts(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return dispatched(op, PY_CLIENT_CALL(py_client(op), caid_client_dispatch_parts(c, &error)));
}

static PyObject *
client_ping(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(PY_CLIENT_CALL(py_client(op), caid_client_ping(c, &error)));
}

static PyObject *
client_get_closed(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(py_client_is_closed(py_client(op)));
}

static PyObject *
client_check(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(py_client_check(py_client(op)));
}

bool
py_client_reaches_device(const struct client_object *self)
{
    return self->host_accessible && !self->state->strict;
}

static PyObject *
client_get_host_accessible(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(py_client_reaches_device(py_client(op)));
}

static int
client_set_host_accessible(PyObject *op, PyObject *value, void *Py_UNUSED(closure))
{
    py_client(op)->host_accessible = value == Py_True;
    return 0;
}

static PyObject *
client_get_live(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(py_client_is_live(py_client(op)));
}

/* ---- the type ---- */

/* clang-format off */
#define METHOD(name, kind, doc) \
    {"_" #name, PY_FASTCALL(py_client_##name), kind, PyDoc_STR(doc)},
#define FAST(name, doc) METHOD(name, METH_FASTCALL, doc)

static PyMethodDef client_methods[] = {
    PY_CLIENT_METHODS(FAST, METHOD)
    /* clang-format on */
    {"_local", client_local, METH_O | METH_CLASS,
     PyDoc_STR("_local(driver, /)\n--\n\nThe driver alone, with no daemon behind it.")},
    {"close", client_close, METH_NOARGS,
     PyDoc_STR("close()\n--\n\nEnds the connection and with it every lease.")},
    {"_leave", client_leave, METH_NOARGS,
     PyDoc_STR("_leave()\n--\n\nclose() that waits for no work: what that uses stays mapped.")},
    {"fileno", client_fileno, METH_NOARGS,
     PyDoc_STR("fileno()\n--\n\nReadable when dispatch() has something to do.")},
    {"dispatch", client_dispatch, METH_NOARGS,
     PyDoc_STR("dispatch()\n--\n\nHandles what has come from the daemon, without blocking.")},
    {"_dispatch_parts", client_dispatch_parts, METH_NOARGS,
     PyDoc_STR("_dispatch_parts()\n--\n\ndispatch() for parts that are gone alone.")},
    {"ping", client_ping, METH_NOARGS, PyDoc_STR("ping()\n--\n\nA round trip.")},
    {"_check", client_check, METH_NOARGS, PyDoc_STR("Raises ClosedError or ForkedError.")},
    {0},
};

static PyGetSetDef client_getset[] = {
    {"closed", client_get_closed, NULL, PyDoc_STR("Whether close() was called."), NULL},
    {"_host_accessible", client_get_host_accessible, client_set_host_accessible,
     PyDoc_STR("Whether the host reaches the driver's device memory."), NULL},
    {"_live", client_get_live, NULL, PyDoc_STR("Whether it can be used in this process."),
     NULL},
    {0},
};

static PyMemberDef client_members[] = {
    {"_n_kept", T_PYSSIZET, offsetof(struct client_object, n_keeps), READONLY,
     PyDoc_STR("How much parts that were published keep alive.")},
    {0},
};

PY_SPEC(client, "caid._caid.Client", Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
        "Client(address=None, *, name=None, driver=None, timeout=None, call_timeout=None, "
        "reconnect_timeout=None)\n--\n\nA connection to the daemon.",
        {Py_tp_new, client_new}, {Py_tp_init, client_init}, {Py_tp_traverse, client_traverse},
        {Py_tp_dealloc, client_dealloc}, {Py_tp_methods, client_methods},
        {Py_tp_getset, client_getset}, {Py_tp_members, client_members});
