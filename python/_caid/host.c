/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HostMemory: page-locked memory of this process, as a buffer. Made by Client._host_alloc(), which
 * asks no daemon; freed with the object. Whoever looks at it (a NumPy array has it as its base)
 * keeps it alive, and it keeps its Client, which is one of the driver alone and is never closed.
 *
 * Here are also the calls that page-lock memory of others; the caller undoes them.
 */
#include "module.h"

#include <stddef.h>
#include <structmember.h>

struct host_memory_object {
    PyObject_HEAD
    struct client_object *client;
    void *data; /* NULL: never made */
    Py_ssize_t nbytes;
    int32_t device;
    uint64_t device_ptr; /* 0: the device was not to reach it */
};

static struct host_memory_object *
host_memory(PyObject *op)
{
    return (struct host_memory_object *)op;
}

static struct client_object *
client(PyObject *op)
{
    return (struct client_object *)op;
}

/* ---- making one ---- */

static int
host_memory_make(struct host_memory_object *self, uint32_t flags)
{
    struct caid_client *c = py_client_enter(self->client);
    struct caid_error error = {0};
    int r;

    if (!c)
        return -1;
    WITHOUT_GIL(r = cuda_host_alloc(c, self->device, (size_t)self->nbytes, flags, &self->data,
                                    &self->device_ptr, &error));
    py_client_leave(self->client);
    if (r < 0)
        py_error_raise(self->client->state, r, &error);
    return r;
}

static PyObject *
host_memory_new(struct client_object *client, int32_t device, Py_ssize_t nbytes, uint32_t flags)
{
    PyTypeObject *type = client->state->host_memory_type;
    _cleanup_py_ PyObject *op = type->tp_alloc(type, 0);

    if (!op)
        return NULL;
    Py_INCREF(client);
    host_memory(op)->client = client;
    host_memory(op)->device = device;
    host_memory(op)->nbytes = nbytes;
    return host_memory_make(host_memory(op), flags) < 0 ? NULL : py_take(&op);
}

PyObject *
py_client_host_alloc(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = client(op);
    uint64_t nbytes, flags;
    int32_t device;

    if (py_args_check("host_alloc", n_args, 3) < 0 ||
        py_device_get(self->state, args[0], &device) < 0 ||
        py_u64_get(self->state, args[1], "nbytes", &nbytes) < 0 ||
        py_u64_get(self->state, args[2], "flags", &flags) < 0)
        return NULL;
    if (nbytes > PY_SSIZE_T_MAX)
        return PyErr_NoMemory();
    return host_memory_new(self, device, (Py_ssize_t)nbytes, (uint32_t)flags);
}

static PyObject *
host_memory_tp_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyErr_Format(PyExc_TypeError, "%s comes from Client._host_alloc()", type->tp_name);
    return NULL;
}

/* ---- its end ---- */

/* There is nobody to raise to. In a forked child the memory is the parent's: left alone. */
static void
host_memory_free(struct host_memory_object *self)
{
    struct caid_client *c = self->client->client;
    struct caid_error error = {0};
    PyObject *type, *value, *traceback;
    int r;

    if (!self->data || !c)
        return;
    PyErr_Fetch(&type, &value, &traceback);
    WITHOUT_GIL(r = cuda_host_free(c, self->device, self->data, &error));
    if (r < 0 && error.code != CAID_ERR_FORKED) {
        py_error_raise(self->client->state, r, &error);
        PyErr_WriteUnraisable(NULL);
    }
    PyErr_Restore(type, value, traceback);
}

static void
host_memory_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    if (host_memory(op)->client)
        host_memory_free(host_memory(op));
    Py_XDECREF(host_memory(op)->client);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- the type ---- */

static int
host_memory_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    struct host_memory_object *self = host_memory(op);

    return PyBuffer_FillInfo(view, op, self->data, self->nbytes, false, flags);
}

#define AT(field) offsetof(struct host_memory_object, field)

static PyMemberDef host_memory_members[] = {
    {"nbytes", T_PYSSIZET, AT(nbytes), READONLY, NULL},
    {"device_ptr", T_ULONGLONG, AT(device_ptr), READONLY, NULL},
    {0},
};

PyDoc_STRVAR(host_memory_doc, "Page-locked memory of this process, as a buffer.");

static PyType_Slot host_memory_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)host_memory_doc},
    {Py_tp_new, host_memory_tp_new},
    {Py_tp_dealloc, host_memory_dealloc},
    {Py_tp_members, host_memory_members},
    {Py_bf_getbuffer, host_memory_getbuffer},
    {0, NULL},
};

PyType_Spec py_host_memory_spec = {
    .name = "caid._caid.HostMemory",
    .basicsize = sizeof(struct host_memory_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = host_memory_slots,
};

/* ---- memory of others ---- */

PyObject *
py_client_host_register(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = client(op);
    uint64_t ptr, nbytes, flags, device_ptr = 0;
    struct caid_error error = {0};
    struct caid_client *c;
    int32_t device;
    int r;

    if (py_args_check("host_register", n_args, 4) < 0 ||
        py_device_get(self->state, args[0], &device) < 0 ||
        py_u64_get(self->state, args[1], "ptr", &ptr) < 0 ||
        py_u64_get(self->state, args[2], "nbytes", &nbytes) < 0 ||
        py_u64_get(self->state, args[3], "flags", &flags) < 0)
        return NULL;
    c = py_client_enter(self);
    if (!c)
        return NULL;
    WITHOUT_GIL(r = cuda_host_register(c, device, (void *)(uintptr_t)ptr, nbytes,
                                       (uint32_t)flags, &device_ptr, &error));
    py_client_leave(self);
    if (r < 0)
        return py_error_raise(self->state, r, &error);
    return PyLong_FromUnsignedLongLong(device_ptr);
}

PyObject *
py_client_host_unregister(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = client(op);
    struct caid_error error = {0};
    struct caid_client *c;
    int32_t device;
    uint64_t ptr;
    int r;

    if (py_args_check("host_unregister", n_args, 2) < 0 ||
        py_device_get(self->state, args[0], &device) < 0 ||
        py_u64_get(self->state, args[1], "ptr", &ptr) < 0)
        return NULL;
    c = py_client_enter(self);
    if (!c)
        return NULL;
    WITHOUT_GIL(r = cuda_host_unregister(c, device, (void *)(uintptr_t)ptr, &error));
    py_client_leave(self);
    if (r < 0)
        return py_error_raise(self->state, r, &error);
    Py_RETURN_NONE;
}
