/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event: one struct cuda_event, of this process (Client._event_new()) or of another
 * (Client._event_open()). Freed with the object; what waits for it on a stream goes on waiting.
 */
#include "handle.h"

#include <stddef.h>
#include <structmember.h>

struct event_object {
    struct handle_object handle;
    struct cuda_event *event;
    int32_t device;
};

PY_CAST(event);

/* ---- life ---- */

static void
event_end(struct handle_object *self, struct caid_client *Py_UNUSED(client))
{
    struct cuda_event *ended = ((struct event_object *)self)->event;

    ((struct event_object *)self)->event = NULL;
    WITHOUT_GIL(cuda_event_free(ended));
}

static const struct handle_class event_class = {.name = "event", .end = event_end};

static PyObject *
event_of(PyObject *made, int32_t device)
{
    if (made)
        event(made)->device = device;
    return made;
}

PyObject *
py_client_event_new(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    int32_t device;
    uint32_t flags;

    if (PY_ARGS(self->state, "event_new", PY_ARG(device), PY_ARG(flags)) < 0)
        return NULL;
    return event_of(PY_HANDLE_MAKE(self, event,
                                   cuda_event_new(c, &event(made)->event, device, flags,
                                                  &error)),
                    device);
}

static PyObject *
event_open(struct client_object *self, int32_t device, const Py_buffer *handle)
{
    if (handle->len != CUDA_EVENT_HANDLE_SIZE)
        return PyErr_Format(PyExc_ValueError, "ipc_handle: %zd bytes, not %d", handle->len,
                            CUDA_EVENT_HANDLE_SIZE);
    return event_of(PY_HANDLE_MAKE(self, event,
                                   cuda_event_open(c, &event(made)->event, device, handle->buf,
                                                   &error)),
                    device);
}

PyObject *
py_client_event_open(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    PyObject *ipc_handle, *made = NULL;
    Py_buffer handle;
    int32_t device;

    if (PY_ARGS(self->state, "event_open", PY_ARG(device), PY_ARG(ipc_handle)) < 0 ||
        PyObject_GetBuffer(ipc_handle, &handle, PyBUF_SIMPLE) < 0)
        return NULL;
    made = event_open(self, device, &handle);
    PyBuffer_Release(&handle);
    return made;
}

/* ---- methods ---- */

/* Defines a method that calls libcaid with the event and a stream. */
#define EVENT_CALL(name)                                                                     \
    static PyObject *event_##name(PyObject *op, PyObject *stream_op)                         \
    {                                                                                        \
        uint64_t stream;                                                                     \
        if (py_u64_get(py_handle_state(op), stream_op, "stream", &stream) < 0)               \
            return NULL;                                                                     \
        return py_none(PY_HANDLE_CALL(py_handle(op),                                         \
                                      cuda_event_##name(event(op)->event, stream, &error))); \
    }

EVENT_CALL(record)
EVENT_CALL(wait)

static PyObject *
event_synchronize(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return py_none(
        PY_HANDLE_CALL(py_handle(op), cuda_event_synchronize(event(op)->event, &error)));
}

static PyObject *
event_query(PyObject *op, PyObject *Py_UNUSED(unused))
{
    int r = PY_HANDLE_CALL(py_handle(op), cuda_event_query(event(op)->event, &error));

    return r < 0 ? NULL : PyBool_FromLong(r);
}

static PyObject *
event_elapsed(PyObject *op, PyObject *end_op)
{
    float ms;

    if (!PyObject_TypeCheck(end_op, py_handle_state(op)->event_type))
        return PyErr_Format(PyExc_TypeError, "a caid.Event is needed, not %s",
                            Py_TYPE(end_op)->tp_name);
    if (!py_handle_enter(py_handle(end_op)))
        return NULL;
    int r =
        PY_HANDLE_CALL(py_handle(op),
                       cuda_event_elapsed(event(op)->event, event(end_op)->event, &ms, &error));
    py_handle_leave(py_handle(end_op));
    return r < 0 ? NULL : PyFloat_FromDouble((double)ms);
}

static PyObject *
event_get_ipc_handle(PyObject *op, void *Py_UNUSED(closure))
{
    uint8_t handle[CUDA_EVENT_HANDLE_SIZE];
    int r =
        PY_HANDLE_CALL(py_handle(op), cuda_event_ipc_handle(event(op)->event, handle, &error));

    return r < 0 ? NULL : PyBytes_FromStringAndSize((const char *)handle, sizeof(handle));
}

/* ---- the type ---- */

static PyObject *
event_get_number(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(cuda_event_handle(event(op)->event));
}

static PyObject *
event_get_handle(PyObject *op, void *closure)
{
    PyObject *number;

    if (!py_handle_enter(py_handle(op)))
        return NULL;
    number = event_get_number(op, closure);
    py_handle_leave(py_handle(op));
    return number;
}

static PyMethodDef event_methods[] = {
    {"_record", event_record, METH_O, PyDoc_STR("Records it on a stream.")},
    {"_wait", event_wait, METH_O, PyDoc_STR("Has a stream wait for it.")},
    {"_synchronize", event_synchronize, METH_NOARGS, PyDoc_STR("Waits for it on the host.")},
    {"_elapsed", event_elapsed, METH_O, PyDoc_STR("Milliseconds from it to another.")},
    {"query", event_query, METH_NOARGS,
     PyDoc_STR(
         "query()\n--\n\nWhether the event has passed, as one that was never recorded has. "
         "Raises DriverError.")},
    PY_HANDLE_CLOSE("Ends the event. Idempotent."),
    {0},
};

static PyGetSetDef event_getset[] = {
    {"_number", event_get_number, NULL, PyDoc_STR("The CUevent, also in a forked child."),
     NULL},
    {"handle", event_get_handle, NULL,
     PyDoc_STR("int: the CUevent. UnavailableError of one that is closed."), NULL},
    {"ipc_handle", event_get_ipc_handle, NULL,
     PyDoc_STR("bytes: 64, by which another process of the same uid opens the event. "
               "UnavailableError:\nit was created without ``ipc=True``, or is of another "
               "process."),
     NULL},
    PY_HANDLE_CLOSED,
    {0},
};

static PyMemberDef event_members[] = {
    {"device", T_INT, offsetof(struct event_object, device), READONLY,
     PyDoc_STR("int: index of its device.")},
    {0},
};

PY_SPEC(event, "caid._caid.Event", PY_HANDLE_FLAGS, "A CUDA event.", PY_HANDLE_LIFE,
        {Py_tp_methods, event_methods}, {Py_tp_getset, event_getset},
        {Py_tp_members, event_members});
