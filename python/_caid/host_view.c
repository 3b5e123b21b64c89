/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HostView: a range of an array as a buffer, where the host can reach the memory. Whoever looks
 * at the memory through it (a NumPy array has it as its base) keeps it alive, and it keeps a
 * share of the lease: the range stays mapped, and is nobody else's, for as long as it is seen.
 */
#include "module.h"

struct host_view_object {
    PyObject_HEAD
    struct lease_object *lease; /* NULL only after tp_clear */
    void *data;
    Py_ssize_t nbytes;
    bool readonly;
};

static struct host_view_object *
host_view(PyObject *op)
{
    return (struct host_view_object *)op;
}

PyObject *
py_host_view_new(struct lease_object *lease, uint64_t offset, uint64_t nbytes, bool readonly)
{
    static char nothing; /* a buffer of no bytes has an address, too */
    PyTypeObject *type = lease->client->state->host_view_type;
    struct host_view_object *self = host_view(type->tp_alloc(type, 0));

    if (!self)
        return NULL;
    Py_INCREF(lease);
    py_lease_view_begin(lease);
    self->lease = lease;
    self->data = nbytes > 0 ? (void *)(lease->host + offset) : &nothing;
    self->nbytes = (Py_ssize_t)nbytes;
    self->readonly = readonly;
    return (PyObject *)self;
}

static int
host_view_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    struct host_view_object *self = host_view(op);

    return PyBuffer_FillInfo(view, op, self->data, self->nbytes, self->readonly, flags);
}

static PyObject *
host_view_tp_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyErr_Format(PyExc_TypeError, "%s comes from Lease.host_view()", type->tp_name);
    return NULL;
}

static int
host_view_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(host_view(op)->lease);
    return 0;
}

static int
host_view_clear(PyObject *op)
{
    struct host_view_object *self = host_view(op);

    if (self->lease)
        py_lease_view_end(self->lease);
    Py_CLEAR(self->lease);
    return 0;
}

static void
host_view_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    host_view_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

PyDoc_STRVAR(host_view_doc, "Array memory that the host can reach, as a buffer.");

static PyType_Slot host_view_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)host_view_doc},
    {Py_tp_new, host_view_tp_new},
    {Py_tp_traverse, host_view_traverse},
    {Py_tp_clear, host_view_clear},
    {Py_tp_dealloc, host_view_dealloc},
    {Py_bf_getbuffer, host_view_getbuffer},
    {0, NULL},
};

PyType_Spec py_host_view_spec = {
    .name = "caid._caid.HostView",
    .basicsize = sizeof(struct host_view_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = host_view_slots,
};
