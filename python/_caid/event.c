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

static struct event_object *
event(PyObject *op)
{
    return (struct event_object *)op;
}

static struct client_object *
client(PyObject *op)
{
    return (struct client_object *)op;
}

/* ---- life ---- */

static void
event_end(struct handle_object *self, struct caid_client *Py_UNUSED(client))
{
    struct cuda_event *ended = ((struct event_object *)self)->event;

    WITHOUT_GIL(cuda_event_free(ended));
}

static const struct handle_class event_class = {.name = "event", .end = event_end};

/* handle NULL: a new one. */
static PyObject *
event_make(struct client_object *self, int32_t device, uint32_t flags, const uint8_t *handle)
{
    _cleanup_py_ PyObject *made = py_handle_new(self->state->event_type, self, &event_class);
    struct caid_client *c = made ? py_client_enter(self) : NULL;
    struct cuda_event **ret = c ? &event(made)->event : NULL;
    struct caid_error error = {0};
    int r;

    if (!c)
        return NULL;
    event(made)->device = device;
    WITHOUT_GIL(if (handle) r = cuda_event_open(c, ret, device, handle, &error);
                else r = cuda_event_new(c, ret, device, flags, &error));
    if (r == 0)
        py_handle_begin(py_handle(made));
    py_client_leave(self);
    return r < 0 ? py_error_raise(self->state, r, &error) : py_take(&made);
}

PyObject *
py_client_event_new(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = client(op);
    int32_t device;
    uint64_t flags;

    if (py_args_check("event_new", n_args, 2) < 0 ||
        py_device_get(self->state, args[0], &device) < 0 ||
        py_u64_get(self->state, args[1], "flags", &flags) < 0)
        return NULL;
    return event_make(self, device, (uint32_t)flags, NULL);
}

static PyObject *
event_open(struct client_object *self, int32_t device, const Py_buffer *handle)
{
    if (handle->len != CUDA_EVENT_HANDLE_SIZE) {
        PyErr_Format(PyExc_ValueError, "ipc_handle: %zd bytes, not %d", handle->len,
                     CUDA_EVENT_HANDLE_SIZE);
        return NULL;
    }
    return event_make(self, device, 0, handle->buf);
}

PyObject *
py_client_event_open(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = client(op);
    PyObject *made = NULL;
    Py_buffer handle;
    int32_t device;

    if (py_args_check("event_open", n_args, 2) < 0 ||
        py_device_get(self->state, args[0], &device) < 0 ||
        PyObject_GetBuffer(args[1], &handle, PyBUF_SIMPLE) < 0)
        return NULL;
    made = event_open(self, device, &handle);
    PyBuffer_Release(&handle);
    return made;
}

/* ---- methods ---- */

/* An event and a stream. */
static PyObject *
call_on(PyObject *op, PyObject *stream_op,
        int (*f)(struct cuda_event *, uint64_t, struct caid_error *))
{
    struct event_object *self = event(op);
    struct caid_error error = {0};
    uint64_t stream;
    int r;

    if (!py_handle_enter(&self->handle))
        return NULL;
    if (py_u64_get(self->handle.client->state, stream_op, "stream", &stream) < 0) {
        py_handle_leave(&self->handle);
        return NULL;
    }
    WITHOUT_GIL(r = f(self->event, stream, &error));
    return py_none(py_handle_leave_with(&self->handle, r, &error));
}

static PyObject *
event_record(PyObject *op, PyObject *stream)
{
    return call_on(op, stream, cuda_event_record);
}

static PyObject *
event_wait(PyObject *op, PyObject *stream)
{
    return call_on(op, stream, cuda_event_wait);
}

static PyObject *
event_synchronize(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct event_object *self = event(op);
    struct caid_error error = {0};
    int r;

    if (!py_handle_enter(&self->handle))
        return NULL;
    WITHOUT_GIL(r = cuda_event_synchronize(self->event, &error));
    return py_none(py_handle_leave_with(&self->handle, r, &error));
}

static PyObject *
event_query(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct event_object *self = event(op);
    struct caid_error error = {0};
    int r;

    if (!py_handle_enter(&self->handle))
        return NULL;
    WITHOUT_GIL(r = cuda_event_query(self->event, &error));
    if (r < 0)
        return py_none(py_handle_leave_with(&self->handle, r, &error));
    py_handle_leave(&self->handle);
    return PyBool_FromLong(r);
}

static PyObject *
event_ipc_handle(PyObject *op, PyObject *Py_UNUSED(unused))
{
    struct event_object *self = event(op);
    uint8_t handle[CUDA_EVENT_HANDLE_SIZE];
    struct caid_error error = {0};
    int r;

    if (!py_handle_enter(&self->handle))
        return NULL;
    WITHOUT_GIL(r = cuda_event_ipc_handle(self->event, handle, &error));
    if (r < 0)
        return py_none(py_handle_leave_with(&self->handle, r, &error));
    py_handle_leave(&self->handle);
    return PyBytes_FromStringAndSize((const char *)handle, sizeof(handle));
}

/* ---- the type ---- */

static PyObject *
event_get_handle(PyObject *op, void *Py_UNUSED(closure))
{
    struct event_object *self = event(op);
    uint64_t handle;

    if (!py_handle_enter(&self->handle))
        return NULL;
    handle = cuda_event_handle(self->event);
    py_handle_leave(&self->handle);
    return PyLong_FromUnsignedLongLong(handle);
}

static PyMethodDef event_methods[] = {
    {"record", event_record, METH_O, PyDoc_STR("record(stream, /)\n--\n\nIt is passed there.")},
    {"wait", event_wait, METH_O, PyDoc_STR("wait(stream, /)\n--\n\nThe stream waits for it.")},
    {"synchronize", event_synchronize, METH_NOARGS,
     PyDoc_STR("synchronize()\n--\n\nThe host waits for it.")},
    {"query", event_query, METH_NOARGS,
     PyDoc_STR("query()\n--\n\nWhether what was recorded has passed.")},
    {"ipc_handle", event_ipc_handle, METH_NOARGS,
     PyDoc_STR("ipc_handle()\n--\n\nThe 64 bytes that open it elsewhere.")},
    PY_HANDLE_CLOSE,
    {0},
};

static PyGetSetDef event_getset[] = {
    {"handle", event_get_handle, NULL, PyDoc_STR("The CUevent."), NULL},
    PY_HANDLE_CLOSED,
    {0},
};

static PyMemberDef event_members[] = {
    {"device", T_INT, offsetof(struct event_object, device), READONLY,
     PyDoc_STR("Index of the device.")},
    {0},
};

PyDoc_STRVAR(event_doc, "A CUDA event without timing.");

static PyType_Slot event_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)event_doc},
    {Py_tp_new, py_tp_new},
    {Py_tp_traverse, py_handle_traverse},
    {Py_tp_clear, py_handle_clear},
    {Py_tp_dealloc, py_tp_dealloc},
    {Py_tp_methods, event_methods},
    {Py_tp_getset, event_getset},
    {Py_tp_members, event_members},
    {0, NULL},
};

PyType_Spec py_event_spec = {
    .name = "caid._caid.Event",
    .basicsize = sizeof(struct event_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = event_slots,
};
