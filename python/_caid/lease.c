/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lease: one array that a client holds. It has shares: the Array that it was made for, every
 * view, every copy under way and every HostView has one, and it ends (the daemon is told, the
 * memory unmapped) when the last is given up, or with the object. It holds its Client alive. A
 * Client that was closed has closed its leases: the memory stays mapped for HostViews, but the
 * daemon may give it to others, so nothing more is read or written through the Lease.
 */
#include "module.h"

#include <errno.h>
#include <stddef.h>
#include <structmember.h>

static struct lease_object *
lease(PyObject *op)
{
    return (struct lease_object *)op;
}

bool
py_lease_is_closed(const struct lease_object *self)
{
    return !self->array || !self->client || py_client_is_closed(self->client);
}

static void
lease_end(struct lease_object *self)
{
    struct caid_array *ended = self->array;

    self->array = NULL;
    if (ended) {
        Py_BEGIN_ALLOW_THREADS caid_array_close(ended);
        Py_END_ALLOW_THREADS
    }
}

void
py_lease_drop(struct lease_object *self)
{
    if (self->n_shares > 0 && --self->n_shares == 0)
        lease_end(self);
}

/* ---- making one ---- */

/* Bytes from the first element to the end of the last; strides of arrays are not negative. */
static uint64_t
info_span(const struct caid_array_info *info)
{
    uint64_t span = info->itemsize;

    if (info->nbytes == 0)
        return 0;
    for (uint32_t i = 0; i < info->ndim; i++)
        span += (uint64_t)(info->shape[i] - 1) * (uint64_t)info->strides[i];
    return span;
}

static int
lease_fill(struct lease_object *self, const struct caid_array_info *info)
{
    self->span = info_span(info);
    self->ptr = info->ptr;
    self->nbytes = info->nbytes;
    self->itemsize = info->itemsize;
    self->generation = info->generation;
    self->block = info->block;
    self->offset = info->offset;
    self->device = info->device;
    self->readonly = info->readonly;
    self->shape = py_dims_tuple(info->shape, info->ndim);
    self->strides = py_dims_tuple(info->strides, info->ndim);
    self->typestr = py_text_or_none(info->typestr);
    self->descr = py_text_or_none(info->descr);
    self->name = py_text_or_none(info->name);
    self->pool = py_text_or_none(info->pool);
    if (!self->shape || !self->strides || !self->typestr || !self->descr || !self->name ||
        !self->pool)
        return -1;
    return 0;
}

PyObject *
py_lease_new(struct client_object *client, struct caid_array *array)
{
    PyTypeObject *type = client->state->lease_type;
    _cleanup_py_ PyObject *op = type->tp_alloc(type, 0);

    if (!op) {
        Py_BEGIN_ALLOW_THREADS caid_array_close(array);
        Py_END_ALLOW_THREADS return NULL;
    }
    Py_INCREF(client);
    lease(op)->client = client;
    lease(op)->array = array;
    lease(op)->n_shares = 1;
    if (lease_fill(lease(op), caid_array_get_info(array)) < 0)
        return NULL;
    return py_take(&op);
}

static PyObject *
lease_tp_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyErr_Format(PyExc_TypeError, "%s comes from Client.create() or Client.open()",
                 type->tp_name);
    return NULL;
}

static int
lease_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(lease(op)->client);
    return 0;
}

static int
lease_clear(PyObject *op)
{
    lease_end(lease(op));
    Py_CLEAR(lease(op)->client);
    return 0;
}

static void
lease_dealloc(PyObject *op)
{
    struct lease_object *self = lease(op);
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    lease_clear(op);
    Py_XDECREF(self->shape);
    Py_XDECREF(self->strides);
    Py_XDECREF(self->typestr);
    Py_XDECREF(self->descr);
    Py_XDECREF(self->name);
    Py_XDECREF(self->pool);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- methods ---- */

static int
lease_check(const struct lease_object *self)
{
    if (!py_lease_is_closed(self))
        return 0;
    if (self->client)
        py_error_raise_code(self->client->state, CAID_ERR_CLOSED, EBADF,
                            self->name == Py_None ? "the array is closed"
                                                  : "the array %R is closed",
                            self->name);
    else
        PyErr_SetString(PyExc_ReferenceError, "the array was collected");
    return -1;
}

static PyObject *
lease_share(PyObject *op, PyObject *Py_UNUSED(unused))
{
    if (lease_check(lease(op)) < 0)
        return NULL;
    lease(op)->n_shares++;
    Py_INCREF(op);
    return op;
}

static PyObject *
lease_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    py_lease_drop(lease(op));
    Py_RETURN_NONE;
}

static PyObject *
lease_host_view(PyObject *op, PyObject *args)
{
    struct lease_object *self = lease(op);
    unsigned long long offset, nbytes;
    int readonly;

    if (!PyArg_ParseTuple(args, "KKp:host_view", &offset, &nbytes, &readonly) ||
        lease_check(self) < 0)
        return NULL;
    if (offset > self->span || nbytes > self->span - offset) {
        PyErr_Format(PyExc_ValueError, "host_view: [%llu, +%llu) leaves the %llu bytes", offset,
                     nbytes, (unsigned long long)self->span);
        return NULL;
    }
    return py_host_view_new(self, offset, nbytes, readonly || self->readonly);
}

static PyObject *
lease_get_closed(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(py_lease_is_closed(lease(op)));
}

static PyObject *
lease_get_ptr(PyObject *op, void *Py_UNUSED(closure))
{
    if (lease_check(lease(op)) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(lease(op)->ptr);
}

static PyMethodDef lease_methods[] = {
    {"share", lease_share, METH_NOARGS,
     PyDoc_STR("share()\n--\n\nOne share more, to be given up by close(). Returns self.")},
    {"close", lease_close, METH_NOARGS,
     PyDoc_STR("close()\n--\n\nGives a share up; the last one ends the lease.")},
    {"host_view", lease_host_view, METH_VARARGS,
     PyDoc_STR("host_view(offset, nbytes, readonly, /)\n--\n\n"
               "Memory that the host can reach (the software driver's) as a buffer.")},
    {0},
};

static PyGetSetDef lease_getset[] = {
    {"closed", lease_get_closed, NULL, PyDoc_STR("Whether the lease, or its client, ended."),
     NULL},
    {"ptr", lease_get_ptr, NULL, PyDoc_STR("Device address of the first element."), NULL},
    {0},
};

#define AT(field) offsetof(struct lease_object, field)

static PyMemberDef lease_members[] = {
    {"client", T_OBJECT_EX, AT(client), READONLY, NULL},
    {"nbytes", T_ULONGLONG, AT(nbytes), READONLY, NULL},
    {"itemsize", T_ULONGLONG, AT(itemsize), READONLY, NULL},
    {"generation", T_ULONGLONG, AT(generation), READONLY, NULL},
    {"block", T_ULONGLONG, AT(block), READONLY, NULL},
    {"offset", T_ULONGLONG, AT(offset), READONLY, NULL},
    {"device", T_INT, AT(device), READONLY, NULL},
    {"readonly", T_BOOL, AT(readonly), READONLY, NULL},
    {"shape", T_OBJECT_EX, AT(shape), READONLY, NULL},
    {"strides", T_OBJECT_EX, AT(strides), READONLY, NULL},
    {"typestr", T_OBJECT_EX, AT(typestr), READONLY, NULL},
    {"descr", T_OBJECT_EX, AT(descr), READONLY, NULL},
    {"name", T_OBJECT_EX, AT(name), READONLY, NULL},
    {"pool", T_OBJECT_EX, AT(pool), READONLY, NULL},
    {0},
};

PyDoc_STRVAR(lease_doc, "An array that a client holds.");

static PyType_Slot lease_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)lease_doc},
    {Py_tp_new, lease_tp_new},
    {Py_tp_traverse, lease_traverse},
    {Py_tp_clear, lease_clear},
    {Py_tp_dealloc, lease_dealloc},
    {Py_tp_methods, lease_methods},
    {Py_tp_getset, lease_getset},
    {Py_tp_members, lease_members},
    {0, NULL},
};

PyType_Spec py_lease_spec = {
    .name = "caid._caid.Lease",
    .basicsize = sizeof(struct lease_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = lease_slots,
};
