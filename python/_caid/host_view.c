/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HostView: a range of an array as a buffer, where the host can reach the memory. Its consumer (a
 * NumPy array has it as its base) keeps it alive, and it has a share of the lease: so the range
 * stays mapped, and is given to nobody else, as long as the consumer lives.
 */
#include "module.h"

struct host_view_object {
    PyObject_HEAD
    struct lease_object *lease; /* NULL only after tp_clear */
    void *data;
    Py_ssize_t nbytes;
    bool readonly;
};

PY_CAST(host_view);

PyObject *
py_host_view_new(struct lease_object *lease, uintptr_t at, uint64_t nbytes, bool readonly)
{
    static char nothing; /* the address of a buffer of no bytes */
    PyTypeObject *type = lease->client->state->host_view_type;
    struct host_view_object *self = host_view(type->tp_alloc(type, 0));

    if (!self)
        return NULL;
    Py_INCREF(lease);
    py_lease_view_begin(lease);
    self->lease = lease;
    self->data = nbytes > 0 ? (void *)at : &nothing;
    self->nbytes = (Py_ssize_t)nbytes;
    self->readonly = readonly;
    return (PyObject *)self;
}

static int
host_view_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    struct host_view_object *self = host_view(op);

    if (self->lease && py_client_check_process(self->lease->client) < 0)
        return -1;
    return PyBuffer_FillInfo(view, op, self->data, self->nbytes, self->readonly, flags);
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

PY_SPEC(host_view, "caid._caid.HostView", Py_TPFLAGS_HAVE_GC,
        "Array memory that the host can reach, as a buffer.", {Py_tp_new, py_tp_new},
        {Py_tp_traverse, host_view_traverse}, {Py_tp_clear, host_view_clear},
        {Py_tp_dealloc, py_tp_dealloc}, {Py_bf_getbuffer, host_view_getbuffer});
