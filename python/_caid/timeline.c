/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timeline: one struct caid_timeline, of this process, which signals, or of another, which is
 * waited for. Made by Client._timeline(), ended by close() or with the object.
 */
#include "handle.h"

struct timeline_object {
    struct handle_object handle;
    struct caid_timeline *timeline;
};

PY_CAST(timeline);

/* ---- life ---- */

static void
timeline_end(struct handle_object *self, struct caid_client *Py_UNUSED(client))
{
    struct caid_timeline *ended = ((struct timeline_object *)self)->timeline;

    WITHOUT_GIL(caid_timeline_close(ended));
}

static const struct handle_class timeline_class = {.name = "timeline", .end = timeline_end};

PyObject *
py_client_timeline(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    const char *name, *pool;
    bool creates;

    if (PY_ARGS(self->state, "timeline", PY_NAME(name), PY_POOL(pool), PY_ARG(creates)) < 0)
        return NULL;
    return PY_HANDLE_MAKE(self, timeline,
                          (creates ? caid_timeline_create
                                   : caid_timeline_open)(c, &timeline(made)->timeline, name,
                                                         pool, &error));
}

/* ---- signal and wait ---- */

static PyObject *
timeline_signal(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    uint64_t stream, value;

    if (PY_ARGS(py_handle_state(op), "signal", PY_ARG(stream), PY_ARG(value)) < 0)
        return NULL;
    return py_none(PY_HANDLE_CALL(py_handle(op), caid_timeline_signal(timeline(op)->timeline,
                                                                      stream, value, &error)));
}

static PyObject *
timeline_wait(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct handle_object *self = py_handle(op);
    uint64_t stream, value, timeout_ns;
    struct caid_error error = {0};
    PyObject *timeout;
    bool ahead;
    int r;

    if (PY_ARGS(py_handle_state(op), "wait", PY_ARG(stream), PY_ARG(value), PY_ARG(timeout),
                PY_ARG(ahead)) < 0 ||
        py_timeout_get(timeout, &timeout_ns) < 0 || !py_handle_enter(self))
        return NULL;
    r = PY_WAIT(self, caid_timeline_wait(timeline(op)->timeline, stream, value, timeout_ns,
                                         ahead ? CAID_TIMELINE_AHEAD : 0, &error));
    return py_none(py_handle_leave_with(self, r, &error));
}

static PyObject *
timeline_get_value(PyObject *op, void *Py_UNUSED(closure))
{
    uint64_t value = 0;
    int r = PY_HANDLE_CALL(py_handle(op),
                           caid_timeline_value(timeline(op)->timeline, &value, &error));

    return r < 0 ? NULL : PyLong_FromUnsignedLongLong(value);
}

/* ---- the type ---- */

static PyMethodDef timeline_methods[] = {
    {"_signal", PY_FASTCALL(timeline_signal), METH_FASTCALL,
     PyDoc_STR(
         "The timeline reaches value when the stream, 0 for the host, reaches this point.")},
    {"_wait", PY_FASTCALL(timeline_wait), METH_FASTCALL,
     PyDoc_STR("The stream, 0 for the host, waits for value.")},
    PY_HANDLE_CLOSE(
        "Closes the timeline. Idempotent. The creator's close removes the name at once; others'\n"
        "waits end when the signals under way have landed. A wait() of this object in another\n"
        "thread raises CancelledError."),
    {0},
};

static PyGetSetDef timeline_getset[] = {
    PY_HANDLE_CLOSED,
    {"value", timeline_get_value, NULL,
     PyDoc_STR(
         "int: the value that was reached; 0 before the first. UnavailableError when the\n"
         "creator has exited or closed it, and where the memory holds no valid value."),
     NULL},
    {0},
};

PY_SPEC(timeline, "caid._caid.Timeline", PY_HANDLE_FLAGS,
        "A number that only grows, in memory that processes share.", PY_HANDLE_LIFE,
        {Py_tp_methods, timeline_methods}, {Py_tp_getset, timeline_getset});
