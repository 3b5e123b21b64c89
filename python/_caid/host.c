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
    void *data; /* NULL: there is none */
    Py_ssize_t nbytes;
    int32_t device;
    uint64_t device_ptr; /* 0: not mapped for the device */
};

PY_CAST(host_memory);

/* ---- making one ---- */

static PyObject *
host_memory_new(struct client_object *client, int32_t device, Py_ssize_t nbytes, uint32_t flags)
{
    PyTypeObject *type = client->state->host_memory_type;
    _cleanup_py_ PyObject *op = type->tp_alloc(type, 0);
    struct host_memory_object *self = host_memory(op);

    if (!op)
        return NULL;
    Py_INCREF(client);
    self->client = client;
    self->device = device;
    self->nbytes = nbytes;
    if (PY_CLIENT_CALL(client, cuda_host_alloc(c, device, (size_t)nbytes, flags, &self->data,
                                               &self->device_ptr, &error)) < 0)
        return NULL;
    return py_take(&op);
}

PyObject *
py_client_host_alloc(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    uint64_t nbytes;
    uint32_t flags;
    int32_t device;

    if (PY_ARGS(self->state, "host_alloc", PY_ARG(device), PY_ARG(nbytes), PY_ARG(flags)) < 0)
        return NULL;
    if (nbytes > PY_SSIZE_T_MAX)
        return PyErr_NoMemory();
    return host_memory_new(self, device, (Py_ssize_t)nbytes, flags);
}

/* ---- its end ---- */

/* Errors are dropped. In a forked child the memory is the parent's, and is not freed. */
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

PY_SPEC(host_memory, "caid._caid.HostMemory", 0,
        "Page-locked memory of this process, as a buffer.", {Py_tp_new, py_tp_new},
        {Py_tp_dealloc, host_memory_dealloc}, {Py_tp_members, host_memory_members},
        {Py_bf_getbuffer, host_memory_getbuffer});

/* ---- memory of others ---- */

PyObject *
py_client_host_register(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    uint64_t ptr, nbytes, device_ptr = 0;
    uint32_t flags;
    int32_t device;

    if (PY_ARGS(self->state, "host_register", PY_ARG(device), PY_ARG(ptr), PY_ARG(nbytes),
                PY_ARG(flags)) < 0 ||
        PY_CLIENT_CALL(self, cuda_host_register(c, device, (void *)(uintptr_t)ptr, nbytes,
                                                flags, &device_ptr, &error)) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(device_ptr);
}

PyObject *
py_client_host_unregister(PyObject *op, PyObject *const *args, Py_ssize_t n_args)
{
    struct client_object *self = py_client(op);
    int32_t device;
    uint64_t ptr;

    if (PY_ARGS(self->state, "host_unregister", PY_ARG(device), PY_ARG(ptr)) < 0)
        return NULL;
    return py_none(
        PY_CLIENT_CALL(self, cuda_host_unregister(c, device, (void *)(uintptr_t)ptr, &error)));
}
