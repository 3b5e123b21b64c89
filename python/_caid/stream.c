/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream: a CUDA stream. Client._stream_new() creates one, which is destroyed at the object's end;
 * Client._stream_wrap() wraps one of another library, which is not destroyed. Waits and callbacks
 * that are on a destroyed stream still happen: the driver lets its work finish.
 */
#include "handle.h"

#include <stddef.h>
#include <structmember.h>

PY_CAST(stream);

/* ---- life ---- */

/* Errors are dropped: a stream whose context has ended is gone with it. */
static void
stream_destroy(struct handle_object *self, struct caid_client *c)
{
    uint64_t ended = ((struct stream_object *)self)->stream;
    struct caid_error error = {0};

    WITHOUT_GIL((void)caid_stream_destroy(c, ended, &error));
}

static void
stream_leave(struct handle_object *Py_UNUSED(self), struct caid_client *Py_UNUSED(client))
{
}

static const struct handle_class stream_class = {"stream", true, stream_destroy};
static const struct handle_class wrapped = {"stream", true, stream_leave};

PyObject *
py_client_stream_new(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    PyObject *op_made;
    uint32_t flags;
    int32_t device;

    if (PY_ARGS(self->state, "stream_new", PY_ARG(device), PY_ARG(flags)) < 0)
        return NULL;
    op_made =
        PY_HANDLE_MAKE(self, stream,
                       caid_stream_create(c, device, flags, &stream(made)->stream, &error));
    if (op_made)
        stream(op_made)->device = device;
    return op_made;
}

PyObject *
py_client_stream_wrap(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    _cleanup_py_ PyObject *made = NULL;
    uint64_t handle;
    int32_t device;

    if (PY_ARGS(self->state, "stream_wrap", PY_ARG(handle), PY_ARG(device)) < 0)
        return NULL;
    made = py_handle_new(self->state->stream_type, self, &wrapped);
    if (!made || !py_client_enter(self))
        return NULL;
    stream(made)->stream = handle;
    stream(made)->device = device;
    py_handle_begin(py_handle(made));
    py_client_leave(self);
    return py_take(&made);
}

/* ---- methods ---- */

typedef int stream_call(struct caid_client *client, uint64_t stream, int32_t device,
                        struct caid_error *error);

/* Returns what the call returned, or -1 with an exception set. */
static int
call(PyObject *op, stream_call *f)
{
    struct stream_object *self = stream(op);
    int r = PY_HANDLE_CALL(&self->handle, f(c, self->stream, self->device, &error));

    if (self->handle.client)
        py_callbacks_drop(self->handle.client->state);
    return r;
}

static PyObject *
stream_synchronize(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(call(op, caid_stream_synchronize));
}

static PyObject *
stream_check(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(call(op, caid_stream_check));
}

static PyObject *
stream_query(PyObject *op, PyObject *Py_UNUSED(unused))
{
    int r = call(op, cuda_stream_query);

    return r < 0 ? NULL : PyBool_FromLong(r);
}

static PyObject *
stream_add_callback(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    PyObject *fn, *arg;

    if (PY_ARGS(py_handle_state(op), "add_callback", PY_ARG(fn), PY_ARG(arg)) < 0)
        return NULL;
    return py_callback_add(stream(op), fn, arg);
}

/* Holds the stream for longer than a call, until _release(). */
static PyObject *
stream_hold(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(py_handle_hold(py_handle(op)));
}

static PyObject *
stream_release(PyObject *op, PyObject *Py_UNUSED(unused))
{
    py_handle_release(py_handle(op));
    Py_RETURN_NONE;
}

/* ---- the type ---- */

static PyMethodDef stream_methods[] = {
    {"_synchronize", stream_synchronize, METH_NOARGS,
     PyDoc_STR("Waits for all that is on it, and checks it.")},
    {"_query", stream_query, METH_NOARGS, PyDoc_STR("Whether nothing is left.")},
    {"check", stream_check, METH_NOARGS,
     PyDoc_STR("check()\n--\n\nRaises AbandonedError where synchronize() would, as far as is "
               "known by now, without waiting.")},
    {"_add_callback", PY_FASTCALL(stream_add_callback), METH_FASTCALL,
     PyDoc_STR("Has fn(self, status, arg) called when the stream reaches this point.")},
    {"_sync_change", py_sync_change_on, METH_VARARGS,
     PyDoc_STR("sync_change(), when the stream reaches this point.")},
    {"_hold", stream_hold, METH_NOARGS,
     PyDoc_STR("Until _release() only its client's end ends the stream.")},
    {"_release", stream_release, METH_NOARGS, PyDoc_STR("Undoes one _hold().")},
    PY_HANDLE_CLOSE(
        "Destroys the stream, if caid has created it. Idempotent. Waits for nothing: its work "
        "is still done,\nan open bracket on it still ends there, and it lives on as long as an "
        "array is bound to it."),
    {0},
};

static PyObject *
stream_get_handle(PyObject *op, void *Py_UNUSED(closure))
{
    if (!py_handle_enter(py_handle(op)))
        return NULL;
    py_handle_leave(py_handle(op));
    return PyLong_FromUnsignedLongLong(stream(op)->stream);
}

static PyObject *
stream_get_ended(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(!py_handle(op)->link.le_prev);
}

static PyGetSetDef stream_getset[] = {
    PY_HANDLE_CLOSED,
    {"handle", stream_get_handle, NULL,
     PyDoc_STR("int: the CUstream; 1 and 2 are the default streams."), NULL},
    {"ptr", stream_get_handle, NULL, PyDoc_STR("int: the same as `handle`; CuPy's word."),
     NULL},
    {"_ended", stream_get_ended, NULL,
     PyDoc_STR("Whether it is gone: while it is held, and a bracket is open on it, close() "
               "leaves it."),
     NULL},
    {0},
};

static PyMemberDef stream_members[] = {
    {"_number", T_ULONGLONG, offsetof(struct stream_object, stream), READONLY,
     PyDoc_STR("The CUstream, also of one that is closed.")},
    {"device", T_INT, offsetof(struct stream_object, device), READONLY,
     PyDoc_STR("int: index of its device, as it was said when it was made.")},
    {0},
};

PY_SPEC(stream, "caid._caid.Stream", PY_HANDLE_FLAGS, "A CUDA stream.", PY_HANDLE_LIFE,
        {Py_tp_methods, stream_methods}, {Py_tp_getset, stream_getset},
        {Py_tp_members, stream_members});
