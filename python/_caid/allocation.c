/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <errno.h>
#include <stddef.h>
#include <structmember.h>

struct allocation_object {
    PyObject_HEAD
    struct arena_object *arena; /* counts this one */
    uint64_t ptr;               /* 0: there was no memory */
    uint64_t nbytes;            /* as asked for */
    bool closed;                /* and counted no more */
    PyObject *weakrefs;
};

PY_CAST(allocation);

/* ---- life ---- */

PyObject *
py_allocation_new(struct arena_object *arena, uint64_t nbytes)
{
    PyTypeObject *type = arena->handle.client->state->allocation_type;
    struct allocation_object *self = PyObject_GC_New(struct allocation_object, type);

    if (!self)
        return NULL;
    Py_INCREF(arena);
    self->arena = arena;
    self->ptr = 0;
    self->nbytes = nbytes;
    self->closed = false;
    self->weakrefs = NULL;
    arena->n_live++;
    if (py_arena_reserve(arena, nbytes, &self->ptr) < 0)
        Py_CLEAR(self);
    else
        PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

static PyObject *
allocation_tp_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyErr_Format(PyExc_TypeError, "%s comes from Arena.allocate()", type->tp_name);
    return NULL;
}

static int
allocation_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(allocation(op)->arena);
    return 0;
}

static void
allocation_free(struct allocation_object *self)
{
    if (self->closed)
        return;
    self->closed = true;
    py_arena_release(self->arena, self->ptr);
}

/* There is no tp_clear: the collector breaks a cycle at another object, so that an Allocation
 * has its memory as long as it exists. */
static void
allocation_dealloc(PyObject *op)
{
    struct allocation_object *self = allocation(op);
    struct arena_object *arena = self->arena;
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    if (self->weakrefs)
        PyObject_ClearWeakRefs(op);
    allocation_free(self);
    PyObject_GC_Del(op);
    Py_DECREF(type);
    Py_DECREF(arena);
}

static PyObject *
allocation_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    allocation_free(allocation(op));
    Py_RETURN_NONE;
}

static PyObject *
allocation_exit(PyObject *op, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(n_args))
{
    return allocation_close(op, NULL);
}

static PyObject *
allocation_enter(PyObject *op, PyObject *Py_UNUSED(unused))
{
    Py_INCREF(op);
    return op;
}

/* ---- the type ---- */

static PyObject *
allocation_get_ptr(PyObject *op, void *Py_UNUSED(closure))
{
    const struct client_object *client = allocation(op)->arena->handle.client;

    if (py_client_check_process(client) < 0)
        return NULL;
    if (!allocation(op)->closed)
        return PyLong_FromUnsignedLongLong(allocation(op)->ptr);
    return py_error_raise_code(client->state, CAID_ERR_CLOSED, EBADF,
                               "the allocation is closed");
}

/* Python makes the dict, since the environment has settings for it. */
static PyObject *
allocation_get_interface(PyObject *op, void *closure)
{
    _cleanup_py_ PyObject *ptr = allocation_get_ptr(op, closure);
    _cleanup_py_ PyObject *module = ptr ? PyImport_ImportModule("caid._memory._export") : NULL;

    return module ? PyObject_CallMethod(module, "bytes_at", "OK", ptr,
                                        (unsigned long long)allocation(op)->nbytes)
                  : NULL;
}

static PyObject *
allocation_repr(PyObject *op)
{
    char text[96];

    snprintf(text, sizeof(text), "<caid.Allocation %#llx nbytes=%llu%s>",
             (unsigned long long)allocation(op)->ptr,
             (unsigned long long)allocation(op)->nbytes,
             allocation(op)->closed ? " closed" : "");
    return PyUnicode_FromString(text);
}

static PyObject *
allocation_reduce(PyObject *op, PyObject *Py_UNUSED(unused))
{
    PyErr_Format(PyExc_TypeError, "a %s cannot be copied or pickled: publish it",
                 Py_TYPE(op)->tp_name);
    return NULL;
}

static PyMethodDef allocation_methods[] = {
    {"close", allocation_close, METH_NOARGS,
     PyDoc_STR(
         "close()\n--\n\nFrees the memory now. Idempotent. Its address may not be used any "
         "more.")},
    {"__enter__", allocation_enter, METH_NOARGS, NULL},
    {"__exit__", PY_FASTCALL(allocation_exit), METH_FASTCALL, NULL},
    {"__reduce__", allocation_reduce, METH_NOARGS, NULL},
    {0},
};

static PyGetSetDef allocation_getset[] = {
    {"ptr", allocation_get_ptr, NULL,
     PyDoc_STR("int: its device address. UnavailableError after close()."), NULL},
    {"__cuda_array_interface__", allocation_get_interface, NULL,
     PyDoc_STR("dict: the CUDA Array Interface, of one dimension of bytes (\"|u1\").\n\n"
               "The dict keeps nothing alive: its user keeps the allocation."),
     NULL},
    {0},
};

#define AT(field) offsetof(struct allocation_object, field)

static PyMemberDef allocation_members[] = {
    {"nbytes", T_ULONGLONG, AT(nbytes), READONLY, PyDoc_STR("int: bytes, as asked for.")},
    {"closed", T_BOOL, AT(closed), READONLY,
     PyDoc_STR("bool: whether it was freed by close().")},
    {"__weaklistoffset__", T_PYSSIZET, AT(weakrefs), READONLY, NULL},
    {0},
};

PY_SPEC(
    allocation, "caid.Allocation", Py_TPFLAGS_HAVE_GC,
    "Memory of a device: what :meth:`caid.Arena.allocate` gives.\n\n"
    "It is freed by close(), by leaving its ``with`` block, or when the object is collected, in any "
    "thread.\nThe memory is reused when all work is done that the device's primary context had "
    "at that time.",
    {Py_tp_new, allocation_tp_new}, {Py_tp_traverse, allocation_traverse},
    {Py_tp_dealloc, allocation_dealloc}, {Py_tp_repr, allocation_repr},
    {Py_tp_methods, allocation_methods}, {Py_tp_getset, allocation_getset},
    {Py_tp_members, allocation_members});
